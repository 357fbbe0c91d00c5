"""A small engine with the habits of large ones: the state of a step is not among the arguments."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from types import SimpleNamespace

import torch

_context: dict[str, float] | None = None
_variable: ContextVar[float] = ContextVar("scale")
_of_thread = threading.local()
_caches: dict[str, float] = {}
_state = SimpleNamespace(scale=1.0)
_ACTIVATIONS = {"relu": torch.relu}


def current() -> dict[str, float]:
    assert _context is not None, "there is no context of a step"
    return _context


@contextlib.contextmanager
def step(scale: float) -> Iterator[None]:
    """What an engine does around each call."""
    global _context
    before, _context = _context, {"scale": scale}
    token = _variable.set(scale)
    _of_thread.scale = scale
    _caches["scale"] = scale
    _state.scale = scale
    try:
        yield
    finally:
        _context = before
        _variable.reset(token)
        del _of_thread.scale
        _caches["scale"] = _state.scale = 1.0


class OfGlobal(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * current()["scale"]


class OfLayer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), OfGlobal())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class OfContextVariable(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * _variable.get()


class OfThread(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * _of_thread.scale


class OfDict(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * _caches["scale"]


class OfObject(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * _state.scale


class OfTables(torch.nn.Module):
    """Reads what is the same in every call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ACTIVATIONS["relu"](x)


class Runner:
    def execute(self, x: torch.Tensor) -> torch.Tensor:
        return x * current()["scale"]
