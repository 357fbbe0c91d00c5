"""What a recording tells people through ``logging.getLogger("calltape")``.

Every line begins with the number of the process. Trouble is said at once, by the thread that has
it, and once per kind. News (a file was sealed, recording stopped) is only noted, and the writer's
thread says it: neither a call nor a fork waits for a log handler of the host.

What goes well is said on the level INFO. Where nobody configured logging, Python shows warnings
only, and an owner would not know whether anything is recorded. There, one line on stderr says what
is recorded where. It is no warning, because nothing is wrong.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from traceback import extract_tb, format_exception
from typing import Any

from calltape_recorder.interrupts import is_interrupt
from calltape_recorder.log import log, say, write
from calltape_schema.plain_classes import name_of

__all__ = ["BEGINNING", "Notices"]

BEGINNING = "records"
"""The kind of news that says what is recorded where."""

_AGAIN_SECONDS = 60.0
_MAX_NEWS = 100
_MAX_SAID = 1000
_MAX_TEXT = 500


class Notices:
    """Says what happens to a recording.

    Args:
        withholds: whether values are withheld. Then the texts of exceptions are not logged, because
            they may quote a value.

    Attributes:
        last_error, last_error_ns: as in :class:`~calltape_recorder.keep.ledger.Stats`.
    """

    def __init__(self, *, withholds: bool) -> None:
        self._withholds = withholds
        self._said: set[str] = set()
        self._news: deque[tuple[str, int, str]] = deque(maxlen=_MAX_NEWS)
        self._told: dict[str, float] = {}  # when there was news of a kind last
        self._held_back: dict[str, int] = {}
        self.last_error: str | None = None
        self.last_error_ns: int | None = None

    def complain(self, about: str, error: BaseException) -> None:
        """Logs what went wrong, once per kind of problem. Recording goes on."""
        what = _without_text(error) if self._withholds else _one_line(error)
        self._note(f"{about}: {what}")
        if self._is_new(about):
            say(logging.WARNING, f"{about}: {what} (said once; see Recorder.stats())")
            if not log.isEnabledFor(logging.DEBUG):
                return
            lines = _without_lines if self._withholds else _with_lines
            say(logging.DEBUG, f"{about}\n{lines(error)}")

    def warn(self, text: str) -> None:
        """Logs a text once."""
        self._note(text)
        if self._is_new(text):
            say(logging.WARNING, text)

    def tell(self, kind: str, text: str, *, level: int = logging.INFO) -> None:
        """Notes news for :meth:`say_news`. It takes no lock."""
        self._news.append((kind, level, text))

    def say_news(self) -> None:
        """Logs the news, of each kind once a minute at most. Only one thread may call it."""
        now = time.monotonic()
        while self._news:
            kind, level, text = self._news.popleft()
            if now - self._told.get(kind, -_AGAIN_SECONDS) < _AGAIN_SECONDS:
                self._held_back[kind] = self._held_back.get(kind, 0) + 1
                continue
            self._told[kind] = now
            more = self._held_back.pop(kind, 0)
            if more:
                text += f" (and {more} times before, within a minute each)"
            say(level, text)
            if kind == BEGINNING:
                write(text)

    def forget(self) -> None:
        """Lets trouble be said again, because it was over: at most once a minute."""
        now = time.monotonic()
        if now - self._told.get("", -_AGAIN_SECONDS) >= _AGAIN_SECONDS:
            self._told[""] = now
            self._said.clear()

    def _note(self, text: str) -> None:
        self.last_error, self.last_error_ns = text, time.time_ns()

    def _is_new(self, text: str) -> bool:
        if text in self._said or len(self._said) >= _MAX_SAID:
            return False
        self._said.add(text)
        return True


_errno_of: Any = OSError.__dict__["errno"].__get__
_traceback_of: Any = BaseException.__dict__["__traceback__"].__get__


def _without_text(error: BaseException) -> str:
    """The exception's type, and what the system says of its error number."""
    number = _errno_of(error) if issubclass(type(error), OSError) else None
    reason = f": {os.strerror(number)}" if type(number) is int else ""
    return f"{name_of(type(error))}{reason}"


def _with_lines(error: BaseException) -> str:
    try:
        return "".join(format_exception(error))
    except BaseException as broken:  # the code of the exception, or of the one that it came from
        if is_interrupt(broken):
            raise
        return _without_lines(error)


def _without_lines(error: BaseException) -> str:
    """The frames of the traceback. A line of code may have the text of the exception."""
    frames = extract_tb(_traceback_of(error))
    return "\n".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)


def _one_line(error: BaseException) -> str:
    """The exception's type and message in one line, as torch's messages may have many."""
    try:
        text = " ".join(str(error).split())
    except BaseException as broken:  # the host's own __str__ may raise anything
        if is_interrupt(broken):
            raise
        text = "(no text)"
    return f"{name_of(type(error))}: {text[:_MAX_TEXT]}"
