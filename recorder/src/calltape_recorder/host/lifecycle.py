"""Notifies recorders of the end of the process and of forks.

The end may be the exit of the interpreter, the exit of a multiprocessing child, or an exception.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from calltape_recorder.threads import new_count, value_of


class Closable(Protocol):
    """What a recorder does at the end of the process and after a fork."""

    def close(self) -> None: ...

    def abandon(self) -> None: ...

    def dying(self, error: BaseException) -> None: ...


# Strong references: a recorder without other references still has a tape to seal.
_open: set[Any] = set()
# All recorders, even without a tape to seal: a fork must not write to their files.
_recorders: weakref.WeakSet[Any] = weakref.WeakSet()
_forks = new_count()


def register(recorder: Closable) -> None:
    """Makes this recorder abandon its files in forks."""
    _recorders.add(recorder)


def fork_count() -> int:
    """How often this process, or one that it is a fork of, forked since this was imported."""
    return value_of(_forks)


def registered() -> list[Any]:
    """All recorders of this process that were not closed."""
    while True:
        try:
            return list(_recorders)
        except RuntimeError:  # another thread made a recorder meanwhile
            continue


_finalized: set[int] = set()


def watch(recorder: Closable) -> None:
    """Seals this recorder's tape at the end of the process."""
    # A multiprocessing child ends with os._exit, so atexit does not run, but the finalizers of
    # multiprocessing do.
    process = sys.modules.get("multiprocessing.process")
    util = sys.modules.get("multiprocessing.util")
    if (
        process is not None
        and util is not None
        and process.parent_process() is not None
        and os.getpid() not in _finalized
    ):
        _finalized.add(os.getpid())
        util.Finalize(None, close_all, exitpriority=100)
    _open.add(recorder)


def watch_exceptions() -> None:
    """Makes sure that the recorders are notified if an exception ends the process."""
    global _previous_hook
    if _previous_hook is None:
        _previous_hook = sys.excepthook
        sys.excepthook = _dying


_previous_hook: Callable[..., Any] | None = None


def _dying(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    for recorder in list(_open):
        recorder.dying(error)
    if _previous_hook is not None:
        _previous_hook(kind, error, trace)


def unwatch(recorder: Closable) -> None:
    """Forgets a recorder that was closed."""
    _open.discard(recorder)
    _recorders.discard(recorder)


def close_all() -> None:
    """Closes all recorders that have a tape to seal."""
    for recorder in list(_open):
        recorder.close()


def _abandon_all() -> None:
    # This runs in the child of a fork: it must not take a lock, start a thread or log.
    for recorder in list(_recorders):
        recorder.abandon()
    _open.clear()


os.register_at_fork(after_in_child=_abandon_all, after_in_parent=_forks.__next__)
# The writer is a daemon thread: it runs while the functions of atexit run, and is frozen
# afterwards.
atexit.register(close_all)
