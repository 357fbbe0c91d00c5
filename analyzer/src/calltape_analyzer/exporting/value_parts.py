"""Splits a variant by the values of an argument, which become constants of programs.

- Ints: a trace turns a varying int into a symbol, which fails ``isinstance(n, int)``, so a model
  that checks takes another branch (rule 15 of docs/decisions/export-strategies.md).
- Small integer tensors: a model that reads one with Python (``for h, w in grid.tolist()``) can be
  traced only if its values are known.
- Texts and floats: ``torch.export`` makes constants of them. Floats are tried as inputs first
  (:func:`with_open_floats`). For the rest, replay shows whether a constant matters: a program that
  reproduces calls with other values serves all texts, but only recorded floats, because Python
  reads a float that cannot be an input. Otherwise each program serves one value, and a variant gets
  several. If the calls that a program serves have one value only, nothing is known about others, so
  it runs with values from other calls of the tape.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from calltape_analyzer.arguments.samples import sample_in
from calltape_analyzer.comparison.comparing import compared
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.exporting.session.verification import replay_call
from calltape_analyzer.facts import Note
from calltape_analyzer.observing.groups import shown_constant
from calltape_analyzer.observing.layout import LeafPath
from calltape_analyzer.observing.size_table import Column, Seen, SizeRow, value_in
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.observing.traffic_counters import has_raised
from calltape_analyzer.programs.attempts import Candidate
from calltape_analyzer.programs.notes import ConstantTexts, OpenFloats
from calltape_analyzer.programs.program import Program, constants_of, rejects_constants
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.reading.calls import Calls
from calltape_analyzer.variants.alternatives import part_of
from calltape_analyzer.variants.facts import DimensionDecision, VariantFacts

__all__ = [
    "calls_by_value",
    "int_value_parts",
    "keep_to_values",
    "part_of_value",
    "rejected_value",
    "reproduces",
    "serves_all_values",
    "tensor_value_parts",
    "unserved_calls",
    "varying_ints",
    "with_open_floats",
]


def varying_ints(variant: VariantFacts) -> list[Column]:
    """The ints that are inputs of a program of this variant."""
    return [column for column in variant.dynamic() if column.is_int]


def int_value_parts(variant: VariantFacts) -> Iterator[VariantFacts]:
    """A variant for each combination of the ints that vary, which become constants of it. Those
    with most calls come first."""
    columns = varying_ints(variant)
    rows_by_values: dict[tuple[int, ...], list[tuple[SizeRow, Seen]]] = defaultdict(list)
    for row, seen in variant.rows.items():
        rows_by_values[tuple(value_in(row, column) for column in columns)].append((row, seen))
    ordered = sorted(rows_by_values.items(), key=lambda it: -sum(seen.calls for _, seen in it[1]))
    layout = variant.group.layout
    for values, rows in ordered:
        shown = [f"{layout.column_name(c)}={v}" for c, v in zip(columns, values, strict=True)]
        with_constants = replace(variant, dimensions=dict(variant.dimensions))
        with_constants.dimensions |= dict.fromkeys(columns, DimensionDecision(False, "constant"))
        yield part_of(with_constants, rows, f"{variant.name}, {', '.join(shown)}")


_MAX_TENSORS_TRIED = 4
_MAX_SHOWN_VALUE = 60
_MAX_ELEMENTS = 64


def tensor_value_parts(
    variant: VariantFacts, calls: Calls, sorter: CallSorter
) -> Iterator[tuple[LeafPath, int, Iterator[VariantFacts]]]:
    """The tensors whose values a trace may need, the most promising first: for each its path, the
    number of its distinct values, and a variant for each value.

    Args:
        variant: could not be exported, because values are unknown.
        calls: of the tape.
        sorter: sorts them.
    """
    for place in _small_integers(variant)[:_MAX_TENSORS_TRIED]:
        values = _values_of_tensor(variant, place, calls, sorter)
        parts = (
            _part_of_tensor(variant, place, number, value, first_calls)
            for number, (value, first_calls) in enumerate(values, 1)
        )
        yield variant.group.layout.tensors[place], len(values), parts


def _part_of_tensor(
    variant: VariantFacts, place: int, number: int, value: Any, first_calls: dict[SizeRow, CallRef]
) -> VariantFacts:
    """The variant of the calls in which a tensor has a certain value.

    Args:
        variant: has these calls, and others.
        place: the number of the tensor.
        number: of the value, for the name of the variant.
        value: of the tensor.
        first_calls: the first call of each row in which it has the value.
    """
    shown = str(value.tolist())
    # Names must differ, so a value that is too long for a name gets a number.
    is_short = len(shown) <= _MAX_SHOWN_VALUE
    path = variant.group.layout.tensors[place]
    name = f"{variant.name}, {path}{f'={shown}' if is_short else f' of value {number}'}"
    # The first call of a row may have had another value.
    rows = [
        (row, seen._replace(first=first_calls[row]))
        for row, seen in variant.rows.items()
        if row in first_calls
    ]
    part = part_of(variant, rows, name)
    part.frozen = {place: value}
    return part


def _values_of_tensor(
    variant: VariantFacts, place: int, calls: Calls, sorter: CallSorter
) -> list[tuple[Any, dict[SizeRow, CallRef]]]:
    """The values of a tensor, each with the rows in which it occurs and the first such call of each
    row. A variant may have only some rows of its group."""
    own_rows = set(variant.rows)
    by_value: dict[str, tuple[Any, dict[SizeRow, CallRef]]] = {}
    for call in calls:
        if has_raised(call):
            continue
        placed = sorter.sorted(call.record.inputs)
        if not variant.group.key.covers(placed.key) or placed.row not in own_rows:
            continue
        value = sample_in(variant, call, sorter).tensors[place]
        _, first_calls = by_value.setdefault(repr(value.tolist()), (value, {}))
        first_calls.setdefault(placed.row, call.ref)
    return list(by_value.values())


def _small_integers(variant: VariantFacts) -> list[int]:
    """The numbers of the integer tensors that could be constants, smallest first. Token ids never
    are."""
    shapes = variant.rows.row(0).shapes
    numbers = [
        i
        for i, (place, facts) in enumerate(
            zip(variant.group.layout.tensors, variant.group.facts, strict=True)
        )
        if facts.dtype in ("int64", "int32")
        and math.prod(shapes[i]) <= _MAX_ELEMENTS
        and not place.argument.endswith(("input_ids", "_mask", "labels", "position_ids"))
    ]
    return sorted(numbers, key=lambda i: math.prod(shapes[i]))


_MAX_COMBINATIONS = 1024
"""How many combinations of values are told apart."""
_MAX_TRIED = 8
"""How many of them a program is run with."""
_MAX_CROSSED = 3
"""How many of them are tried with the tensors of another call."""
_MAX_SEARCHED, _MAX_RUN = 4096, 32
"""How many calls are searched for those that a program rejects, and how many run."""


def with_open_floats(variant: VariantFacts) -> VariantFacts | None:
    """The variant with the floats that vary as inputs of its program; None if none vary, or if they
    are constants or inputs already."""
    floats = [i for i in _varying(variant) if variant.group.layout.scalars[i].kind == "float"]
    if not floats or variant.open_floats:
        return None
    return replace(variant, open_floats=frozenset(floats))


def _varying(variant: VariantFacts) -> list[int]:
    """The texts and floats that vary over the calls of a variant, by number among the scalars."""
    varying = set(variant.group.varying)
    places = enumerate(variant.group.layout.scalars)
    return [i for i, place in places if place in varying and i not in variant.constant_scalars]


def _constants_that_vary(variant: VariantFacts) -> list[int]:
    """The varying texts and floats that are constants of a program which may accept any value."""
    return [i for i in _varying(variant) if i not in variant.open_floats]


@dataclass
class ValueCalls:
    """The calls of a variant that agree in every varying text and float.

    Attributes:
        values: by number among the scalars.
        rows: the distinct sizes, each with its calls.
    """

    values: Mapping[int, Any]
    rows: dict[SizeRow, Seen] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """The number of calls."""
        return sum(seen.calls for seen in self.rows.values())

    @property
    def first(self) -> CallRef:
        """The first call."""
        return min(seen.first for seen in self.rows.values())


def calls_by_value(
    variant: VariantFacts,
    calls: Calls,
    sorter: CallSorter,
    *,
    of_group: bool = False,
    texts: bool = False,
) -> list[ValueCalls]:
    """The calls of a variant by the combination of its varying texts and floats, those with most
    calls first. Of more than 1,024 combinations, only the earliest.

    Args:
        variant: whose calls.
        calls: of the tape.
        sorter: sorts them.
        of_group: whether to include calls of the group with other sizes, which other variants have.
        texts: whether to ignore floats.
    """
    scalars = variant.group.layout.scalars
    paths = {
        i: (scalars[i].argument, scalars[i].path)
        for i in _varying(variant)
        if not texts or scalars[i].kind != "float"
    }
    combinations: dict[str, ValueCalls] = {}
    for seen in calls.by_inputs():
        if seen.raised:
            continue
        placed = sorter.sorted(seen.inputs)
        if not variant.group.key.covers(placed.key):
            continue
        is_own = all(condition.holds(placed.row) for condition in variant.conditions)
        if not of_group and (not is_own or rejects_constants(variant, placed) is not None):
            continue
        constants = constants_of(placed)
        values = {i: constants[path] for i, path in paths.items()}
        key = repr(values)
        if key not in combinations and len(combinations) >= _MAX_COMBINATIONS:
            continue
        rows = combinations.setdefault(key, ValueCalls(values)).rows
        before = rows.get(placed.row, Seen(0, seen.first))
        rows[placed.row] = Seen(before.calls + seen.calls, min(before.first, seen.first))
    return sorted(combinations.values(), key=lambda value: (-value.calls, value.first))


def serves_all_values(candidate: Candidate, calls: Calls, session: Session) -> bool:
    """Whether a program that was traced with one value agrees with the model for others. Of many
    values, those with most calls are tried. The program gets a note that says how many.

    Args:
        candidate: its program is run, and comparisons are added to its attempt.
        calls: of the tape. The values of other variants, with other sizes, are tried as well.
        session: runs calls.
    """
    program, attempt = candidate.program, candidate.attempt
    values, everywhere = (
        calls_by_value(program.variant, calls, session.sorter, of_group=of_group)
        for of_group in (False, True)
    )
    tried = values[:_MAX_TRIED]
    replayed = [replay_call(session, program, session.find(value.first)) for value in tried]
    for replay in replayed:
        attempt.add(replay.verdict)
    if "wrong" in (*attempt.rows.values(), *(replay.outcome for replay in replayed)):
        return False
    good = [value for value, replay in zip(tried, replayed, strict=True) if replay.outcome == "ok"]
    variant = program.variant
    served = [seen.first for row, seen in variant.rows.items() if attempt.rows.get(row) == "ok"]
    served += [value.first for value in good]
    if not served:
        return True  # it serves no call, so its values do not matter
    floats, constants = sorted(variant.open_floats), _constants_that_vary(variant)
    if any(places and _count_values(good, places) < 2 for places in (floats, constants)):
        call = session.find(served[0])
        crossed = _others_than(call, everywhere, session)
        if not crossed or not all(_agrees_with_model(program, call, v, session) for v in crossed):
            return False
        good += crossed
    for note in _notes_on_values(variant, good, everywhere):
        program.note(note)
    return True


def _notes_on_values(
    variant: VariantFacts, good: Sequence[ValueCalls], everywhere: Sequence[ValueCalls]
) -> Iterator[Note]:
    """Which texts and floats vary over the calls of a program, and with how many values it agreed.

    Args:
        variant: of the program.
        good: the values with which it agreed with the model.
        everywhere: all recorded values.
    """
    scalars = variant.group.layout.scalars
    floats = sorted(variant.open_floats)
    if shown := tuple(str(scalars[i]) for i in floats if _count_values(good, [i]) > 1):
        yield OpenFloats(shown, _count_values(good, floats), _count_values(everywhere, floats))
    constants = _constants_that_vary(variant)
    if texts := [i for i in constants if scalars[i].kind in ("str", "bytes")]:
        names = tuple(str(scalars[i]) for i in texts)
        lengths = [len(value.values[i]) for value in everywhere for i in texts]
        counts = _count_values(good, texts), _count_values(everywhere, texts)
        yield ConstantTexts(names, *counts, min(lengths), max(lengths))


def _count_values(values: Sequence[ValueCalls], places: Sequence[int]) -> int:
    """How many combinations of values some scalars have."""
    return len({repr([value.values[i] for i in places]) for value in values})


def keep_to_values(candidate: Candidate, calls: Calls, session: Session) -> bool:
    """Restricts a program to the texts and floats for which it is known to agree with the model.
    Returns whether it agrees for all recorded ones.

    Args:
        candidate: its program is restricted, and the rows of its attempt are changed.
        calls: of the tape.
        session: runs calls.
    """
    program = candidate.program
    variant = program.variant
    if not _constants_that_vary(variant):
        return True
    values = calls_by_value(variant, calls, session.sorter)
    serves_all = serves_all_values(candidate, calls, session)
    variant.constant_scalars = _accepted_constants(program, values, serves_all=serves_all)
    for row, seen in variant.rows.items():
        placed = session.sorter.sorted(session.find(seen.first).record.inputs)
        if not serves_all and rejects_constants(variant, placed) is not None:
            candidate.attempt.rows[row] = "rejected"
    return serves_all


def _accepted_constants(
    program: Program, values: Sequence[ValueCalls], *, serves_all: bool
) -> dict[int, tuple[Any, ...]]:
    """The values that a program accepts, by the number of a text or float that is a constant of it.
    Any text is accepted if none made a difference, so it has no entry. Only recorded floats are
    accepted: a float that could not be an input is read by Python.

    Args:
        program: what was traced.
        values: all that calls of its variant had.
        serves_all: whether the program agrees with the model for all of them.
    """
    variant, accepted = program.variant, dict(program.variant.constant_scalars)
    for i in _constants_that_vary(variant):
        if not serves_all:
            accepted[i] = (program.plan.template.scalars[i],)
        elif variant.group.layout.scalars[i].kind not in ("str", "bytes"):
            accepted[i] = tuple({repr(v.values[i]): v.values[i] for v in values}.values())
    return accepted


def rejected_value(program: Program, values: Sequence[ValueCalls], session: Session) -> Call | None:
    """A call with a value that a program rejects; None if there is none, or if the program returns
    something wrong for a value that it accepts.

    Args:
        program: is run.
        values: those to try, of which the first ones run.
        session: runs calls.
    """
    calls = [session.find(value.first) for value in values[:_MAX_TRIED]]
    outcomes = [replay_call(session, program, call).outcome for call in calls]
    if "wrong" in outcomes:
        return None
    pairs = zip(calls, outcomes, strict=True)
    return next((call for call, outcome in pairs if outcome != "ok"), None)


def unserved_calls(
    variant: VariantFacts, programs: Sequence[Program], calls: Calls, session: Session
) -> list[Call]:
    """Of the first calls of a variant, those that no program reproduces.

    Args:
        variant: whose calls run.
        programs: for the variant.
        calls: of the tape.
        session: runs calls.
    """
    unserved: list[Call] = []
    for call in islice(calls, _MAX_SEARCHED):
        placed = session.sorter.sorted(call.record.inputs)
        is_own = variant.group.key.covers(placed.key) and not has_raised(call)
        if is_own and variant.rejects(placed.row) is None:
            unserved.append(call)
        if len(unserved) == _MAX_RUN:
            break
    for program in programs:
        unserved = [call for call in unserved if not reproduces(program, call, session)]
    return unserved


def reproduces(program: Program, call: Call, session: Session) -> bool:
    """Whether a program takes a recorded call, and returns what was recorded."""
    return replay_call(session, program, call).outcome == "ok"


def _others_than(call: Call, values: Sequence[ValueCalls], session: Session) -> list[ValueCalls]:
    """A few combinations of values that differ from those of a call."""
    placed = session.sorter.sorted(call.record.inputs)
    scalars = placed.layout.scalars_of(call.record.inputs.scalars)
    others = (
        value
        for value in values
        if any(repr(scalars[i]) != repr(scalar) for i, scalar in value.values.items())
    )
    return list(islice(others, _MAX_CROSSED))


def _agrees_with_model(program: Program, call: Call, value: ValueCalls, session: Session) -> bool:
    """Whether a program agrees with the model for a recorded call whose texts and floats are
    replaced by those of another one."""
    try:
        sample = session.sample(program.variant, call)
        scalars = [value.values.get(i, scalar) for i, scalar in enumerate(sample.scalars)]
        crossed = replace(sample, scalars=scalars)
        expected = session.eager(program.plan, crossed)
        verdict = compared(expected, session.outputs(program, crossed), session.tolerances)
    except Exception:  # models, torch and runtimes raise errors of any type: that is no evidence
        return False
    return verdict.agrees and verdict.compared > 0


def part_of_value(variant: VariantFacts, value: ValueCalls, number: int) -> VariantFacts:
    """The variant of the calls with one combination of texts and floats.

    Args:
        variant: has these calls, and others.
        value: the combination.
        number: of the combination; the name of the variant shows it instead of a private text.
    """
    places = variant.group.layout.scalars
    shown = ", ".join(
        f"{places[i]}={text}" if repr(constant) == text else f"{places[i]} of value {number}"
        for i, constant in value.values.items()
        for text in [shown_constant(constant)]
    )
    part = part_of(variant, value.rows.items(), f"{variant.name}, {shown}")
    part.constant_scalars = variant.constant_scalars | {
        i: (constant,) for i, constant in value.values.items()
    }
    return part
