"""The chunks of a streaming output, each as it was when it was yielded, as one list of outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calltape_recorder.capture import Capture, capture_output
from calltape_recorder.encoding import Side
from calltape_recorder.structures import Structures, Wanted
from calltape_schema.interning import MAX_NODES

__all__ = ["MAX_CHUNKS", "Chunks", "capture_chunk"]

# Every length is a structure of its own that the recorder remembers, so lengths are bounded.
MAX_CHUNKS = 256
_MAX_TOKENS = MAX_NODES - 1000  # what all chunks become is one tree
_MAX_TEXT = 16 * 1024 * 1024
_TOO_MUCH = "more than one call can hold"

_ONE = ("outputs", ("list", 1, None))


def capture_chunk(value: Any) -> Capture:
    """The root of an output that is a list of one chunk."""
    tokens, leaves, scalars = capture_output(value)
    return Capture(_ONE + tokens[1:], leaves, scalars)


class Chunks:
    """Takes chunks until something stops it, and counts all.

    Attributes:
        count: how many chunks there were.
        reason: why the later ones are not kept; None while all are.
        closed: whether the consumer ended the stream early.
    """

    __slots__ = ("_sides", "_text", "_tokens", "_unused", "closed", "count", "reason")

    def __init__(self) -> None:
        self.count = 0
        self.reason: str | None = None
        self.closed = False
        self._sides: list[Side] = []
        self._tokens: list[Any] = []
        self._text = 0
        self._unused: list[Any] = []

    @property
    def pieces(self) -> list[Any]:
        """The copies of all tensors so far; those of a chunk that was one too many stand last, to
        be given back with the others."""
        return [*[piece for side in self._sides for piece in side.pieces], *self._unused]

    def next(self) -> bool:
        """Counts a chunk; whether it is to be added."""
        self.count += 1
        if self.reason is None and len(self._sides) >= MAX_CHUNKS:
            self.reason = f"more than {MAX_CHUNKS} chunks"
        return self.reason is None

    def add(self, tokens: tuple[Any, ...], side: Side) -> None:
        """Adds the last chunk that was counted, as :func:`capture_chunk` captured it, unless that
        is more than one call can hold."""
        more = tokens[len(_ONE) :]
        text = sum([len(value) for value in side.scalars if type(value) in (str, bytes)])
        # One alone is within the bounds of any output.
        if self._sides and (
            len(self._tokens) + len(more) > _MAX_TOKENS or self._text + text > _MAX_TEXT
        ):
            self.reason = _TOO_MUCH
            self._unused = side.pieces
            return
        leaves = sum([len(earlier.facts) for earlier in self._sides])
        self._tokens += [_moved(token, leaves) for token in more]
        self._text += text
        self._sides.append(side)

    def outputs(self, structures: Structures) -> Side:
        """What was added, as one list."""
        sides = self._sides
        tokens = ("outputs", ("list", len(sides), None), *self._tokens)
        structure = structures.of(tokens)
        return Side(
            structure,
            structure.kept([value for side in sides for value in side.scalars]),
            tuple([fact for side in sides for fact in side.facts]),
            _aliases(sides),
            _storages(sides),
            self.pieces,
            _wanted(sides, structure.wanted),
        )

    def missing(self) -> str | None:
        """In words, what is not in the list; None if it is what the generator would yield."""
        kept = len(self._sides)
        told = f"{kept} of {self.count} chunks kept: {self.reason}" if kept < self.count else None
        if not self.closed:
            return told
        closed = f"closed by its consumer after {self.count} chunks"
        return closed if told is None else f"{told}; {closed}"

    def raised(self) -> str:
        """In words, what is not kept of a generator that raised."""
        return f"raised after {self.count} chunks"


def _moved(token: Any, leaves: int) -> Any:
    """A token that names a leaf by number, after that many leaves of earlier chunks."""
    if type(token) is tuple and token[0] in ("tensor", "ndarray"):
        return token[0], token[1] + leaves
    return token


# A chunk's memory may be used again for the next: leaves of two chunks are never the same.


def _aliases(sides: list[Side]) -> tuple[int, ...] | None:
    if all(side.same is None for side in sides):
        return None
    merged: list[int] = []
    for side in sides:
        first = len(merged)
        own: Iterable[int] = range(len(side.facts)) if side.same is None else side.same
        merged += [first + index for index in own]
    return tuple(merged)


def _storages(sides: list[Side]) -> tuple[int | None, ...] | None:
    if all(side.storages is None for side in sides):
        return None
    merged: list[int | None] = []
    groups = 0
    for side in sides:
        own = side.storages or (None,) * len(side.facts)
        merged += [None if group is None else groups + group for group in own]
        groups += 1 + max([group for group in own if group is not None], default=-1)
    return tuple(merged)


def _wanted(sides: list[Side], whole: Wanted) -> Wanted:
    """What was copied of each chunk, less what the list is not to have."""
    each: list[bool] = []
    for side in sides:
        own = side.wanted
        each += [own] * len(side.facts) if isinstance(own, bool) else own
    if whole is not True:
        allowed = [whole] * len(each) if isinstance(whole, bool) else whole
        each = [one and other for one, other in zip(each, allowed, strict=True)]
    return tuple(each) if len(set(each)) > 1 else all(each)
