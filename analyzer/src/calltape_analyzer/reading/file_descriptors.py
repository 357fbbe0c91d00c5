"""The file descriptors that tape files are read through.

A process may have more tapes open than the system allows descriptors. In come files and an action;
the action gets a descriptor, and at most a bounded number of them is open in the whole process.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from calltape_schema.errors import TapeError

__all__ = ["DescriptorError", "Descriptors", "RemoteError", "no_descriptor"]

T = TypeVar("T")

_MOST = 64


class DescriptorError(TapeError):
    """The process may open no more files. This says nothing about the tape, so it is no damage."""


class RemoteError(DescriptorError):
    """A server does not answer, or not with what was asked. This says nothing about the calls on a
    tape either."""


def no_descriptor(error: OSError | ValueError, path: str) -> DescriptorError:
    """The error of a file that cannot be opened because too many are open."""
    return DescriptorError(
        "io",
        f"cannot open the file: {getattr(error, 'strerror', None) or error}",
        path=path,
        advice="close files in this process, or raise its limit (ulimit -n)",
    )


class _File(Protocol):
    path: str

    def open(self) -> int: ...


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

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.RLock()
        self._open: OrderedDict[_File, _Descriptor] = OrderedDict()
        os.register_at_fork(after_in_child=self._renew)

    def __len__(self) -> int:
        return len(self._open)

    def use(self, file: _File, action: Callable[[int], T]) -> T:
        """Calls an action with the descriptor of a file, and returns what it returns. The file is
        opened if it is not open.

        Raises:
            DescriptorError: ``io``: there are no descriptors left.
            OSError: and whatever else opening the file, or the action, raises.
        """
        with self._lock:
            found = self._open.pop(file, None)
            if found is None:
                found = self._opened(file)
            self._open[file] = found  # the one that was used last
        return action(found.number)

    def close(self, file: _File) -> None:
        """Closes the descriptor of a file, now or when nobody uses it any more."""
        with self._lock:
            self._open.pop(file, None)

    def _opened(self, file: _File) -> _Descriptor:
        while len(self._open) >= self._most:
            self._close_one()
        while True:
            try:
                return _Descriptor(file.open())
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                # The rest of the process may hold all descriptors that it may have.
                if not self._close_one():
                    raise no_descriptor(error, file.path) from None

    def _close_one(self) -> bool:
        """Closes the descriptor that was used longest ago. False if there is none."""
        if not self._open:
            return False
        self._open.popitem(last=False)
        return True

    def _renew(self) -> None:
        """In a fork, the lock may be held by a thread that does not exist there."""
        self._lock = threading.RLock()
