"""``int`` as a dtype (``torch.zeros(2, dtype=int)``, ``x.to(int)``) where something stands for it.

torch takes Python's own ``int`` for a dtype and nothing else, and looks before any mode is asked.
So a model's modules see functions of torch that put it back.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from calltape_analyzer.exporting.model_names import Beside, replaced

__all__ = ["int_dtypes"]

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
def int_dtypes(modules: list[dict[str, Any]], stand_in: type) -> Iterator[None]:
    """Lets functions of torch take a stand-in for ``int`` as a dtype within the block.

    Args:
        modules: the names of the modules that see the stand-in.
        stand_in: what they have for ``int``.
    """
    functions = {name: vars(torch)[name] for name in _FUNCTIONS if name in vars(torch)}
    taking = {name: _taking(function, stand_in) for name, function in functions.items()}
    others: dict[int, Any] = {id(function): taking[name] for name, function in functions.items()}
    others[id(torch)] = Beside(torch, taking)
    with replaced(modules, others), _methods(stand_in):
        yield


@contextlib.contextmanager
def _methods(stand_in: type) -> Iterator[None]:
    tensor = torch.Tensor
    names = [name for name in _METHODS if hasattr(tensor, name)]
    own = {name: vars(tensor)[name] for name in names if name in vars(tensor)}
    try:
        for name in names:
            setattr(tensor, name, _taking(getattr(tensor, name), stand_in))
        yield
    finally:
        for name in names:
            if name in own:
                setattr(tensor, name, own[name])
            elif name in vars(tensor):
                delattr(tensor, name)


def _taking(function: Callable[..., Any], stand_in: type) -> Callable[..., Any]:
    """A function that takes the stand-in for ``int``."""

    @functools.wraps(function)
    def taking(*args: Any, **kwargs: Any) -> Any:
        args = tuple(builtins.int if value is stand_in else value for value in args)
        if kwargs.get("dtype") is stand_in:
            kwargs["dtype"] = builtins.int
        return function(*args, **kwargs)

    return taking
