"""What every source of a tape's bytes can do: a file on this machine, or one behind a URL."""

from __future__ import annotations

from typing import Protocol

from calltape_schema.errors import TapeError

__all__ = ["TapeBytes"]


class TapeBytes(Protocol):
    """Bytes at offsets, and an error if they are no longer those of the file that was opened.

    Attributes:
        path: as people may see it: a URL without user and query.
        location: what opens the file again.
        is_closed: whether it was closed.
        size: in bytes, at the last :meth:`refresh`.
        has_holes: whether a part of it can be zeros that nobody stored.
    """

    path: str
    location: str
    is_closed: bool
    size: int
    has_holes: bool

    @property
    def disk_bytes(self) -> int:
        """How many of its bytes are surely there: claiming more is cheap."""
        ...

    def refresh(self) -> bool:
        """Notes the file as it is now, and returns whether it is as before."""
        ...

    def expect_unchanged(self, head: int, *, is_sealed: bool) -> None:
        """Notes what must stay the same: the first ``head`` bytes, or all of a sealed file."""
        ...

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset`` on; fewer only at the end of the file."""
        ...

    def copy(self, offset: int, size: int) -> bytearray:
        """``size`` bytes in new memory."""
        ...

    def crc32(self, offset: int, size: int) -> int:
        """The CRC-32 of ``size`` bytes from ``offset`` on."""
        ...

    def next_data(self, offset: int) -> int:
        """The offset of the next byte that is stored, at or after ``offset``."""
        ...

    def close(self) -> None:
        """Lets go of the file. A second call does nothing."""
        ...

    def changed(self, how: str) -> TapeError:
        """A ``damaged`` error: the file is no longer what was opened."""
        ...
