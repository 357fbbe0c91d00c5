"""Functions with a cache (``functools.lru_cache``), in a trace.

Such a function hashes its arguments. A size of a trace has no hash, or the one of its value: then
the program is for this size only, and the function caches a tensor of the trace, which a later call
of the application would get. Here calls with a size bypass the cache.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import torch
from torch.utils import _pytree as pytree

from calltape_analyzer.exporting.torch_fixes.patching import modules_of

__all__ = ["cached_functions"]

_Cached = type(functools.lru_cache(lambda: None))
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device)
_NOT_OF_MODELS = ("torch", "builtins")


@contextmanager
def cached_functions(module: torch.nn.Module) -> Iterator[None]:
    """Makes functions with a cache bypass it for sizes of a trace within the block, and drops
    tensors of the trace from it.

    Args:
        module: the model. Functions are looked for in the packages and classes of its parts.
    """
    memories: list[Any] = []
    with ExitStack() as stack:
        for owner, name, cached in _found(module):
            before = vars(owner)[name]
            passing = _passing(cached, memories)
            replacement = staticmethod(passing) if isinstance(before, staticmethod) else passing
            setattr(owner, name, replacement)
            stack.callback(setattr, owner, name, before)
        try:
            yield
        finally:
            for cached in memories:
                cached.cache_clear()


def _found(module: torch.nn.Module) -> Iterator[tuple[Any, str, Any]]:
    """Each function, with what has it and its name there."""
    classes = dict.fromkeys(cls for part in module.modules() for cls in type(part).__mro__)
    own = [cls for cls in classes if cls.__module__.partition(".")[0] not in _NOT_OF_MODELS]
    for owner in (*modules_of(module), *own):
        for name, value in list(vars(owner).items()):
            function = value.__func__ if isinstance(value, staticmethod) else value
            if type(function) is _Cached:
                yield owner, name, function


def _passing(cached: Any, memories: list[Any]) -> Callable[..., Any]:
    """What takes the place of a function.

    Args:
        cached: the function.
        memories: is told of it if it remembers a tensor of the trace.
    """

    @functools.wraps(cached.__wrapped__)
    def passing(*args: Any, **kwargs: Any) -> Any:
        values = (*args, *kwargs.values())
        parts = chain.from_iterable(
            value if isinstance(value, tuple) else (value,) for value in values
        )
        if any(isinstance(part, _SYMBOLS) for part in parts):
            return cached.__wrapped__(*args, **kwargs)
        misses = cached.cache_info().misses
        result = cached(*args, **kwargs)
        is_plain = all(type(leaf) in _PLAIN for leaf in pytree.tree_leaves(result))
        if cached.cache_info().misses != misses and not is_plain:
            memories.append(cached)
        return result

    forwarding: Any = passing
    forwarding.cache_info, forwarding.cache_clear = cached.cache_info, cached.cache_clear
    forwarding.cache_parameters = cached.cache_parameters
    return passing
