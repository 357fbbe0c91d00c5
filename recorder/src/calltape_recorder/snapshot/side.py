"""One side of a call, its inputs or its outputs: structure, scalars, and copies of the tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from calltape_recorder.capture.structures import Structure, Wanted
from calltape_recorder.snapshot.buffers import SideCopies
from calltape_recorder.snapshot.copies import pieces_of
from calltape_recorder.snapshot.look import Look
from calltape_schema.blob import Stored


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
