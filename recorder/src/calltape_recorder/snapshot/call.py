"""A recorded call on its way from the host to the tape: the copies of its two sides.

The host side fills it in while the call runs; the writer reads it when the call has ended. What a
generator yields comes in chunk by chunk, each as a :class:`Side` that was copied when it was
yielded, and becomes one output that is a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from calltape_recorder.bounds import MAX_CHUNKS, MAX_TEXT_BYTES, MAX_TREE_NODES
from calltape_recorder.capture.scalars import text_bytes
from calltape_recorder.capture.structures import Structure, Structures, Wanted, spelled_out
from calltape_recorder.capture.walk import Walked, capture_output
from calltape_recorder.snapshot.buffers import SideCopies
from calltape_recorder.snapshot.copies import pieces_of
from calltape_recorder.snapshot.facts import Alias
from calltape_recorder.snapshot.look import Look
from calltape_schema.blob import Stored
from calltape_schema.drop_reasons import DropReason


@dataclass(frozen=True, eq=False)
class EncodedLeaves:
    """What follows from structure and facts: the encoded leaf records, the leaves that the blob has
    (in order, and by key), the leaves that get a range, the hash of inputs without scalars, and a
    side without scalars and ranges in the form of a record."""

    encoded: bytes
    header: dict[str, Stored]
    stored: tuple[int, ...]
    ranged: tuple[int, ...]
    inputs: int
    tree: dict[str, Any]


class Side:
    """Copied inputs or outputs of a call.

    Attributes:
        places, spans: the copies; see :data:`~calltape_recorder.snapshot.buffers.SideCopies`.
        origins: of each leaf the origin of its bytes and of their first part, see
            :class:`~calltape_recorder.snapshot.earlier_copies.Earlier`.
        joined: the bytes of all leaves, one behind the other, if these are few; else None. There
            are no places then.
        shared: the same without these bytes, which sides that look the same share, if there is one.
        is_shared: whether it is such a side itself.
    """

    # Slots, because to make a dataclass or a named tuple costs as much as to copy a tensor.
    __slots__ = (
        "is_shared", "joined", "look", "origins", "places", "scalars", "shared", "spans",
        "structure", "wanted",
    )  # fmt: skip

    def __init__(
        self,
        structure: Structure,
        scalars: Sequence[Any],
        look: Look,
        copies: SideCopies = ((), b""),
        wanted: Wanted = True,
        origins: bytes = b"",
        joined: bytes | None = None,
        shared: Side | None = None,
    ) -> None:
        # Bytes, and tuples of bytes, are nothing to Python's garbage collector, however many calls
        # wait.
        self.structure = structure
        self.scalars = tuple(scalars)
        self.look = look
        self.places, self.spans = tuple(copies[0]), copies[1]
        self.wanted = wanted
        self.origins = origins
        self.joined = joined
        self.shared = shared
        self.is_shared = False

    def pieces(self) -> Sequence[Any]:
        """The copy of each leaf, made anew; None if it has none."""
        if self.joined is not None:
            return split(self.joined, self.look.sizes)
        return pieces_of(self.places, self.spans)


def split(joined: bytes, sizes: Iterable[int]) -> list[bytearray | None]:
    """The bytes of each leaf. Torch warns of bytes that cannot be changed."""
    found: list[bytearray | None] = []
    begin = 0
    for size in sizes:
        found.append(bytearray(joined[begin : begin + size]) if size else None)
        begin += size
    return found


OMITTED = "policy"
"""What a tape says of outputs that were not to be kept."""


class Home(Protocol):
    """The part of the recorder that records a call: its pipeline."""

    def lost(self, call: Call) -> None:
        """Counts a call that nothing refers to any more, and that nobody counted."""


class QueuedCall:
    """One call on its way to the tape. Times are in nanoseconds.

    ``home`` is the pipeline that records the call. ``held`` tells whether the call is for the
    flight recorder only, ``is_evidence`` whether it is kept because none before was like it.
    ``outputs_missing`` says in the words of a tape why not all outputs are there, ``outputs_lost``
    for which reason they are not although they were wanted. ``cost_ns`` is what the recorder added
    to it. ``ahead_file`` is the file that its inputs were written to before the model ran.
    ``chunks`` is what a generator yielded so far. ``joined`` has the bytes of both sides, if these
    have none.
    """

    __slots__ = (
        "ahead_file", "chunks", "cost_ns", "duration_ns", "error", "held", "home", "inputs",
        "is_accounted", "is_evidence", "joined", "nbytes", "number", "outputs", "outputs_lost",
        "outputs_missing",
        "started", "thread", "time_ns",
    )  # fmt: skip

    def __init__(self, number: int, time_ns: int, thread: int) -> None:
        self.number = number
        self.time_ns = time_ns
        self.thread = thread
        self.inputs: Side | None = None
        self.started = 0
        self.duration_ns: int | None = None
        self.outputs: Side | None = None
        self.outputs_missing: str | None = None
        self.outputs_lost: DropReason | None = None
        self.error: tuple[str, str] | None = None
        self.nbytes = 0
        self.cost_ns = 0
        self.is_accounted = False
        self.is_evidence = False
        self.home: Home | None = None
        self.held = False
        self.ahead_file: object | None = None
        self.chunks: Chunks | None = None
        self.joined: bytes | None = None


class Call(QueuedCall):
    """A call that was not handed to the writer yet. Then it becomes a :class:`QueuedCall`
    (``__class__`` is set): whoever lets go of it last, no code of ours runs. Dynamo looks at each
    function that Python runs in a thread of the host while it compiles."""

    __slots__ = ()

    def __del__(self) -> None:
        # Nobody counted this call if an exception that can come at any step (KeyboardInterrupt)
        # came between two of them.
        home = getattr(self, "home", None)  # it may have come within __init__
        if home is not None and not self.is_accounted:
            with suppress(RecursionError):  # the host is too deep; it is counted at the end
                home.lost(self)


# What a generator yields.

_TOO_MUCH = "more than one call can hold"

_ONE = ("outputs", ("list", 1, None))


def capture_chunk(value: Any) -> Walked:
    """Captures a chunk, as an output that is a list of this one chunk."""
    tokens, leaves, scalars = capture_output(value)
    return _ONE + spelled_out(tokens[1:]), leaves, scalars


class Chunks:
    """Keeps chunks as long as they fit into one call, and counts all of them.

    Attributes:
        count: how many chunks there were.
        reason: why later chunks are not kept, in words; None as long as all are kept.
        lost: the same, if they were to be kept.
        closed: whether the consumer ended the stream early.
    """

    __slots__ = ("_sides", "_text", "_tokens", "_unused", "closed", "count", "lost", "reason")

    def __init__(self) -> None:
        self.count = 0
        self.reason: str | None = None
        self.lost: DropReason | None = None
        self.closed = False
        self._sides: list[Side] = []
        self._tokens: list[Any] = []
        self._text = 0
        self._unused: Sequence[Any] = ()

    @property
    def places(self) -> list[Any]:
        """Where the copies of all tensors lie so far. Those of a chunk that did not fit stand last,
        so their memory is given back with the others."""
        found: list[Any] = []
        for side in self._sides:
            found += side.places if side.joined is None else side.pieces()
        return [*found, *self._unused]

    def next(self) -> bool:
        """Counts a chunk, and returns whether it must be added."""
        self.count += 1
        if self.reason is None and len(self._sides) >= MAX_CHUNKS:
            self.reason = f"more than {MAX_CHUNKS} chunks"
        return self.reason is None

    def add(self, tokens: tuple[Any, ...], side: Side) -> None:
        """Adds the chunk that was counted last, as :func:`capture_chunk` captured it, if one call
        can hold it."""
        more = tokens[len(_ONE) :]
        text = sum([text_bytes(value) for value in side.scalars if type(value) in (str, bytes)])
        # The first chunk always fits: the walk has the same bounds for any output.
        if self._sides and (
            len(self._tokens) + len(more) > MAX_TREE_NODES or self._text + text > MAX_TEXT_BYTES
        ):
            self.reason = _TOO_MUCH
            self._unused = side.places
            return
        leaves = sum([len(earlier.look.facts) for earlier in self._sides])
        self._tokens += [_moved(token, leaves) for token in more]
        self._text += text
        self._sides.append(side)

    def lose(self, reason: DropReason) -> None:
        """Notes that a chunk could not be copied. None after it is kept."""
        self.reason = self.lost = reason

    def outputs(self, structures: Structures) -> Side:
        """All added chunks, as one output that is a list."""
        sides = self._sides
        tokens = ("outputs", ("list", len(sides), None), *self._tokens)
        structure = structures.of(tokens)
        return Side(
            structure,
            structure.kept([value for side in sides for value in side.scalars]),
            Look(
                tuple([fact for side in sides for fact in side.look.facts]),
                tuple([shape for side in sides for shape in side.look.shapes]),
                tuple([size for side in sides for size in side.look.sizes]),
                _aliases(sides),
                _storages(sides),
            ),
            (self.places, _numbers(5, [(side.spans, side) for side in sides])),
            _wanted(sides, structure.wanted),
            _numbers(2, [(side.origins, side) for side in sides]),
        )

    def missing(self) -> str | None:
        """Says in words what the list lacks; None if it has all that the generator yields."""
        kept = len(self._sides)
        told = f"{kept} of {self.count} chunks kept: {self.reason}" if kept < self.count else None
        if not self.closed:
            return told
        closed = f"closed by its consumer after {self.count} chunks"
        return closed if told is None else f"{told}; {closed}"

    def raised(self) -> str:
        """Says in words how far a generator came that raised. Its chunks are not kept."""
        return f"raised after {self.count} chunks"


def _numbers(count: int, sides: list[tuple[bytes, Side]]) -> bytes:
    """So many numbers for each leaf of all sides; 0 for those of a side that has none."""
    return b"".join([own or bytes(8 * count * len(side.look.facts)) for own, side in sides])


def _moved(token: Any, leaves: int) -> Any:
    """A token of a chunk, with the number of its leaf counted from the first chunk on. ``leaves``
    is how many leaves the earlier chunks have."""
    if type(token) is tuple and token[0] in ("tensor", "ndarray"):
        return token[0], token[1] + leaves
    return token


# The host may use the memory of a chunk again for the next one. So leaves of two chunks are never
# taken for the same tensor or the same storage.


def _aliases(sides: list[Side]) -> tuple[int, ...] | None:
    if all(side.look.same is None for side in sides):
        return None
    merged: list[int] = []
    for side in sides:
        first = len(merged)
        look = side.look
        own: Iterable[int] = range(len(look.facts)) if look.same is None else look.same
        merged += [first + index for index in own]
    return tuple(merged)


def _storages(sides: list[Side]) -> tuple[Alias | None, ...] | None:
    if all(side.look.storages is None for side in sides):
        return None
    merged: list[Alias | None] = []
    groups = 0
    for side in sides:
        own = side.look.storages or (None,) * len(side.look.facts)
        merged += [one and one._replace(storage=groups + one.storage) for one in own]
        groups += 1 + max([one.storage for one in own if one is not None], default=-1)
    return tuple(merged)


def _wanted(sides: list[Side], whole: Wanted) -> Wanted:
    """Of which leaves the bytes are kept: the chunk copied them, and the list may have them."""
    each: list[bool] = []
    for side in sides:
        own = side.wanted
        each += [own] * len(side.look.facts) if isinstance(own, bool) else own
    if whole is not True:
        allowed = [whole] * len(each) if isinstance(whole, bool) else whole
        each = [one and other for one, other in zip(each, allowed, strict=True)]
    return tuple(each) if len(set(each)) > 1 else all(each)
