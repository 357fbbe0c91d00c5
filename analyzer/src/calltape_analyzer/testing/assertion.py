"""``assert_replays``: a test that a model does what is on a tape."""

from __future__ import annotations

import os
from typing import Any

from calltape_analyzer.comparison.comparing import Tolerances
from calltape_analyzer.comparison.judging import Expect
from calltape_analyzer.errors import TapeError
from calltape_analyzer.opening import open_tape
from calltape_analyzer.programs.untrusted_files import check_trusted
from calltape_analyzer.replaying.replaying import replay
from calltape_analyzer.tape import Tape
from calltape_analyzer.testing.failure_text import failure_text
from calltape_analyzer.testing.updates import updates

__all__ = ["assert_replays"]


def assert_replays(
    tape: Tape | str | os.PathLike[str],
    model: Any,
    *,
    tolerances: Tolerances | None = None,
    expect: Expect = "recorded",
    slower_than: float | str | None = None,
    trusted: bool = False,
) -> None:
    """Fails if a model does not do what is on a tape. See :func:`calltape_analyzer.replay`.

    With ``pytest --calltape-update`` outputs that differ are no failure: they are written to the
    tape when all tests are done.

    Args:
        tape: a tape, a part of one, or a path.
        model: the model, a program or a file, as for :func:`~calltape_analyzer.replay`.
        tolerances: as for :func:`~calltape_analyzer.replay`.
        expect: as for :func:`~calltape_analyzer.replay`.
        slower_than: as for :func:`~calltape_analyzer.replay`.
        trusted: as for :func:`~calltape_analyzer.replay`.

    Raises:
        AssertionError: says which call, which leaf, the first elements that differ, and the command
            that shows it again; or why the tape cannot be replayed.
    """
    __tracebackhide__ = True
    check_trusted(trusted)
    if not isinstance(tape, Tape):
        try:
            opened = open_tape(tape)
        except TapeError as error:
            raise AssertionError(f"the tape cannot be read: {error}") from None
        with opened:
            assert_replays(opened, model, tolerances=tolerances, expect=expect,
                           slower_than=slower_than, trusted=trusted)  # fmt: skip
        return
    update = updates()
    replayed = replay if update is None else update.replayed
    try:
        report = replayed(
            tape, model, tolerances=tolerances, expect=expect, slower_than=slower_than,
            trusted=trusted,
        )  # fmt: skip
    except TapeError as error:
        raise AssertionError(f"the tape cannot be replayed: {error}") from None
    if not report.ok:
        raise AssertionError(failure_text(tape, report))
