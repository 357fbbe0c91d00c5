"""The bytes of a tape behind a URL, in as few and as small requests as reading needs.

In comes a URL; out go bytes at offsets. Reads close to each other are served from one piece, and
pieces grow while a file is read from front to back. A file that changes is the same error as one on
a disk.
"""

from __future__ import annotations

import io
import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator

from calltape_analyzer.reading.compressed import is_compressed, unpacked
from calltape_analyzer.reading.tape_file import TapeBytes, TapeFile
from calltape_analyzer.reading.urls import StoredRanges, name_of, other_facts, shown
from calltape_schema.errors import TapeError
from calltape_schema.packing import crc32

__all__ = ["BlockCache", "RemoteFile", "blocks", "opened_url"]

_BLOCK, _LAST_PIECE = 16 * 1024, 4 * 1024 * 1024
_NEAR = 1024 * 1024  # reading this much on takes less time than another request
_MOST_ASKED = 8 * 1024 * 1024
_MOST_CACHED = 64 * 1024 * 1024

_numbers = itertools.count()


class BlockCache:
    """Keeps the blocks of remote files that were used last. Manifest and end of a tape are asked
    for more than once, and small reads are served from the larger piece that was fetched.

    Args:
        most: how many bytes stay, of all files together.
    """

    def __init__(self, most: int = _MOST_CACHED) -> None:
        self._most = most // _BLOCK
        self._blocks: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew)

    def __len__(self) -> int:
        """How many blocks are held."""
        return len(self._blocks)

    def get(self, file: int, block: int) -> bytes | None:
        """A block of a file, which has a number that no other file has; None if it is not held."""
        with self._lock:
            found = self._blocks.get((file, block))
            if found is not None:
                self._blocks.move_to_end((file, block))
            return found

    def put(self, file: int, block: int, piece: bytes) -> None:
        """Keeps a piece of a file that begins with this block, instead of blocks that were not used
        for the longest time."""
        with self._lock:
            for at in range(0, len(piece), _BLOCK):
                self._blocks[file, block + at // _BLOCK] = piece[at : at + _BLOCK]
            while len(self._blocks) > self._most:
                self._blocks.popitem(last=False)

    def drop(self, file: int) -> None:
        """Forgets a file."""
        with self._lock:
            for key in [key for key in self._blocks if key[0] == file]:
                del self._blocks[key]

    def _renew(self) -> None:
        """In a fork, the lock may be held by a thread that does not exist there, in the middle of a
        change."""
        self._lock = threading.Lock()
        self._blocks.clear()


blocks = BlockCache()
"""The blocks of all remote files of this process."""


def opened_url(url: str) -> TapeBytes:
    """The bytes of a tape behind a URL. A compressed one is read once, from front to back.

    Raises:
        TapeError: ``not_found``, ``io``, ``usage``, ``not_a_tape``; ``damaged`` or ``limit`` for a
            compressed file that cannot be read.
    """
    remote = RemoteFile(url)
    if not is_compressed(name_of(url)):
        return remote
    try:
        found = _unpacked(remote)
    finally:
        remote.close()
    if found is None:
        return RemoteFile(url)
    return TapeFile(remote.path, url, (found, remote.disk_bytes))


def _unpacked(remote: RemoteFile) -> int | None:
    stream = _Stream(remote)
    try:
        with io.BufferedReader(stream, _NEAR) as source:
            return unpacked(source, remote.path, lambda: stream.done)
    except OSError as error:
        reason = f"cannot decompress the file: {error.strerror or error}"
        raise TapeError("io", reason, path=remote.path) from None


class RemoteFile(TapeBytes):
    """A file behind a URL.

    Args:
        url: as the caller gave it.

    Raises:
        TapeError: ``not_found``, ``io``, ``usage``, ``not_a_tape``.
    """

    def __init__(self, url: str) -> None:
        super().__init__(shown(url), url)
        self._number = next(_numbers)
        self._renew()
        self.size = self._ranges.facts.size
        self._expect_content()

    def _renew(self) -> None:
        """Opens the file for this process."""
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._step, self._end = _BLOCK, 0
        self._ranges = StoredRanges(self.location)

    @property
    def disk_bytes(self) -> int:
        """Its size: the user's own configuration leads to the store, and objects have no holes."""
        return self.size

    def refresh(self) -> bool:
        self._expect_open()
        with self._lock:
            try:
                found = self._ranges.look()
            except TapeError as error:
                if error.kind == "not_found":
                    raise self.changed("it was removed") from None
                raise
            if found == self._ranges.facts:
                return True
            blocks.drop(self._number)
            self._renew()
            self.size = self._ranges.facts.size
            return False

    def expect_unchanged(self, head: int, *, is_sealed: bool) -> None:
        """Nothing to note: all of it must stay as it is."""

    def read_at(self, offset: int, size: int) -> bytes:
        size = self._up_to_end(offset, size)
        self._expect_open()
        if not size:
            return b""
        if size > _LAST_PIECE:
            return b"".join(self._pieces(offset, size))
        first, end = offset // _BLOCK, -(-(offset + size) // _BLOCK)
        found = [blocks.get(self._number, block) for block in range(first, end)]
        missing = [first + at for at, block in enumerate(found) if block is None]
        if missing:
            begin, behind = missing[0], missing[-1] + 1
            piece = self._read_on(begin, behind)
            found[begin - first : behind - first] = [piece[: (behind - begin) * _BLOCK]]
        data = b"".join(block for block in found if block is not None)
        return data[offset - first * _BLOCK :][:size]

    def _read_on(self, begin: int, end: int) -> bytes:
        """The bytes from a block to another one, and more that is not held yet."""
        with self._lock:
            until = begin + self._next_step(begin * _BLOCK) // _BLOCK
            while end < until and blocks.get(self._number, end) is None:
                end += 1
            start = begin * _BLOCK
            piece = self._fetch(start, min(end * _BLOCK, self.size) - start)
        blocks.put(self._number, begin, piece)
        return piece

    def copy(self, offset: int, size: int) -> bytearray:
        made = bytearray()
        for piece in self._pieces(offset, size):
            made += piece
        return made

    def crc32(self, offset: int, size: int, found: int = 0) -> int:
        for piece in self._pieces(offset, size):
            found = crc32(piece, found)
        return found

    def close(self) -> None:
        self.is_closed = True
        blocks.drop(self._number)

    def _pieces(self, offset: int, size: int) -> Iterator[bytes]:
        self._expect_open()
        end = offset + self._up_to_end(offset, size)
        while offset < end:
            some = min(end - offset, _MOST_ASKED)
            if some <= _LAST_PIECE:
                yield self.read_at(offset, some)
            else:
                with self._lock:
                    piece = self._fetch(offset, some)
                yield piece
            offset += some

    def _next_step(self, offset: int) -> int:
        """How much to read from here on: more each time, while the file is read front to back. A
        record is read before its blob, which is in front of it."""
        is_near = abs(offset - self._end) <= _NEAR and self._end
        self._step = min(4 * self._step, _LAST_PIECE) if is_near else _BLOCK
        return self._step

    def _fetch(self, offset: int, size: int) -> bytes:
        found = self._ranges.fetch(offset, offset + size)
        self._end = offset + size
        return found

    def _expect_open(self) -> None:
        """Raises if the file was closed. In a fork, opens it anew: connections do not outlive it,
        and a thread that is not there may hold the lock."""
        if self.is_closed:
            raise TapeError("closed", "the tape was closed", path=self.path)
        if self._process != os.getpid():
            before = self._ranges.facts
            self._renew()
            if self._ranges.facts != before:
                raise other_facts(self.location)


class _Stream(io.RawIOBase):
    """A remote file from front to back.

    Attributes:
        done: how many bytes were read.
    """

    def __init__(self, file: RemoteFile) -> None:
        super().__init__()
        self._file = file
        self.done = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        found = self._file.read_at(self.done, len(buffer))
        buffer[: len(found)] = found
        self.done += len(found)
        return len(found)
