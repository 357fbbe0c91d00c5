"""Whether it matters to a model that arguments are one object, share memory, or are its own.

A recorded call of each variant is run with equal copies instead. If the model returns the same, and
writes the same, the calls are of one variant with those whose arguments are apart
(``CallSorter.unshared``): a loss called with ``labels=ids`` asks nothing of that.

A model may also compare an argument with one of its buffers, with ``is``, or write to one and read
the other. So a call of each is run with a part of a buffer, and with a copy of that. If the model
returns something else, its programs reject calls that share memory with it, and recorded calls are
looked at: no tape says whose memory an argument was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from calltape_analyzer.arguments.plan import Plan
from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.comparison.comparing import compared, recorded_leaves
from calltape_analyzer.errors import TapeError
from calltape_analyzer.exporting.session.model_differences import doubt_of, which_matter
from calltape_analyzer.exporting.session.model_runs import ModelRuns
from calltape_analyzer.exporting.session.sandbox import may_fork
from calltape_analyzer.model.calls import detached
from calltape_analyzer.pytree.memory import copies, is_strided
from calltape_analyzer.reading.call import Call
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["OwnTensors", "own_tensors", "sharing_unread"]

_Names = tuple[str, str]


def sharing_unread(
    runner: ModelRuns, variants: Sequence[VariantFacts], seconds: float
) -> frozenset[_Names]:
    """The pairs of paths of tensors that share memory in some call, if a model returns the same for
    copies.

    Args:
        runner: has the model.
        variants: of which the first call is run, if arguments share memory there. Of very many
            variants, the first ones; pairs of the others stay apart.
        seconds: how long the runs of one variant may take.
    """
    unread: set[_Names] = set()
    read: set[_Names] = set()

    def sharing(variant: VariantFacts) -> list[tuple[int, _Names]]:
        """The pairs, each with the number of the tensor that a copy can take the place of."""
        paths = [str(place) for place in variant.group.layout.tensors]
        return [
            (pair.other, (paths[pair.one], paths[pair.other])) for pair in variant.group.key.shared
        ]

    def with_copies(
        plan: Plan, sample: Sample, some: Sequence[tuple[int, _Names]]
    ) -> dict[str, Any]:
        """What the model returns, and what is in its arguments afterwards."""
        tensors = list(sample.tensors)
        for number, _ in some:
            tensors[number] = copies([tensors[number]])[0]
        ran = runner.run(plan, replace(sample, tensors=tensors))
        arguments = {f"argument {i}": one for i, one in enumerate(ran.given.tensors)}
        return {**ran.leaves, **detached(arguments)}

    for every, found in which_matter(runner, variants, sharing, with_copies, seconds):
        unread.update(names for _, names in every)
        read.update(names for _, names in (every if found is None else found))
    return frozenset(unread - read)


_MAX_OWN_VARIANTS = 2
_MAX_PAIRS = 6
"""So many pairs of an argument and a buffer are tried."""
_MAX_CALLS = 16
"""So many recorded calls are looked at."""


class OwnTensors(NamedTuple):
    """What came of it.

    Attributes:
        minded: the paths of arguments of which it matters whether they are the model's own, with
            the names of its tensors that were tried.
        passed: of recorded calls that are reproduced only with the model's own tensor, the path of
            the argument, the number of the call, and the name.
    """

    minded: dict[str, str]
    passed: dict[str, tuple[int, str]]


class _Pair(NamedTuple):
    """The number of an argument, and the name of a tensor of the model."""

    number: int
    name: str


def own_tensors(runner: ModelRuns, variants: Sequence[VariantFacts], seconds: float) -> OwnTensors:
    """Of which arguments it matters whether they are the model's own.

    Args:
        runner: has the model.
        variants: of which recorded calls are run. Of many, the first ones.
        seconds: how long the runs of one variant may take.
    """
    found = OwnTensors({}, {})
    # What is in a buffer may be no value for the argument: a kernel may end the process.
    for variant in variants[:_MAX_OWN_VARIANTS] if may_fork(runner.device) else ():
        first = _Owning.of(runner, variant, runner.find(variant.rows.first))
        if first is None or not first.has_pairs:
            continue  # a process of its own takes as long as some runs
        # A buffer may hold what no argument does, so that an end of the process says nothing.
        question = partial(_minded_in, runner, variant, first)
        minded, passed = runner.asked(question, seconds) or ({}, {})
        found.minded.update(minded)
        found.passed.update(passed)
    return found


def _minded_in(
    runner: ModelRuns, variant: VariantFacts, first: _Owning
) -> tuple[dict[str, str], dict[str, tuple[int, str]]]:
    pairs = first.minded()
    places = variant.group.layout.tensors
    passed: dict[str, tuple[int, str]] = {}
    firsts = [seen.first for _, seen in variant.rows.items()[:_MAX_CALLS]] if pairs else []
    for ref in firsts:
        call = runner.find(ref)
        owning = _Owning.of(runner, variant, call)
        for pair in pairs if owning is not None else ():
            if owning is not None and owning.passed(pair, call):
                passed.setdefault(str(places[pair.number]), (call.number, pair.name))
    return {str(places[pair.number]): pair.name for pair in pairs}, passed


class _Owning:
    """Runs of one recorded call with tensors of the model as arguments."""

    def __init__(self, runner: ModelRuns, plan: Plan, sample: Sample) -> None:
        self._runner, self._plan, self._sample = runner, plan, sample
        named = (*runner.module.named_buffers(), *runner.module.named_parameters())
        self._own: dict[str, Any] = dict(named)
        self._buffers = {name for name, _ in runner.module.named_buffers()}

    @classmethod
    def of(cls, runner: ModelRuns, variant: VariantFacts, call: Call) -> _Owning | None:
        """For a call of a variant; None if it cannot be read, which the export will say."""
        try:
            return cls(runner, *runner.planned(variant, call))
        except TapeError:
            return None

    @property
    def has_pairs(self) -> bool:
        """Whether any argument could be a tensor of the model, or a part of one."""
        return next(self._pairs(), None) is not None

    def minded(self) -> list[_Pair]:
        """The pairs of an argument and a tensor of the model of which it matters whether the one
        is the other, or a part of it."""
        tried = islice(self._pairs(), _MAX_PAIRS)
        return list(dict.fromkeys(pair for pair, own in tried if self._minds(pair, own)))

    def _pairs(self) -> Iterator[tuple[_Pair, Any]]:
        """The pairs, each with what is passed: a buffer as it is, a part of it in the shape of the
        argument, a parameter of its shape."""
        for number, tensor in enumerate(self._sample.tensors):
            for name, own in self._own.items():
                if name in self._buffers and own.dim() == tensor.dim() and _is_alike(own, tensor):
                    yield _Pair(number, name), own
                part = self._part(tensor, name)
                if part is not None and not (part is own and name in self._buffers):
                    yield _Pair(number, name), part

    def _part(self, tensor: Any, name: str) -> Any:
        """The model's own tensor of the shape of another one, or the beginning of a buffer in that
        shape; None if there is nothing."""
        own = self._own[name]
        if not _is_alike(own, tensor):
            return None
        if own.shape == tensor.shape:
            return own
        is_larger = own.numel() >= tensor.numel() and own.is_contiguous()
        if name not in self._buffers or not is_larger or not tensor.dim():
            return None
        return own.detach().flatten()[: math.prod(tensor.shape)].view(tensor.shape)

    def _minds(self, pair: _Pair, own: Any) -> bool:
        """Whether the model returns something else for its own tensor than for a copy of it."""

        def copied(_: Any) -> Any:
            return own.detach().clone()

        def itself(_: Any) -> Any:
            return own

        expected, got = (self._run({pair.number: one}) for one in (copied, itself))
        if expected is None or got is None or self._agree(expected, got):
            return False
        if not compared(expected, got, self._runner.tolerances).compared:
            return False
        changes = {pair.number: copied}
        runner, plan, sample = self._runner, self._plan, self._sample
        return doubt_of(runner, plan, sample, expected, got, changes) is None

    def passed(self, pair: _Pair, call: Call) -> bool:
        """Whether the model returns what was recorded only if it is given its own tensor."""
        own = self._part(self._sample.tensors[pair.number], pair.name)
        recorded = recorded_leaves(call)
        if own is None or recorded is None:
            return False

        def filled(tensor: Any) -> Any:
            own.detach().copy_(tensor)
            return own

        with_copy, with_own = self._run({}), self._run({pair.number: filled})
        if with_copy is None or with_own is None:
            return False
        return self._agree(recorded, with_own) and not self._agree(recorded, with_copy)

    def _agree(self, expected: Mapping[str, Any], got: Mapping[str, Any]) -> bool:
        return compared(expected, got, self._runner.tolerances).agrees

    def _run(self, changes: Mapping[int, Any]) -> Mapping[str, Any] | None:
        state = self._runner.state
        before = dict(state)
        try:
            return self._runner.eager(self._plan, self._sample, changes=changes)
        except Exception:  # models raise errors of any type
            return None
        finally:
            # What a call writes to its argument is no state of the model, for all that is its own.
            for name in state.keys() - before.keys():
                del state[name]


def _is_alike(own: Any, tensor: Any) -> bool:
    """Whether a tensor of a model could be passed in place of another one, but for its shape."""
    is_strided_one = is_strided(own) and is_strided(tensor)
    return is_strided_one and bool(
        own.dtype == tensor.dtype and own.device == tensor.device and own.numel() and tensor.numel()
    )
