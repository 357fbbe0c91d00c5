"""The result of an export: each attempt to make a program, and which new calls will be served.

Nothing is run for a verdict on a variant: programs know the sizes that they accept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field, SkipValidation, computed_field

from calltape_analyzer.arguments.samples import resized_row
from calltape_analyzer.arguments.sizings import (
    Sizing,
    row_at,
    sizes_in_words,
    sizings_below,
    sizings_beyond,
    sizings_unseen,
    values_at,
    with_relations,
)
from calltape_analyzer.comparison.reports import JsonText, Verdict
from calltape_analyzer.facts import Fact, Names
from calltape_analyzer.observing.size_table import SizeRow
from calltape_analyzer.programs.notes import OpenFloats, Unwritten
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.reasons import Because, Sampled, Tried, Unseen, UntriedSize, Why
from calltape_analyzer.programs.strategies import Strategy
from calltape_analyzer.text import joined
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.fields import Count, Many, Seconds

__all__ = [
    "Attempt",
    "Candidate",
    "Gap",
    "RowOutcome",
    "Scope",
    "VariantVerdict",
    "takes",
    "verdicts_on",
]


RowOutcome = Literal["ok", "wrong", "rejected", "failed", "untried"]

_MAX_UNTRIED, _MAX_UNVERIFIED = 10_000, 5
"""How many sizes that were not tried, and parts of outputs that could not be compared, an attempt
lists."""


def _internal(make: Callable[[], Any]) -> Any:
    return Field(default_factory=make, exclude=True, repr=False)


class Attempt(BaseModel):
    """One attempt to make a program, and its result. ``model_dump_json()`` returns it as JSON,
    without ``rows`` and the lists of sizes in ``rejected`` and others, which only the export uses.

    Attributes:
        variant: its name.
        strategy: how it was tried.
        sample: the arguments that it was tried with; None if nothing was traced.
        reproduced, tried: how many recorded sizes the program reproduced, and how many were run.
        unrun: how many were not run, because the time was up or an earlier one failed.
        agreed, probed: the same for unrecorded sizes, compared with the model itself.
        wrong: at how many of them the program returned other values.
        declined: at how many more the model itself raised an error, which proves nothing.
        error: why it failed, or what is wrong with the first call at which the program failed or
            returned other values.
        remark: what is not an error: the first condition of the program that a recorded call
            breaks, the result at the first unrecorded size, or that the time was up.
        seconds: how long it took.
        rows: the outcome of each recorded size: ``ok``, ``wrong``, ``rejected``, ``failed`` if the
            program raised an error although its conditions allow the size, or ``untried`` if the
            time was up.
        failed: at how many sizes that its conditions allow the program raised an error.
        rejected, wrong_at, failed_at, agreed_at: the unrecorded sizes that the program rejected, or
            at which it returned other values, raised an error, or agreed.
        untried: the unrecorded sizes at which the model was not run, with the reason.
        compared: how many values were compared in all of these runs.
        unverified: what could not be compared: its place in the outputs, and why.
        by_values: whether the program depends on the values of a call, not only on its sizes.
        is_untranslated: whether ONNX cannot express a program that was traced.
    """

    variant: JsonText
    strategy: Strategy
    sample: Sampled | None = None
    reproduced: Count = 0
    tried: Count = 0
    unrun: Count = 0
    agreed: Count = 0
    probed: Count = 0
    declined: Count = 0
    wrong: Count = 0
    error: Fact | None = None
    remark: Fact | None = None
    seconds: Seconds = 0.0
    rows: SkipValidation[dict[SizeRow, RowOutcome]] = _internal(dict)
    failed: Count = 0
    rejected: SkipValidation[list[Sizing]] = _internal(list)
    wrong_at: SkipValidation[list[Sizing]] = _internal(list)
    failed_at: SkipValidation[list[Sizing]] = _internal(list)
    agreed_at: SkipValidation[list[Sizing]] = _internal(list)
    untried: list[UntriedSize] = Field(
        default_factory=list, max_length=_MAX_UNTRIED, fail_fast=True
    )
    compared: Count = 0
    unverified: Many[Fact] = ()
    by_values: bool = False
    is_untranslated: bool = Field(default=False, exclude=True)

    def add(self, verdict: Verdict | None) -> None:
        """Counts what was compared, if there is a verdict."""
        if verdict is None:
            return
        self.compared += verdict.compared
        unverified = dict.fromkeys((*self.unverified, *verdict.unverified))
        self.unverified = tuple(unverified)[:_MAX_UNVERIFIED]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def what(self) -> str:
        """The strategy and the arguments, in words."""
        return str(Tried(self.strategy, self.sample))

    def note(self, remark: Fact) -> None:
        """Adds a remark, if there is none yet."""
        self.remark = self.remark or remark

    @property
    def summary(self) -> Fact | None:
        """The error, or else the remark; None if the attempt was perfect."""
        return self.error or self.remark

    def note_wrong(self, sizing: Sizing) -> None:
        """Counts an unrecorded size at which the program returned other values."""
        self.wrong += 1
        self.wrong_at.append(sizing)

    def note_untried(self, variant: VariantFacts, sizing: Sizing, why: Fact) -> None:
        """Adds an unrecorded size at which the model was not run."""
        self.untried.append(UntriedSize(sizes_in_words(variant, sizing), why))

    def note_compared(self, sizing: Sizing, verdict: Verdict) -> None:
        """Counts an unrecorded size at which the program returned something."""
        self.probed += 1
        self.add(verdict)
        if verdict.agrees:
            self.agreed += 1
            self.agreed_at.append(sizing)
            return
        self.note_wrong(sizing)
        if verdict.error is not None:
            self.note(Unseen(verdict.error))

    @property
    def ok(self) -> bool:
        """Whether all recorded sizes were reproduced, and there was one."""
        return self.reproduced == self.tried > 0 and not self.unrun

    @property
    def rejects(self) -> bool:
        """Whether there is no program, or it rejects a size that was tried."""
        return (
            not self.tried
            or bool(self.rejected)
            or not {"rejected", "failed"}.isdisjoint(self.rows.values())
        )

    @property
    def perfect(self) -> bool:
        """Whether the program also agreed with the model at all unrecorded sizes."""
        return self.ok and self.agreed == self.probed


@dataclass
class Candidate:
    """A program for a variant, and the attempt that made it."""

    attempt: Attempt
    program: Program

    def score(self, unserved: Collection[SizeRow] | None = None) -> tuple[int, ...]:
        """A key to compare candidates; the greatest is best. The number of sizes without a program
        that it reproduces counts first, because a better copy of another program is useless. How
        many sizes were probed depends on the time that was left, so the failures count instead.

        Args:
            unserved: the recorded sizes that have no program yet; None for all.
        """
        attempt, failures = self.attempt, self.attempt.probed - self.attempt.agreed
        unseen = (attempt.agreed > 0, -failures, not attempt.by_values, attempt.agreed)
        return (self.served(unserved), attempt.ok, attempt.reproduced, -attempt.wrong, *unseen)

    def served(self, rows: Collection[SizeRow] | None = None) -> int:
        """How many of some recorded sizes were reproduced; of all by default."""
        if rows is None:
            return self.attempt.reproduced
        return sum(self.serves(row) for row in rows)

    def serves(self, row: SizeRow) -> bool:
        """Whether a recorded size was reproduced. If there are very many, only some are run, and
        the conditions of the program decide about the others."""
        outcome = self.attempt.rows.get(row)
        return outcome == "ok" if outcome is not None else self.program.rejects(row) is None


Scope = Literal["general", "recorded sizes only", "results only", "rejected"]

_MAX_ROWS = 4096
_MAX_UNSEEN = 6
"""How many unrecorded sizes of a kind are checked, and how many rows to find one of a symbol."""
_STEPS = (1, 2, 3)
"""How far from a recorded size unrecorded ones are, in units of the symbol."""
_MAX_UNWRITTEN = 4
"""How many arguments that programs do not change are named."""


class Gap(NamedTuple):
    """Why a variant, or some of its sizes or values, have no program.

    Attributes:
        variant: that was exported.
        kind: what has none.
        reason: why.
    """

    variant: VariantFacts
    kind: Literal["variant", "sizes", "values"]
    reason: Fact


class VariantVerdict(Fact, code="verdict"):
    """Which calls of one variant will be served.

    Attributes:
        variant: its name.
        scope: ``"general"``: every recorded size has a program that accepts others as well, and
            each size that varied may have unrecorded values. ``"recorded sizes only"``: some of
            that is not so. ``"results only"``: the model also changes an argument, and programs do
            not. ``"rejected"``: no call is served.
        calls: how many calls it has on the tape.
        sizes: how many recorded sizes were checked.
        rejected: how many of them have no program.
        lacks_values: whether some recorded values have none.
        constant: how many have only programs for one size or one value.
        open: the dimensions and numbers that may have unrecorded values.
        closed: those that varied and may not; and floats that differ between variants, each of
            which serves one value.
        tried, taken: how many unrecorded sizes were checked, and how many of them a program
            accepts.
        reason: why the scope is not ``"general"``; None if no size varied.
    """

    variant: str
    scope: Scope
    calls: int
    sizes: int
    rejected: int = 0
    lacks_values: bool = False
    constant: int = 0
    open: Names = ()
    closed: Names = ()
    tried: int = 0
    taken: int = 0
    reason: Fact | None = None


def verdicts_on(
    variants: Iterable[VariantFacts], programs: Sequence[Program], gaps: Sequence[Gap]
) -> list[VariantVerdict]:
    """The verdict on each variant of a tape.

    Args:
        variants: of the tape.
        programs: that were made.
        gaps: variants, sizes and values that have no program.
    """
    variants = list(variants)
    floats = _differing_floats(variants)
    return [
        _verdict_on(
            variant,
            programs,
            [gap for gap in gaps if _has_calls_of(gap.variant, variant)],
            floats[_tensors(variant)],
        )
        for variant in variants
    ]


def _tensors(variant: VariantFacts) -> Hashable:
    return variant.group.facts, variant.group.layout.tensors


def _differing_floats(variants: Iterable[VariantFacts]) -> dict[Hashable, list[str]]:
    """The names of the floats that differ between variants with the same tensors, by these tensors.
    A default that was not passed counts as None. A program for one float accepts no other."""
    floats: dict[Hashable, list[dict[str, str]]] = defaultdict(list)
    for variant in variants:
        fixed = {str(path): repr(v) for path, v in variant.group.fixed() if type(v) is float}
        floats[_tensors(variant)].append(fixed)
    return {
        tensors: [
            name
            for name in sorted({*chain.from_iterable(alike)})
            if len({fixed.get(name) for fixed in alike}) > 1
        ]
        for tensors, alike in floats.items()
    }


def _has_calls_of(part: VariantFacts, variant: VariantFacts) -> bool:
    """Whether an exported variant contains calls of a variant of the tape."""
    key = variant.group.key
    if not part.group.key.covers(key):
        return part.completion_of(key) is not None
    return any(part.rejects(row) is None for row in variant.rows)


def _verdict_on(
    variant: VariantFacts,
    programs: Sequence[Program],
    gaps: Sequence[Gap],
    floats: Sequence[str],
) -> VariantVerdict:
    """The verdict on a variant.

    Args:
        variant: of the tape.
        programs: of all variants.
        gaps: that concern calls of this variant.
        floats: that differ between variants with the same tensors.
    """
    rows = list(variant.rows)[:_MAX_ROWS]
    narrow = [p for p in programs if p.is_constant or p.only_rows is not None]
    wide = [program for program in programs if program not in narrow]
    # For each row that no wide program serves: the narrow program that does, or None.
    serving = [
        next((program for program in narrow if takes([program], variant, row)), None)
        for row in rows
        if not takes(wide, variant, row)
    ]
    rejected = serving.count(None)
    constant = len(serving) - rejected
    limits = [p.why_only for p in serving if p is not None and p.why_only is not None]
    free = [i for i, symbol in enumerate(variant.symbols) if symbol.relation is None]
    moved = [i for i in free if _may_move(wide, variant, i)]
    # Near the recorded sizes, and twice and half as large.
    kinds = (sizings_unseen, sizings_beyond, sizings_below)
    sizings = dict.fromkeys(sizing for kind in kinds for sizing in kind(variant, _MAX_UNSEEN))
    unseen = [row_at(variant, sizing) for sizing in sizings]
    lacks_values = any(gap.kind == "values" or gap.variant.constant_scalars for gap in gaps)
    lacks_sizes = bool(rejected) or any(gap.kind != "values" for gap in gaps)
    open_numbers, constants = _floats(wide, variant)
    numbers = list(dict.fromkeys([*floats, *constants]))
    has_limits = lacks_sizes or lacks_values or constant or numbers
    scope: Scope = "general"
    reason: Fact | None = None
    if rejected == len(rows):
        scope = "rejected"
        reason = gaps[-1].reason if gaps else Because(Why.NO_PROGRAM)
    elif has_limits or len(moved) < len(free) or not (free or open_numbers):
        scope = "recorded sizes only"
        if gaps:
            reason = gaps[-1].reason
        elif limits:
            reason = limits[0]
        elif wide and len(moved) < len(free):
            rejections = (_rejections(wide, variant, row) for row in unseen)
            reason = next(filter(None, chain.from_iterable(rejections)), None)
    unwritten = _unwritten(variant, programs)
    if unwritten and scope != "rejected":
        scope, reason = "results only", Unwritten(joined(unwritten, _MAX_UNWRITTEN))
    return VariantVerdict(
        variant=variant.name,
        scope=scope,
        calls=variant.calls,
        sizes=len(rows),
        rejected=rejected,
        lacks_values=lacks_values,
        constant=constant,
        open=(*(_name(variant, i) for i in moved), *open_numbers),
        closed=(*(_name(variant, i) for i in free if i not in moved), *numbers),
        tried=len(unseen),
        taken=sum(takes(wide, variant, row) for row in unseen),
        reason=reason,
    )


def _unwritten(variant: VariantFacts, programs: Iterable[Program]) -> list[str]:
    """The arguments that calls of a variant change, and that programs for it do not."""
    key, row = variant.group.key, variant.rows.row(0)
    serving = (program for program in programs if program.variant.row_in(key, row) is not None)
    return list(dict.fromkeys(name for program in serving for name in program.unwritten))


def _floats(programs: Iterable[Program], variant: VariantFacts) -> tuple[list[str], list[str]]:
    """The floats that programs for calls of a variant accept with any value, and those that are
    constants of some, or were inputs with one value only. Nobody expects a program to accept
    another text or switch."""
    verified: set[str] = set()
    inputs: set[str] = set()
    constants: set[str] = set()
    for program in programs:
        served = program.variant
        if served.group.key.covers(variant.group.key):
            names = [str(path) for path in served.group.layout.scalars]
            opened = (note for note in program.all_notes if isinstance(note, OpenFloats))
            verified |= {name for note in opened for name in note.names}
            inputs |= {names[i] for i in served.open_floats}
            constants |= {
                names[i]
                for i, values in served.constant_scalars.items()
                if type(values[0]) is float
            }
    return sorted((inputs & verified) - constants), sorted(constants | (inputs - verified))


def takes(programs: Iterable[Program], variant: VariantFacts, row: SizeRow) -> bool:
    """Whether one of some programs accepts the sizes of a row of a variant."""
    return None in _rejections(programs, variant, row)


def _rejections(
    programs: Iterable[Program], variant: VariantFacts, row: SizeRow
) -> Iterator[Fact | None]:
    """Why each program for these calls rejects the sizes; None if it accepts them."""
    for program in programs:
        program_row = program.variant.row_in(variant.group.key, row)
        if program_row is not None:
            yield program.rejects(program_row)


def _may_move(programs: Sequence[Program], variant: VariantFacts, place: int) -> bool:
    """Whether a program accepts an unrecorded value of a symbol, with recorded values of the
    others."""
    symbol = variant.symbols[place]
    recorded = set(symbol.values)
    for row in range(min(len(variant.rows), _MAX_UNSEEN)):
        values = values_at(variant, row)
        near = [values[place] + step * symbol.unit for step in _STEPS]
        for value in (*near, max(recorded) + symbol.unit, 2 * max(recorded)):
            moved = (
                None
                if value in recorded
                else with_relations(variant.symbols, values, {place: value})
            )
            if moved is not None and takes(programs, variant, resized_row(variant, row, moved)):
                return True
    return False


def _name(variant: VariantFacts, place: int) -> str:
    return variant.group.layout.column_name(variant.symbols[place].columns[0])
