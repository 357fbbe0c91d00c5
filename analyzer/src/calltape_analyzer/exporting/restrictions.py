"""What a program is kept from: sizes at which it gave wrong values, and sizes like them."""

from __future__ import annotations

from dataclasses import replace

from calltape_analyzer.programs.attempts import Attempt
from calltape_analyzer.programs.program import Program
from calltape_analyzer.variants.row_conditions import Fixed

__all__ = ["restrict"]


def restrict(program: Program, attempt: Attempt) -> None:
    """Keeps a program from sizes at which it gave wrong values: from a size of 1, if only such
    sizes were wrong, else from all but the sizes that it reproduced."""
    wrong = sum(found == "wrong" for found in attempt.rows.values())
    if not program.is_understood():
        _serve_verified_only(program, attempt, "it has conditions that cannot be checked here")
        return
    if attempt.failed and not program.model.checks_conditions:
        # A model that fails at one size that it should take may be wrong at another: the
        # conversion made a constant of something that was none.
        failed = f"{program.model.runtime} failed at {attempt.failed} sizes that it should take"
        _serve_verified_only(program, attempt, failed)
        return
    if not attempt.wrong and not wrong:
        return
    if not wrong and _forbid_ones(program, attempt):
        return
    what = (
        f"{wrong} recorded sizes"
        if wrong
        else f"{attempt.wrong} of {attempt.probed} sizes that were never recorded"
    )
    _serve_verified_only(program, attempt, f"it returned wrong values at {what}")


def _serve_verified_only(program: Program, attempt: Attempt, why: str) -> None:
    program.serve_only([row for row, found in attempt.rows.items() if found == "ok"], why)


def _forbid_ones(program: Program, attempt: Attempt) -> bool:
    """Refuses 1 for the symbols that were 1 whenever the program was wrong. Tells whether that
    explains all wrong values."""
    variant = program.variant
    ones = [{i for i, v in enumerate(s.values) if v == 1} for s in attempt.wrong_at]
    if not all(ones):
        return False
    columns = [variant.symbols[i].columns[0] for i in sorted(set().union(*ones))]
    if any(1 in variant.rows.distinct(column) for column in columns):
        return False
    forbidden = tuple(Fixed(column, 1, negated=True) for column in columns)
    program.variant = replace(variant, conditions=(*variant.conditions, *forbidden))
    names = ", ".join(variant.group.layout.column_name(column) for column in columns)
    program.notes.append(f"does not take a size of 1 for {names}: the model does something else")
    return True
