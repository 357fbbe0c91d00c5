"""Small models that the tests call."""

from __future__ import annotations

from typing import Any

import torch


class Add(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class Echo(torch.nn.Module):
    """Takes anything, returns what it is told to."""

    def __init__(self, result: Any = None) -> None:
        super().__init__()
        self.results = [result]  # torch would ask an attribute what it is

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.results[0]


class Identity(torch.nn.Module):
    def forward(self, value: Any) -> Any:
        return value


class Raises(torch.nn.Module):
    def forward(self, error: BaseException | None) -> torch.Tensor:
        if error is not None:
            raise error
        return torch.ones(1)


class Nested(torch.nn.Module):
    """Calls itself ``depth`` times."""

    def forward(self, x: torch.Tensor, depth: int) -> torch.Tensor:
        return self(x + 1, depth - 1) if depth else x * 2


class Two(torch.nn.Module):
    """A module with a submodule that runs in the middle of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.before = torch.nn.Linear(4, 4)
        self.middle = Add()
        self.after = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        return self.after(torch.relu(self.middle(x, x)))
