"""The copied bytes of one leaf, and who owns their memory."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Piece"]


class Piece(NamedTuple):
    """The bytes of one leaf, and the owner of their memory: our own tensor, a pooled buffer, or
    pinned memory.

    If several leaves share a buffer, only the first piece has it as its owner, so that it is given
    back once. Pinned memory is the owner of all its pieces. ``whole`` is all of the memory, and the
    leaf's bytes begin at ``begin`` in it.
    """

    data: memoryview
    owner: Any
    whole: memoryview | None = None
    begin: int = 0
