"""Whether a model may ask for the grad or the inference mode, or draw random numbers with Python,
as far as its code shows."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import BuiltinMethodType, CodeType, FunctionType, MethodType
from typing import Any

from calltape_analyzer.model.randomness import generators_held_by
from calltape_analyzer.observing.contexts import Mode

__all__ = ["functions_held_by", "may_draw", "modes_named", "modules_of_code", "names_in"]

_ASKING: dict[Mode, frozenset[str]] = {
    "grad": frozenset({"is_grad_enabled", "requires_grad", "grad_fn", "is_leaf"}),
    "inference": frozenset({"is_inference_mode_enabled", "is_inference"}),
}
"""The names that code has that asks for a mode."""


def modes_named(target: Any) -> frozenset[Mode]:
    """The modes that the code of a model names: of its classes, and of the functions beside them
    or imported there. Torch's own code does not count."""
    names = set().union(*(names_in(function.__code__) for function in _functions_of(target)))
    return frozenset(mode for mode, asking in _ASKING.items() if names & asking)


def may_draw(target: Any) -> bool:
    """Whether a model may draw random numbers with Python or numpy: it holds a generator, or its
    code names one, or the modules that have them."""
    if any(map(_is_generator, generators_held_by(target))):
        return True
    for function in _functions_of(target):
        names = names_in(function.__code__)
        if names & _DRAWING:
            return True
        for name in names & function.__globals__.keys():
            value = function.__globals__[name]
            # A generator, a method of one, or the module of Python that has them.
            is_method = isinstance(value, (BuiltinMethodType, MethodType))
            if value is random or _is_generator(value.__self__ if is_method else value):
                return True
    return False


_DRAWING = frozenset({"random", "rng", "default_rng"})


def _is_generator(value: Any) -> bool:
    kind = type(value)  # not isinstance, which asks objects of others
    return issubclass(kind, random.Random) or str(kind.__module__).startswith("numpy.random")


def _functions_of(target: Any) -> Iterator[FunctionType]:
    """The functions of a model, of its classes and of the modules beside them, and those that they
    hold, each once."""
    visited: set[int] = set()
    waiting = list(_functions_beside(target))
    while waiting:
        function = waiting.pop()
        if id(function) not in visited:
            visited.add(id(function))
            yield function
            waiting += functions_held_by(function)


def functions_held_by(function: FunctionType) -> Iterator[FunctionType]:
    """The functions in the closure of another one: a decorator holds the one that it wraps."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # the cell is empty
            if isinstance(cell.cell_contents, FunctionType):
                yield cell.cell_contents


def _functions_beside(target: Any) -> Iterator[FunctionType]:
    visited: set[int] = set()
    for name in modules_of_code(target):
        if name.partition(".")[0] in ("torch", "builtins"):
            continue
        for value in list(vars(sys.modules[name]).values()) if name in sys.modules else ():
            parts = list(vars(value).values()) if isinstance(value, type) else [value]
            for part in parts:
                function = getattr(part, "fget", None) or getattr(part, "__func__", part)
                if isinstance(function, FunctionType) and id(function) not in visited:
                    visited.add(id(function))
                    if not (function.__module__ or "").startswith("torch."):
                        yield function
    if isinstance(target, FunctionType):
        yield target
    for part in getattr(target, "modules", tuple)():
        yield from (value for value in vars(part).values() if isinstance(value, FunctionType))
        for kind in type(part).__mro__:
            if not kind.__module__.startswith(("torch.", "builtins")):
                yield from (v for v in vars(kind).values() if isinstance(v, FunctionType))


def names_in(code: CodeType) -> set[str]:
    """The names of globals and attributes in code."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in(constant)
    return names


def modules_of_code(target: Any) -> dict[str, None]:
    """The names of the modules of Python that a model is made of: its own first."""
    import torch

    target = getattr(target, "__self__", target)  # the model of a bound method
    if not isinstance(target, torch.nn.Module):
        return dict.fromkeys([str(getattr(target, "__module__", ""))])
    kinds = dict.fromkeys(type(part) for part in target.modules())
    return dict.fromkeys(base.__module__ for kind in kinds for base in kind.__mro__)
