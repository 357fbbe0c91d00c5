"""The descriptors that tape files are read through: a bounded number for the whole process, however
many files are open."""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from calltape_schema.errors import TapeError

__all__ = ["DescriptorError", "Descriptors"]

T = TypeVar("T")

_MOST = 64


class DescriptorError(TapeError):
    """The process may open no more files. That says nothing of the tape, so it is never damage."""


class _File(Protocol):
    path: str

    def open(self) -> int: ...


class _Descriptor:
    __slots__ = ("number", "users")

    def __init__(self, number: int) -> None:
        self.number = number
        self.users = 0


class Descriptors:
    """Keeps the descriptors that were used last, for any thread. One in use is never closed: its
    number would go to another file.

    Args:
        most: how many stay open that nobody uses.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.RLock()
        self._open: OrderedDict[_File, _Descriptor] = OrderedDict()
        os.register_at_fork(after_in_child=self._renew)

    def __len__(self) -> int:
        return len(self._open)

    def use(self, file: _File, action: Callable[[int], T]) -> T:
        """What an action gives, which gets the descriptor of a file that is opened if need be.

        Raises:
            DescriptorError: ``io``.
            OSError: and whatever else opening the file or the action raises.
        """
        with self._lock:
            found = self._open.get(file)
            if found is None:
                found = self._open[file] = _Descriptor(self._number_for(file))
            else:
                self._open.move_to_end(file)
            found.users += 1
        try:
            return action(found.number)
        finally:
            with self._lock:
                found.users -= 1
                if not found.users and self._open.get(file) is not found:
                    os.close(found.number)

    def close(self, file: _File) -> None:
        """Closes the descriptor of a file, as soon as nobody uses it."""
        with self._lock:
            found = self._open.pop(file, None)
            if found is not None and not found.users:
                os.close(found.number)

    def _number_for(self, file: _File) -> int:
        while len(self._open) >= self._most and self._close_one():
            pass
        while True:
            try:
                return file.open()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                # The host itself may have all that there are.
                if not self._close_one():
                    raise DescriptorError(
                        "io", f"cannot open it: {error.strerror}", path=file.path,
                        advice="close files of this process, or raise its limit (ulimit -n)",
                    ) from None  # fmt: skip

    def _close_one(self) -> bool:
        """Closes the one that was used longest ago; False where all are in use."""
        for file, found in self._open.items():
            if not found.users:
                del self._open[file]
                with suppress(OSError):
                    os.close(found.number)
                return True
        return False

    def _renew(self) -> None:
        """In a fork: another thread may have held the lock, and none uses a descriptor now."""
        self._lock = threading.RLock()
        for found in self._open.values():
            found.users = 0
