"""Orderly ends: interpreter exit, exit of a multiprocessing child, fork."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

__all__ = ["forget", "know", "watch", "watch_exceptions"]


class Closable(Protocol):
    """What must be told about the end of the process, and about being in a fork."""

    def close(self) -> None: ...

    def abandon(self) -> None: ...

    def dying(self, error: BaseException) -> None: ...


# Strong references: a recorder that nobody holds any more still has a tape to seal.
_open: set[Any] = set()
# Also those that have nothing to seal yet: their files are this process's all the same.
_made: weakref.WeakSet[Any] = weakref.WeakSet()
_knows = _started = False


def know(recorder: Closable) -> None:
    """Silences this recorder in forks."""
    global _knows
    if not _knows:
        _knows = True
        os.register_at_fork(after_in_child=_abandon_all)
    _made.add(recorder)


def watch(recorder: Closable) -> None:
    """Seals this recorder's tape at the end of the process."""
    global _started
    if not _started:
        _started = True
        # Daemon threads still run while atexit's functions do; afterwards they are frozen.
        atexit.register(_close_all, os.getpid())
    _finalize_in_child()
    _open.add(recorder)


def watch_exceptions() -> None:
    """Tells the recorders when an exception ends the process."""
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


def forget(recorder: Closable) -> None:
    """The recorder was closed."""
    _open.discard(recorder)
    _made.discard(recorder)


_finalized: set[int] = set()


def _finalize_in_child() -> None:
    """multiprocessing's children end with os._exit: atexit does not run there, this does."""
    process = sys.modules.get("multiprocessing.process")
    util = sys.modules.get("multiprocessing.util")
    if process is None or util is None or process.parent_process() is None:
        return
    if os.getpid() not in _finalized:
        _finalized.add(os.getpid())
        util.Finalize(None, _close_all, args=(os.getpid(),), exitpriority=100)


def _close_all(pid: int) -> None:
    for recorder in list(_open):
        recorder.close()


def _abandon_all() -> None:
    # In the child of a fork: no lock may be taken, no thread started, nothing logged.
    for recorder in list(_made):
        recorder.abandon()
    _open.clear()
