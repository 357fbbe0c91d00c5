"""Tapes of several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from calltape_analyzer.tape import Tape
from calltape_recorder import record


def sizes(tape: Tape) -> list[int]:
    return [call.inputs.args[0].shape[0] for call in tape]


class Tokens(torch.nn.Module):
    def forward(self, input_ids, positions=None):
        return input_ids


STEPS = (3, 14, 4, 4)


def recorded(
    path: Path, *, sizes: Sequence[int] = STEPS, first: int = 0, seals: bool = True, **options: Any
) -> Path:
    model = Tokens()
    recorder = record(model, path, **options)
    for size in sizes:
        model(torch.arange(first, first + size), positions=torch.arange(size))
    recorder.close() if seals else recorder.flush()
    if not seals:
        content = path.read_bytes()  # as if the process was killed now
        recorder.close()
        path.write_bytes(content)
    return path
