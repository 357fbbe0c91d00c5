"""Threads, locks and waits of the operating system, also where the host has replaced Python's.

gevent and eventlet can put greenlets in the place of threads ("monkey patching"). All greenlets run
in one thread: a writer that was one would stop the host while it waits for a disk, and would go on
in a fork, at the parent's tape. The recorder may be imported before the host patches, or after it.
Neither library is imported here.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = [
    "Event", "Local", "RLock", "get_ident", "is_apart", "sleep", "start_thread", "wait_for",
]  # fmt: skip

_TURN_SECONDS = 0.005  # how long other greenlets run before a greenlet looks again


def _original(module: str, name: str) -> Any:
    """What Python has under this name, also if gevent or eventlet put something in its place."""
    gevent: Any = sys.modules.get("gevent.monkey")
    if gevent is not None and gevent.is_object_patched(module, name):
        return gevent.get_original(module, name)
    eventlet: Any = sys.modules.get("eventlet.patcher")
    if eventlet is not None and eventlet.is_monkey_patched(module.removeprefix("_")):
        return getattr(eventlet.original(module), name)
    return getattr(sys.modules[module], name)


# They are looked up once: what was there before the host patched stays what it is.
_allocate_lock = _original("_thread", "allocate_lock")
_start: Callable[..., int] = _original("_thread", "start_new_thread")
RLock: Callable[[], Any] = _original("_thread", "RLock")
Local: Any = _original("_thread", "_local")
get_ident: Callable[[], int] = _original("_thread", "get_ident")
sleep: Callable[[float], None] = _original("time", "sleep")


class Event:
    """Does what :class:`threading.Event` does. A signal handler may call it while its own thread is
    in here, because it has no lock."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: deque[Any] = deque()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        while self._waiting:
            try:
                self._waiting.popleft().release()
            except IndexError:  # another thread sets it, too
                return

    def clear(self) -> None:
        self._is_set = False

    def wait(self, seconds: float) -> bool:
        """Waits until it is set, at most so many seconds. The whole thread stops."""
        if self._is_set or seconds <= 0:
            return self._is_set
        mine = _allocate_lock()
        mine.acquire()
        self._waiting.append(mine)
        # It may have been set before the lock was in the list.
        try:
            return self._is_set or mine.acquire(True, seconds) or self._is_set
        finally:
            with contextlib.suppress(ValueError):  # it was released
                self._waiting.remove(mine)


def start_thread(run: Callable[[], None], name: str) -> None:
    """Starts a thread that ends with the process.

    Raises:
        RuntimeError: the system gives no thread, or the interpreter ends.
    """
    if _thread.start_new_thread is _start:
        threading.Thread(target=run, name=name, daemon=True).start()
    else:  # a Thread would be a greenlet
        _start(_run_apart, (run,))


def is_apart() -> bool:
    """Whether this thread is the recorder's, beside one of greenlets: it must not take their locks,
    such as those of logging."""
    return get_ident() in _apart


_apart: set[int] = set()


def _run_apart(run: Callable[[], None]) -> None:
    _apart.add(get_ident())
    try:
        run()
    finally:
        _apart.discard(get_ident())


def wait_for(event: Event, seconds: float) -> bool:
    """Waits in a thread of the host until an event is set. Other greenlets of the thread run
    meanwhile, if there are any.

    Returns:
        Whether it is set.
    """
    let_others_run = time.sleep
    if let_others_run is sleep:
        return event.wait(seconds)
    until = time.monotonic() + seconds
    while not event.is_set() and (left := until - time.monotonic()) > 0:
        try:
            let_others_run(min(left, _TURN_SECONDS))
        except Exception:  # this greenlet is the one that runs all others: it cannot let them
            return event.wait(left)
    return event.is_set()
