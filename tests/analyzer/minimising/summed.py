"""The tape that is minimised."""

from __future__ import annotations

from pathlib import Path

import torch

from calltape_analyzer.testing import call, write_tape

from .checked import Sum


def recorded(path: Path, *, calls: int = 40, bad: int | None = 23) -> Path:
    """Calls of many sizes; one has a value that is too large, and is long."""
    model, made = Sum(), []
    for i in range(calls):
        rows, length = 2 + i % 5, 50 if i == bad else 3 + i % 30
        x = torch.arange(rows * length).reshape(rows, length).float() % 83
        if i == bad:
            x[1, 47] = 99
        mask = torch.ones(rows, length) if i % 2 else None
        kwargs = {} if mask is None else {"mask": mask}
        made.append(call(x, **kwargs).returns(model(x, **kwargs)))
    return write_tape(path, made, model)
