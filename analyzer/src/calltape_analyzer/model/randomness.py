"""The generators of random numbers: kept as they are, and seen when a model draws from them.

A run of a model and one of its program agree only if both begin with one state of the generators:
those of torch for each device, of Python and numpy, and those that the model holds.
"""

from __future__ import annotations

import contextlib
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Draws", "Generators", "generators_kept", "reseed"]

_OWN = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)
_MAX_STACKS = 8
_OTHER_SEED = 0x5EED


class _Kept(NamedTuple):
    owner: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]
    state: Any


class Generators:
    """The generators of this process, and those in the attributes of a module, as they are now."""

    def __init__(self, module: torch.nn.Module | None = None) -> None:
        self._kept = [_Kept(name, get, put, get()) for name, get, put in _accesses(module)]

    def moved(self) -> list[str]:
        """The generators that somebody drew from since: ``torch``, ``random``, ``numpy.random``."""
        found = (one.owner for one in self._kept if not _is_same(one.state, one.get()))
        return list(dict.fromkeys(found))

    def put_back(self) -> None:
        """Puts all of them back."""
        for one in self._kept:
            if not _is_same(one.state, one.get()):
                one.set(one.state)


@contextlib.contextmanager
def generators_kept(module: torch.nn.Module | None = None) -> Iterator[Generators]:
    """Puts the generators back at the end of the block."""
    generators = Generators(module)
    try:
        yield generators
    finally:
        generators.put_back()


def reseed(module: torch.nn.Module | None = None) -> None:
    """Gives all generators another state, which has nothing to do with the one before."""
    random.seed(_OTHER_SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(_OTHER_SEED)
    torch.manual_seed(_OTHER_SEED)
    for generator in _held(module):
        if isinstance(generator, torch.Generator):
            generator.manual_seed(_OTHER_SEED)
        elif isinstance(generator, random.Random):
            generator.seed(_OTHER_SEED)
        else:
            generator.random(3)


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes where a model draws random numbers, while it runs in the block.

    Attributes:
        stacks: the frames of the model for each draw by an operator of torch, the innermost last.
        operators: the names of these operators.
        others: the generators beside torch's that were drawn from.
    """

    supports_higher_order_operators = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    def __init__(self, module: torch.nn.Module | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._module = module
        self._before: Generators | None = None
        self.stacks: list[list[traceback.FrameSummary]] = []
        self.operators: dict[str, None] = {}
        self.others: list[str] = []

    def __enter__(self) -> Draws:
        self._before = Generators(self._module)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        assert self._before is not None
        self.others = [name for name in self._before.moved() if name != "torch"]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
            return func(*args, **kwargs)
        # Attention has the tag also where it drops nothing.
        before = Generators(self._module)
        given = kwargs.get("generator")
        state = given.get_state() if isinstance(given, torch.Generator) else None
        result = func(*args, **kwargs)
        is_drawn = state is not None and not _is_same(state, given.get_state())
        if is_drawn or before.moved():
            self.operators[str(func)] = None
            if len(self.stacks) < _MAX_STACKS:
                self.stacks.append(_frames_of_the_call())
        return result


def _frames_of_the_call() -> list[traceback.FrameSummary]:
    """The frames between our call of the model and the operator that runs now."""
    found: list[traceback.FrameSummary] = []
    for frame in reversed(traceback.extract_stack()):
        is_own = frame.filename.startswith(_OWN)
        if is_own and found:
            break
        if not is_own and (found or not frame.filename.startswith(_TORCH)):
            found.append(frame)
    return found[::-1]


def _accesses(
    module: torch.nn.Module | None,
) -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], Any]]]:
    """Of each generator who draws from it, and how its state is read and set."""
    yield "random", random.getstate, random.setstate
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        yield "numpy.random", numpy.random.get_state, numpy.random.set_state
    generators = [torch.default_generator]
    for name in ("cuda", "xpu"):
        device = getattr(torch, name)
        if device.is_initialized():
            generators += device.default_generators
    for one in generators:
        yield "torch", one.get_state, one.set_state
    for one in _held(module):
        if isinstance(one, torch.Generator):
            yield "torch", one.get_state, one.set_state
        elif isinstance(one, random.Random):
            yield "random", one.getstate, one.setstate
        else:
            yield "numpy.random", *_numpy_access(one.bit_generator)


def _numpy_access(bits: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    def put(state: Any) -> None:
        bits.state = state

    return lambda: bits.state, put


def _held(module: torch.nn.Module | None) -> Iterator[Any]:
    """The generators in the attributes of a module and its parts."""
    numpy = sys.modules.get("numpy")
    kinds: tuple[Any, ...] = (torch.Generator, random.Random)
    if numpy is not None and hasattr(numpy, "random"):
        kinds += (numpy.random.Generator,)
    for part in module.modules() if module is not None else ():
        yield from (one for one in vars(part).values() if isinstance(one, kinds))


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return one.tobytes() == other.tobytes() if hasattr(one, "tobytes") else bool(one == other)
