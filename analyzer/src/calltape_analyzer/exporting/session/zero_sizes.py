"""Whether a program takes sizes of 0 that no call had: it does where it was seen to do what the
model does.

A batch of 0 is usual, and no trace is made with one. The model and the program are run at it, once
per symbol. Outputs without elements have nothing but a dtype and a shape to compare, which is said.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from calltape_analyzer.arguments.samples import resized_row
from calltape_analyzer.arguments.sizings import sizings_with_zero
from calltape_analyzer.comparison.verdicts import Verdict
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.exporting.session.unseen_runs import Ran, UnseenRuns
from calltape_analyzer.facts import Fact
from calltape_analyzer.observing.size_table import Column
from calltape_analyzer.programs.notes import TakesZero
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.reasons import Because, NotTried, PointsInto, RaisedType, Why
from calltape_analyzer.variants.facts import ZeroSizes

__all__ = ["try_zeros"]


def try_zeros(program: Program, session: Session, seconds: float, runs: UnseenRuns) -> None:
    """Runs a program at sizes of 0, and notes which it takes. The others it rejects.

    Args:
        program: serves recorded sizes, and others as well.
        session: has the model.
        seconds: how long it took to make the program.
        runs: of the program.
    """
    if program.only is not None or session.probing.probe == "none":
        return
    until = time.perf_counter() + session.probing.patience(seconds)
    taken: dict[frozenset[Column], Verdict] = {}
    rejected: dict[frozenset[Column], Fact] = {}
    for sizing in sizings_with_zero(program.variant):
        row = resized_row(program.variant, sizing.row, sizing.values)
        columns = frozenset(program.variant.new_zeros(row))
        if not columns or program.conditions_reject(row) is not None:
            continue
        left = session.budget.within(until - time.perf_counter())
        if time.perf_counter() > until or session.budget.is_spent:
            rejected[columns] = Because(Why.NO_TIME)
            continue
        reason = session.why_unrun(program.variant, sizing)
        pointing = session.points_to_nothing(program.variant, sizing)
        if pointing is not None:
            reason = PointsInto(pointing)
        if reason is not None:
            rejected[columns] = NotTried(reason)
            continue
        ran = runs.at(sizing, min(left, session.probing.seconds))
        why = _why_rejected(ran)
        if why is not None:
            rejected[columns] = why
        elif ran.found is not None:
            taken[columns] = ran.found
    program.variant = replace(program.variant, zeros=ZeroSizes(frozenset(taken), rejected))
    _note(program, taken)


def _why_rejected(ran: Ran) -> Fact | None:
    """Why a program is not known to do what the model does; None if it does. The reason is saved
    with the program, and a message of the model may quote a call: only its type is kept."""
    if ran.unrun is not None:
        return NotTried(ran.unrun) if ran.is_late else ran.unrun
    if ran.raised is not None:
        return RaisedType(is_model=True, error=ran.raised.kind)
    if not ran.is_finite:
        return Because(Why.MODEL_NOT_FINITE)
    if ran.died is not None:
        return ran.died
    if ran.failed is not None:
        return RaisedType(is_model=False, error=ran.failed.kind)
    if ran.found is None or not ran.found.agrees:
        return Because(Why.OTHER_RESULT)
    return None


def _note(program: Program, taken: Mapping[frozenset[Column], Verdict]) -> None:
    """Says which dimensions may be 0, and what that was seen by."""
    name = program.variant.group.layout.column_name
    for has_values in (True, False):
        own = [columns for columns, found in taken.items() if bool(found.compared) is has_values]
        if own:
            names = tuple(" and ".join(map(name, sorted(columns))) for columns in own)
            program.told.append(TakesZero(names, has_values))
