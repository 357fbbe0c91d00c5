"""Many pieces of this process's memory to one place, by one system call where that can be had.

A copy that holds the interpreter lock stops all other Python threads; one that gives it away per
piece waits, per piece, up to a switch interval for a busy thread to give it back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["copy_locked", "copy_unlocked", "gather"]

_FEWEST_BYTES = 4 * 1024 * 1024  # below, holding the lock is short
_MOST_BYTES = 1024 * 1024 * 1024  # in one call; Linux takes less than 2 GiB
_MOST_PIECES = 1024
# Up to here a copy under the interpreter lock is cheaper than giving the lock away: a busy thread
# gives it back only after its switch interval. But not for many in a row: that thread waits.
_SHORT = 1024 * 1024
_MAX_LOCKED = 16 * 1024 * 1024

copy_unlocked = ctypes.memmove
copy_locked = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)


def gather(sources: list[tuple[int, int]], target: int) -> None:
    """Copies these addresses and sizes to ``target``, one behind the other.

    Raises:
        OSError: EFAULT, where some of it is not memory any more and the system noticed.
    """
    if not _gathered(sources, target):
        _one_by_one(sources, target)


def _gathered(sources: list[tuple[int, int]], target: int) -> bool:
    """By system calls; False where that is not done."""
    sizes = [size for _, size in sources]
    if _read is None or sum(sizes) < _FEWEST_BYTES or max(sizes) > _MOST_BYTES or _is_filtered():
        return False
    for group in _groups(sources):
        size = sum([size for _, size in group])
        local = struct.pack("@PN", target, size)
        remote = struct.pack("@" + "PN" * len(group), *[part for pair in group for part in pair])
        copied = _read(os.getpid(), local, 1, remote, len(group), 0)
        if copied != size:
            if copied < 0 and ctypes.get_errno() != errno.EFAULT:
                return False
            raise OSError(errno.EFAULT, "memory that was to be recorded is gone")
        target += size
    return True


def _one_by_one(sources: list[tuple[int, int]], target: int) -> None:
    """Without."""
    locked = 0
    for address, size in sources:
        locked += size
        if size <= _SHORT and locked <= _MAX_LOCKED:
            copy_locked(target, address, size)
        else:
            copy_unlocked(target, address, size)
            locked = 0
        target += size


def _groups(sources: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """What one system call takes."""
    group: list[tuple[int, int]] = []
    size = 0
    for source in sources:
        if len(group) == _MOST_PIECES or size + source[1] > _MOST_BYTES:
            yield group
            group, size = [], 0
        group.append(source)
        size += source[1]
    yield group


def _is_filtered() -> bool:
    """Whether a filter of system calls may be in force for this thread: some end a process that
    makes a call which they do not know, and nothing tells which."""
    if _files is None:
        return True
    text = ctypes.create_string_buffer(_STATUS_BYTES)
    status = _files.open(b"/proc/thread-self/status", os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = _files.read(status, text, _STATUS_BYTES)
    finally:
        _files.close(status)
    return size <= 0 or _UNFILTERED.search(text.raw[:size]) is None


_STATUS_BYTES = 16 * 1024  # more than it has
_UNFILTERED = re.compile(rb"^Seccomp:\s*0$", re.MULTILINE)


def _reader() -> Any:
    """Gives the interpreter lock away."""
    read = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
    if read is not None:
        read.restype = ctypes.c_ssize_t
        read.argtypes = [
            ctypes.c_int, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong,
            ctypes.c_ulong,
        ]  # fmt: skip
    return read


_files: Any = None
_read: Any = None
if sys.platform == "linux":
    _files = ctypes.PyDLL(None)  # keeps the lock: what the kernel has in memory is read at once
    _read = _reader()
