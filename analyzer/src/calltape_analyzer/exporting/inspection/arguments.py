"""What a model reads of its arguments besides their values.

- Strides: recorded calls run with the same values and other strides. If that changes the result,
  the strides are conditions of the programs (``CallSorter.layout_paths``).
- The order of keys: dicts are passed in the opposite order, which matters to
  ``torch.cat(list(features.values()))``. Then it is part of the structure
  (``CallSorter.ordered``). So is the class of a number to ``isinstance(n, int)``, which is not true
  of numpy's.
- The mode of the caller: a call runs with and without gradients or inference mode.
- ``requires_grad``: a call runs with tensors that require gradients, and with the same that do not.
- Identity: arguments that are one object or share memory are replaced by equal copies. If the
  results and the written values are the same, calls with and without sharing form one variant
  (``CallSorter.ignored_sharing``): a loss called with ``labels=ids`` does not depend on it.

Nearly all models read none of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import torch

from calltape_analyzer.arguments.plan import ArgumentPlan
from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.comparison.comparing import compared, is_described, recorded_leaves
from calltape_analyzer.errors import TapeError
from calltape_analyzer.exporting.session.observed_calls import LAYOUT, MODES
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.exporting.session.unseen_runs import doubt_of
from calltape_analyzer.model.calls import detached, without_saved_tensors
from calltape_analyzer.model.code import modes_named
from calltape_analyzer.observing.contexts import Mode
from calltape_analyzer.observing.groups import GroupKey
from calltape_analyzer.observing.layout import turned_around
from calltape_analyzer.observing.memory_layout import CONTIGUOUS, layout_in_memory
from calltape_analyzer.observing.traffic_counters import has_raised
from calltape_analyzer.programs.notes import Question
from calltape_analyzer.pytree.caches import is_cache_argument
from calltape_analyzer.pytree.memory import (
    Place,
    contiguous,
    copies,
    in_order,
    in_other_order,
    relaid,
)
from calltape_analyzer.reading.call import Call
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.tree import ScalarNode, walk

__all__ = [
    "grads_read",
    "key_orders_read",
    "modes_read",
    "sharing_unread",
    "strides_read",
    "strides_unread",
]

T = TypeVar("T")

_MAX_SINGLE = 8
"""How many arguments are changed one by one; of more, all count as read if changing all of them
matters."""
_MAX_MODES_VARIANTS = 2
_MAX_CHANGED = 12
"""Of how many variants a call runs with changed arguments."""


def modes_read(session: Session, variants: Sequence[VariantFacts]) -> frozenset[Mode]:
    """The modes of the caller that change what the model returns. If its code names one, the first
    calls of a few variants run with and without it, also with arguments that require gradients."""

    def matters(variant: VariantFacts, mode: Mode) -> bool:
        plan, sample = session.planned(variant, variant.rows.first)
        plain = replace(plan.context, grad=False, inference=False, modes=frozenset({mode}))
        with_mode = replace(plain, grad=mode == "grad", inference=mode == "inference")
        for changes in ({}, dict.fromkeys(_may_require_grad(variant), _with_grad)):
            with without_saved_tensors():
                on, off = (
                    session.eager(plan, sample, context=context, changes=changes)
                    for context in (with_mode, plain)
                )
            if not compared(on, off, session.tolerances).agrees:
                return True
        return False

    read: set[Mode] = set()
    for variant in variants[:_MAX_MODES_VARIANTS]:
        may_read = session.may_query(variant, MODES)
        for mode in modes_named(session.module) - read if may_read else ():
            with suppress(Exception):  # errors of any type are no evidence
                if matters(variant, mode):
                    read.add(mode)
    return frozenset(read)


def grads_read(
    session: Session, variants: Sequence[VariantFacts], seconds: float
) -> frozenset[str]:
    """The paths of the tensors whose ``requires_grad`` changes what the model returns, or whether
    it raises. If its code names that, the first calls of the variants run with tensors that require
    gradients, and with the same that do not.

    Args:
        session: has the model.
        variants: of the calls. Of very many, only the first ones.
        seconds: how long the runs of one variant may take.
    """

    def candidates(variant: VariantFacts) -> list[tuple[int, str]]:
        numbers = _may_require_grad(variant) if session.may_query(variant, MODES) else []
        return [(i, str(variant.group.layout.tensors[i])) for i in numbers]

    def run(
        plan: ArgumentPlan, sample: Sample, some: Sequence[tuple[int, str]]
    ) -> Mapping[str, Any]:
        return session.eager(plan, sample, changes={i: _with_grad for i, _ in some})

    asking = variants if "grad" in modes_named(session.module) else ()
    results = _which_matter(session, asking, candidates, run, seconds)
    return frozenset(
        path
        for all_candidates, read in results
        for _, path in (all_candidates if read is None else read)
    )


def _may_require_grad(variant: VariantFacts) -> list[int]:
    """The numbers of the tensors that can require gradients."""
    places = zip(variant.group.layout.tensors, variant.group.facts, strict=True)
    return [
        i
        for i, (place, facts) in enumerate(places)
        if place.kind == "tensor" and facts.dtype.startswith(("float", "bfloat", "complex"))
    ]


def _with_grad(tensor: Any) -> Any:
    return tensor.detach().requires_grad_()


def _which_matter(
    session: Session,
    variants: Sequence[VariantFacts],
    changes: Callable[[VariantFacts], Sequence[T]],
    run: Callable[[ArgumentPlan, Sample, Sequence[T]], Mapping[str, Any]],
    seconds: float,
    question: Question | None = None,
) -> Iterator[tuple[Sequence[T], Sequence[T] | None]]:
    """For each variant, all changes to its first call, and those that matter: alone, each makes the
    model return something else or raise. If only several together do, or if there are many, all
    count.

    Args:
        session: has the model.
        variants: of the calls. Of very many with changes, only the first ones run.
        changes: returns the possible changes to the first call of a variant: plain data.
        run: returns what the model returns with some changes.
        seconds: how long the runs of one variant may take.
        question: what to note as unanswered if the runs do not finish; None for nothing.

    Yields:
        None for the changes that matter if that is unknown, or if the model raises without any
        change: the export of the variant will report it.
    """

    def that_matter(variant: VariantFacts, candidates: Sequence[T]) -> Sequence[T] | None:
        try:
            planned = session.planned(variant, variant.rows.first)
            expected = run(*planned, ())
        except Exception:  # models raise errors of any type
            return None

        def matters(some: Sequence[T]) -> bool:
            try:
                got = run(*planned, some)
            except Exception:
                return True
            return session.differ(expected, got)

        if not matters(candidates):
            return []
        if len(candidates) == 1 or len(candidates) > _MAX_SINGLE:
            return candidates
        return [candidate for candidate in candidates if matters([candidate])] or candidates

    remaining = _MAX_CHANGED
    for variant in variants:
        if candidates := changes(variant):
            remaining -= 1
            ask = partial(that_matter, variant, candidates)
            unknown = None if question is None else (variant.name, question)
            yield candidates, None if remaining < 0 else session.answer(ask, seconds, unknown)


_MAX_VARIANTS = 12
_MAX_ROWS = 64
_STEP = 2
_MAX_SEARCHED, _MAX_LAYOUTS = 4096, 6
"""How many calls are searched for other strides, and how many combinations run."""


def strides_read(
    session: Session, variants: Sequence[VariantFacts], calls: Iterable[Call], seconds: float
) -> frozenset[str]:
    """The paths of the tensors whose strides change what the model returns. If the model ends its
    process or does not finish with other strides, that is unknown, and noted as unanswered.

    Args:
        session: has the model.
        variants: whose recorded calls run: one of each, and one for each recorded combination of
            other strides. Of very many variants, only the first ones.
        calls: on the tape.
        seconds: how long the runs of one variant may take.
    """
    read: set[str] = set()
    calls_by_group = _calls_of_other_strides(session, variants, calls)
    for variant in variants[:_MAX_VARIANTS]:
        if session.may_query(variant, LAYOUT):
            ask = partial(_read_in, session, variant, calls_by_group.get(variant.group.key, []))
            read.update(session.answer(ask, seconds, (variant.name, Question.STRIDES)) or ())
    return frozenset(read)


def strides_unread(session: Session, variants: Iterable[VariantFacts]) -> tuple[str, ...]:
    """The paths of the tensors that came with different strides, which the model does not read. A
    program accepts all of them, but a tool that compiles it further may not."""
    strides: dict[str, set[str]] = {}
    for variant in variants:
        places = variant.group.layout.tensors
        for place, formats in zip(places, variant.group.formats, strict=False):
            strides.setdefault(str(place), set()).update(formats)
    read = session.sorter.layout_paths
    several = sorted(name for name, found in strides.items() if len(found) > 1)
    return tuple(name for name in several if name not in read)


def _read_in(session: Session, variant: VariantFacts, calls: Sequence[Call]) -> list[str]:
    """The paths of the tensors whose strides matter in one variant."""
    places = variant.group.layout.tensors
    first, largest = _telling_rows(variant)
    probe = _StrideProbe.of(session, variant, session.find(variant.rows.calls_of(first).first))
    numbers = set(probe.read() if probe is not None else ())
    if largest != first:  # a model may read strides from some size on
        probe = _StrideProbe.of(
            session, variant, session.find(variant.rows.calls_of(largest).first)
        )
        numbers.update(probe.read_as([in_other_order, _with_gaps]) if probe is not None else ())
    probes = (_StrideProbe.of(session, variant, one) for one in calls)
    numbers.update(i for one in probes if one is not None for i in one.read_as([contiguous]))
    return [str(places[i]) for i in numbers]


def _calls_of_other_strides(
    session: Session, variants: Sequence[VariantFacts], calls: Iterable[Call]
) -> dict[GroupKey, list[Call]]:
    """By group, a call for each combination of strides that is not contiguous throughout."""
    groups = {
        variant.group.key: variant.group
        for variant in variants[:_MAX_VARIANTS]
        if any(name != CONTIGUOUS for seen in variant.group.formats for name in seen)
    }
    calls_by_layouts: dict[GroupKey, dict[tuple[str, ...], Call]] = {key: {} for key in groups}
    for call in islice(calls, _MAX_SEARCHED) if groups else ():
        placed = session.sorter.sorted(call.record.inputs)
        key = next((key for key in groups if key.covers(placed.key)), None)
        if key is not None and not has_raised(call):
            names = tuple(map(layout_in_memory, placed.leaves))
            if (
                any(name != CONTIGUOUS for name in names)
                and len(calls_by_layouts[key]) < _MAX_LAYOUTS
            ):
                calls_by_layouts[key].setdefault(names, call)
    return {key: list(by_names.values()) for key, by_names in calls_by_layouts.items()}


def _telling_rows(variant: VariantFacts) -> tuple[int, int]:
    """Of the rows whose tensors have the most axes of several elements, the numbers of those with
    the fewest and the most elements. Strides of axes of one element mean nothing."""

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
    """The tensors that can have other strides: strided ones with an axis of several elements, which
    share memory with no other tensor."""
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
class _StrideProbe:
    """One recorded call, to be run with other strides.

    Attributes:
        session: has the model.
        plan, sample: of the call.
        free: the numbers of the tensors that can have other strides.
        recorded: what the call returned, if the tape has it.
        unchanged: what the model returns now for the recorded strides, once that was needed.
    """

    session: Session
    plan: ArgumentPlan
    sample: Sample
    free: list[int]
    recorded: Mapping[str, Any] | None = None
    unchanged: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, session: Session, variant: VariantFacts, call: Call) -> _StrideProbe | None:
        """For a call of a variant; None if none of its tensors can have other strides, or if it
        cannot be read, which the export of the variant will report."""
        try:
            plan, sample = session.planned(variant, call)
        except TapeError:
            return None
        free = _free_tensors(variant, sample)
        if not free:
            return None
        recorded = recorded_leaves(call)
        is_known = recorded is not None and is_described(recorded)
        return cls(session, plan, sample, free, recorded if is_known else None)

    def read(self) -> list[int]:
        """The numbers of the tensors whose strides the model reads."""
        found = self.read_as([in_other_order, _with_gaps])
        return sorted({*found, *self._repeating().read_as([_expanded])})

    def _repeating(self) -> _StrideProbe:
        """The same call with equal elements along one axis of its tensors, so that memory may hold
        them once. Vectors stay as they are, because they may be offsets."""
        free = [i for i in self.free if sum(size > 1 for size in self.sample.tensors[i].shape) > 1]
        tensors = list(self.sample.tensors)
        for i in free:
            tensors[i] = contiguous(_expanded(tensors[i]))
        return _StrideProbe(self.session, self.plan, replace(self.sample, tensors=tensors), free)

    def read_as(self, layouts: Sequence[Callable[[Any], Any]]) -> list[int]:
        """The numbers of the tensors that change what the model returns in one of these layouts."""
        free = self.free
        if not free:
            return []
        # A model may compare the strides of two tensors, so every second tensor changes alone.
        parts = [free, free[::2]] if len(free) > 1 else [free]
        read = [one for one in layouts if any(self.changes(one, part) for part in parts)]
        if not read or len(free) == 1 or len(free) > _MAX_SINGLE:
            return free if read else []
        single = [i for i in free if any(self.changes(layout, [i]) for layout in read)]
        return single or free  # several together, none alone

    def changes(self, layout: Callable[[Any], Any], numbers: Collection[int]) -> bool:
        """Whether the model returns something else if some tensors have other strides. An error
        does not count: the program would raise it as well, or serve the call."""
        tensors = list(self.sample.tensors)
        for i in numbers:
            tensors[i] = layout(tensors[i])
        other = replace(self.sample, tensors=tensors)
        try:
            got = self.session.eager(self.plan, other)
            if self.recorded is not None and self._agree(self.recorded, got):
                return False
            if self.unchanged is None:
                self.unchanged = self.session.eager(self.plan, self.sample)
            expected = self.unchanged
        except Exception:  # models raise errors of any type
            return False
        if self._agree(expected, got):
            return False
        return doubt_of(self.session, self.plan, self.sample, expected, got) is None

    def _agree(self, expected: Mapping[str, Any], got: Mapping[str, Any]) -> bool:
        found = compared(expected, got, self.session.tolerances)
        return found.agrees or not found.compared


def _with_gaps(tensor: Any) -> Any:
    """The tensor as every second element of a larger one."""
    order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
    strides = tuple(_STEP * step for step in in_order(tensor, order).stride())
    return relaid(tensor.contiguous(), Place(tuple(tensor.shape), strides, 0, 1))


def _expanded(tensor: Any) -> Any:
    """The tensor with its first element along an axis in place of the others."""
    axis = next(axis for axis, size in enumerate(tensor.shape) if size > 1)
    return tensor.narrow(axis, 0, 1).expand(tensor.shape)


def key_orders_read(
    session: Session, variants: Sequence[VariantFacts], calls: Iterable[Call], seconds: float
) -> frozenset[str]:
    """The paths of the dicts whose key order matters: it changes what the model returns, or whether
    it raises. Also the paths of the numbers whose class matters: whether they are numpy's. If no
    number on the tape is numpy's, that was not tried, and all numbers count.

    Args:
        session: has the model.
        variants: whose first calls run, if they have a dict with several keys, or a number of
            numpy. Of very many variants, only the first ones.
        calls: on the tape, of which the first ones are searched for numbers of numpy.
        seconds: how long the runs of one variant may take.
    """
    paths = {name for variant in variants for name in _numbers(variant)}
    if paths and any(map(_has_numpy, islice(calls, _MAX_SEARCHED))):
        paths.clear()  # runs of the model show whether it matters

    def unread(variant: VariantFacts) -> list[str]:
        may_matter = (*variant.group.layout.unordered, *_numbers(variant))
        return [path for path in may_matter if path not in paths]

    def turned(plan: ArgumentPlan, sample: Sample, some: Collection[str]) -> Mapping[str, Any]:
        layout = turned_around(plan.template.layout, some)
        return session.eager(replace(plan, template=replace(plan.template, layout=layout)), sample)

    for _, read in _which_matter(session, variants, unread, turned, seconds, Question.KEY_ORDER):
        paths.update(read or ())
    return frozenset(paths)


def _numbers(variant: VariantFacts) -> list[str]:
    """The paths of its numbers, but for those in caches."""
    layout = variant.group.layout
    return [
        str(place)
        for place in layout.scalars
        if place.kind in ("int", "float", "complex")
        and not is_cache_argument(place.argument, layout.nodes[place.argument])
    ]


def _has_numpy(call: Call) -> bool:
    """Whether a number among the arguments is numpy's."""
    nodes = walk(call.record.inputs.spec().root)
    return any(
        isinstance(node, ScalarNode) and (node.type or "").startswith("numpy:") for node in nodes
    )


