"""The copy of one side of a call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from calltape_recorder.capture.structures import Structure, Wanted
from calltape_recorder.snapshot.earlier_copies import Origin
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
        origins: of each leaf where its bytes are on the tape.
        joined: the bytes of all leaves, one behind the other, if these are few; else None.
    """

    # Slots, because to make a dataclass or a named tuple costs as much as to copy a tensor.
    __slots__ = ("_pieces", "joined", "look", "origins", "scalars", "structure", "wanted")

    def __init__(
        self,
        structure: Structure,
        scalars: list[Any],
        look: Look,
        pieces: Sequence[Any],
        wanted: Wanted = True,
        origins: Sequence[Origin | None] | None = None,
        joined: bytes | None = None,
    ) -> None:
        self.structure = structure
        self.scalars = scalars
        self.look = look
        # A tuple of bytes is nothing to Python's garbage collector, however many calls wait.
        self._pieces = tuple(pieces)
        self.wanted = wanted
        self.origins = origins
        self.joined = joined

    @property
    def pieces(self) -> tuple[Any, ...]:
        """The copy of each leaf; None if it has none."""
        if self.joined is not None and not self._pieces:
            self._pieces = tuple(split(self.joined, self.look.sizes))
        return self._pieces


def split(joined: bytes, sizes: Iterable[int]) -> list[bytearray | None]:
    """The bytes of each leaf. Torch warns of bytes that cannot be changed."""
    found: list[bytearray | None] = []
    begin = 0
    for size in sizes:
        found.append(bytearray(joined[begin : begin + size]) if size else None)
        begin += size
    return found
