"""Short ways from calls to tapes, observations and variants, through the real recorder."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from calltape_analyzer import Tape, open_tape
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.size_table import Column, SizeRow
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.variants.facts import VariantFacts
from calltape_recorder import record

__all__ = [
    "Anything",
    "Optional",
    "by_name",
    "given",
    "named_columns",
    "recorded",
    "sizes_of",
    "sorter_of",
    "tape_of",
    "zeros",
]

_counter = itertools.count()

Given = tuple[tuple[Any, ...], dict[str, Any]]


class Anything(torch.nn.Module):
    """Takes whatever it is given, and returns a constant."""

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.zeros(())


class Optional(torch.nn.Module):
    """A signature with defaults of several kinds."""

    def forward(
        self,
        x: Any,
        mask: Any = None,
        scale: float = 1.0,
        steps: int = 1,
        add: bool = True,
        mode: str = "mean",
        *args: Any,
        last: Any = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        return torch.zeros(())


def given(*args: Any, **kwargs: Any) -> Given:
    """The arguments of one call."""
    return args, kwargs


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor whose elements are in range for what takes part in shapes only."""
    return torch.zeros(shape, dtype=dtype)


def recorded(
    directory: Path, calls: Iterable[Given], module: torch.nn.Module | None = None, **options: Any
) -> Path:
    """A finished tape of these calls."""
    model = Anything() if module is None else module
    path = directory / f"{next(_counter)}.tape"
    with record(model, path, **options):
        for args, kwargs in calls:
            model(*args, **kwargs)
    return path


def tape_of(
    directory: Path,
    calls: Iterable[Given],
    module: torch.nn.Module | None = None,
    *,
    classes: Sequence[type] = (),
    **options: Any,
) -> Tape:
    """The same, opened."""
    return open_tape(recorded(directory, calls, module, **options), classes=classes)


def sorter_of(tape: Tape) -> CallSorter:
    """What sorts the calls of a tape, recorded and live ones."""
    return CallSorter(Signature.of(tape.target), tape.class_index.renamed)


def named_columns(variant: VariantFacts, row: SizeRow | None = None) -> dict[str, Column]:
    """The columns of a variant by what people call them: ``x[0]``, ``steps``."""
    layout = variant.group.layout
    found: dict[str, Column] = {}
    for column in variant.rows.columns if row is None else row.columns:
        if column.axis is None:
            found[str(layout.ints[column.index])] = column
        else:
            found[f"{layout.tensors[column.index]}[{column.axis}]"] = column
    return found


def by_name(variant: VariantFacts) -> dict[str, str]:
    """What became of each column, by its name."""
    return {
        name: variant.dimensions[column].reason for name, column in named_columns(variant).items()
    }


def sizes_of(variant: VariantFacts) -> list[int]:
    """The number of elements of each row's tensors together."""
    return [sum(math.prod(shape) for shape in row.shapes) for row in variant.rows]
