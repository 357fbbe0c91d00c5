"""Verifies a program: at recorded sizes, at others, and which sizes it must reject.

A program is good if it reproduces every recorded size, and better if it also agrees with the model
at sizes that no call had. A program and its attempt are a :class:`Candidate`.

A program that returns wrong values somewhere is restricted. If a few single sizes explain every
wrong result (a model treats an empty batch or a single row differently), only these are excluded.
The sizes next to them run first: a model that changes its behavior up to or from some size is wrong
there as well. Otherwise the program serves only the recorded sizes that it reproduced.

A batch of 0 is common, and no trace is made with one. Model and program run at 0 once per symbol,
and the program accepts it where both agree. An output without elements has only a dtype and a shape
to compare; a note says so.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.arguments.sizings import (
    Sizing,
    is_between,
    is_part_way,
    row_at,
    sizes_in_words,
    sizings_with_zero,
    values_at,
    with_relations,
)
from calltape_analyzer.comparison.judging import judge
from calltape_analyzer.comparison.reports import Verdict
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.exporting.session.unseen_runs import (
    UnseenRun,
    UnseenRuns,
    unseen_runs,
    why_unrun,
)
from calltape_analyzer.facts import Fact
from calltape_analyzer.observing.size_table import Column, SizeRow
from calltape_analyzer.programs import reasons
from calltape_analyzer.programs.attempts import Attempt, RowOutcome
from calltape_analyzer.programs.exported_model import ConditionError
from calltape_analyzer.programs.notes import (
    Excluded,
    FailsAt,
    NotCompared,
    OtherModel,
    TakesZero,
    WhyNotOthers,
    WhyOnly,
)
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.reasons import (
    Because,
    InState,
    NotTried,
    PointsInto,
    RaisedType,
    Why,
)
from calltape_analyzer.programs.runner import ProgramRun
from calltape_analyzer.programs.strategies import Strategy
from calltape_analyzer.reading.call import Call
from calltape_analyzer.variants.facts import Fixed, VariantFacts, ZeroSizes

__all__ = ["Candidate", "ReplayedCall", "replay_call", "restrict", "try_zeros", "verify"]

_MAX_ROWS = 24


@dataclass
class Candidate:
    """A program for a variant, and the attempt that made it."""

    attempt: Attempt
    program: Program

    def score(self, wanted: Collection[SizeRow] | None = None) -> tuple[int, ...]:
        """Greater is better. First counts how many of the sizes without a program it reproduces: a
        better copy of another program is useless. How many sizes were probed depends on the time
        that was left, so the number of failures counts instead.

        Args:
            wanted: the recorded sizes that have no program yet; None for all.
        """
        found = self.attempt
        unseen = (found.agreed > 0, found.agreed - found.probed, not found.by_values, found.agreed)
        return (self.served(wanted), found.ok, found.reproduced, -found.wrong, *unseen)

    def served(self, wanted: Collection[SizeRow] | None = None) -> int:
        """How many of some recorded sizes were reproduced; of all by default."""
        if wanted is None:
            return self.attempt.reproduced
        return sum(self.serves(row) for row in wanted)

    def serves(self, row: SizeRow) -> bool:
        """Whether a recorded size was reproduced. If there are very many, only some are run, and
        the conditions of the program decide about the others."""
        outcome = self.attempt.rows.get(row)
        return outcome == "ok" if outcome is not None else self.program.rejects(row) is None


class ReplayedCall(NamedTuple):
    """A recorded call through a program.

    Attributes:
        outcome: as in :attr:`Attempt.rows`.
        error: what is wrong, or could be better; None if nothing is.
        verdict: on the result; None if the program did not return.
    """

    outcome: RowOutcome
    error: Fact | None = None
    verdict: Verdict | None = None


def verify(
    session: Session,
    program: Program,
    attempt: Attempt,
    around: Sequence[Sizing],
    *,
    begin: float,
    all_or_nothing: bool = False,
    narrow: bool = False,
) -> None:
    """Runs recorded calls and other sizes through a program, and fills in the attempt. The program
    gets notes about state and about what could not be verified.

    Args:
        session: has the model.
        program: what the attempt made.
        attempt: is filled in.
        around: unrecorded sizes that the program was made for.
        begin: when the attempt began, by :func:`time.perf_counter`.
        all_or_nothing: whether a program that fails at one recorded size is useless, so that it
            need not run any further.
        narrow: whether it accepts only recorded sizes and those of ``around``.
    """
    session.note_effects(program)
    for row, seen in program.variant.rows.items()[:_MAX_ROWS]:
        has_failed = all_or_nothing and attempt.reproduced < attempt.tried
        if has_failed or session.budget.is_spent:
            attempt.rows[row] = "untried"
            attempt.unrun += 1
            if not has_failed:
                attempt.note(session.budget.reason)
            continue
        attempt.tried += 1
        replayed = replay_call(session, program, session.find(seen.first))
        attempt.add(replayed.verdict)
        if replayed.outcome in ("wrong", "failed"):
            attempt.error = attempt.error or replayed.error
        elif replayed.error is not None:
            attempt.note(replayed.error)
        attempt.rows[row] = replayed.outcome
        attempt.reproduced += replayed.outcome == "ok"
        attempt.failed += replayed.outcome == "failed"
    if attempt.reproduced and not attempt.compared:
        # All outputs are empty or NaN: any program returns that.
        attempt.reproduced = 0
        for row, outcome in attempt.rows.items():
            attempt.rows[row] = "wrong" if outcome == "ok" else outcome
        attempt.error = Because(Why.NOTHING_COMPARED)
    program.all_notes += map(NotCompared, attempt.unverified)
    effects = session.effects_of(program.variant)
    if effects is not None and program.model.has_state:  # other runtimes return no views
        program.note_views(effects.views)
    program.note_state(session.state)
    if (not attempt.reproduced and not around) or (all_or_nothing and not attempt.ok):
        return
    variant, probing = program.variant, session.probing
    now = time.perf_counter()
    until = now + probing.patience(now - begin)

    def probe_all(sizings: Sequence[Sizing]) -> None:
        with unseen_runs(session, program) as runs:
            for sizing in sizings:
                # Cheaper ones may follow.
                is_late = time.perf_counter() + probing.predicted(variant, sizing) > until
                if is_late or session.budget.is_spent:
                    why = Because(Why.LATE) if is_late else session.budget.reason
                    attempt.note_untried(variant, sizing, why)
                else:
                    _probe(session, program, attempt, sizing, runs)

    sizings = probing.sizings(variant, around, narrow=narrow)
    probe_all(sizings)
    if sizings and not attempt.probed and not narrow:
        probe_all(probing.cheaper(variant))
    probing.note(program, attempt)


def replay_call(session: Session, program: Program, call: Call) -> ReplayedCall:
    """Runs a recorded call through a program, and judges the result."""
    sample = session.sample(program.variant, call)
    rejection = program.rejects_call(session.sorter.sorted(call.record.inputs))
    rejection = rejection or program.rejects_values(sample)
    if rejection is not None:
        return ReplayedCall("rejected", reasons.OfCall(call.number, rejection))
    run = _RecordedRun(session, program, sample)
    verdict = judge(call, run, session.tolerances)
    if verdict.error is not None and run.raised is not None:
        outcome: RowOutcome = "failed"  # instead of rejecting the call
        if isinstance(run.raised, ConditionError):
            outcome = "rejected"
        return ReplayedCall(outcome, reasons.OfCall(call.number, verdict.error))
    if verdict.ok and verdict.against == "tape" and not run.unmade_outputs:
        session.cache_verdict(program, call, verdict)
    if verdict.error is None or verdict.agrees:
        return ReplayedCall("ok", verdict=verdict)
    is_other_model = isinstance(verdict.error, OtherModel)
    error = verdict.error if is_other_model else reasons.OfCall(call.number, verdict.error)
    is_state = isinstance(verdict.error, InState)
    return ReplayedCall("ok" if is_state else "wrong", error, verdict)


class _RecordedRun(ProgramRun):
    """A recorded call through a program that is being made.

    Attributes:
        unmade_outputs: the objects in what it returned that cannot be made.
    """

    def __init__(self, session: Session, program: Program, sample: Sample) -> None:
        super().__init__(session)
        self._session, self.program, self.sample = session, program, sample

    def run(self) -> dict[str, Any]:
        leaves, self.unmade_outputs = self._session.run_program(self.program, self.sample)
        return leaves

    def explained(self, call: Call, verdict: Verdict, expected: Mapping[str, Any]) -> Verdict:
        verdict = super().explained(call, verdict, expected)
        if verdict.agrees or verdict.against != "tape" or isinstance(verdict.error, InState):
            return verdict
        difference = self._session.difference_from_tape(
            self.program, call, self.sample, expected, self.returned.leaves
        )
        if difference is None:
            return verdict
        return verdict.with_error(OtherModel((f"{call.ref.number}",), difference))


def _probe(
    session: Session, program: Program, attempt: Attempt, sizing: Sizing, runs: UnseenRuns
) -> None:
    """Runs one unrecorded size, at which the result of the model counts as right, and fills in the
    attempt."""
    variant = program.variant
    reason = why_unrun(session, variant, sizing)
    if reason is not None:
        attempt.note_untried(variant, sizing, reason)
        return
    rejection = program.rejects(row_at(variant, sizing))
    limit = session.budget.within(session.probing.seconds)
    ran = runs.at(sizing, limit, with_program=rejection is None)
    if ran.is_late:
        session.probing.note_slow(variant)
    if ran.unrun is not None:
        attempt.note_untried(variant, sizing, ran.unrun)
    elif ran.model_error is not None:  # the model does not take these sizes: that is no evidence
        attempt.declined += 1
    elif rejection is not None and is_between(variant, sizing):
        # All recorded sizes meet this condition. Another program may serve the others.
        attempt.rejected += [sizing] if is_part_way(variant, sizing) else []
    elif rejection is not None:
        attempt.probed += 1
        attempt.note(reasons.Unseen(rejection))
        attempt.rejected += [sizing] if 1 not in sizing.values else []
    elif ran.crash is not None:
        attempt.probed += 1
        attempt.note_wrong(sizing)
        attempt.note(reasons.Unseen(ran.crash))
    elif ran.program_error is not None:  # it rejects
        attempt.probed += 1
        attempt.note(reasons.Unseen(ran.program_error.why))
        attempt.rejected.append(sizing)
        if not ran.program_error.is_condition:
            attempt.failed += 1
            attempt.failed_at.append(sizing)
    elif ran.doubt is not None:
        attempt.note_untried(variant, sizing, ran.doubt)
    elif ran.verdict is not None:
        attempt.note_compared(sizing, ran.verdict)


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
    if not program.has_known_conditions():
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
    is_unlike = not attempt.wrong and any(session.differences.values())
    if found:
        _exclude(program, found, is_unlike)
        return
    corners = _corners(evidence, attempt)
    if corners and len(corners) == attempt.failed and not (attempt.wrong or wrong):
        where = tuple(sizes_in_words(program.variant, corner) for corner in corners[:3])
        program.all_notes.append(FailsAt(program.model.runtime, where))
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
            _probe(session, program, scratch, sizing, runs)
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
            moved = with_relations(variant.symbols, rows[row], {size.symbol: value})
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
        program.all_notes.append(Excluded(value, tuple(names), is_unlike))


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
        reason = why_unrun(session, program.variant, sizing)
        for number, rule in session.rules_of(program.variant).items():
            is_zero = rule.symbol is not None and sizing.values[rule.symbol] == 0
            if rule.needs_one and is_zero and 0 not in row.shapes[number]:
                reason = PointsInto(str(program.variant.group.layout.tensors[number]))
                break
        if reason is not None:
            rejected[columns] = NotTried(reason)
            continue
        ran = runs.at(sizing, min(left, session.probing.seconds))
        why = _why_rejected(ran)
        if why is not None:
            rejected[columns] = why
        elif ran.verdict is not None:
            taken[columns] = ran.verdict
    program.variant = replace(program.variant, zeros=ZeroSizes(frozenset(taken), rejected))
    name = program.variant.group.layout.column_name
    for has_values in (True, False):  # nothing but a dtype and a shape may have been compared
        own = [columns for columns, found in taken.items() if bool(found.compared) is has_values]
        if own:
            names = tuple(" and ".join(map(name, sorted(columns))) for columns in own)
            program.all_notes.append(TakesZero(names, has_values))


def _why_rejected(ran: UnseenRun) -> Fact | None:
    """Why a program is not known to agree with the model; None if it agrees. The reason is saved
    with the program, and the message of an error may quote a call, so only its type is kept."""
    if ran.unrun is not None:
        return NotTried(ran.unrun) if ran.is_late else ran.unrun
    if ran.model_error is not None:
        return RaisedType(is_model=True, error=ran.model_error.kind)
    if not ran.is_finite:
        return Because(Why.MODEL_NOT_FINITE)
    if ran.crash is not None:
        return ran.crash
    if ran.program_error is not None:
        return RaisedType(is_model=False, error=ran.program_error.kind)
    if ran.verdict is None or not ran.verdict.agrees:
        return Because(Why.OTHER_RESULT)
    return None
