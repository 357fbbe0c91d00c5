"""What a failing test says: the call, the leaf, the first elements that differ, and how to see it
again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from calltape_analyzer.comparison.reports import Report, ReportRow
from calltape_analyzer.reading.call import Call
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted, printable

__all__ = ["difference_lines", "failure_text", "named", "place_of"]

_MAX_CALLS = 3
_MAX_LINE = 500

_command: ContextVar[str | None] = ContextVar("command", default=None)


def failure_text(tape: Tape, report: Report) -> str:
    """The message for a report that is not ok: text of several lines."""
    lines: list[str] = []
    for row in report.failing[:_MAX_CALLS]:
        lines += difference_lines(call_of(tape, row), row)
    more = len(report.failing) - _MAX_CALLS
    lines += (
        [f"{counted(more, 'more call')} {'fails' if more == 1 else 'fail'}"] if more > 0 else []
    )
    lines += [*map(str, report.notes), report.summary]
    if report.failing:
        lines += _commands(call_of(tape, report.failing[0]))
    return "\n".join(printable(line[:_MAX_LINE]) for line in lines)


def difference_lines(call: Call, row: ReportRow) -> list[str]:
    """What is wrong about one call, in the lines of a message."""
    lines = [f"call {row.address or row.call} of {place_of(call)}: {row.error}"]
    for leaf in row.differences:
        if leaf.elements:
            cells = [
                (f"{leaf.path}[{', '.join(map(str, one.index))}]", one.recorded, one.got)
                for one in leaf.elements
            ]
            first, second, third = (max(len(row[i]) for row in cells) for i in range(3))
            lines += [
                f"  {at:{first}}  recorded {one:>{second}}  got {other:>{third}}"
                for at, one, other in cells
            ]
        elif leaf != row.error:
            lines.append(f"  {leaf}")
    return lines


def call_of(tape: Tape, row: ReportRow) -> Call:
    return tape.find(row.address or row.call)


def place_of(call: Call) -> str:
    """The file of a call, as it is written from the current directory."""
    relative = os.path.relpath(call.path)
    return call.path if relative.startswith("..") else relative


def _commands(call: Call) -> list[str]:
    place = shlex.quote(place_of(call))
    again = _command_of_test()
    if again is None:
        again = f"calltape replay {place} --calls {call.number} --model PACKAGE.MODULE:FACTORY"
    return [f"to see it again: {again}", f"to see the call: calltape show {place} {call.number}"]


def _command_of_test() -> str | None:
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
