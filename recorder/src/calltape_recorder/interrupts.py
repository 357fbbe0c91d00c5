"""Tells an exception that was sent to the host from one that the code of an argument raised.

Ctrl-C, a signal handler or another thread may raise at any step, also while the recorder runs in a
call of the host. Such an exception is meant for the host and must reach it. But the code of an
argument may raise a ``KeyboardInterrupt`` or ``SystemExit`` too, because the recorder looked at it.
Without a recorder nobody had run that code, so the host must not see it.
"""

from __future__ import annotations

import dis
import inspect
from types import FrameType, TracebackType
from typing import Any

__all__ = ["is_interrupt"]

_RAISE = frozenset(dis.opmap[name] for name in ("RAISE_VARARGS", "RERAISE"))
_traceback_of: Any = BaseException.__dict__["__traceback__"].__get__


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception that came up in the recorder was sent to the host."""
    kind = type(error)
    if issubclass(kind, Exception):
        return False
    last: TracebackType | None = _traceback_of(error)
    if last is None:
        return True
    # The first frame is the caller's, which has not ended. To read its variables would tie it to
    # the exception that it has caught.
    while last.tb_next is not None:
        last = last.tb_next
        if _is_sent_for(last.tb_frame):
            return True
    # SystemExit comes from sys.exit(), which is no statement. Nobody sends it to a thread.
    if issubclass(kind, SystemExit):
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
    held = frame.f_locals
    passed = [held.get(name) for name in code.co_varnames[:count]]
    return any(
        value is before or (type(value) is tuple and any(part is before for part in value))
        for value in passed
    )
