"""Values that a model reads with Python: ``int(x.max())``, ``lengths.tolist()``, ``if x.any()``.

A trace that is not strict runs the model's Python. ``int()`` has to return a number then, which a
trace does not have. Two ways out are tried if nothing else gives a program (docs/decisions/0042).
:func:`symbolic_ints` lets ``int``, ``tolist`` and slices give symbols in the model's own code.
:func:`real_values` computes the values of the sample beside the trace, so that an ``if`` takes the
branch of these values; torch keeps that as an assertion in the program.
"""

from __future__ import annotations

import builtins
import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["reads_values", "real_values", "symbolic_ints"]

_SIGNS = re.compile(
    r"data-dependent|DataDependent|specialized integer|Could not guard|unbacked|\bu\d+\b|\.item\(\)"
    r"|without concrete values|symbolically traced variables"
)
_NOT_THE_MODELS = frozenset({"torch", "builtins", "__future__", "calltape_analyzer", "typing"})


def reads_values(error: str) -> bool:
    """Whether a failed trace needed the values of a tensor."""
    return _SIGNS.search(error) is not None


class _OfTensors(type):
    """``int`` that makes symbols of tensors of one element, leaves symbols what they are, and knows
    that they are ints."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            (value,) = args
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                return (value.to(torch.int64) if value.is_floating_point() else value).item()
            if isinstance(value, torch.SymInt):
                return value
            if isinstance(value, torch.SymFloat):
                return torch.sym_int(value)
        return builtins.int(*args, **kwargs)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, builtins.int | torch.SymInt)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, builtins.int)


class _SymbolicInt(builtins.int, metaclass=_OfTensors):
    """Stands for ``int`` in the modules of a model while it is traced. torch does not take it for a
    dtype (``torch.zeros(1, dtype=int)``), so that it is not always there."""


def _isinstance(value: Any, kinds: Any) -> bool:
    """``isinstance`` that takes a symbol for an int. transformers asks
    ``isinstance(logits_to_keep, int)``, and takes all else for an index."""
    if type(value) is torch.SymInt:
        every = kinds if isinstance(kinds, tuple) else (kinds,)
        if builtins.int in every:
            return True
    return isinstance(value, kinds)


@contextlib.contextmanager
def symbolic_ints(model: torch.nn.Module, *, of_tensors: bool) -> Iterator[None]:
    """Lets the code of a model take symbols for ints while it is traced. In the Python modules of
    the packages that its parts come from, ``isinstance`` is another function for the time of the
    block, or ``int`` another class.

    Args:
        model: what is traced.
        of_tensors: whether ``int(tensor)``, ``tensor.tolist()`` and slices give symbols as well.
    """
    packages = {type(part).__module__.partition(".")[0] for part in model.modules()}
    packages -= _NOT_THE_MODELS
    changed: list[dict[str, Any]] = []
    name, stands = ("int", _SymbolicInt) if of_tensors else ("isinstance", _isinstance)
    try:
        for of, module in list(sys.modules.items()):
            names = getattr(module, "__dict__", None)
            is_own = of.partition(".")[0] in packages and isinstance(names, dict)
            if names is not None and is_own and name not in names:
                names[name] = stands
                changed.append(names)
        with _Reading() if of_tensors else contextlib.nullcontext():
            yield
    finally:
        for names in changed:
            names.pop(name, None)


class _Reading(TorchFunctionMode):
    """Takes ``tolist`` and slices with tensors of one element apart into single values."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.tolist:
            return _items(args[0])
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            args = (args[0], _plain(args[1]), *args[2:])
        return func(*args, **(kwargs or {}))


def _items(tensor: torch.Tensor) -> Any:
    if tensor.dim() == 0:
        return tensor.item()
    return [_items(tensor[i]) for i in range(tensor.shape[0])]


def _plain(index: Any) -> Any:
    """An index without tensors in its slices."""
    if isinstance(index, tuple):
        return tuple(_plain(part) for part in index)
    if isinstance(index, slice):
        ends = (index.start, index.stop, index.step)
        return slice(*(end.item() if isinstance(end, torch.Tensor) else end for end in ends))
    return index


@contextlib.contextmanager
def real_values(wanted: bool) -> Iterator[None]:
    """Lets a trace compute the values of its sample, to know which way an ``if`` goes.

    Args:
        wanted: does nothing if it is False, or if this torch has no such setting.
    """
    from torch._functorch import config

    setting = "fake_tensor_propagate_real_tensors"
    if not wanted or not hasattr(config, setting):
        yield
        return
    with config.patch(setting, True):
        yield
