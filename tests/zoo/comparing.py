"""Whether two outputs are the same."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["difference", "is_rounding", "leaves", "nudged"]

# rtol and atol. Wider than torch.testing's own: an exported program decomposes, and adds up in
# another order. Still far below what a wrong mask or position does to a lively model.
_TOLERANCE: dict[torch.dtype, tuple[float, float]] = {
    torch.float16: (1e-2, 1e-3),
    torch.bfloat16: (3.2e-2, 1e-2),
    torch.float32: (1e-4, 2e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1e-4, 2e-5),
    torch.complex128: (1e-7, 1e-7),
}

_ROUNDING = 16
"""A runtime that adds and fuses in another order may be off by so many times what the last digit of
the inputs changes in the model's own results."""

_PLAIN = (torch.Tensor, bool, int, float, complex, str, enum.Enum, torch.dtype, torch.device)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with its path, and every container as a leaf that is its class's name."""
    if isinstance(value, torch.Tensor) and value.is_nested:
        parts = value.unbind()
        yield path, f"<{value.layout}>"
        yield f"{path}.sizes", torch.tensor([list(part.shape) for part in parts])
        yield f"{path}.values", torch.cat([part.flatten() for part in parts])
    elif value is None or isinstance(value, _PLAIN):
        yield path, value
    elif _is_cache(value):
        yield path, f"<{type(value).__name__}>"
        yield from _cache_leaves(value, path)
    else:
        yield path, f"<{type(value).__name__}>"
        for name, child in _children(value, path):
            yield from leaves(child, f"{path}{name}")


def _children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):  # transformers' ModelOutput is one, and drops what is None
        for key in sorted(value, key=repr):
            yield f"[{key!r}]", value[key]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for name in value._fields:
            yield f".{name}", getattr(value, name)
    elif isinstance(value, list | tuple):
        for position, child in enumerate(value):
            yield f"[{position}]", child
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield f".{field.name}", getattr(value, field.name)
    else:
        raise TypeError(f"{path or 'the output'} is a {type(value).__name__}")


def _is_cache(value: Any) -> bool:
    return type(value).__module__.startswith("transformers.") and type(value).__name__.endswith(
        "Cache"
    )


def _cache_leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The tensors that a cache holds. An empty one is none: layers begin with either."""
    for name, held in sorted(vars(value).items()):
        below = f"{path}.{name}"
        if isinstance(held, torch.Tensor):
            if held.numel():
                yield below, held
        elif isinstance(held, list | tuple):
            for position, layer in enumerate(held):
                if hasattr(layer, "__dict__"):
                    yield from _cache_leaves(layer, f"{below}[{position}]")
        elif isinstance(held, dict):
            for key, layer in held.items():
                if isinstance(layer, torch.Tensor):
                    yield f"{below}[{key!r}]", layer
        elif _is_cache(held):
            yield from _cache_leaves(held, below)


def difference(expected: Any, got: Any) -> str | None:
    """What differs, in words; None where nothing does.

    Structure and classes have to be the same, scalars equal, tensors of one dtype and shape and
    within a tolerance.
    """
    try:
        ours, theirs = dict(leaves(expected)), dict(leaves(got))
    except TypeError as error:
        return f"cannot be compared: {error}"
    if ours.keys() != theirs.keys():
        missing, extra = sorted(ours.keys() - theirs.keys()), sorted(theirs.keys() - ours.keys())
        return f"structure: without {missing[:3]}, with {extra[:3]}"
    for path, one in ours.items():
        if found := _leaf_difference(one, theirs[path]):
            return f"{path or 'output'}: {found}"
    return None


def _leaf_difference(one: Any, other: Any) -> str | None:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return None if _same_scalar(one, other) else f"{one!r} and {other!r}"[:200]
    if one.dtype != other.dtype:
        return f"{one.dtype} and {other.dtype}"
    if one.shape != other.shape:
        return f"shape {list(one.shape)} and {list(other.shape)}"
    rtol, atol = _TOLERANCE.get(one.dtype, (0.0, 0.0))
    if torch.allclose(one, other, rtol=rtol, atol=atol, equal_nan=True):
        return None
    wide = torch.complex128 if one.is_complex() else torch.float64
    return f"differs by up to {float((one.to(wide) - other.to(wide)).abs().max()):.3g}"


def _same_scalar(one: Any, other: Any) -> bool:
    if isinstance(one, float) and type(other) is float:
        return math.isclose(one, other, rel_tol=1e-5) or (one != one and other != other)
    return type(one) is type(other) and one == other


def nudged(arguments: Any) -> Any:
    """The same arguments, made from one seed, with the last digit of each float up or down."""

    def other(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            return tensor
        if tensor.is_nested or tensor.layout is not torch.strided:
            return tensor
        chance = torch.Generator().manual_seed(tensor.numel())
        up = torch.randint(0, 2, tensor.shape, generator=chance).bool()
        ends = torch.full_like(tensor, math.inf), torch.full_like(tensor, -math.inf)
        return torch.where(up, tensor.nextafter(ends[0]), tensor.nextafter(ends[1]))

    return pytree.tree_map(other, arguments)


def is_rounding(expected: Any, got: Any, near: Any) -> bool:
    """Whether all that differs is floats, by little more than the model's own do if the last digit
    of its inputs changes.

    Args:
        expected: what the model returns.
        got: what a program returns, which differs.
        near: what the model returns for :func:`nudged` inputs.
    """
    try:
        every = dict(leaves(expected)), dict(leaves(got)), dict(leaves(near))
    except TypeError:
        return False
    ours, theirs, moved = every
    if not ours.keys() == theirs.keys() == moved.keys():
        return False
    for path, one in ours.items():
        if _leaf_difference(one, theirs[path]) is None:
            continue
        parts = one, theirs[path], moved[path]
        if not all(isinstance(part, torch.Tensor) for part in parts):
            return False
        facts = {(part.shape, part.dtype) for part in parts}
        if len(facts) > 1 or not one.is_floating_point():
            return False
        if not _furthest(one, theirs[path]) <= _ROUNDING * _furthest(one, moved[path]) < math.inf:
            return False
    return True


def _furthest(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).abs().max())
