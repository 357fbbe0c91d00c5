"""What a host can see of its model without calling it."""

from __future__ import annotations

import inspect
from typing import Any

import torch

__all__ = ["appearance_of"]


def appearance_of(model: torch.nn.Module) -> tuple[Any, ...]:
    """Class, attributes, and signatures: the same before, during and after a recording."""
    signatures = inspect.signature(model.forward), inspect.signature(model)
    return type(model), sorted(vars(model)), model.forward, signatures
