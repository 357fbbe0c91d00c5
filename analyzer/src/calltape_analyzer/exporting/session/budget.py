"""How long an export, and one attempt of it, may take, and who is told what it does.

torch reasons about symbolic sizes with a computer algebra system, and for some models (a Swin
transformer with images of any size, torch 2.15) it does not end. Such a trace is interrupted, so
that the next attempt can be made.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from calltape_analyzer.programs.reasons import TimeUp

__all__ = ["Budget", "Progress", "default_seconds", "time_limit"]

Progress = Callable[[str], None]
"""Is called with what is done now, in words."""

_LEAST = 0.001
"""Seconds of a limit; 0 would be none."""


@dataclass
class Budget:
    """The time of one export.

    What was found when the time is up is kept: no more is tried, and what is missing is said.

    Attributes:
        seconds: from its making, for all of it; None for no limit.
        progress: is told what is tried.
    """

    seconds: float | None = None
    progress: Progress | None = None
    _begin: float = field(init=False)

    def __post_init__(self) -> None:
        self._begin = time.monotonic()

    @property
    def is_spent(self) -> bool:
        """Whether the time is up."""
        return self._left <= 0

    @property
    def reason(self) -> TimeUp:
        """Why something was not tried after that."""
        return TimeUp(self.seconds or 0)

    def within(self, seconds: float) -> float:
        """So many seconds, or what is left if that is less; never 0."""
        return max(min(seconds, self._left), _LEAST)

    def say(self, text: str) -> None:
        """Tells what is done now, and since when the export runs."""
        if self.progress is not None:
            self.progress(f"{time.monotonic() - self._begin:.0f} s: {text}")

    @property
    def _left(self) -> float:
        if self.seconds is None:
            return math.inf
        return self.seconds - (time.monotonic() - self._begin)


_BASE, _PER_MODULE = 30.0, 0.1
_AGAIN = 5.0
_SOON = 0.01


class _Interrupt(BaseException):
    """It is no Exception, because the interrupted code might handle that."""


def default_seconds(module: Any) -> float:
    """A limit of processor time, several times longer than any trace that was seen to end: half a
    minute, and a tenth of a second for each submodule (a UNet of 220 million parameters takes 9 of
    100 s)."""
    return _BASE + _PER_MODULE * sum(1 for _ in module.modules())


@contextlib.contextmanager
def time_limit(seconds: float, processor: float = math.inf) -> Iterator[None]:
    """Interrupts the code in the block after some seconds.

    There is no limit outside of the main thread, if the platform has no alarm signal, and if
    somebody else uses it.

    Args:
        seconds: by the clock.
        processor: of processor time of this thread. A trace that shares its processor with others
            takes longer by the clock, and is no worse for that.

    Raises:
        TimeoutError: the time is up.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not (
        in_main
        and hasattr(signal, "setitimer")
        and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, signal.SIG_IGN)
    ):
        yield
        return

    end, busy_end = time.monotonic() + seconds, time.thread_time() + processor

    def ring(*_: Any) -> None:
        left = min(end - time.monotonic(), busy_end - time.thread_time())
        if left <= 0:
            raise _Interrupt
        signal.setitimer(signal.ITIMER_REAL, max(left, _SOON), _AGAIN)

    before = signal.signal(signal.SIGALRM, ring)
    # Again every few seconds, because the interrupted code may catch it.
    signal.setitimer(signal.ITIMER_REAL, min(seconds, processor), _AGAIN)
    try:
        yield
    except _Interrupt:
        spent = f"{seconds:.0f} s"
        if time.monotonic() < end:
            spent = f"{processor:.0f} s of processor time"
        raise TimeoutError(f"not done after {spent}, and interrupted") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
