"""One side of a call as it will be written: structure, scalars, and copies of the tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from calltape_recorder.capture.structures import Structure, Wanted
from calltape_recorder.snapshot.buffers import SideCopies
from calltape_recorder.snapshot.copies import pieces_of
from calltape_recorder.snapshot.side_facts import SideFacts


class Side:
    """Copied inputs or outputs of a call.

    Attributes:
        facts: of its leaves.
        wanted: of which leaves the bytes are kept: as in its structure, but for a list of chunks.
        places, spans: the copies; see :data:`~calltape_recorder.snapshot.buffers.SideCopies`.
        origins: of each leaf the origin of its bytes and of their first part, see
            :class:`~calltape_recorder.snapshot.earlier_copies.EarlierCopy`.
        joined: the bytes of all leaves, one behind the other, if these are few; else None. There
            are no places then.
        template: the same without these bytes, which sides that look the same share; None if there
            is none.
        is_template: whether it is such a side itself.
    """

    # Slots, because to make a dataclass or a named tuple costs as much as to copy a tensor.
    __slots__ = (
        "facts", "is_template", "joined", "origins", "places", "scalars", "spans", "structure",
        "template", "wanted",
    )  # fmt: skip

    def __init__(
        self,
        structure: Structure,
        scalars: Sequence[Any],
        facts: SideFacts,
        copies: SideCopies = ((), b""),
        wanted: Wanted | None = None,
        origins: bytes = b"",
        joined: bytes | None = None,
        template: Side | None = None,
    ) -> None:
        # Bytes, and tuples of bytes, are nothing to Python's garbage collector, however many calls
        # wait.
        self.structure = structure
        self.scalars = tuple(scalars)
        self.facts = facts
        self.places, self.spans = tuple(copies[0]), copies[1]
        self.wanted = structure.wanted if wanted is None else wanted
        self.origins = origins
        self.joined = joined
        self.template = template
        self.is_template = False

    def pieces(self) -> Sequence[Any]:
        """The copy of each leaf, made anew; None if it has none."""
        if self.joined is not None:
            return split(self.joined, self.facts.sizes)
        return pieces_of(self.places, self.spans)


def split(joined: bytes, sizes: Iterable[int]) -> list[bytearray | None]:
    """The bytes of each leaf. Torch warns of bytes that cannot be changed."""
    parts: list[bytearray | None] = []
    begin = 0
    for size in sizes:
        parts.append(bytearray(joined[begin : begin + size]) if size else None)
        begin += size
    return parts
