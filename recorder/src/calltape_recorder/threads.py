"""Threads, locks and waits of the operating system, even if the application has replaced Python's.

gevent and eventlet can put greenlets in the place of threads ("monkey patching"). All greenlets run
in one thread: a writer that was one would stop the application while it waits for a disk, and would
go on in a fork, at the parent's tape. The recorder may be imported before the application patches,
or after it. Neither library is imported here.
"""

from __future__ import annotations

import _thread
import contextlib
import dis
import inspect
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import length_hint
from types import FrameType, TracebackType
from typing import Any, Protocol

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


# They are looked up once: what was there before the application patched stays what it is.
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
        """Waits until it is set, but no longer than this. The whole thread stops."""
        if self._is_set or seconds <= 0:
            return self._is_set
        lock = _allocate_lock()
        lock.acquire()
        self._waiting.append(lock)
        # It may have been set before the lock was in the list.
        try:
            return self._is_set or lock.acquire(True, seconds) or self._is_set
        finally:
            with contextlib.suppress(ValueError):  # it was released
                self._waiting.remove(lock)


def start_thread(run: Callable[[], None], name: str) -> None:
    """Starts a thread that ends with the process.

    Raises:
        RuntimeError: the system gives no thread, or the interpreter ends.
    """
    if _thread.start_new_thread is _start:
        threading.Thread(target=run, name=name, daemon=True).start()
    else:  # a Thread would be a greenlet

        def run_beside_greenlets() -> None:
            _beside_greenlets.add(get_ident())
            try:
                run()
            finally:
                _beside_greenlets.discard(get_ident())

        _start(run_beside_greenlets, ())


def is_beside_greenlets() -> bool:
    """Whether this is a thread of the recorder, and another thread runs greenlets. It must not take
    their locks, such as those of logging."""
    return get_ident() in _beside_greenlets


_beside_greenlets: set[int] = set()


def wait_for(event: Event, seconds: float) -> bool:
    """Waits in a thread of the application until an event is set. Other greenlets of the thread run
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


# A signal handler of the application may flush or close a recorder. The call that it interrupted
# may hold a lock of the recorder, and continues only when the handler has returned. The handler
# waits for the writer's thread, and the writer waits for the lock: a deadlock. So a thread that
# waits for the writer releases the locks that it holds, and takes them again afterwards.


class HasLock(Protocol):
    """An object that threads of the application and the writer's thread change.

    Attributes:
        lock: a reentrant lock (:data:`calltape_recorder.threads.RLock`), which nobody holds for
            more than a few steps.
    """

    lock: Any


@contextlib.contextmanager
def locks_released(owners: Sequence[HasLock]) -> Iterator[None]:
    """Releases the locks of these owners that this thread holds, until the block ends."""
    # threading.Condition uses the same methods of a lock. They tell whether this thread holds it,
    # release it completely, however often it was taken, and take it again as often.
    locks = [owner.lock for owner in owners if owner.lock._is_owned()]
    states = [lock._release_save() for lock in locks]
    try:
        yield
    finally:
        for lock, state in zip(locks, states, strict=True):
            lock._acquire_restore(state)


# Ctrl-C, a signal handler or another thread may raise at any step, also while the recorder runs
# in a call of the application. Such an exception is meant for the application and must reach it.
# But code of an argument may raise a ``KeyboardInterrupt`` or ``SystemExit`` too, because the
# recorder looked at the argument. Without a recorder, that code would not have run, so the
# application must not see the exception. A signal handler that limits the time of a request may
# raise an ``Exception``. Its frame distinguishes it from a fault of the recorder. An exception that
# another thread sends has no frame, so it is taken for a fault.

_RAISE = frozenset(dis.opmap[name] for name in ("RAISE_VARARGS", "RERAISE"))
traceback_of: Any = BaseException.__dict__["__traceback__"].__get__
"""The traceback of an exception, without code of its class."""


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception that came up in the recorder was sent to the application."""
    kind = type(error)
    is_fault = issubclass(kind, Exception)
    last: TracebackType | None = traceback_of(error)
    if last is None:
        return not is_fault
    # The first frame is the caller's, which has not ended. To read its variables would tie it to
    # the exception that it has caught.
    while last.tb_next is not None:
        last = last.tb_next
        if _is_sent_for(last.tb_frame):
            return True
    # SystemExit comes from sys.exit(), which is no statement. Nobody sends it to a thread.
    if is_fault or issubclass(kind, SystemExit):
        return False
    # The interpreter raises between any two steps, code of Python by a statement.
    return last.tb_frame.f_code.co_code[last.tb_lasti] not in _RAISE


def _is_sent_for(frame: FrameType) -> bool:
    """Whether this is a signal handler, or a function that traces: Python calls it between two
    steps of another frame, and passes that frame to it."""
    before, code = frame.f_back, frame.f_code
    if before is None:
        return False
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS)
    variables = frame.f_locals
    passed = [variables.get(name) for name in code.co_varnames[:count]]
    return any(
        value is before or (type(value) is tuple and any(part is before for part in value))
        for value in passed
    )


# Counters that every call increments, in any thread, without a lock.

Count = Iterator[int]
"""A counter. ``next`` of it is one step under the interpreter lock, so it needs no other lock.
Python's garbage collector does not go through it, as through ``itertools.count``."""


def new_count(start: int = 0) -> Count:
    return iter(range(start, sys.maxsize))


def value_of(counter: Count) -> int:
    """The value of a counter. ``next`` would increase it."""
    return sys.maxsize - length_hint(counter)
