"""Verifies a program: at recorded sizes, at others, and which sizes it must reject.

A program is good if it reproduces every recorded size, and better if it also agrees with the model
at sizes that no call had.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    why_unrun,
)
from calltape_analyzer.facts import Fact
from calltape_analyzer.observing.size_table import Column
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

__all__ = ["ReplayedCall", "replay_call", "restrict", "try_zeros", "verify"]

_MAX_ROWS = 24
"""How many recorded sizes run."""


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
    target_sizings: Sequence[Sizing],
    runs: UnseenRuns,
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
        target_sizings: unrecorded sizes that the program was made for.
        runs: of the program, at unrecorded sizes.
        begin: when the attempt began, by :func:`time.perf_counter`.
        all_or_nothing: whether a program that fails at one recorded size is useless, so that it
            need not run any further.
        narrow: whether it accepts only recorded sizes and those of ``target_sizings``.
    """
    session.note_effects(program)
    _verify_recorded(session, program, attempt, all_or_nothing=all_or_nothing)
    program.all_notes += map(NotCompared, attempt.unverified)
    effects = session.effects_of(program.variant)
    if effects is not None and program.model.has_state:  # other runtimes return no views
        program.note_views(effects.views)
    program.note_state(session.state)
    has_failed = all_or_nothing and not attempt.ok
    if not has_failed and (attempt.reproduced or target_sizings):
        patience = session.probing.patience(time.perf_counter() - begin)
        _verify_unseen(
            session, program, attempt, target_sizings, runs, patience=patience, narrow=narrow
        )


def _verify_recorded(
    session: Session, program: Program, attempt: Attempt, *, all_or_nothing: bool
) -> None:
    """Runs one call of each recorded size, and fills in the attempt. The arguments are those of
    :func:`verify`."""
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


def _verify_unseen(
    session: Session,
    program: Program,
    attempt: Attempt,
    target_sizings: Sequence[Sizing],
    runs: UnseenRuns,
    *,
    patience: float,
    narrow: bool,
) -> None:
    """Runs unrecorded sizes, for as many seconds as the patience, and fills in the attempt. The
    other arguments are those of :func:`verify`."""
    variant, probing = program.variant, session.probing
    until = time.perf_counter() + patience

    def probe_all(sizings: Sequence[Sizing]) -> None:
        for sizing in sizings:
            # Cheaper ones may follow.
            is_late = time.perf_counter() + probing.predicted(variant, sizing) > until
            if is_late or session.budget.is_spent:
                why = Because(Why.LATE) if is_late else session.budget.reason
                attempt.note_untried(variant, sizing, why)
            else:
                _probe(session, program, attempt, sizing, runs)

    sizings = probing.sizings(variant, target_sizings, narrow=narrow)
    probe_all(sizings)
    if sizings and not attempt.probed and not narrow:
        probe_all(probing.cheaper(variant))
    probing.note(program, attempt)


def replay_call(session: Session, program: Program, call: Call) -> ReplayedCall:
    """Runs a recorded call through a program, and judges the result. The program may get notes, and
    a good verdict on a recorded result is remembered.

    Args:
        session: has the model, which runs if the tape lacks the result.
        program: is run unless it rejects the call.
        call: the call.
    """
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


_MAX_EXCLUDED = 2
"""A program that is wrong at more sizes of a symbol counts as wrong at a range of them."""
_MAX_TRIED = 32
"""How many sizes are run to find those at which a program is wrong."""
_STEPS, _FACTORS = (1, -1, 2, -2, 3, -3), (2, 3)
"""Which sizes are beside one: near it, and multiples, since a model may depend on a remainder."""
_MAX_ROUNDS = 4
_SPECIAL = (0, 1)
"""Sizes that models often treat differently, so that no further evidence is needed."""

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
        """The fewest sizes that explain the wrong results: each wrong result has one of them, and
        no right result has any. None if there are none.

        Args:
            shown: sizes that were found to be wrong on their own. They are preferred, then those
                that explain the most results, then 0 and 1.
        """
        preferred, good = list(shown), self.good
        unexplained, causes = list(self.wrong), list[_Size]()
        while unexplained:
            every = (size for values in unexplained for size in _sizes(values))
            counts = Counter(size for size in every if size not in good)
            if not counts:
                return None
            best = max(
                counts, key=lambda s: (s in preferred, counts[s], s.value in _SPECIAL, -s.value)
            )
            causes.append(best)
            unexplained = [values for values in unexplained if values[best.symbol] != best.value]
        per_symbol = Counter(size.symbol for size in causes)
        return causes if all(n <= _MAX_EXCLUDED for n in per_symbol.values()) else None


