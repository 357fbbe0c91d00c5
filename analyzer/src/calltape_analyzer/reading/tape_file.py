"""The bytes of a tape file, read with ``pread``.

Takes a path; returns bytes at offsets, and an error if the file is no longer the one that was
opened. Of a compressed file, these are the bytes of the tape, which were decompressed once; a
write-ahead file, which the next call overwrites, was copied in the same way. A process may have
more tapes than the system allows descriptors, so a bounded number is open. Nothing is mapped into
memory: a process that touches a mapped page which is no longer in the file is killed by a signal
(SIGBUS), and a recorder cuts its write-ahead files after every call.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import TypeVar

from calltape_analyzer.errors import is_damage, no_descriptor
from calltape_analyzer.reading.compressed import close_unpacked, is_compressed, unpacked
from calltape_analyzer.reading.urls import is_url
from calltape_schema.errors import TapeError
from calltape_schema.packing import crc32

__all__ = [
    "Descriptors",
    "TapeBytes",
    "TapeFile",
    "crc32_after_zeros",
    "descriptors",
    "holds_no_call",
    "is_ahead",
    "local_file",
    "may_be_begun",
]

T = TypeVar("T")

_MOST_OPEN = 64
_STEP = 128 * 1024
_HOLE = 16 * 1024 * 1024
_TIMES_PACKED = 8
_TRIES = 5
_LATELY_SECONDS = 2.0
MAX_HELD = 8 * 1024 * 1024
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK  # a pipe does not wait
_ALL, _POLYNOMIAL = 0xFFFFFFFF, 0xEDB88320
_AHEAD = re.compile(r"\.ahead-\d+\.tape\Z")


def is_ahead(path: str) -> bool:
    """Whether a file is a write-ahead file by its name: it is overwritten with every call."""
    return _AHEAD.search(path) is not None


def local_file(path: str) -> TapeBytes:
    """The bytes of a file on this machine. Raises as :class:`TapeFile`."""
    file = TapeFile(path)
    return HeldFile(file) if is_ahead(path) and file.size <= MAX_HELD else file


def holds_no_call(path: str | None) -> bool:
    """Whether this is a file of write-ahead that a recorder is just making, or has removed since
    its name was read."""
    if path is None or is_url(path) or not is_ahead(path):
        return False
    try:
        return os.stat(path).st_size == 0
    except OSError:
        return True


def may_be_begun(path: str | None) -> bool:
    """Whether a recorder may be writing its first bytes just now: it changed lately."""
    if path is None or is_url(path) or is_ahead(path):
        return False
    try:
        return abs(time.time() - os.stat(path).st_mtime) < _LATELY_SECONDS
    except OSError:
        return False


class _Descriptor:
    """An open file, which is closed when nobody refers to it any more: neither the list of open
    ones nor an action."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self.number)


class Descriptors:
    """Keeps the descriptors that were used last, for all threads. A descriptor in use is never
    closed, because its number could become that of another file.

    Args:
        most: how many descriptors stay open.
    """

    def __init__(self, most: int = _MOST_OPEN) -> None:
        self._most = most
        self._lock = threading.RLock()
        self._open: OrderedDict[TapeFile, _Descriptor] = OrderedDict()
        os.register_at_fork(after_in_child=self._renew)

    def __len__(self) -> int:
        return len(self._open)

    def use(self, file: TapeFile, action: Callable[[int], T]) -> T:
        """Calls an action with the descriptor of a file, and returns what it returns. The file is
        opened if it is not open.

        Raises:
            DescriptorError: ``io``: there are no descriptors left.
            OSError: and whatever else opening the file, or the action, raises.
        """
        with self._lock:
            descriptor = self._open.pop(file, None)
            while len(self._open) >= self._most:
                self.close_oldest()
            while descriptor is None:
                try:
                    descriptor = _Descriptor(file.open())
                except OSError as error:
                    if error.errno not in (errno.EMFILE, errno.ENFILE):
                        raise
                    # The rest of the process may hold all descriptors that it may have.
                    if not self.close_oldest():
                        raise no_descriptor(error, file.path) from None
            self._open[file] = descriptor  # the one that was used last
        try:
            return action(descriptor.number)
        finally:
            del descriptor  # an error keeps this frame, and nobody uses the descriptor any more

    def close(self, file: TapeFile) -> None:
        """Closes the descriptor of a file, now or when nobody uses it any more."""
        with self._lock:
            self._open.pop(file, None)

    def close_oldest(self) -> bool:
        """Closes the descriptor that was used longest ago. False if there is none."""
        if not self._open:
            return False
        self._open.popitem(last=False)
        return True

    def _renew(self) -> None:
        """In a fork, the lock may be held by a thread that does not exist there."""
        self._lock = threading.RLock()


descriptors = Descriptors()
"""The descriptors of all tapes of this process."""


