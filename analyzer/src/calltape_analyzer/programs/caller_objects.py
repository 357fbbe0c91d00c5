"""The arguments of a caller, and what a program gets and returns instead of them.

A trace sees the strides of its inputs and may rely on them (``contiguous()`` leaves nothing in the
graph of a contiguous input), and a runtime may ignore strides. So a program gets contiguous
tensors, unless the model reads strides or tensors share memory: then they keep the caller's
strides.

A model that gets a cache updates that object, and its caller continues with the same object. A
program has tensors only. So a trace notes which arguments were returned, and a call through
:class:`~calltape_analyzer.Programs` writes the new state into the caller's object and returns it.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

from calltape_analyzer.arguments.samples import Sample, check_tensors
from calltape_analyzer.observing.layout import layout_of_nodes
from calltape_analyzer.pytree.caches import is_cache_value
from calltape_analyzer.pytree.description import describe_as_recorded
from calltape_analyzer.pytree.memory import contiguous, contiguous_strides, copies, storage_of
from calltape_analyzer.variants.facts import VariantFacts

__all__ = [
    "as_traced",
    "changed_arguments",
    "contents_of",
    "in_own_objects",
    "kept_layouts",
    "memory_of",
    "restore",
    "returned_arguments",
    "views_of",
    "write_back",
]


def kept_layouts(variant: VariantFacts) -> frozenset[int]:
    """The numbers of the tensors that a program gets with the caller's strides."""
    key = variant.group.key
    read = {i for i, facts in enumerate(key.facts) if facts.memory}
    return frozenset(
        read.union(*((pair.one, pair.other) for pair in key.shared if not pair.is_one))
    )


def as_traced(variant: VariantFacts, sample: Sample) -> Sample:
    """The sample with copies of the tensors whose strides differ from those of the trace. The
    others are the same objects.

    Raises:
        TapeError: ``limit`` if that takes more memory than there is room for.
        InferenceError: torch cannot copy one.
    """
    kept_strides = kept_layouts(variant)
    strided = [i for i, tensor in enumerate(sample.tensors) if _has_strides(tensor)]
    moved = [i for i in strided if i in kept_strides and _is_moved(sample, kept_strides)]
    not_contiguous = [
        i
        for i in strided
        if i not in kept_strides
        and sample.tensors[i].stride() != contiguous_strides(sample.tensors[i].shape)
    ]
    if not moved and not not_contiguous:
        return sample
    changed = [sample.tensors[i] for i in not_contiguous]
    check_tensors(sample.room, changed, [tuple(tensor.shape) for tensor in changed])
    contiguous_copies: dict[int, Any] = {}
    for tensor in changed:  # one object that is passed twice is one object again
        if id(tensor) not in contiguous_copies:
            contiguous_copies[id(tensor)] = contiguous(tensor)
    tensors = list(sample.tensors)
    for i in not_contiguous:
        tensors[i] = contiguous_copies[id(tensors[i])]
    kept_copies = copies([sample.tensors[i] for i in moved], from_zero=True)
    for i, copy in zip(moved, kept_copies, strict=True):
        tensors[i] = copy
    return replace(sample, tensors=tensors)


def write_back(given: Sample, run: Sample) -> None:
    """Copies what a program wrote to copies back to the caller's tensors.

    Args:
        given: the caller's.
        run: what :func:`as_traced` made of it, after the run.
    """
    import torch

    for tensor, copy in zip(given.tensors, run.tensors, strict=True):
        if tensor is not copy and _was_written(copy):
            with torch.no_grad():
                tensor.copy_(copy)


def restore(given: Sample, before: Sample) -> None:
    """Undoes what a program wrote to the caller's tensors.

    Args:
        given: the caller's.
        before: copies of them, or the same, from before the run.
    """
    import torch

    from calltape_analyzer.model.state import same

    for tensor, copy in zip(given.tensors, before.tensors, strict=True):
        if tensor is not copy and not same(copy, tensor):
            with torch.inference_mode():
                tensor.copy_(copy)


def views_of(leaves: Mapping[str, Any], sample: Sample) -> dict[str, frozenset[int]]:
    """Which outputs share memory with which tensors of a sample, by path and number. An output that
    is such a tensor itself, such as a cache that is filled and returned, does not count.

    Args:
        leaves: what was returned, by path.
        sample: the tensors that were passed, and not copies of them.
    """
    passed: dict[Any, set[int]] = defaultdict(set)
    for i, tensor in enumerate(sample.tensors):
        passed[memory_of(tensor)].add(i)
    passed.pop(None, None)
    arguments = {id(tensor) for tensor in sample.tensors}
    memories = {path: memory_of(leaf) for path, leaf in leaves.items() if id(leaf) not in arguments}
    return {path: frozenset(passed[key]) for path, key in memories.items() if key in passed}


