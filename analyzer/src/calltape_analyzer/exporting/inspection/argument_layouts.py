"""Whether a model reads how its arguments are laid out: strides, gaps, and the order of keys.

Recorded calls of each variant are run with the same values in other layouts, and with the keys of
their dicts in the opposite order (``torch.cat(list(features.values()))``). If that changes what the
model returns, the layouts are conditions of its programs (``CallSorter.laid_out``), and the order
is a part of the structure (``CallSorter.ordered``): calls with another one are of other variants.
Nearly all models read none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch

from calltape_analyzer.arguments.plan import Plan
from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.comparison.comparing import compared, is_described, recorded_leaves
from calltape_analyzer.errors import TapeError
from calltape_analyzer.exporting.session.model_differences import MAX_SINGLE, doubt_of, which_matter
from calltape_analyzer.exporting.session.model_runs import ModelRuns
from calltape_analyzer.exporting.session.observed_calls import LAYOUT
from calltape_analyzer.observing.groups import GroupKey
from calltape_analyzer.observing.layout import turned_around
from calltape_analyzer.observing.memory_layout import CONTIGUOUS, layout_in_memory
from calltape_analyzer.observing.traffic_counters import has_raised
from calltape_analyzer.programs.notes import Question
from calltape_analyzer.pytree.memory import (
    Place,
    contiguous,
    in_order,
    in_other_order,
    relaid,
)
from calltape_analyzer.reading.call import Call
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["key_orders_read", "layouts_read"]

_MAX_VARIANTS = 12
_MAX_ROWS = 64
_STEP = 2
_MAX_SEARCHED, _MAX_LAYOUTS = 4096, 6
"""So many calls are searched for layouts, and so many combinations are run."""


def layouts_read(
    runner: ModelRuns, variants: Sequence[VariantFacts], calls: Iterable[Call], seconds: float
) -> frozenset[str]:
    """The paths of the tensors whose strides change what the model returns. A model that ends its
    process or does not come to an end in another layout says nothing, which is noted.

    Args:
        runner: has the model.
        variants: of which recorded calls are run: one of each, and one of each other layout that
            was recorded. Of very many, the first ones.
        calls: on the tape.
        seconds: how long the runs of one variant may take.
    """
    found: set[str] = set()
    others = _calls_of_other_layouts(runner, variants, calls)
    for variant in variants[:_MAX_VARIANTS]:
        if not runner.asks(variant, LAYOUT):
            continue
        own = others.get(variant.group.key, [])
        ask = partial(_read_in, runner, variant, own)
        found.update(runner.asked(ask, seconds, (variant.name, Question.STRIDES)) or ())
    return frozenset(found)


def _read_in(runner: ModelRuns, variant: VariantFacts, others: Sequence[Call]) -> list[str]:
    """The paths of the tensors whose layout one variant reads."""
    places = variant.group.layout.tensors
    first, largest = _telling_rows(variant)
    probe = _Probe.of(runner, variant, runner.find(variant.rows.calls_of(first).first))
    found = set(probe.read() if probe is not None else ())
    if largest != first:  # a model may read a layout from some size on
        probe = _Probe.of(runner, variant, runner.find(variant.rows.calls_of(largest).first))
        found.update(probe.read_as([in_other_order, _with_gaps]) if probe is not None else ())
    every = (_Probe.of(runner, variant, one) for one in others)
    found.update(i for one in every if one is not None for i in one.read_as([contiguous]))
    return [str(places[i]) for i in found]


def _calls_of_other_layouts(
    runner: ModelRuns, variants: Sequence[VariantFacts], calls: Iterable[Call]
) -> dict[GroupKey, list[Call]]:
    """Per group a call for each combination of layouts that is not contiguous throughout."""
    wanted = {
        variant.group.key: variant.group
        for variant in variants[:_MAX_VARIANTS]
        if any(name != CONTIGUOUS for seen in variant.group.formats for name in seen)
    }
    found: dict[GroupKey, dict[tuple[str, ...], Call]] = {key: {} for key in wanted}
    for call in islice(calls, _MAX_SEARCHED) if wanted else ():
        placed = runner.sorter.sorted(call.record.inputs)
        key = next((key for key in wanted if key.covers(placed.key)), None)
        if key is not None and not has_raised(call):
            names = tuple(map(layout_in_memory, placed.leaves))
            if any(name != CONTIGUOUS for name in names) and len(found[key]) < _MAX_LAYOUTS:
                found[key].setdefault(names, call)
    return {key: list(by_names.values()) for key, by_names in found.items()}


def _telling_rows(variant: VariantFacts) -> tuple[int, int]:
    """The numbers of the two rows whose tensors have the most axes of more than one element, with
    the fewest and the most elements: axes of one element lie anyhow."""

    def axes(number: int) -> int:
        return sum(size > 1 for shape in variant.rows.row(number).shapes for size in shape)

    def elements(number: int) -> int:
        return sum(math.prod(shape) for shape in variant.rows.row(number).shapes)

    numbers = range(min(len(variant.rows), _MAX_ROWS))
    return (
        min(numbers, key=lambda number: (-axes(number), elements(number))),
        max(numbers, key=lambda number: (axes(number), elements(number))),
    )


def _free_tensors(variant: VariantFacts, sample: Sample) -> list[int]:
    """The tensors that can be laid out in another way: strided ones with an axis of several
    elements, which share memory with no other one."""
    bound = {i for pair in variant.group.key.shared for i in (pair.one, pair.other)}
    return [
        i
        for i, tensor in enumerate(sample.tensors)
        if i not in bound
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and any(size > 1 for size in tensor.shape)
        and 0 not in tensor.shape
    ]


@dataclass
class _Probe:
    """One recorded call in several layouts: with what it returned when it was recorded, and when it
    is called as it was."""

    runner: ModelRuns
    plan: Plan
    sample: Sample
    free: list[int]
    recorded: Mapping[str, Any] | None = None
    own: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, runner: ModelRuns, variant: VariantFacts, call: Call) -> _Probe | None:
        """For a call of a variant; None if none of its tensors can lie in another way, or it cannot
        be read, which the export of the variant will say."""
        try:
            plan, sample = runner.planned(variant, call)
        except TapeError:
            return None
        free = _free_tensors(variant, sample)
        if not free:
            return None
        recorded = recorded_leaves(call)
        is_known = recorded is not None and is_described(recorded)
        return cls(runner, plan, sample, free, recorded if is_known else None)

    def read(self) -> list[int]:
        """The numbers of the tensors whose strides the model reads."""
        found = self.read_as([in_other_order, _with_gaps])
        return sorted({*found, *self._repeating().read_as([_expanded])})

    def _repeating(self) -> _Probe:
        """The same call with equal elements along one axis of its tensors, which they may have
        once in memory. Of a vector that may be offsets, no element is repeated."""
        free = [i for i in self.free if sum(size > 1 for size in self.sample.tensors[i].shape) > 1]
        tensors = list(self.sample.tensors)
        for i in free:
            tensors[i] = contiguous(_expanded(tensors[i]))
        return _Probe(self.runner, self.plan, replace(self.sample, tensors=tensors), free)

    def read_as(self, layouts: Sequence[Callable[[Any], Any]]) -> list[int]:
        """The numbers of the tensors that change what the model returns if they lie so."""
        free = self.free
        if not free:
            return []
        # A model may compare two layouts: every second tensor is tried without the others.
        parts = [free, free[::2]] if len(free) > 1 else [free]
        read = [one for one in layouts if any(self.changes(one, part) for part in parts)]
        if not read or len(free) == 1 or len(free) > MAX_SINGLE:
            return free if read else []
        single = [i for i in free if any(self.changes(layout, [i]) for layout in read)]
        return single or free  # several together, none alone

    def changes(self, layout: Callable[[Any], Any], numbers: Collection[int]) -> bool:
        """Whether the model returns something else if some tensors have another layout. A model
        that raises there returns nothing else: so would its program, or it serves more."""
        tensors = list(self.sample.tensors)
        for i in numbers:
            tensors[i] = layout(tensors[i])
        other = replace(self.sample, tensors=tensors)
        try:
            got = self.runner.eager(self.plan, other)
            if self.recorded is not None and self._agree(self.recorded, got):
                return False
            if self.own is None:
                self.own = self.runner.eager(self.plan, self.sample)
            expected = self.own
        except Exception:  # models raise errors of any type
            return False
        if self._agree(expected, got):
            return False
        return doubt_of(self.runner, self.plan, self.sample, expected, got) is None

    def _agree(self, expected: Mapping[str, Any], got: Mapping[str, Any]) -> bool:
        found = compared(expected, got, self.runner.tolerances)
        return found.agrees or not found.compared


def _with_gaps(tensor: Any) -> Any:
    """The tensor as a slice with steps of a larger one."""
    order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
    strides = tuple(_STEP * step for step in in_order(tensor, order).stride())
    return relaid(tensor.contiguous(), Place(tuple(tensor.shape), strides, 0, 1))


def _expanded(tensor: Any) -> Any:
    """The first element along an axis in place of all."""
    axis = next(axis for axis, size in enumerate(tensor.shape) if size > 1)
    return tensor.narrow(axis, 0, 1).expand(tensor.shape)


def key_orders_read(
    runner: ModelRuns, variants: Sequence[VariantFacts], seconds: float
) -> frozenset[str]:
    """The paths of the dicts whose order of keys changes what the model returns, or whether it
    raises.

    Args:
        runner: has the model.
        variants: of which the first call is run, if it has a dict with several keys. Of very many
            variants, the first ones.
        seconds: how long the runs of one variant may take.
    """
    found: set[str] = set()

    def unread(variant: VariantFacts) -> list[str]:
        return [path for path in variant.group.layout.unordered if path not in found]

    def turned(plan: Plan, sample: Sample, some: Collection[str]) -> Mapping[str, Any]:
        layout = turned_around(plan.template.layout, some)
        return runner.eager(replace(plan, template=replace(plan.template, layout=layout)), sample)

    for _, read in which_matter(runner, variants, unread, turned, seconds, Question.KEY_ORDER):
        found.update(read or ())
    return frozenset(found)
