"""What a recording logs, through ``logging.getLogger("calltape")``.

Every line begins with the number of the process. Problems are logged at once, by the thread that
has them, and once per kind. News (a file was sealed, recording stopped) is only noted, and the
writer's thread logs it: neither a call nor a fork waits for a log handler of the application.

Good news has the level INFO. If logging is not configured, Python shows only warnings, and users
would not know whether anything is recorded. Then one line on stderr says what is recorded where. It
is not a warning, because nothing is wrong.

Under gevent or eventlet, the locks of logging belong to the greenlets of a thread. A thread of the
recorder that waited for one could wait forever, or stop the greenlets. So it writes warnings to
stderr and keeps all lines, and the next greenlet that uses the recorder logs them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections import deque
from traceback import extract_tb
from typing import Any

from calltape_recorder.bounds import (
    AGAIN_SECONDS,
    MAX_NEWS,
    MAX_TROUBLE_CHARACTERS,
    MAX_TROUBLES,
)
from calltape_recorder.keep.ledger import Stats
from calltape_recorder.threads import is_beside_greenlets, is_interrupt, traceback_of
from calltape_schema.drop_reasons import DropReason
from calltape_schema.objects import name_of

BEGINNING = "records"
"""The kind of news about what is recorded where."""

_log = logging.getLogger("calltape")

_deferred: deque[tuple[int, str]] = deque(maxlen=MAX_NEWS)


def say(level: int, text: str) -> None:
    """Logs a line. It never raises: a handler of the application may."""
    line = f"calltape, process {os.getpid()}: {text}"
    if not is_beside_greenlets():
        _log_line(level, line)
        return
    _deferred.append((level, line))
    if level >= logging.WARNING and _log.isEnabledFor(level):
        _print_line(line)


def say_deferred() -> None:
    """Logs the lines that a thread of the recorder could not log."""
    while _deferred and not is_beside_greenlets():
        with contextlib.suppress(IndexError):  # another thread says it, too
            _log_line(*_deferred.popleft())


def _log_line(level: int, line: str) -> None:
    with contextlib.suppress(Exception):
        _log.log(level, "%s", line)


def _print_line(line: str) -> None:
    with contextlib.suppress(Exception):  # stderr may be closed, or None
        sys.stderr.write(f"{line}\n")


class Notices:
    """The log of one recording.

    Args:
        omits_values: whether values are omitted. Then the texts of exceptions are not logged,
            because they may quote a value.

    Attributes:
        last_error, last_error_ns: as in :class:`~calltape_recorder.keep.ledger.Stats`.
    """

    def __init__(self, *, omits_values: bool) -> None:
        self._omits_values = omits_values
        self._said: set[str] = set()
        self._news: deque[tuple[str, int, str]] = deque(maxlen=MAX_NEWS)
        self._last_said: dict[str, float] = {}  # when there was news of a kind last
        self._suppressed: dict[str, int] = {}
        self.last_error: str | None = None
        self.last_error_ns: int | None = None

    def complain(self, about: str, error: BaseException) -> None:
        """Logs what went wrong, once per kind of problem. Recording goes on."""
        what = _in_one_line(error, with_text=not self._omits_values)
        self._note(f"{about}: {what}")
        if self._is_new(about):
            say(logging.WARNING, f"{about}: {what} (logged once; see Recorder.stats())")
            if _log.isEnabledFor(logging.DEBUG):
                # No lines of code, and no other exceptions: they may have the text of one.
                frames = extract_tb(traceback_of(error))
                lines = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
                say(logging.DEBUG, "\n".join([about, *lines]))

    def warn(self, text: str) -> None:
        """Logs a text once."""
        self._note(text)
        if self._is_new(text):
            say(logging.WARNING, text)

    def add_news(self, kind: str, text: str, *, level: int = logging.INFO) -> None:
        """Notes news for :meth:`log_news`. It takes no lock."""
        self._news.append((kind, level, text))

    def log_news(self) -> None:
        """Logs the news, of each kind once a minute at most. Only one thread may call it."""
        now = time.monotonic()
        while self._news:
            kind, level, text = self._news.popleft()
            if now - self._last_said.get(kind, -AGAIN_SECONDS) < AGAIN_SECONDS:
                self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
                continue
            self._last_said[kind] = now
            suppressed = self._suppressed.pop(kind, 0)
            if suppressed:
                text += f" (and {suppressed} more times since it was last logged)"
            say(level, text)
            # Python itself prints only warnings here, and these were not disabled.
            shows_warnings = logging.lastResort is not None and _log.isEnabledFor(logging.WARNING)
            if kind == BEGINNING and shows_warnings and not _log.hasHandlers():
                _print_line(f"calltape, process {os.getpid()}: {text}")

    def forget(self) -> None:
        """Lets problems be logged again, because they were over; at most once a minute."""
        now = time.monotonic()
        if now - self._last_said.get("", -AGAIN_SECONDS) >= AGAIN_SECONDS:
            self._last_said[""] = now
            self._said.clear()

    def _note(self, text: str) -> None:
        self.last_error, self.last_error_ns = text, time.time_ns()

    def _is_new(self, text: str) -> bool:
        if text in self._said or len(self._said) >= MAX_TROUBLES:
            return False
        self._said.add(text)
        return True


_errno_of: Any = OSError.__dict__["errno"].__get__


def _in_one_line(error: BaseException, *, with_text: bool) -> str:
    """The exception's type and message, as torch's messages may have many lines. Without its text,
    what the system says of its error number."""
    kind = name_of(type(error))
    if not with_text:
        number = _errno_of(error) if issubclass(type(error), OSError) else None
        return f"{kind}: {os.strerror(number)}" if type(number) is int else kind
    try:
        text = " ".join(str(error).split())
    except BaseException as broken:  # the application's own __str__ may raise anything
        if is_interrupt(broken):
            raise
        text = "(no text)"
    return f"{kind}: {text[:MAX_TROUBLE_CHARACTERS]}"


# Reasons of calls that could not be written. Other lost calls were on the disk, or never ended.
_NOT_WRITTEN = (
    DropReason.DISK_FULL, DropReason.MAX_DISK_BYTES, DropReason.IO, DropReason.QUEUE_FULL,
    DropReason.INTERNAL,
)  # fmt: skip


class AccountNews:
    """Compares the accounts of a recording from one second to the next, and reports changes.

    Args:
        notices: is notified when the recording stops or is paused, and when calls that were lost
            before are written again.

    Attributes:
        losing: as in :class:`~calltape_recorder.keep.ledger.Stats`.
    """

    def __init__(self, notices: Notices) -> None:
        self.losing: DropReason | None = None
        self._notices = notices
        self._is_paused = self._is_stopped = False
        self._lost = 0  # calls that were not written
        self._lost_before = 0
        self._losing_since = 0.0
        self._last_write_ns: int | None = None

    def look(self, stats: Stats, failure: DropReason | None, stopped: DropReason | None) -> None:
        """Is called about once a second by the writer's thread.

        Args:
            stats: the accounts.
            failure: why the last call could not be written; None if it was.
            stopped: the bound that was reached, so that no further call is recorded; or None.
        """
        lost = sum(stats.dropped.get(reason, 0) for reason in _NOT_WRITTEN)
        wrote = stats.last_write_ns != self._last_write_ns
        if failure is None and lost > self._lost and not wrote:
            failure = DropReason.QUEUE_FULL  # the writer did not even see them
        if failure is not None:
            if self.losing is None:
                self._losing_since, self._lost_before = time.monotonic(), self._lost
            self.losing = failure
        elif wrote and self.losing is not None:
            seconds = time.monotonic() - self._losing_since
            self._notices.add_news(
                "writes again",
                f"writing calls to {stats.path} again: {lost - self._lost_before} were lost in"
                f" {seconds:.0f} s ({self.losing})",
                level=logging.WARNING,
            )
            self._notices.forget()
            self.losing = None
        self._lost, self._last_write_ns = lost, stats.last_write_ns

        if stopped is not None:
            if not self._is_stopped:
                self._notices.add_news("stopped", f"recording stopped: it reached {stopped}")
            self._is_stopped = True
        elif stats.paused != self._is_paused:
            says = "paused recording" if stats.paused else "resumed recording"
            self._notices.add_news(says, f"{says} calls of {stats.target}")
            self._is_paused = stats.paused
