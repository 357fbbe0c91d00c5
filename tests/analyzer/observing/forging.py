"""Recordings whose records state something else than what was recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from calltape_analyzer.tape import Tape
from calltape_recorder import record
from calltape_schema.end import Coverage, End
from calltape_schema.inputs_table import InputsTable, Kind
from tests.analyzer.tapes import change_end, change_table

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


def forge(path: Path, change: Callable[[InputsTable], Any]) -> Path:
    """Rewrites the table of inputs, with every checksum right."""
    return change_table(path, change)


def more_seen(path: Path, calls: int) -> Path:
    """The end says that more calls were seen, and dropped by policy."""

    def change(end: End) -> dict[str, Any]:
        dropped = dict(end.coverage.dropped)
        dropped["policy"] = dropped.get("policy", 0) + calls
        seen = end.coverage.seen + calls
        return {"coverage": Coverage(seen=seen, kept=end.coverage.kept, dropped=dropped)}

    return change_end(path, change)


def the_kind(table: InputsTable) -> Kind:
    """The only kind of calls that have no row."""
    (kind,) = table.kinds.values()
    return kind


def reasons(tape: Tape) -> list[str]:
    return [error.reason for error in tape.damage]
