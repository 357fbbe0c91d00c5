"""A replay that tells ``git bisect run`` whether a commit is good, bad, or cannot be tested."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from calltape_analyzer.cli.git_exit_codes import BAD, CANNOT_TEST, GIVE_UP, GOOD, OPTION
from calltape_analyzer.cli.output import WrongWordError, complain
from calltape_schema.errors import TapeError

if TYPE_CHECKING:
    from calltape_analyzer.comparison.reports import Report

__all__ = ["Bisect", "judged"]

Bisect = Annotated[
    bool,
    typer.Option(
        OPTION,
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
        """The code for an error: a tape that cannot be opened, and a call that is not there, are
        the same for every commit."""
        if isinstance(error, WrongWordError):
            return GIVE_UP
        known = isinstance(error, TapeError) and error.kind != "usage"
        return GIVE_UP if known and not self.is_open else CANNOT_TEST


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
