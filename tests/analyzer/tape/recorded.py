"""The calls of the tapes in this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from calltape_analyzer import open_tape

__all__ = ["calls", "numbers"]


def calls(count: int) -> list[Any]:
    return [((torch.full((2, 1 + i), float(i)),), {"n": i}) for i in range(count)]


def numbers(path: Path, **options: Any) -> list[int]:
    with open_tape(path, **options) as tape:
        return [call.number for call in tape]
