"""The models that the command is tried with: here, and in a module that is written to a file."""

from __future__ import annotations

from typing import Any

import torch

MODULE = "models_for_calltape_tests"
SOURCE = """
import torch


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x, mask=None):
        y = self.dropout(self.linear(x))
        return y if mask is None else y * mask


def classifier():
    torch.manual_seed(0)
    return Classifier()


def other():
    torch.manual_seed(1)
    return Classifier()


def failing():
    raise ValueError("no weights\\nhere")


def text():
    return "a text"


made = classifier()


class Zoo:
    @staticmethod
    def classifier():
        return classifier()
"""


class Model(torch.nn.Module):
    def forward(self, x: Any, mask: Any = None, *, scale: float = 1.0, **extra: Any) -> Any:
        return x
