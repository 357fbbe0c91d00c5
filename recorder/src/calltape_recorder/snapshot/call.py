"""A recorded call on its way from the application to the tape, and the chunks that it yields.

The handler fills it in while the call runs, and the writer reads it after the call has ended. What
a generator yields is copied chunk by chunk, and becomes one output that is a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from calltape_recorder.bounds import MAX_CHUNKS, MAX_TEXT_BYTES, MAX_TREE_NODES
from calltape_recorder.capture.scalars import text_bytes
from calltape_recorder.capture.structures import Structures, Wanted, spell_out
from calltape_recorder.capture.walk import Walked, capture_output
from calltape_recorder.snapshot.buffers import SPAN
from calltape_recorder.snapshot.facts import Alias
from calltape_recorder.snapshot.side import Side
from calltape_recorder.snapshot.side_facts import SideFacts
from calltape_schema.drop_reasons import DropReason

OMITTED = "policy"
"""Why outputs are missing if ``outputs=False``, as the tape says it."""

_TOO_MUCH = "more than one call can hold"

_ONE_CHUNK = ("outputs", ("list", 1, None))


class Owner(Protocol):
    """The recording of a call."""

    def lost(self, call: Call) -> None:
        """Counts a call that was deleted before it was counted."""


class QueuedCall:
    """One call on its way to the tape. Times are in nanoseconds.

    Attributes:
        owner: the recording of the call.
        is_provisional: whether the call is for the flight recorder only.
        is_novel: whether it is kept because no earlier call was like it.
        outputs_missing: why outputs are missing, as the tape says it.
        outputs_lost: why outputs are missing that should be there.
        cost_ns: the time that the recorder added to the call.
        ahead_file: the file that its inputs were written to before the model ran.
        chunks: what a generator yielded so far.
        joined: the bytes of both sides, if these are templates.
    """

    __slots__ = (
        "ahead_file", "chunks", "cost_ns", "duration_ns", "error", "inputs", "is_accounted",
        "is_novel", "is_provisional", "joined", "nbytes", "number", "outputs", "outputs_lost",
        "outputs_missing", "owner", "started", "thread", "time_ns",
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
        self.is_novel = False
        self.is_provisional = False
        self.owner: Owner | None = None
        self.ahead_file: object | None = None
        self.chunks: Chunks | None = None
        self.joined: bytes | None = None


class Call(QueuedCall):
    """A call before it is handed to the writer, which makes it a :class:`QueuedCall` by setting
    ``__class__``. Then freeing it runs no code of the recorder: Dynamo looks at each function that
    Python runs in a thread of the application while it compiles."""

    __slots__ = ()

    def __del__(self) -> None:
        # The call was not counted if an exception that can come at any step (KeyboardInterrupt)
        # came too early.
        owner = getattr(self, "owner", None)  # it may have come within __init__
        if owner is not None and not self.is_accounted:
            with suppress(RecursionError):  # the stack is too deep; it is counted at the end
                owner.lost(self)


def capture_chunk(value: Any) -> Walked:
    """Captures a chunk, as an output that is a list of this one chunk."""
    tokens, leaves, scalars = capture_output(value)
    return _ONE_CHUNK + spell_out(tokens[1:]), leaves, scalars


class Chunks:
    """The chunks of one call: keeps them as long as they fit, and counts all of them.

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
        """The places of the copies of all tensors so far. Those of a chunk that did not fit come
        last, so that their memory is released with the others."""
        places: list[Any] = []
        for side in self._sides:
            places += side.places if side.joined is None else side.pieces()
        return [*places, *self._unused]

    def next(self) -> bool:
        """Counts a chunk, and returns whether it must be added."""
        self.count += 1
        if self.reason is None and len(self._sides) >= MAX_CHUNKS:
            self.reason = f"more than {MAX_CHUNKS} chunks"
        return self.reason is None

    def add(self, tokens: tuple[Any, ...], side: Side) -> None:
        """Adds the chunk that was counted last, as :func:`capture_chunk` captured it, if one call
        can hold it."""
        added = tokens[len(_ONE_CHUNK) :]
        text = sum([text_bytes(value) for value in side.scalars if type(value) in (str, bytes)])
        # The first chunk always fits: the walk has the same bounds for any output.
        if self._sides and (
            len(self._tokens) + len(added) > MAX_TREE_NODES or self._text + text > MAX_TEXT_BYTES
        ):
            self.reason = _TOO_MUCH
            self._unused = side.places
            return
        leaves = sum([len(earlier.facts.per_leaf) for earlier in self._sides])
        for token in added:  # the leaves of a token are counted from the first chunk on
            if type(token) is tuple and token[0] in ("tensor", "ndarray"):
                token = token[0], token[1] + leaves
            self._tokens.append(token)
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
            SideFacts(
                tuple([fact for side in sides for fact in side.facts.per_leaf]),
                tuple([shape for side in sides for shape in side.facts.shapes]),
                tuple([size for side in sides for size in side.facts.sizes]),
                _merged_same(sides),
                _merged_storages(sides),
            ),
            (self.places, _merged_numbers(SPAN, [(side.spans, side) for side in sides])),
            _merged_wanted(sides, structure.wanted),
            _merged_numbers(2, [(side.origins, side) for side in sides]),
        )

    def missing(self) -> str | None:
        """Says in words what the list lacks; None if it has all that the generator yields."""
        kept = len(self._sides)
        cut = f"{kept} of {self.count} chunks kept: {self.reason}" if kept < self.count else None
        if not self.closed:
            return cut
        closed = f"closed by its consumer after {self.count} chunks"
        return closed if cut is None else f"{cut}; {closed}"

    def raised(self) -> str:
        """Says in words how far a generator came that raised. Its chunks are not kept."""
        return f"raised after {self.count} chunks"


