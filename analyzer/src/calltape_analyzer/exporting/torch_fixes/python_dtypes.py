"""``int`` and ``float`` as dtypes (``torch.zeros(2, dtype=int)``, ``x.to(float)``) while other
classes replace them.

torch accepts only Python's own classes as dtypes, and checks them before it asks a mode. So a
model's modules get functions of torch that convert the stand-ins back.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from calltape_analyzer.exporting.torch_fixes.patching import ModuleView, replaced

__all__ = ["python_dtypes"]

_FUNCTIONS = (
    "arange", "as_tensor", "asarray", "cumprod", "cumsum", "empty", "empty_like", "empty_permuted",
    "empty_strided", "eye", "full", "full_like", "linspace", "logspace", "nansum", "ones",
    "ones_like", "prod", "randint", "randint_like", "randperm", "range", "scalar_tensor", "sum",
    "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like",
)  # fmt: skip
_METHODS = (
    "cumprod", "cumsum", "nansum", "new_empty", "new_empty_strided", "new_full", "new_ones",
    "new_tensor", "new_zeros", "prod", "sum", "to",
)  # fmt: skip


@contextlib.contextmanager
def python_dtypes(modules: list[dict[str, Any]], stand_ins: Mapping[type, type]) -> Iterator[None]:
    """Makes functions of torch accept stand-ins for Python's classes as dtypes within the block.

    Args:
        modules: the dicts of the modules that have the stand-ins.
        stand_ins: the stand-ins, each with the class that it replaces.
    """
    functions = {name: vars(torch)[name] for name in _FUNCTIONS if name in vars(torch)}
    taking = {name: _taking(function, stand_ins) for name, function in functions.items()}
    others: dict[int, Any] = {id(function): taking[name] for name, function in functions.items()}
    others[id(torch)] = ModuleView(torch, taking)
    with replaced(modules, others), _methods(stand_ins):
        yield


@contextlib.contextmanager
def _methods(stand_ins: Mapping[type, type]) -> Iterator[None]:
    tensor = torch.Tensor
    names = [name for name in _METHODS if hasattr(tensor, name)]
    before = {name: vars(tensor)[name] for name in names if name in vars(tensor)}
    try:
        for name in names:
            setattr(tensor, name, _taking(getattr(tensor, name), stand_ins))
        yield
    finally:
        for name in names:
            if name in before:
                setattr(tensor, name, before[name])
            elif name in vars(tensor):
                delattr(tensor, name)


def _taking(function: Callable[..., Any], stand_ins: Mapping[type, type]) -> Callable[..., Any]:
    """A function that accepts the stand-ins."""

    def original(value: Any) -> Any:
        # Stand-ins are equal to what they stand for, and a tensor has no truth.
        return next((stands for one, stands in stand_ins.items() if value is one), value)

    @functools.wraps(function)
    def taking(*args: Any, **kwargs: Any) -> Any:
        if "dtype" in kwargs:
            kwargs["dtype"] = original(kwargs["dtype"])
        return function(*map(original, args), **kwargs)

    return taking