def restrict(program: Program, attempt: Attempt, session: Session, runs: UnseenRuns) -> None:
    """Makes a program reject the sizes at which it returned wrong values: a few single sizes if
    these explain all wrong results, else all sizes but those that it reproduced.

    Args:
        program: the program.
        attempt: that made it, with the results at all sizes that were run.
        session: has the model.
        runs: runs the program at further sizes.
    """
    if not program.has_known_conditions():
        _serve_verified_only(program, attempt, WhyOnly(WhyNotOthers.CONDITIONS))
        return
    # A model that fails at one size that it should take may be wrong at another: the conversion
    # made a constant of something that was none.
    counts_failed = attempt.failed > 0 and not program.model.checks_conditions
    wrong = sum(outcome == "wrong" for outcome in attempt.rows.values())
    if not (attempt.wrong or wrong or counts_failed):
        return
    evidence = _evidence(program.variant, attempt, counts_failed=counts_failed)
    excluded = _sizes_to_exclude(program, evidence, session, runs)
    is_other_model = not attempt.wrong and any(session.differences.values())
    if excluded:
        _exclude(program, excluded, is_other_model)
        return
    corners = _corners(evidence, attempt)
    if corners and len(corners) == attempt.failed and not (attempt.wrong or wrong):
        where = tuple(sizes_in_words(program.variant, corner) for corner in corners[:3])
        program.all_notes.append(FailsAt(program.model.runtime, where))
        return
    if counts_failed:
        why = WhyOnly(WhyNotOthers.FAILED, attempt.failed, runtime=program.model.runtime)
    elif is_other_model:
        why = WhyOnly(WhyNotOthers.OTHER_MODEL, wrong)
    elif wrong:
        why = WhyOnly(WhyNotOthers.WRONG, wrong)
    else:
        why = WhyOnly(WhyNotOthers.WRONG_UNSEEN, attempt.wrong, attempt.probed)
    _serve_verified_only(program, attempt, why)


def _serve_verified_only(program: Program, attempt: Attempt, why: WhyOnly) -> None:
    program.serve_only([row for row, outcome in attempt.rows.items() if outcome == "ok"], why)


def _evidence(variant: VariantFacts, attempt: Attempt, *, counts_failed: bool) -> _Evidence:
    """Where a program was right and wrong; an error counts as wrong if ``counts_failed``."""
    evidence = _Evidence()
    bad = {"wrong", "failed"} if counts_failed else {"wrong"}
    for place, row in enumerate(variant.rows):
        outcome = attempt.rows.get(row)
        if outcome == "ok":
            evidence.right.append(values_at(variant, place))
        elif outcome in bad:
            evidence.wrong.append(values_at(variant, place))
    evidence.right += [sizing.values for sizing in attempt.agreed_at]
    evidence.wrong += [sizing.values for sizing in attempt.wrong_at]
    evidence.wrong += [sizing.values for sizing in attempt.failed_at] if counts_failed else []
    return evidence


def _corners(evidence: _Evidence, attempt: Attempt) -> list[Sizing]:
    """Where a runtime failed because several sizes are 0 or 1 at once (``squeeze()`` leaves no
    dimension), although it was right for each of them alone. Other sizes are not affected."""
    good = evidence.good
    return [
        sizing
        for sizing in attempt.failed_at
        if sum(value in _SPECIAL for value in sizing.values) > 1
        and good.issuperset(_sizes(sizing.values))
    ]


