"""The tensors of a call as the trace of a program had them in memory.

A trace sees the strides of its inputs and may build on them (``contiguous()`` leaves nothing in the
graph of a contiguous input), and a runtime may not look at strides at all. So a program gets
contiguous tensors, unless the model reads a layout or tensors share memory: then they lie as the
caller's do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from calltape_analyzer.arguments.samples import Sample, check_tensors
from calltape_analyzer.pytree.memory import contiguous, contiguous_strides, copies
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["as_traced", "kept_layouts", "memory_of", "views_of", "write_back"]


def kept_layouts(variant: VariantFacts) -> frozenset[int]:
    """The tensors that a program gets as they lie in memory, by their number in the layout."""
    key = variant.group.key
    read = {i for i, facts in enumerate(key.facts) if facts.memory}
    return frozenset(
        read.union(*((pair.one, pair.other) for pair in key.shared if not pair.is_one))
    )


def as_traced(variant: VariantFacts, sample: Sample) -> Sample:
    """The sample with copies in place of the tensors that lie in another way than the program was
    traced with. The others are the same objects.

    Raises:
        TapeError: ``limit`` if that takes more memory than there is room for.
        InferenceError: torch cannot copy one.
    """
    kept = kept_layouts(variant)
    own = [_is_own(tensor) for tensor in sample.tensors]
    moved = [i for i, one in enumerate(own) if one and i in kept and _is_moved(sample, kept)]
    others = [
        i for i, one in enumerate(own) if one and i not in kept and not _is_plain(sample.tensors[i])
    ]
    if not moved and not others:
        return sample
    changed = [sample.tensors[i] for i in others]
    check_tensors(sample.room, changed, [tuple(tensor.shape) for tensor in changed])
    made: dict[int, Any] = {}
    for tensor in changed:  # one object that is passed twice is one object again
        if id(tensor) not in made:
            made[id(tensor)] = contiguous(tensor)
    tensors = list(sample.tensors)
    for i in others:
        tensors[i] = made[id(tensors[i])]
    kept_copies = copies([sample.tensors[i] for i in moved], from_zero=True)
    for i, copy in zip(moved, kept_copies, strict=True):
        tensors[i] = copy
    return replace(sample, tensors=tensors)


def write_back(given: Sample, run: Sample) -> None:
    """Writes what a program wrote to copies to the tensors that the caller gave.

    Args:
        given: the caller's.
        run: what :func:`as_traced` made of it, after the run.
    """
    import torch

    for own, copy in zip(given.tensors, run.tensors, strict=True):
        if own is not copy and _was_written(copy):
            with torch.no_grad():
                own.copy_(copy)


def views_of(leaves: Mapping[str, Any], sample: Sample) -> dict[str, frozenset[int]]:
    """Which outputs share memory with which tensors of a sample, by path and number. One that is
    such a tensor itself, as a cache that is filled and returned, does not count.

    Args:
        leaves: what was returned, by path.
        sample: the tensors that were passed, and not copies of them.
    """
    passed: dict[Any, set[int]] = defaultdict(set)
    for i, tensor in enumerate(sample.tensors):
        passed[memory_of(tensor)].add(i)
    passed.pop(None, None)
    known = {id(tensor) for tensor in sample.tensors}
    memories = {path: memory_of(leaf) for path, leaf in leaves.items() if id(leaf) not in known}
    return {path: frozenset(passed[one]) for path, one in memories.items() if one in passed}


def memory_of(value: Any) -> Any:
    """What is equal for tensors of one memory; None for what has none."""
    if not _is_own(value) or not value.numel():
        return None
    try:
        return value.untyped_storage()._cdata
    except RuntimeError:  # a subclass without memory of its own
        return None


def _was_written(copy: Any) -> bool:
    try:
        return bool(copy._version)
    except RuntimeError:  # inference tensors do not count what is written to them
        return True


def _is_own(tensor: Any) -> bool:
    import torch

    return (
        isinstance(tensor, torch.Tensor)
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_nested
    )


def _is_plain(tensor: Any) -> bool:
    return bool(tensor.stride() == contiguous_strides(tensor.shape))


def _is_moved(sample: Sample, kept: Collection[int]) -> bool:
    """Whether tensors that are kept as they lie begin elsewhere in their memory than copies do,
    which a trace had."""
    begins: dict[int, int] = {}
    for i in kept:
        tensor = sample.tensors[i]
        if _is_own(tensor) and tensor.numel():
            memory = tensor.untyped_storage()._cdata
            begin = tensor.storage_offset() * tensor.dtype.itemsize
            begins[memory] = min(begins.get(memory, begin), begin)
    return any(begins.values())
