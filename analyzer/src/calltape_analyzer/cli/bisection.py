"""A replay that tells ``git bisect run`` whether a commit is good, bad, or cannot be tested.

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

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from calltape_analyzer.cli.output import WrongWordError, complain
from calltape_schema.errors import TapeError

if TYPE_CHECKING:
    from calltape_analyzer.comparison.reports import Report


__all__ = ["Bisect", "judged"]

GOOD, BAD, CANNOT_TEST, GIVE_UP = 0, 1, 125, 128

Bisect = Annotated[
    bool,
    typer.Option(
        "--bisect",
        help="Use the exit codes of `git bisect run`: 0 good, 1 bad, 125 skip this commit, 128 "
        "stop.",
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


def verdict(report: Report) -> int:
    """The code for a report. One call that fails is enough; calls that could not be tried say
    nothing. If that is because the tape is damaged there, the others decide: no commit could try
    these calls."""
    if any(row.is_tested for row in report.failing):
        return BAD
    are_fine = report.has_compared and all(row.is_unreadable for row in report.failing)
    return GOOD if are_fine else CANNOT_TEST


@contextmanager
def judged(bisect: bool) -> Iterator[Judged]:
    """Ends a command as git wants it, if ``bisect``. The block sets what is found."""
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
        # A tape that cannot be opened, and a call that is not there, are the same for every commit.
        is_of_tape = isinstance(error, TapeError) and error.kind != "usage" and not found.is_open
        is_of_all = is_of_tape or isinstance(error, WrongWordError)
        complain("no commit can be tested" if is_of_all else "this commit cannot be tested")
        raise typer.Exit(GIVE_UP if is_of_all else CANNOT_TEST) from None
    raise typer.Exit(CANNOT_TEST if found.report is None else verdict(found.report))