_Names = tuple[str, str]


def sharing_unread(
    session: Session, variants: Sequence[VariantFacts], seconds: float
) -> frozenset[_Names]:
    """The pairs of paths of tensors that share memory in some call, although the model returns the
    same for copies.

    Args:
        session: has the model.
        variants: whose first calls run, if arguments share memory there. Of very many variants,
            only the first ones; sharing in the others counts as read.
        seconds: how long the runs of one variant may take.
    """
    unread: set[_Names] = set()
    read: set[_Names] = set()

    def sharing(variant: VariantFacts) -> list[tuple[int, _Names]]:
        """The pairs, each with the number of the tensor that a copy can replace."""
        paths = [str(place) for place in variant.group.layout.tensors]
        return [
            (pair.other, (paths[pair.one], paths[pair.other])) for pair in variant.group.key.shared
        ]

    def with_copies(
        plan: ArgumentPlan, sample: Sample, some: Sequence[tuple[int, _Names]]
    ) -> dict[str, Any]:
        """What the model returns, and what its arguments contain afterwards."""
        tensors = list(sample.tensors)
        for number, _ in some:
            tensors[number] = copies([tensors[number]])[0]
        ran = session.run(plan, replace(sample, tensors=tensors))
        arguments = {f"argument {i}": one for i, one in enumerate(ran.given.tensors)}
        return {**ran.leaves, **detached(arguments)}

    for candidates, matter in _which_matter(session, variants, sharing, with_copies, seconds):
        unread.update(names for _, names in candidates)
        read.update(names for _, names in (candidates if matter is None else matter))
    return frozenset(unread - read)
