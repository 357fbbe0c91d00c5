"""How the ``calltape`` command ends at a signal: quietly, and after its temporary files are gone.

SIGINT (Ctrl-C), SIGTERM and SIGHUP raise a ``KeyboardInterrupt`` in the main thread, which every
``finally`` sees, and become an exit code. Only the command handles signals so; the library leaves
those of its host alone. Nothing here is imported that takes time: a signal may come early.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, NoReturn

__all__ = ["Terminated", "exit_code_of", "is_finalizing", "is_importing", "signals_handled"]

_IMPORTING = "<frozen importlib._bootstrap>"
_IMPORT_SECONDS = 10.0
"""So long an import may go on after a signal. torch and numpy do not survive an exception while
they are imported: what comes out of them is another error, or a warning."""
_OF_SIGNAL = 128
"""A shell adds it to the number of the signal that ended a process."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came. What ends well at Ctrl-C ends so too.

    Attributes:
        code: the exit code.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = _OF_SIGNAL + number


def exit_code_of(end: KeyboardInterrupt) -> int:
    """The exit code of a command that was interrupted."""
    return end.code if isinstance(end, Terminated) else _OF_SIGNAL + signal.SIGINT


@contextmanager
def signals_handled() -> Iterator[None]:
    """Within, signals end the command by an exception. Afterwards they end the process at once:
    while the interpreter ends, an exception would be printed. Another thread than the main one can
    handle none, and gets none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    if hasattr(signal, "SIGHUP"):
        usual[signal.SIGHUP] = signal.SIG_DFL
    if hasattr(signal, "SIGPIPE"):
        # `calltape ls x | head` ends like any filter, not with a message about it.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # A signal that is ignored, as nohup and shells without a terminal want it, stays so.
    handled = [number for number, handler in usual.items() if signal.getsignal(number) == handler]
    handler = _Handler()
    for number in handled:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def is_importing(frame: FrameType | None) -> bool:
    """Whether a frame is within the import of a module."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            return True
        frame = frame.f_back
    return False


def is_finalizing(frame: FrameType | None) -> bool:
    """Whether a frame is within a ``__del__``: Python prints what is raised there, and goes on."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


class _Handler:
    def __init__(self) -> None:
        self._process = os.getpid()
        self._until: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork, which has nothing to remove
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not is_importing(frame):
            _end(number)
        elif self._until is not None:
            os._exit(_OF_SIGNAL + number)  # who asks twice does not want to wait
        else:
            self._until = time.monotonic() + _IMPORT_SECONDS
            sys.setprofile(partial(self._end_after_import, number))

    def _end_after_import(self, number: int, frame: FrameType, event: str, _: Any) -> None:
        """Ends the command when the outermost import returns, or takes too long."""
        is_return = event == "return" and frame.f_code.co_filename == _IMPORTING
        is_late = self._until is None or time.monotonic() > self._until
        if is_late or (is_return and not is_importing(frame.f_back)):
            sys.setprofile(None)
            self._until = None
            _end(number)


def _end(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    raise Terminated(number)
