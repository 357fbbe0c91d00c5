"""What a small case is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from tests.zoo.case import Arguments, Case, fresh

__all__ = ["Small", "seeded", "small"]


@dataclass(frozen=True)
class Small(Case):
    """A case of the zoo, with what may be special about its caller.

    Attributes:
        exported: builds the model that is exported, if it is another one than the recorded.
        context: what the caller is in.
        seed: set before each call; None to set none.
    """

    exported: Callable[[], torch.nn.Module] | None = None
    context: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    seed: int | None = None


def small(
    make: Callable[[], torch.nn.Module],
    call: Callable[..., Arguments],
    *,
    name: str,
    seen: Sequence[tuple[Any, ...]],
    unseen: Sequence[tuple[Any, ...]],
    context: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    seed: int | None = None,
    **more: Any,
) -> Small:
    """A case whose calls are ``call(*size)``; ``make`` and ``call`` each begin with a seed.

    Args:
        make: builds the model.
        call: makes the arguments of a call.
        name: of the case.
        seen, unseen: what ``call`` gets for recorded calls, and for others.
        context, seed, more: as :class:`Small` has them.
    """

    def drive(module: torch.nn.Module) -> None:
        for args, kwargs in _calls(call, seen, 2):
            if seed is not None:
                torch.manual_seed(seed)
            with context():
                module(*args, **kwargs)

    def others(_: torch.nn.Module) -> list[Arguments]:
        return _calls(call, unseen, 3)

    return Small(name, seeded(make), drive, others, context=context, seed=seed, **more)


def seeded(make: Callable[[], torch.nn.Module], seed: int = 1) -> Callable[[], torch.nn.Module]:
    """Builds the model from one state of the generator, in eval mode."""

    def made() -> torch.nn.Module:
        torch.manual_seed(seed)
        return make().eval()

    return made


def _calls(
    call: Callable[..., Arguments], sizes: Sequence[tuple[Any, ...]], seed: int
) -> list[Arguments]:
    torch.manual_seed(seed)
    return [fresh(call(*size)) for size in sizes]
