"""Whether the parts of a program that was read from a manifest agree.

Every number in a manifest that is the place of something is looked up here once, so that later code
finds what it expects. A manifest that is well-formed and contradicts itself is rejected here.
"""

from __future__ import annotations

from collections.abc import Iterable

from calltape_analyzer.errors import TapeError
from calltape_analyzer.observing.groups import Group
from calltape_analyzer.observing.size_table import Column, SizeRow
from calltape_analyzer.programs.program import Program
from calltape_analyzer.variants.facts import Completion, CounterIs, Fixed

__all__ = ["check_program"]


def check_program(program: Program) -> None:
    """Looks up every place that a program names.

    Raises:
        TapeError: ``invalid`` if parts of the program contradict each other.
    """
    group = program.variant.group
    _check_group(group)
    _expect(len(program.plan.template.scalars) == len(group.layout.scalars), "its scalars")
    rows = list(program.variant.rows)
    for row in [*rows, *(program.only or ())]:
        _check_row(group, row)
    for condition in program.variant.conditions:
        if isinstance(condition, Fixed):
            _check_columns(group, [condition.column])
        elif isinstance(condition, CounterIs):
            _check_columns(group, [condition.counter, condition.keys])
    _check_columns(group, program.variant.dimensions)
    zeros = program.variant.zeros
    for columns in (*zeros.taken, *zeros.rejected):
        _check_columns(group, columns)
    for place in (*program.variant.frozen, *program.never_own):
        _expect(place < len(group.layout.tensors), "a tensor")
    for place in program.variant.held:
        _expect(place < len(group.layout.scalars), "a constant")
    for completion in program.variant.completions.values():
        _check_completion(group, completion)
    _check_result(program)
    _expect(len(program.conditions.inputs) == len(program.plan.leaves), "its conditions")
    # The rules that decide about a call must be able to decide about a recorded one.
    program.rejects(rows[0])


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise TapeError("invalid", f"its manifest contradicts itself: {what}")


def _check_group(group: Group) -> None:
    layout = group.layout
    _expect(len(group.facts) == len(layout.tensors), "the facts of tensors")
    _expect(len(group.constants) == len(group.others), "its constants")
    public = [place for place in group.others if not place.private]
    _expect(len(group.key.constants) == len(public), "its constants")


def _check_row(group: Group, row: SizeRow) -> None:
    ranks = [facts.rank for facts in group.facts]
    _expect([len(shape) for shape in row.shapes] == ranks, "the ranks of a row")
    _expect(len(row.ints) == len(group.ints), "the ints of a row")


def _check_columns(group: Group, columns: Iterable[Column]) -> None:
    for place, axis in columns:
        if axis is None:
            _expect(place < len(group.ints), "an int")
        else:
            _expect(place < len(group.facts) and axis < group.facts[place].rank, "a dimension")


def _check_completion(group: Group, completion: Completion) -> None:
    """A completion makes a row of the group, from columns of it that the call has."""
    for parts in (completion.scalars, completion.constants):
        _expect(len(parts) == len(group.layout.scalars), "the scalars of a completion")
    _expect(len(completion.tensors) == len(group.facts), "the tensors of a completion")
    facts = completion.key.facts
    for place, at in enumerate(completion.tensors):
        if at is None:
            _expect(place in completion.missing, "a missing tensor")
            _expect(place in completion.dtypes, "the type of a missing tensor")
        else:
            _expect(at < len(facts), "a tensor of a completion")
            _expect(facts[at].rank == group.facts[place].rank, "the rank of a tensor")
    for place, sources in completion.missing.items():
        _expect(place < len(group.facts), "a missing tensor")
        _expect(completion.tensors[place] is None, "a missing tensor")
        _expect(len(sources) == group.facts[place].rank, "the rank of a missing tensor")
        columns = [c for s in sources for c in (s.column, s.less) if c is not None]
        _check_columns(group, columns)
        for column in columns:
            _expect(completion.tensors[column.index] is not None, "the size of a missing tensor")
            _expect(column.axis is not None, "the size of a missing tensor")
    for pair in completion.counting_ints.items():
        _check_columns(group, pair)


def _check_result(program: Program) -> None:
    template, form = program.result
    layout = template.layout
    _expect(len(template.scalars) == len(layout.scalars), "the scalars of its result")
    for scalar, (tensor, _) in template.counters.items():
        _expect(scalar < len(layout.scalars) and tensor < len(layout.tensors), "a counter")
    for leaf in form.leaves():
        places = layout.tensors if leaf.kind == "tensor" else layout.scalars
        _expect(leaf.index < len(places), "a leaf of its result")
