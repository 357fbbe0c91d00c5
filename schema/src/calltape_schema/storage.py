"""Sources and sinks of bytes: a local file, bytes in memory, or what another package provides.

A reader asks a *source* for bytes at offsets, a writer gives parts to a *sink*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Source(Protocol):
    """Bytes at offsets: a file, an object in a store.

    Attributes:
        size: in bytes.
    """

    @property
    def size(self) -> int: ...

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset`` on; fewer only at the end.

        Raises:
            TapeError: ``io``, ``damaged``.
        """
        ...

    def next_data(self, offset: int) -> int:
        """The offset of the next byte that is stored, at or after ``offset``; all before it are
        zeros that are not stored. ``offset`` itself if the source cannot tell."""
        ...


class Sink(Protocol):
    """Takes the bytes of a tape from front to back. Only counters are overwritten."""

    def write_at(self, offset: int, parts: Sequence[Any]) -> None:
        """Writes all of these bytes there, in as few system calls as possible.

        Raises:
            OSError: some of them may be written.
        """
        ...

    def cut(self, size: int) -> None:
        """Removes what follows the first ``size`` bytes.

        Raises:
            OSError: it is still there.
        """
        ...


class BytesSource:
    """Bytes in memory, or a memory map."""

    def __init__(self, data: Any) -> None:
        self._data = data

    @property
    def size(self) -> int:
        return len(self._data)

    def read_at(self, offset: int, size: int) -> bytes:
        return bytes(self._data[offset : offset + size])

    def next_data(self, offset: int) -> int:
        return offset


class BytesSink:
    """A tape in memory."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write_at(self, offset: int, parts: Sequence[Any]) -> None:
        data = b"".join(parts)
        self.data[offset : offset + len(data)] = data

    def cut(self, size: int) -> None:
        del self.data[size:]


_FIRST_STEP, _LAST_STEP = 4 * 1024, 1024 * 1024


class Window:
    """Reads a source from front to back, in larger pieces while the reads are close together. It
    jumps over what is far away, and fetches a byte again only after a jump back."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._data = b""
        self._start = 0
        self._step = _FIRST_STEP

    def read(self, offset: int, size: int) -> bytes:
        """As :meth:`Source.read_at`."""
        at = offset - self._start
        part = self._data[at : at + size] if at >= 0 else b""
        if len(part) == size:
            return part
        gap = at - len(self._data)
        is_near = at >= 0 and gap < self._step
        self._step = min(2 * self._step, _LAST_STEP) if is_near else _FIRST_STEP
        known = self._data[at:] if at >= 0 else b""
        want = max(size, self._step) - len(known)
        self._data = known + self._source.read_at(offset + len(known), want)
        self._start = offset
        return self._data[:size]
