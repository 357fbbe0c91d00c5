"""What a program is kept from: sizes at which it gave wrong values, sizes like them, and 0.

Takes what came of recorded sizes and of others. If single sizes explain all that was wrong (a model
does something else without rows, or for one row), these are excluded, and nothing else. Sizes
beside them are run first: where a model does something else up to some size, or from one on, the
sizes beside are wrong as well. What no few sizes explain leaves a program for the sizes that it
reproduced.

A batch of 0 is usual, and no trace is made with one. The model and the program are run at it, once
per symbol, and the program takes it where it was seen to do what the model does. Outputs without
elements have nothing but a dtype and a shape to compare, which is said.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from calltape_analyzer.arguments.sizings import (
    Sizing,
    followed,
    row_at,
    sizes_in_words,
    sizings_with_zero,
    values_at,
)
from calltape_analyzer.comparison.verdicts import Verdict
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.exporting.session.unseen_runs import Ran, UnseenRuns
from calltape_analyzer.facts import Fact
from calltape_analyzer.observing.size_table import Column
from calltape_analyzer.programs.notes import Excluded, FailsAt, TakesZero, WhyNotOthers, WhyOnly
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.reasons import Because, NotTried, PointsInto, RaisedType, Why
from calltape_analyzer.programs.strategies import Attempt, Strategy
from calltape_analyzer.variants.facts import Fixed, VariantFacts, ZeroSizes

__all__ = ["restrict", "try_zeros"]

_MAX_OF_A_SYMBOL = 2
"""A program that is wrong at more sizes of a symbol is wrong at a range of them."""
_MAX_TRIED = 32
_STEPS, _FACTORS = (1, -1, 2, -2, 3, -3), (2, 3)
"""Which sizes are beside one: near it, and multiples, since a model may ask for a remainder."""
_MAX_ROUNDS = 4
_SPECIAL = (0, 1)
"""Models treat these in a special way; that needs no further proof."""

_Values = tuple[int, ...]


class _Size(NamedTuple):
    """A value of a symbol."""

    symbol: int
    value: int


def _sizes(values: _Values) -> list[_Size]:
    return [*map(_Size._make, enumerate(values))]


@dataclass
class _Evidence:
    """The values of all symbols where a program was right, and where it was wrong."""

    right: list[_Values] = field(default_factory=list)
    wrong: list[_Values] = field(default_factory=list)

    @property
    def good(self) -> set[_Size]:
        """The sizes at which the program was right."""
        return {size for values in self.right for size in _sizes(values)}

    def explaining(self, shown: Iterable[_Size] = ()) -> list[_Size] | None:
        """The fewest sizes of which one is in all that was wrong, and none in what was right; None
        if there are none. Those that were shown to be wrong alone come first, then 0 and 1."""
        first, good = list(shown), self.good
        left, found = list(self.wrong), list[_Size]()
        while left:
            counts = Counter(size for values in left for size in _sizes(values) if size not in good)
            if not counts:
                return None
            best = max(counts, key=lambda s: (s in first, counts[s], s.value in _SPECIAL, -s.value))
            found.append(best)
            left = [values for values in left if values[best.symbol] != best.value]
        per_symbol = Counter(size.symbol for size in found)
        return found if all(n <= _MAX_OF_A_SYMBOL for n in per_symbol.values()) else None


def restrict(program: Program, attempt: Attempt, session: Session, runs: UnseenRuns) -> None:
    """Keeps a program from sizes at which it gave wrong values: from single sizes if these explain
    all of them, else from all but the sizes that it reproduced.

    Args:
        program: is kept from them.
        attempt: what came of it.
        session: has the model.
        runs: of the program, at further sizes.
    """
    if not program.is_understood():
        _serve_verified_only(program, attempt, WhyOnly(WhyNotOthers.CONDITIONS))
        return
    # A model that fails at one size that it should take may be wrong at another: the conversion
    # made a constant of something that was none.
    counts_failed = attempt.failed > 0 and not program.model.checks_conditions
    wrong = sum(found == "wrong" for found in attempt.rows.values())
    if not (attempt.wrong or wrong or counts_failed):
        return
    evidence = _evidence(program.variant, attempt, counts_failed=counts_failed)
    found = _excluded(program, evidence, session, runs)
    is_unlike = not attempt.wrong and any(session.unlike.values())
    if found:
        _exclude(program, found, is_unlike)
        return
    corners = _corners(evidence, attempt)
    if corners and len(corners) == attempt.failed and not (attempt.wrong or wrong):
        where = tuple(sizes_in_words(program.variant, corner) for corner in corners[:3])
        program.told.append(FailsAt(program.model.runtime, where))
        return
    if counts_failed:
        why = WhyOnly(WhyNotOthers.FAILED, attempt.failed, runtime=program.model.runtime)
    elif is_unlike:
        why = WhyOnly(WhyNotOthers.OTHER_MODEL, wrong)
    elif wrong:
        why = WhyOnly(WhyNotOthers.WRONG, wrong)
    else:
        why = WhyOnly(WhyNotOthers.WRONG_UNSEEN, attempt.wrong, attempt.probed)
    _serve_verified_only(program, attempt, why)


def _serve_verified_only(program: Program, attempt: Attempt, why: WhyOnly) -> None:
    program.serve_only([row for row, found in attempt.rows.items() if found == "ok"], why)


def _evidence(variant: VariantFacts, attempt: Attempt, *, counts_failed: bool) -> _Evidence:
    found = _Evidence()
    bad = {"wrong", "failed"} if counts_failed else {"wrong"}
    for place, row in enumerate(variant.rows):
        outcome = attempt.rows.get(row)
        if outcome == "ok":
            found.right.append(values_at(variant, place))
        elif outcome in bad:
            found.wrong.append(values_at(variant, place))
    found.right += [sizing.values for sizing in attempt.agreed_at]
    found.wrong += [sizing.values for sizing in attempt.wrong_at]
    found.wrong += [sizing.values for sizing in attempt.failed_at] if counts_failed else []
    return found


def _corners(evidence: _Evidence, attempt: Attempt) -> list[Sizing]:
    """Where a runtime failed because several sizes are 0 or 1 at once (``squeeze()`` leaves no
    dimension), and was right for each of them with others. Nothing follows for other sizes."""
    good = evidence.good
    return [
        sizing
        for sizing in attempt.failed_at
        if sum(value in _SPECIAL for value in sizing.values) > 1
        and good.issuperset(_sizes(sizing.values))
    ]


def _excluded(
    program: Program, evidence: _Evidence, session: Session, runs: UnseenRuns
) -> list[_Size] | None:
    """The sizes that explain all that was wrong, if those beside them were tried and are right;
    None if there are none."""
    tried: set[_Values] = set()
    shown: set[_Size] = set()
    may_run = session.probing.probe != "none"
    for _ in range(_MAX_ROUNDS):
        found = evidence.explaining(shown)
        if not found or not evidence.right:
            return None
        waiting = [
            sizing
            for sizing in _to_try(program.variant, evidence, found)
            if sizing.values not in tried and len(tried) < _MAX_TRIED and may_run
        ]
        if not waiting:
            is_shown = all(
                size.value in _SPECIAL or _is_beside_right(program.variant, size, evidence, may_run)
                for size in found
            )
            return found if is_shown else None
        if session.budget.is_spent:
            return None
        for sizing in waiting:
            tried.add(sizing.values)
            scratch = Attempt(variant=program.name, strategy=Strategy.BESIDE)
            session.probe(program, scratch, sizing, runs)
            if scratch.agreed:
                evidence.right.append(sizing.values)
            elif scratch.wrong or (scratch.failed and not program.model.checks_conditions):
                evidence.wrong.append(sizing.values)
                new = {*_sizes(sizing.values)} - evidence.good
                shown |= new if len(new) == 1 else set()  # all others were right
    return None


def _to_try(variant: VariantFacts, evidence: _Evidence, found: Sequence[_Size]) -> Iterator[Sizing]:
    """Sizes at which one that explains something is alone, among those at which the program was
    right; and sizes beside it."""
    rows = [values_at(variant, row) for row in range(len(variant.rows))]
    row = next((place for place, values in enumerate(rows) if values in evidence.right), None)
    if row is None:
        return
    doubtful = {size for values in evidence.wrong for size in _sizes(values)} - evidence.good
    for size in (*found, *sorted(doubtful.difference(found))):
        unit = variant.symbols[size.symbol].unit if size.value else 1
        beside = [size.value + step * unit for step in _STEPS]
        beside += [factor * size.value for factor in _FACTORS]
        for value in (size.value, *(beside if size in found else ())):
            if value < 0 or (value == 0 and size.value not in (0, 1)):
                continue
            moved = followed(variant.symbols, rows[row], {size.symbol: value})
            if moved is not None and moved[size.symbol] == value and moved not in rows:
                yield Sizing(row, moved, True)


def _is_beside_right(
    variant: VariantFacts, size: _Size, evidence: _Evidence, was_tried: bool
) -> bool:
    """Whether the program was right at smaller and at larger sizes of a symbol; or near one side,
    if the other side was tried and the model takes no such sizes."""
    away = [right[size.symbol] - size.value for right in evidence.right]
    if min(away) < 0 < max(away):
        return True
    near = max(_STEPS) * variant.symbols[size.symbol].unit
    return was_tried and any(abs(distance) <= near for distance in away)


def _exclude(program: Program, sizes: Sequence[_Size], is_unlike: bool) -> None:
    """Lets a program reject some sizes."""
    variant = program.variant
    forbidden = [
        Fixed(column, size.value, negated=True)
        for size in sizes
        for column in variant.symbols[size.symbol].columns
    ]
    program.variant = replace(variant, conditions=(*variant.conditions, *forbidden))
    name = variant.group.layout.column_name
    for value in sorted({size.value for size in sizes}):
        names = [
            name(variant.symbols[size.symbol].columns[0]) for size in sizes if size.value == value
        ]
        program.told.append(Excluded(value, tuple(names), is_unlike))


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
        row = row_at(program.variant, sizing)
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
    name = program.variant.group.layout.column_name
    for has_values in (True, False):  # nothing but a dtype and a shape may have been compared
        own = [columns for columns, found in taken.items() if bool(found.compared) is has_values]
        if own:
            names = tuple(" and ".join(map(name, sorted(columns))) for columns in own)
            program.told.append(TakesZero(names, has_values))


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
