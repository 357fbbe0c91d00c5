"""When to stop: a signal came, or the time after it is over."""

from __future__ import annotations

import threading
import time

__all__ = ["Ending"]


class Ending:
    """Is asked before each file, and waited for between two looks at the directory."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._until = 0.0

    def ask(self, grace: float = 0.0) -> None:
        """Asks for the end.

        Args:
            grace: for how many seconds another file may still be begun.
        """
        self._until = time.monotonic() + grace
        self._asked.set()

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def may_begin(self) -> bool:
        """Whether another file may be begun."""
        return not self.is_asked or time.monotonic() < self._until

    def wait(self, seconds: float) -> None:
        """Waits, at most until the end is asked for."""
        self._asked.wait(seconds)
