"""What a model asks of its arguments that no program can know: flags such as ``is_conj()``, whether
they are views, what lies around them in memory.

In come variants. If the model's code names such a fact, a recorded call of each is run with the
same values and another fact. If that changes what the model returns, no program can do the same:
it gets values, sizes and strides. Out goes what is asked of which tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, NamedTuple

from calltape_analyzer.arguments.plan import Plan
from calltape_analyzer.arguments.samples import Sample, sample_in
from calltape_analyzer.comparison.comparing import compared
from calltape_analyzer.errors import TapeError
from calltape_analyzer.exporting.doubts import doubt_of
from calltape_analyzer.exporting.observed_calls import LAYOUT
from calltape_analyzer.exporting.runner import Runner
from calltape_analyzer.model.asked_modes import names_in
from calltape_analyzer.pytree.memory import extent, is_apart, is_strided
from calltape_analyzer.pytree.tensors import conjugated, negated
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["asked_facts"]

_MAX_VARIANTS = 2
_UNTRIED = (
    "whether the model returns something else for another flag of an argument, or other memory "
    "around it, is unknown, and its programs do not"
)
_MAX_SINGLE = 8
"""So many tensors are tried one by one; of more, all count as asked if one is."""
_BESIDE = "whether it lies in one memory with another argument (data_ptr())"
_BEYOND = "the memory between and beyond its elements"
_SIZE = "the size of its memory (untyped_storage())"
_BEGIN = "where it begins in its memory (storage_offset(), data_ptr())"
_WIDEST = 16
"""Bytes of the widest dtype: each tensor begins at a multiple."""
_ROOM = 64
"""Elements of memory behind a tensor, at least."""
_BEFORE = 3
"""Elements of memory before a tensor that begins elsewhere."""

Change = Callable[[Any], Any]
"""Makes another tensor of one, or gives it back."""


class _Fact(NamedTuple):
    """Something that a model may ask.

    Attributes:
        words: what it is, for people.
        names: what code names that asks it.
        with_it: gives a tensor the fact; a tensor that cannot have it is returned.
    """

    words: str
    names: frozenset[str]
    with_it: Change


def asked_facts(
    runner: Runner, variants: Sequence[VariantFacts], seconds: float
) -> dict[str, list[str]]:
    """What the model asks of which tensors, in words, by their paths.

    Args:
        runner: has the model.
        variants: of which a recorded call is run. Of many, the first ones.
        seconds: how long the runs of one variant may take.
    """
    names = names_in(runner.module)
    facts = [fact for fact in _FACTS if fact.names & names]
    looks_around = bool(_AROUND & names)
    found: dict[str, list[str]] = {}
    for variant in variants[:_MAX_VARIANTS] if facts or looks_around else ():
        own = [fact for fact in facts if runner.asks(variant, fact.names)]
        around = looks_around and (bool(_UNSEEN & names) or runner.asks(variant, LAYOUT))
        if not own and not around:
            continue
        ask = partial(_asked_in, runner, variant, own, around)
        for path, words in runner.asked(ask, seconds, f"{variant.name}: {_UNTRIED}") or ():
            known = found.setdefault(path, [])
            known += [words] if words not in known else []
    return found


def _asked_in(
    runner: Runner, variant: VariantFacts, facts: Sequence[_Fact], looks_around: bool
) -> list[tuple[str, str]]:
    call = runner.find(variant.rows.first)
    try:
        sample = sample_in(variant, call, runner.sorter, runner.device)
    except TapeError:  # the export of the variant will say so
        return []
    places = variant.group.layout.tensors
    # One that shares memory with another argument would no longer do so, after a change.
    sharing = {i for pair in variant.group.key.shared for i in (pair.one, pair.other)}
    asking = _Asking(runner, Plan.of(variant, sample, runner.sorter.signature), sample, sharing)
    found = [(i, fact.words) for fact in facts for i in asking.minding(_as_it_is, fact.with_it)]
    found += asking.around() if looks_around else []
    return [(str(places[i]), words) for i, words in found]


class _Asking:
    """Runs of one recorded call with tensors that have other facts."""

    def __init__(
        self, runner: Runner, plan: Plan, sample: Sample, sharing: Collection[int]
    ) -> None:
        self._runner, self._plan, self._sample = runner, plan, sample
        self._eager = partial(runner.eager, plan)
        self._free = [
            i
            for i, one in enumerate(sample.tensors)
            if is_strided(one) and one.numel() and i not in sharing
        ]

    def minding(self, before: Change, after: Change) -> list[int]:
        """The tensors of which the model returns something else after a change than before it."""
        free = self._free
        if not free or not self._minds(before, after, free):
            return []
        if len(free) == 1 or len(free) > _MAX_SINGLE:
            return free
        return [i for i in free if self._minds(before, after, [i])] or free

    def around(self) -> list[tuple[int, str]]:
        """What the model asks of the memory around its arguments: what is there, how much, and
        where they begin in it."""
        empty, full, moved = partial(_within, fill=0), partial(_within, fill=1), partial(
            _within, fill=0, begin=_BEFORE
        )  # fmt: skip
        beyond, words = self._together(), _BESIDE
        if not beyond:
            beyond, words = [*self.minding(empty, full), *self._needing(empty)], _BEYOND
        if not beyond:
            beyond, words = self.minding(_as_it_is, empty), _SIZE
        if not beyond:
            beyond, words = self.minding(empty, moved), _BEGIN
        return [(i, words) for i in dict.fromkeys(beyond)]

    def _together(self) -> list[int]:
        """All tensors, if the model returns something else where they lie side by side in one
        memory. Two that are slices of one tensor, and have no element in common, do."""
        import torch

        tensors = [self._sample.tensors[i] for i in self._free]
        sizes = [-(-extent(t.shape, t.stride()) * t.dtype.itemsize // _WIDEST) for t in tensors]
        begins = dict(zip(self._free, accumulate([0, *sizes]), strict=False))
        if len(begins) < 2 or len({t.device for t in tensors}) > 1:
            return []
        memory = torch.zeros(sum(sizes) * _WIDEST, dtype=torch.uint8, device=tensors[0].device)

        def apart(tensor: Any, begin: int) -> Any:
            return _placed(tensor, memory.clone(), begin * _WIDEST)

        def together(tensor: Any, begin: int) -> Any:
            return _placed(tensor, memory, begin * _WIDEST)

        before, after = (
            {i: partial(where, begin=begin) for i, begin in begins.items()}
            for where in (apart, together)
        )
        return self._free if self._changed(before, after) else []

    def _needing(self, change: Change) -> list[int]:
        """All tensors, if the model runs only with the change."""
        is_needed = self._run({}) is None and self._run(dict.fromkeys(self._free, change))
        return self._free if is_needed else []

    def _minds(self, before: Change, after: Change, numbers: Collection[int]) -> bool:
        return self._changed(dict.fromkeys(numbers, before), dict.fromkeys(numbers, after))

    def _changed(self, before: Mapping[int, Change], after: Mapping[int, Change]) -> bool:
        """Whether the model returns something else after changes of tensors than before."""
        expected, got = self._run(before), self._run(after)
        if expected is None or got is None:
            return False
        tolerances = self._runner.tolerances
        found = compared(expected, got, tolerances)
        if found.agrees or not found.compared:
            return False
        eager = partial(self._eager, changes=before)
        return doubt_of(eager, self._sample, expected, got, tolerances) is None

    def _run(self, changes: Mapping[int, Change]) -> Mapping[str, Any] | None:
        if all(change is _as_it_is for change in changes.values()):
            return self._unchanged
        return self._result(changes)

    @cached_property
    def _unchanged(self) -> Mapping[str, Any] | None:
        return self._result({})

    def _result(self, changes: Mapping[int, Change]) -> Mapping[str, Any] | None:
        try:
            return self._eager(self._sample, changes=changes)
        except Exception:  # models raise errors of any type
            return None


def _as_it_is(tensor: Any) -> Any:
    return tensor


def _with_gradients(tensor: Any) -> Any:
    is_inexact = tensor.is_floating_point() or tensor.is_complex()
    return tensor.requires_grad_() if is_inexact else tensor


def _computed(tensor: Any) -> Any:
    import torch

    with torch.enable_grad():
        made = _with_gradients(tensor)
        return made.clone() if made.requires_grad else tensor


def _written(tensor: Any) -> Any:
    return tensor.copy_(tensor.clone()) if is_apart(tensor.shape, tensor.stride()) else tensor


def _in_inference(tensor: Any) -> Any:
    import torch

    with torch.inference_mode():
        return tensor.clone()


def _as_parameter(tensor: Any) -> Any:
    import torch

    return torch.nn.Parameter(tensor, requires_grad=False)


def _as_view(tensor: Any) -> Any:
    return tensor.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _within(tensor: Any, *, fill: int, begin: int = 0) -> Any:
    """The tensor as it lies, in more memory: there are elements around it, and in its gaps."""
    import torch

    strides = tensor.stride()
    if not is_apart(tensor.shape, strides):
        return tensor  # torch writes to no such tensor
    first = tensor.storage_offset()
    length = first + 3 * extent(tensor.shape, strides) + _ROOM
    memory = torch.full((length,), fill, device=tensor.device).to(tensor.dtype)
    return _placed(tensor, memory, (first + begin) * tensor.dtype.itemsize)


def _placed(tensor: Any, memory: Any, offset: int) -> Any:
    """The tensor at an offset in bytes of the memory of another one."""
    import torch

    if not is_apart(tensor.shape, tensor.stride()):
        return tensor  # torch writes to no such tensor
    there = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        memory.untyped_storage(), offset // tensor.dtype.itemsize, tensor.shape, tensor.stride()
    )
    return there.copy_(tensor.detach())


_FACTS = (
    _Fact("whether it is conjugated (is_conj())", frozenset({"is_conj"}), conjugated),
    _Fact("whether it is negated (is_neg())", frozenset({"is_neg"}), negated),
    _Fact(
        "whether it records gradients (requires_grad)",
        frozenset({"requires_grad"}),
        _with_gradients,
    ),
    _Fact(
        "whether it was computed with gradients (grad_fn, is_leaf)",
        frozenset({"grad_fn", "is_leaf"}),
        _computed,
    ),
    _Fact("how often it was written to (_version)", frozenset({"_version"}), _written),
    _Fact(
        "whether it was made in inference mode (is_inference())",
        frozenset({"is_inference"}),
        _in_inference,
    ),
    _Fact("whether it is a Parameter", frozenset({"Parameter"}), _as_parameter),
    _Fact("whether it is a view (_base)", frozenset({"_base", "_is_view"}), _as_view),
)
_AROUND = frozenset(
    {"as_strided", "as_strided_", "data_ptr", "set_", "storage", "storage_offset"}
    | {"_is_alias_of", "_typed_storage", "untyped_storage"}
)
"""What code names that asks for the memory of a tensor."""
_UNSEEN = frozenset({"_is_alias_of"})
"""Those of them that no mode sees (``torch._C``)."""
