"""Random numbers from a generator that the model creates in each call: constants of the program.

``torch.export`` keeps the generator of the trace in the program, which continues to draw from it:
only the first call of the program is right. A model that seeds a generator of its own draws the
same numbers in each call, so here the trace gets them as a tensor. How many there are must not
depend on the arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from calltape_analyzer.model.randomness import generators_held_by

__all__ = ["own_generators"]


@contextmanager
def own_generators(module: torch.nn.Module) -> Iterator[None]:
    """Makes a trace within the block draw immediately from generators that are created in it. If
    that is impossible, the trace fails with a RuntimeError.

    Args:
        module: the model. Generators that it holds go on from call to call, and stay as they are.
    """
    with _Drawing(set(map(id, generators_held_by(module)))):
        yield


class _Drawing(TorchFunctionMode):
    def __init__(self, held: set[int]) -> None:
        super().__init__()
        self._held = held

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        generator = keywords.get("generator")
        of_torch = torch.default_generator, *torch.cuda.default_generators
        if generator is None or id(generator) in self._held or generator in of_torch:
            return func(*args, **keywords)
        leaves = pytree.tree_leaves((args, {**keywords, "generator": None}))
        if any(isinstance(leaf, (torch.Tensor, torch.SymInt, torch.SymFloat)) for leaf in leaves):
            raise RuntimeError(
                "the model makes a generator of random numbers in each call, and what it draws "
                "follows from sizes or values of its arguments: a program would go on drawing from "
                "one call to the next (draw a fixed number and take a part of it, or pass the "
                "numbers as an argument)"
            )
        with _disable_current_modes():
            return func(*args, **keywords)
