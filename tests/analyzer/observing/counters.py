"""Recordings whose calls are counted, and what is said of those that do not add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from calltape_analyzer.tape import Tape
from calltape_recorder import record
from calltape_schema.inputs_table import InputsTable, Kind

FORGED = "forged or stale table of inputs"


class Add(torch.nn.Module):
    def forward(self, x: Any, n: int = 0) -> Any:
        return x


def recorded(path: Path, sizes: list[int], **options: Any) -> Path:
    model = Add()
    with record(model, path, **options):
        for size in sizes:
            model(torch.zeros(size, 3), size)
    return path


def the_kind(table: InputsTable) -> Kind:
    """The only kind of calls that have no row."""
    (kind,) = table.kinds.values()
    return kind


def reasons(tape: Tape) -> list[str]:
    return [error.reason for error in tape.damage]
