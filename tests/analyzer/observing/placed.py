"""Where the leaves of calls are placed."""

from __future__ import annotations

from pathlib import Path

import torch

from calltape_analyzer.observing.groups import SortedCall
from tests.analyzer.observed import Given, Optional, sorter_of, tape_of


def placed(
    directory: Path, *calls: Given, module: torch.nn.Module | None = None
) -> list[SortedCall]:
    """Recorded calls, sorted by one sorter."""
    tape = tape_of(directory, calls, module or Optional())
    sorter = sorter_of(tape)
    return [sorter.sorted(call.record.inputs) for call in tape.calls]