def memory_of(value: Any) -> int | None:
    """A key that is equal for tensors that share memory; None for values without memory."""
    return storage_of(value) if _has_strides(value) and value.numel() else None


def _was_written(copy: Any) -> bool:
    try:
        return bool(copy._version)
    except RuntimeError:  # inference tensors do not count what is written to them
        return True


def _has_strides(tensor: Any) -> bool:
    """Whether a value is a tensor with memory of its own layout: neither sparse, nested, nor on the
    meta device."""
    import torch

    return (
        isinstance(tensor, torch.Tensor)
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_nested
    )


def _is_moved(sample: Sample, kept: Collection[int]) -> bool:
    """Whether tensors that keep their strides begin at another offset than copies, which the trace
    had."""
    begins: dict[int, int] = {}
    for i in kept:
        tensor = sample.tensors[i]
        if (memory := memory_of(tensor)) is not None:
            begin = tensor.storage_offset() * tensor.dtype.itemsize
            begins[memory] = min(begins.get(memory, begin), begin)
    return any(begins.values())


def returned_arguments(returned: Any, arguments: Mapping[str, Any]) -> dict[str, str]:
    """The items of a result that are arguments: by key, field or position of the item, the name of
    the argument."""
    return {
        str(key): name
        for key, value in _items(returned)
        for name, argument in arguments.items()
        if value is argument and _is_mutable(argument)
    }


def contents_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """By the name of an argument, a key that stays equal as long as the argument has the same
    structure, the same numbers and texts, and the same tensors. Symbols of a trace are ignored."""
    contents: dict[str, Any] = {}
    for name, value in arguments.items():
        try:
            contents[name] = _contents(value)
        except Exception:  # a model may leave anything in it: that is equal to nothing
            contents[name] = object()
    return contents


_PLAIN = (int, float, complex, tuple, str, bytes)  # a tuple is a complex number


def _contents(value: Any) -> Any:
    described = describe_as_recorded(value)
    layout = layout_of_nodes({"": described.node}, 0)
    scalars = (described.scalars[path.number] for path in layout.scalars if not path.private)
    return (
        layout.keys,
        [repr(scalar) for scalar in scalars if type(scalar) in _PLAIN],
        # An array becomes a new tensor whenever it is described.
        [
            id(tensor) if path.kind == "tensor" else tensor.numpy().tobytes()
            for path in layout.tensors
            for tensor in (described.tensors[path.number],)
        ],
    )


def changed_arguments(
    before: Mapping[str, Any], arguments: Mapping[str, Any], returned: Mapping[str, str]
) -> list[str]:
    """The names of the arguments whose contents changed, and that are not returned.

    Args:
        before: their contents before a call.
        arguments: after it.
        returned: as :func:`returned_arguments` gives it.
    """
    after, names = contents_of(arguments), set(returned.values())
    return [name for name, was in before.items() if was != after[name] and name not in names]


def in_own_objects(value: Any, returned: Mapping[str, str], arguments: Mapping[str, Any]) -> Any:
    """A result in which each returned argument is the caller's own object, with its new state.

    Args:
        value: what the program returned.
        returned: as :func:`returned_arguments` gives it.
        arguments: the caller's arguments, by name.
    """
    for key, item in list(_items(value)):
        argument = arguments.get(returned.get(str(key), ""))
        if argument is not None and type(argument) is type(item) and _is_mutable(argument):
            _replace_state(argument, item)
            value = _with_item(value, key, argument)
    return value


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def _is_mutable(value: Any) -> bool:
    return isinstance(value, list | MutableMapping) or is_cache_value(value)


def _replace_state(argument: Any, new: Any) -> None:
    """Gives an argument the state of another object of its class."""
    if isinstance(argument, list):
        argument[:] = new
    elif isinstance(argument, MutableMapping):
        argument.clear()
        argument.update(new)
    else:
        vars(argument).clear()
        vars(argument).update(vars(new))


def _with_item(value: Any, key: Any, item: Any) -> Any:
    if isinstance(value, MutableMapping | list):
        value[key] = item
        return value
    if isinstance(value, tuple):
        items = [*value[:key], item, *value[key + 1 :]]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    object.__setattr__(value, key, item)
    return value