def _merged_numbers(count: int, sides: list[tuple[bytes, Side]]) -> bytes:
    """``count`` numbers for each leaf of all sides; 0 for the leaves of a side without numbers."""
    return b"".join(
        [numbers or bytes(8 * count * len(side.facts.per_leaf)) for numbers, side in sides]
    )


# The application may reuse the memory of a chunk for the next one. So leaves of two chunks are
# never taken for the same tensor or for leaves of the same storage.


def _merged_same(sides: list[Side]) -> tuple[int, ...] | None:
    if all(side.facts.same is None for side in sides):
        return None
    merged: list[int] = []
    for side in sides:
        first = len(merged)
        same = side.facts.same or range(len(side.facts.per_leaf))
        merged += [first + index for index in same]
    return tuple(merged)


def _merged_storages(sides: list[Side]) -> tuple[Alias | None, ...] | None:
    if all(side.facts.storages is None for side in sides):
        return None
    merged: list[Alias | None] = []
    first = 0
    for side in sides:
        aliases = side.facts.storages or (None,) * len(side.facts.per_leaf)
        merged += [alias and alias._replace(storage=first + alias.storage) for alias in aliases]
        first += 1 + max([alias.storage for alias in aliases if alias is not None], default=-1)
    return tuple(merged)


def _merged_wanted(sides: list[Side], of_list: Wanted) -> Wanted:
    """Of which leaves the bytes are kept: the chunk copied them, and the list may have them."""
    wanted: list[bool] = []
    for side in sides:
        wanted += _per_leaf(side.wanted, len(side.facts.per_leaf))
    pairs = zip(wanted, _per_leaf(of_list, len(wanted)), strict=True)
    wanted = [of_chunk and of_whole for of_chunk, of_whole in pairs]
    return tuple(wanted) if len(set(wanted)) > 1 else all(wanted)


def _per_leaf(wanted: Wanted, leaves: int) -> Sequence[bool]:
    return [wanted] * leaves if isinstance(wanted, bool) else wanted