class TapeBytes(ABC):
    """Where the bytes of a tape come from, a file on this machine or one behind a URL: bytes at
    offsets, and an error if they are no longer those of the file that was opened.

    Attributes:
        path: as people may see it: a URL without user and query.
        location: what opens the file again.
        is_closed: whether it was closed.
        size: in bytes, at the last :meth:`refresh`.
        has_holes: whether a part of it can be zeros that nobody stored.
    """

    has_holes = False

    def __init__(self, path: str, location: str) -> None:
        self.path = path
        self.location = location
        self.is_closed = False
        self.size = 0

    @property
    @abstractmethod
    def disk_bytes(self) -> int:
        """How many of its bytes are surely there: claiming more is cheap."""

    @abstractmethod
    def refresh(self) -> bool:
        """Notes the file as it is now, and returns whether it is as before."""

    @abstractmethod
    def expect_unchanged(self, head: int, *, is_sealed: bool) -> None:
        """Notes what must stay the same: the first ``head`` bytes, or all of a sealed file."""

    @abstractmethod
    def read_at(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset`` on; fewer only at the end of the file.

        Raises:
            TapeError: ``closed``; ``damaged`` if the file is not what it was; ``io``.
        """

    @abstractmethod
    def copy(self, offset: int, size: int) -> bytearray:
        """``size`` bytes in new memory; raises as :meth:`read_at`."""

    @abstractmethod
    def crc32(self, offset: int, size: int, before: int = 0) -> int:
        """The CRC-32 of ``size`` bytes from ``offset`` on, after bytes whose CRC-32 was ``before``;
        raises as :meth:`read_at`."""

    def next_data(self, offset: int) -> int:
        """The offset of the next byte that is stored, at or after ``offset``. All bytes before it
        are a hole, which reads as zeros."""
        return offset

    @abstractmethod
    def close(self) -> None:
        """Lets go of the file. A second call does nothing."""

    def settled(self, read: Callable[[], T], has_damage: Callable[[T], bool], is_sealed: bool) -> T:
        """What is read of it. If the file changed meanwhile, it is read again: what looked like
        damage was another call.

        Args:
            read: reads it.
            has_damage: tells whether what was read has damage.
            is_sealed: whether its end was read before, so that it may not change any more.

        Raises:
            TapeError: as ``read``; ``damaged`` if a sealed file changed.
        """
        sealed, tries = self.changed("its end was read before") if is_sealed else None, _TRIES
        if sealed is not None and not self.refresh():
            raise sealed
        while True:
            try:
                answer = read()
                if not has_damage(answer) or not tries or self.refresh():
                    return answer
            except TapeError as error:
                if not is_damage(error) or not tries or self.refresh():
                    raise
            if sealed is not None:
                raise sealed
            tries -= 1

    def changed(self, how: str) -> TapeError:
        """A ``damaged`` error: the file is no longer what was opened."""
        return TapeError(
            "damaged", f"the file changed since it was opened: {how}", path=self.path,
            advice="open it again",
        )  # fmt: skip

    def _expect_content(self) -> None:
        if not self.size:
            raise TapeError("not_a_tape", "the file is empty", path=self.path)

    def _up_to_end(self, offset: int, size: int) -> int:
        """How many of so many bytes the file has."""
        return max(min(size, self.size - offset), 0)


class TapeFile(TapeBytes):
    """A file that is opened when it is read, and stays open while there are descriptors.

    Args:
        path: as the caller gave it; errors show it like this.
        location: what opens it again; by default the path.
        unpacked: of a file that was decompressed already, a descriptor of its bytes, which is
            closed with it; and the size of the compressed file.

    Raises:
        TapeError: ``not_found``, ``io`` or ``not_a_tape``; ``damaged``, ``limit`` or ``usage`` for
            a compressed file that cannot be read.
    """

    has_holes = True

    def __init__(
        self, path: str, location: str | None = None, unpacked: tuple[int, int] | None = None
    ) -> None:
        super().__init__(path, path if location is None else location)
        self._disk_bytes = 0
        self._identity: tuple[int, int] | None = None
        self._version: tuple[int, int] | None = None  # size, and when it was changed
        self._head: tuple[int, int] | None = None
        self._is_sealed = False
        self._unpacked: int | None = None
        self._most_disk_bytes: int | None = None
        try:
            if unpacked is None:
                self.refresh()
                is_large_ahead = is_ahead(path) and self.size > MAX_HELD
                is_copied = is_compressed(path) or is_large_ahead
                descriptor = self._use(self._copied) if is_copied else None
                if descriptor is not None:
                    stored = os.fstat(descriptor).st_size if is_large_ahead else self.disk_bytes
                    unpacked = descriptor, stored
            if unpacked is not None:  # the copied bytes are read from now on
                descriptors.close(self)
                self._unpacked, packed_bytes = unpacked
                self._close_unpacked = weakref.finalize(self, close_unpacked, self._unpacked)
                self._most_disk_bytes = _TIMES_PACKED * packed_bytes
                self._identity = self._version = None
                self.refresh()
            self._expect_content()
        except BaseException:
            self.close()
            raise

    @property
    def disk_bytes(self) -> int:
        """How many bytes are stored on the disk; a hole is not. Of a compressed file, at most 8
        times what it takes itself: what it claims beyond is cheap to claim."""
        return self._disk_bytes

    def _copied(self, file: int) -> int | None:
        """A descriptor of the bytes of a tape that was compressed, or may be overwritten."""
        plain, tries = is_ahead(self.path), _TRIES
        while True:
            with open(os.dup(file), "rb") as source:
                source.seek(0)
                unpacked_copy = unpacked(
                    source, self.path, lambda: _stored_bytes(os.fstat(file)), plain=plain
                )
            tries -= 1
            # A copy that was made while a call ended may have parts of two.
            if unpacked_copy is None or not plain or not tries or _are_equal(file, unpacked_copy):
                return unpacked_copy
            close_unpacked(unpacked_copy)

    def refresh(self) -> bool:
        """Notes the size and time of the file as they are now, and returns whether they are
        unchanged."""
        before = self._version
        status = self._use(os.fstat)
        self._version = _version(status)
        self.size = status.st_size
        self._disk_bytes = _stored_bytes(status)
        if self._most_disk_bytes is not None:
            self._disk_bytes = min(self.size, self._most_disk_bytes)
        return self._version == before

    def expect_unchanged(self, head: int, *, is_sealed: bool) -> None:
        self._head = head, self.crc32(0, head)
        self._is_sealed = is_sealed

    def read_at(self, offset: int, size: int) -> bytes:
        size = self._up_to_end(offset, size)
        data = self._use(lambda file: os.pread(file, size, offset))
        if len(data) == size:
            return data
        # The system returns less than 2 GiB at once.
        missing = self._use(lambda f: b"".join(_parts(f, offset + len(data), size - len(data))))
        data += missing
        self._ensure(len(data) == size)
        return data

    def copy(self, offset: int, size: int) -> bytearray:
        size = self._up_to_end(offset, size)
        copied = bytearray(size)

        def fill(file: int) -> int:
            done = 0
            with memoryview(copied) as view:
                while done < size:
                    with view[done:] as remaining:
                        count = os.preadv(file, [remaining], offset + done)
                    if not count:
                        break
                    done += count
            return done

        self._ensure(self._use(fill) == size)
        return copied

    def crc32(self, offset: int, size: int, before: int = 0) -> int:
        size = self._up_to_end(offset, size)
        before, done = self._use(lambda file: _crc32_of(file, offset, size, before))
        self._ensure(done == size)
        return before

    def next_data(self, offset: int) -> int:
        if offset >= self.size:
            return offset
        return self._use(lambda file: _next_data(file, offset, self.size))

    def close(self) -> None:
        self.is_closed = True
        descriptors.close(self)
        if self._unpacked is not None:
            self._close_unpacked()

    def open(self) -> int:
        """A new descriptor of the file, after a check that it is the same file each time.

        Raises:
            OSError: it cannot be opened.
            TapeError: ``not_a_tape``; ``damaged`` if another file has taken its place.
        """
        if self._unpacked is not None:
            return os.dup(self._unpacked)
        # Asked before opening: opening a device may do something, such as rewind a magnetic tape.
        if not stat.S_ISREG(os.stat(self.path).st_mode):
            raise TapeError("not_a_tape", "not a regular file", path=self.path)
        file = os.open(self.path, _FLAGS)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise TapeError("not_a_tape", "not a regular file", path=self.path)
            identity = status.st_dev, status.st_ino
            if self._identity is None:
                self._identity = identity
            is_same = identity == self._identity and status.st_size >= self.size
            if self._is_sealed:
                is_same = is_same and _version(status) == self._version
            if is_same and self._head is not None:
                # A new file may have the inode number of a deleted one.
                size, checksum = self._head
                is_same = crc32(b"".join(_parts(file, 0, size))) == checksum
            if not is_same:
                raise self.changed("another file has taken its place")
        except BaseException:
            os.close(file)
            raise
        return file

    def _use(self, action: Callable[[int], T]) -> T:
        if self.is_closed:
            raise TapeError("closed", "the tape was closed", path=self.path)
        try:
            return descriptors.use(self, action)
        except (FileNotFoundError, NotADirectoryError):
            if self._version is not None:
                raise self.changed("it was removed") from None
            raise TapeError("not_found", "no such file", path=self.path) from None
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
                raise no_descriptor(error, self.path) from None
            reason = getattr(error, "strerror", None) or str(error)
            raise TapeError("io", f"cannot read the file: {reason}", path=self.path) from None

    def _ensure(self, is_whole: bool) -> None:
        if not is_whole:
            raise self.changed("it is shorter now")


class HeldFile(TapeBytes):
    """The copy of a small write-ahead file, which may be written to meanwhile, in memory: a
    directory may have more of them than a process may have descriptors. It takes the place of the
    file, which is closed."""

    def __init__(self, file: TapeFile) -> None:
        super().__init__(file.path, file.location)
        self._data = b""
        for tries_left in reversed(range(_TRIES)):
            try:
                file.refresh()
                if file.size > MAX_HELD:
                    raise file.changed("a larger call is in it")
                # A copy that was made while a call ended may have parts of two.
                before, self._data = self._data, file.read_at(0, file.size)
                if self._data == before:
                    break
            except TapeError as error:
                if error.kind != "damaged" or not tries_left:
                    raise
        self.size = len(self._data)
        file.close()

    @property
    def disk_bytes(self) -> int:
        return self.size

    def refresh(self) -> bool:
        return True

    def expect_unchanged(self, head: int, *, is_sealed: bool) -> None:
        """Nothing to note: it cannot change."""

    def read_at(self, offset: int, size: int) -> bytes:
        if self.is_closed:
            raise TapeError("closed", "the tape was closed", path=self.path)
        return self._data[offset : offset + size]

    def copy(self, offset: int, size: int) -> bytearray:
        return bytearray(self.read_at(offset, size))

    def crc32(self, offset: int, size: int, before: int = 0) -> int:
        return crc32(self.read_at(offset, size), before)

    def close(self) -> None:
        self.is_closed, self._data = True, b""


def _next_data(file: int, offset: int, size: int) -> int:
    if not hasattr(os, "SEEK_DATA"):
        return offset
    try:
        return os.lseek(file, offset, os.SEEK_DATA)
    except OSError as error:
        # ENXIO: the rest is a hole. Any other error: the file system does not tell.
        return size if error.errno == errno.ENXIO else offset


def _crc32_of(file: int, offset: int, size: int, before: int = 0) -> tuple[int, int]:
    """The CRC-32 of ``size`` bytes from ``offset`` on, after bytes whose CRC-32 was ``before``, and
    how many of them there are."""
    # All steps read into the same memory, which stays in the processor's cache. New memory for
    # each step takes twice the time.
    done, looked = 0, -_HOLE
    with memoryview(bytearray(min(size, _STEP))) as step:
        while done < size:
            if done - looked >= _HOLE:
                looked = done
                hole = _next_data(file, offset + done, offset + size) - offset - done
                hole = min(hole, size - done)
                if hole >= min(_HOLE, size):
                    before = crc32_after_zeros(before, hole)
                    done += hole
                    continue
            with step[: size - done] as part:
                got = os.preadv(file, [part], offset + done)
            if not got:
                break
            with step[:got] as part:
                before = crc32(part, before)
            done += got
    return before, done


def _are_equal(descriptor: int, other_descriptor: int) -> bool:
    sizes = os.fstat(descriptor).st_size, os.fstat(other_descriptor).st_size
    return sizes[0] == sizes[1] and _crc32_of(descriptor, 0, sizes[0]) == _crc32_of(
        other_descriptor, 0, sizes[0]
    )


def _stored_bytes(status: os.stat_result) -> int:
    return min(status.st_size, getattr(status, "st_blocks", status.st_size) * 512)


def _version(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _parts(file: int, offset: int, size: int) -> list[bytes]:
    """``size`` bytes from ``offset`` on, in parts; fewer at the end of the file."""
    parts: list[bytes] = []
    while size > 0:
        part = os.pread(file, min(size, 2**30), offset)
        if not part:
            break
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return parts


def crc32_after_zeros(crc32: int, count: int) -> int:
    """``zlib.crc32(bytes(count), crc32)``, in a time that grows with the logarithm of ``count``.
    A file of a few blocks may have a hole of terabytes."""
    register = crc32 ^ _ALL
    for power in range(count.bit_length()):
        if count >> power & 1:
            register = _applied(_zeros(power), register)
    return register ^ _ALL


@cache
def _zeros(power: int) -> tuple[int, ...]:
    """What 2**power zero bytes do to a register. The map is linear, so it is given by the images of
    the 32 bits. Each map is the one before it, applied twice; the first is that of a single zero
    bit, at power -3."""
    if power == -3:
        return (_POLYNOMIAL, *(1 << bit for bit in range(31)))
    half = _zeros(power - 1)
    return tuple(_applied(half, image) for image in half)


def _applied(images: Sequence[int], register: int) -> int:
    product = 0
    for bit, image in enumerate(images):
        if register >> bit & 1:
            product ^= image
    return product