def _sizes_to_exclude(
    program: Program, evidence: _Evidence, session: Session, runs: UnseenRuns
) -> list[_Size] | None:
    """The sizes that explain all wrong results, if the program is right at the sizes beside them,
    which run here; None if there are none."""
    tried: set[_Values] = set()
    shown: set[_Size] = set()
    may_run = session.probing.probe != "none"
    for _ in range(_MAX_ROUNDS):
        causes = evidence.explaining(shown)
        if not causes or not evidence.right:
            return None
        waiting = [
            sizing
            for sizing in _sizings_beside(program.variant, evidence, causes)
            if sizing.values not in tried and len(tried) < _MAX_TRIED and may_run
        ]
        if not waiting:
            is_shown = all(
                size.value in _SPECIAL or _is_beside_right(program.variant, size, evidence, may_run)
                for size in causes
            )
            return causes if is_shown else None
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


def _sizings_beside(
    variant: VariantFacts, evidence: _Evidence, causes: Sequence[_Size]
) -> Iterator[Sizing]:
    """Sizes to run, each of which differs in one size from a row at which the program was right: in
    one that may explain wrong results, or in a size beside that.

    Args:
        variant: of the program.
        evidence: where the program was right and wrong.
        causes: the sizes that explain the wrong results so far.
    """
    rows = [values_at(variant, row) for row in range(len(variant.rows))]
    row = next((place for place, values in enumerate(rows) if values in evidence.right), None)
    if row is None:
        return
    doubtful = {size for values in evidence.wrong for size in _sizes(values)} - evidence.good
    for size in (*causes, *sorted(doubtful.difference(causes))):
        unit = variant.symbols[size.symbol].unit if size.value else 1
        beside = [size.value + step * unit for step in _STEPS]
        beside += [factor * size.value for factor in _FACTORS]
        for value in (size.value, *(beside if size in causes else ())):
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
    distances = [right[size.symbol] - size.value for right in evidence.right]
    if min(distances) < 0 < max(distances):
        return True
    near = max(_STEPS) * variant.symbols[size.symbol].unit
    return was_tried and any(abs(distance) <= near for distance in distances)


def _exclude(program: Program, sizes: Sequence[_Size], is_other_model: bool) -> None:
    """Makes a program reject some sizes, and notes it; ``is_other_model`` is whether the model does
    not return what was recorded."""
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
        program.all_notes.append(Excluded(value, tuple(names), is_other_model))


def try_zeros(program: Program, session: Session, seconds: float, runs: UnseenRuns) -> None:
    """Runs a program at sizes of 0. It accepts those at which it agrees with the model, and notes
    say which these are; it rejects the others.

    Args:
        program: serves recorded sizes, and others as well.
        session: has the model.
        seconds: how long it took to make the program.
        runs: runs the program and the model.
    """
    if program.only_rows is not None or session.probing.probe == "none":
        return
    until = time.perf_counter() + session.probing.patience(seconds)
    accepted: dict[frozenset[Column], Verdict] = {}
    rejected: dict[frozenset[Column], Fact] = {}
    for sizing in sizings_with_zero(program.variant):
        row = row_at(program.variant, sizing)
        columns = frozenset(program.variant.new_zeros(row))
        if not columns or program.conditions_reject(row) is not None:
            continue
        remaining = session.budget.within(until - time.perf_counter())
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
        ran = runs.at(sizing, min(remaining, session.probing.seconds))
        why = _why_rejected(ran)
        if why is not None:
            rejected[columns] = why
        elif ran.verdict is not None:
            accepted[columns] = ran.verdict
    program.variant = replace(program.variant, zeros=ZeroSizes(frozenset(accepted), rejected))
    name = program.variant.group.layout.column_name
    for has_values in (True, False):  # nothing but a dtype and a shape may have been compared
        alike = [columns for columns, v in accepted.items() if bool(v.compared) is has_values]
        if alike:
            names = tuple(" and ".join(map(name, sorted(columns))) for columns in alike)
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
