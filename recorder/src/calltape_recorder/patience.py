"""Locks that the writer does not wait for forever.

A signal handler of the host may flush or close a recorder, and so wait for the writer, while the
call that it interrupted holds one of the recorder's locks. The holder stands still then, between
two steps: after a moment the writer goes on without the lock.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

__all__ = ["Patient"]

_SECONDS = 0.2
_stuck: set[int] = set()  # locks that were not to be had lately: nobody waits for them again


class _Lock(Protocol):
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...


class Patient:
    """``with Patient(lock):`` holds it, or went on without."""

    __slots__ = ("_held", "_lock")

    def __init__(self, lock: _Lock) -> None:
        self._lock = lock
        self._held = False

    def __enter__(self) -> None:
        key = id(self._lock)
        self._held = self._lock.acquire(timeout=0 if key in _stuck else _SECONDS)
        if self._held:
            _stuck.discard(key)
        else:
            _stuck.add(key)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._held:
            self._held = False
            self._lock.release()
