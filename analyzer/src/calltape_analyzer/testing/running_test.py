"""What is known of the test that runs: how it is run again, and whether its tapes are updated.

The plugin says it here, and :func:`~calltape_analyzer.testing.assert_replays` reads it. Without a
plugin nothing is known.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from calltape_analyzer.comparison.reports import Report
    from calltape_analyzer.tape import Tape

__all__ = ["command_of_test", "named", "set_updates", "updates"]


class Updates(Protocol):
    """Takes new outputs; as in ``updates.py``."""

    @property
    def folder(self) -> str: ...
    @property
    def lines(self) -> list[str]: ...
    def replayed(self, tape: Tape, model: Any, **options: Any) -> Report: ...
    def finish(self, *, write: bool) -> None: ...
    def close(self) -> None: ...


_command: ContextVar[str | None] = ContextVar("command", default=None)
_updates: list[Updates] = []


def command_of_test() -> str | None:
    """The command that runs the test again; None if no test of pytest runs."""
    given = _command.get()
    current = os.environ.get("PYTEST_CURRENT_TEST")
    if given is not None or current is None:
        return given
    return f"python -m pytest {shlex.quote(current.rpartition(' (')[0])}"


@contextmanager
def named(command: str) -> Iterator[None]:
    """Sets the command within the ``with`` block."""
    token = _command.set(command)
    try:
        yield
    finally:
        _command.reset(token)


def updates() -> Updates | None:
    """Where new outputs go instead of a failure; None if tests are to fail."""
    return _updates[-1] if _updates else None


def set_updates(given: Updates | None) -> None:
    """Sets what :func:`updates` gives, for this process."""
    _updates[:] = [] if given is None else [given]
