"""What a case of the zoo is, and the few ways in which cases drive their module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = [
    "Arguments",
    "Case",
    "captured",
    "driven",
    "fresh",
    "lively",
    "simple",
]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""``args`` and ``kwargs`` of one call."""


@dataclass(frozen=True)
class Case:
    """One model that people export, and the calls that it gets.

    Attributes:
        name: unique in the zoo.
        make: builds the module in eval mode; the same weights each time.
        drive: makes the calls that are recorded.
        unseen: calls at sizes that were never recorded, along dimensions that varied in ``drive``;
            built anew each time, nothing shared with the module.
        classes: of arguments and outputs, for ``open_tape(classes=...)``.
        note: what is awkward about it.
        continues: whether the unseen calls come to a module that got the recorded calls before, one
            after another: its calls depend on those before.
    """

    name: str
    make: Callable[[], torch.nn.Module]
    drive: Callable[[torch.nn.Module], None]
    unseen: Callable[[torch.nn.Module], list[Arguments]]
    classes: tuple[type, ...] = ()
    note: str = ""
    continues: bool = False


def driven(
    arguments: Callable[..., Arguments], sizes: Sequence[tuple[Any, ...]], seed: int
) -> list[Arguments]:
    """``arguments(*size)`` of every size, with values that depend on ``seed`` alone."""
    torch.manual_seed(seed)
    return [arguments(*size) for size in sizes]


def simple(
    name: str,
    make: Callable[[], torch.nn.Module],
    arguments: Callable[..., Arguments],
    *,
    seen: Sequence[tuple[Any, ...]],
    unseen: Sequence[tuple[Any, ...]],
    classes: tuple[type, ...] = (),
    note: str = "",
) -> Case:
    """A case whose calls do not depend on each other: one per size."""

    def drive(module: torch.nn.Module) -> None:
        for args, kwargs in driven(arguments, seen, seed=1):
            module(*args, **kwargs)

    def others(module: torch.nn.Module) -> list[Arguments]:
        return driven(arguments, unseen, seed=2)

    return Case(name, make, drive, others, classes, note)


def captured(
    module: torch.nn.Module, run: Callable[[torch.nn.Module], Any], keep: Sequence[int]
) -> list[Arguments]:
    """Copies of what ``run`` calls the module with, of the calls at the positions ``keep``."""
    seen: list[Arguments] = []

    def look(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(fresh((args, kwargs)))

    handle = module.register_forward_pre_hook(look, prepend=True, with_kwargs=True)
    try:
        with torch.no_grad():
            run(module)
    finally:
        handle.remove()
    return [seen[position] for position in keep]


def fresh(arguments: Arguments) -> Arguments:
    """A copy that shares nothing; a tensor that stands twice in it still stands twice."""
    return copy.deepcopy(arguments)


def lively(module: torch.nn.Module) -> torch.nn.Module:
    """The module in eval mode, its weights rescaled.

    As transformers initializes them (std 0.02) a tiny model's attention is flat, and a wrong mask
    changes its outputs by less than any tolerance. Zeros (class tokens, some projections) hide as
    much.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim < 2:
                continue
            if not parameter.any():
                parameter.normal_()
            if parameter.numel() > 1 and parameter.std() > 0:
                parameter.mul_(parameter[0].numel() ** -0.5 / parameter.std())
    return module.eval()
