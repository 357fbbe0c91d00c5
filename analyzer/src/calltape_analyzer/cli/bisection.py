"""Exit codes for ``git bisect run``: of a commit that is good, bad, or cannot be tested.

git takes 1 to 124 for bad, and so would take a model that cannot be imported, a tape that is
damaged or a mistyped option for the bug. With ``--bisect``, a replay ends with

- 0: every call does what it is to do (good);
- 1: a call fails (bad): another value, another exception, too slow;
- 125: this commit cannot be tested, which skips it: its model cannot be imported or made, or the
  tape has nothing to test it with;
- 128: no commit can be tested, which ends the bisection: a wrong command line, a tape that cannot
  be opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from calltape_analyzer.cli.output import complain
from calltape_schema.errors import TapeError

if TYPE_CHECKING:
    from calltape_analyzer.comparison.reports import Report

__all__ = ["BAD", "CANNOT_TEST", "GIVE_UP", "GOOD", "Bisect", "git_codes", "judged"]

GOOD, BAD, CANNOT_TEST, GIVE_UP = 0, 1, 125, 128
_USAGE = 2
_OPTION = "--bisect"

Bisect = Annotated[
    bool,
    typer.Option(
        _OPTION,
        help="Exit codes for git bisect run: 0 good, 1 bad, 125 this commit cannot be tested, 128 "
        "no commit can.",
    ),
]


class Judged:
    """What came of a replay, if it came so far.

    Attributes:
        is_open: whether the tape was opened.
        report: of the replay.
    """

    is_open = False
    report: Report | None = None

    def ends_with(self, error: BaseException) -> int:
        """The code for an error: a tape that cannot be opened is the same for every commit."""
        known = isinstance(error, TapeError) and error.kind != "usage"
        return GIVE_UP if known and not self.is_open else CANNOT_TEST


def verdict(report: Report) -> int:
    """The code for a report. One call that fails is enough; calls that could not be tried say
    nothing."""
    if any(row.is_tested and not row.ok for row in report.rows):
        return BAD
    return GOOD if report.ok else CANNOT_TEST


@contextmanager
def judged(bisect: bool) -> Iterator[Judged]:
    """Ends a command as git wants it, if ``bisect``. The block sets what is
    found."""
    found = Judged()
    if not bisect:
        yield found
        return
    try:
        yield found
    except typer.BadParameter as error:
        complain(error.message)
        raise typer.Exit(GIVE_UP) from None
    except typer.Exit:  # of a damaged tape: what is whole was tested
        pass
    except (Exception, SystemExit) as error:
        complain(str(getattr(error, "error", error)) or type(error).__name__)
        code = found.ends_with(error)
        complain("no commit can be tested" if code == GIVE_UP else "this commit cannot be tested")
        raise typer.Exit(code) from None
    raise typer.Exit(CANNOT_TEST if found.report is None else verdict(found.report))


@contextmanager
def git_codes(words: Sequence[str]) -> Iterator[None]:
    """Turns the code of a wrong command line into the one that ends a bisection.

    Args:
        words: of the command line.
    """
    try:
        yield
    except SystemExit as end:
        if end.code == _USAGE and _OPTION in words:
            raise SystemExit(GIVE_UP) from None
        raise
