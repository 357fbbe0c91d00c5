"""Tapes of a stranger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.analyzer.reading.forged import Forged, inputs_of

ESCAPE = "\x1b[31mred\u202e"


def forged(tmp_path: Path, *nodes: Any, leaves: int = 1, scalars: tuple[Any, ...] = ()) -> Path:
    made = Forged(tmp_path / "a.tape", (torch.ones(2),))
    made.set_root(inputs_of(*nodes), leaves=leaves, scalars=len(scalars))
    made.inputs["scalars"] = list(scalars)
    return made.write()
