"""The generators of random numbers: kept as they are, and seen when a model draws from them.

A run of a model and one of its program agree only if both begin with one state of the generators:
those of torch for each device, of Python and numpy, and those that the model holds.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import torch

__all__ = [
    "OF_NUMPY",
    "Generators",
    "Numbers",
    "generators_held_by",
    "generators_kept",
    "reseed",
    "set_python",
]

_SEED = 0x5EED
_WORDS, _EXTREME = 624, 512
"""The words of a Mersenne Twister, and how many of them are made the smallest or the largest. Not
all: some functions draw until a number is small enough."""

OF_NUMPY = "numpy.random.Generator"
"""Who draws from a generator of numpy that is not a Mersenne Twister."""

Numbers = Literal["smallest", "largest", "others"]


class _Kept(NamedTuple):
    owner: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]
    state: Any


class Generators:
    """The generators of this process, and those in the attributes of a module, as they are now."""

    def __init__(self, module: torch.nn.Module | None = None) -> None:
        self._kept = [_Kept(name, get, put, get()) for name, get, put in _accesses(module)]

    def drawn_from(self) -> list[str]:
        """The generators that somebody drew from since: ``torch``, ``random``, ``numpy.random``,
        ``numpy.random.Generator``."""
        owners = (g.owner for g in self._kept if not _is_same(g.state, g.get()))
        return list(dict.fromkeys(owners))

    def put_back(self) -> None:
        """Puts all of them back."""
        for generator in self._kept:
            if not _is_same(generator.state, generator.get()):
                generator.set(generator.state)


@contextlib.contextmanager
def generators_kept(module: torch.nn.Module | None = None) -> Iterator[Generators]:
    """Puts the generators back at the end of the block."""
    generators = Generators(module)
    try:
        yield generators
    finally:
        generators.put_back()


def reseed(module: torch.nn.Module | None = None, seed: int = _SEED) -> None:
    """Gives all generators another state, which has nothing to do with the one before."""
    set_python(module, "others", seed)
    torch.manual_seed(seed)
    for generator in generators_held_by(module):
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)


def set_python(module: torch.nn.Module | None, numbers: Numbers, seed: int = _SEED) -> None:
    """Lets the generators of Python and numpy give other numbers. Those of torch stay.

    Args:
        module: may hold some.
        numbers: the smallest that they give, the largest, or others.
        seed: of the others.
    """
    ordinary = random.Random(seed)
    words = [ordinary.getrandbits(32) for _ in range(_WORDS)]
    if numbers != "others":
        words[:_EXTREME] = [_WORD_OF[numbers]] * _EXTREME
    for owner, _, put in _accesses(module):
        if owner == "random":
            put((3, (*words, 0), None))
        elif owner == "numpy.random":
            put(("MT19937", words, 0))
        elif owner == OF_NUMPY:
            put(None)


_WORD_OF: Mapping[Numbers, int] = {"smallest": 0, "largest": 0x12DD9BB3}
"""What a Mersenne Twister tempers to 32 bits that are 0, or 1."""


def _accesses(
    module: torch.nn.Module | None,
) -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], Any]]]:
    """Of each generator who draws from it, and how its state is read and set."""
    yield "random", random.getstate, random.setstate
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        yield _numpy_access(numpy.random)
    generators = [torch.default_generator]
    for name in ("cuda", "xpu"):
        device = getattr(torch, name)
        if device.is_initialized():
            generators += device.default_generators
    for generator in generators:
        yield "torch", generator.get_state, generator.set_state
    for generator in generators_held_by(module):
        if isinstance(generator, torch.Generator):
            yield "torch", generator.get_state, generator.set_state
        elif isinstance(generator, random.Random):
            yield "random", generator.getstate, generator.setstate
        else:
            yield _numpy_access(generator)


def _numpy_access(source: Any) -> tuple[str, Callable[[], Any], Callable[[Any], Any]]:
    """The same of a Generator or RandomState of numpy, or of ``numpy.random``, which is like one.
    Unless it is a Mersenne Twister, to set None gives it some other state."""
    get: Callable[[], Any]
    put: Callable[[Any], Any]
    if hasattr(source, "get_state"):
        get, put = functools.partial(source.get_state, legacy=False), source.set_state
        if get()["bit_generator"] == "MT19937":
            return "numpy.random", get, put
    else:
        generator = source.bit_generator
        get, put = lambda: generator.state, functools.partial(setattr, generator, "state")

    def put_state(state: Any) -> Any:
        return source.random(3) if state is None else put(state)

    return OF_NUMPY, get, put_state


def generators_held_by(module: torch.nn.Module | None) -> Iterator[Any]:
    """The generators in the attributes of a module and its parts, and in the Python modules of
    these."""
    numpy = sys.modules.get("numpy")
    kinds: tuple[Any, ...] = (torch.Generator, random.Random)
    if numpy is not None and hasattr(numpy, "random"):
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    visited: set[int] = set()
    parts = [] if module is None else list(module.modules())
    modules = dict.fromkeys(type(part).__module__ for part in parts)
    there = (n for n in modules if n in sys.modules and n.partition(".")[0] != "torch")
    owners = [*parts, *map(sys.modules.__getitem__, there)]
    for value in (value for owner in owners for value in list(vars(owner).values())):
        # Not isinstance, which asks the objects of others. What the system draws has no state.
        is_one = issubclass(type(value), kinds) and not issubclass(type(value), random.SystemRandom)
        if is_one and id(value) not in visited:
            visited.add(id(value))
            yield value


def _is_same(state: Any, other_state: Any) -> bool:
    """Whether two states are one."""
    if isinstance(state, torch.Tensor):
        return torch.equal(state, other_state)
    if isinstance(state, dict):
        state, other_state = tuple(state.values()), tuple(other_state.values())
    if isinstance(state, tuple):
        return len(state) == len(other_state) and all(map(_is_same, state, other_state))
    return (
        state.tobytes() == other_state.tobytes()
        if hasattr(state, "tobytes")
        else bool(state == other_state)
    )
