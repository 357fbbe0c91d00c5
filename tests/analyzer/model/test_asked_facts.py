"""What a model's code asks of tensors that no program gets, found where calls reach it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from calltape_analyzer.exporting.inspection.untraceable import queried_facts

FILE = "test_asked_facts.py"


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def helper(x: Any) -> Any:
    return x if x.is_neg() else x * 2


class Direct(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x if x.data_ptr() else x * 2


class ByMethod(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return self._flagged(x)

    def _flagged(self, x: Any) -> Any:
        return x if x._version else x * 2


class ByProperty(torch.nn.Module):
    seen: Any = None

    @property
    def is_old(self) -> Any:
        return self.seen.is_inference()

    def forward(self, x: Any) -> Any:
        self.seen = x
        return x if self.is_old else x * 2


class ByFunction(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return helper(x)


class ByDecorated(torch.nn.Module):
    @checked
    def forward(self, x: Any) -> Any:
        return [one for one in [x] if one.is_conj()]


class ByHeld(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ask = lambda x: isinstance(x, Parameter)

    def forward(self, x: Any) -> Any:
        return x if self.ask(x) else x * 2


class ByAttribute(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x if isinstance(x, torch.nn.Parameter) else x * 2


class Around(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Direct()

    def forward(self, x: Any) -> Any:
        return self.inner(x)


class OutOfReach(torch.nn.Module):
    """Names that no call reaches, and names of its own that are no questions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(torch.ones(3))

    def load(self, x: Any) -> Any:
        return x.data_ptr()

    def forward(self, x: Any, requires_grad: bool = False) -> Any:
        assert requires_grad is not inspect.Parameter.empty
        storage_offset = x * self.weight
        return torch.zeros(3, requires_grad=requires_grad) + storage_offset


def of_function(x: Any) -> Any:
    return helper(x) if x.requires_grad else x


@pytest.mark.parametrize(
    ("model", "shown", "text"),
    [
        (Direct(), "data_ptr()", "x.data_ptr()"),
        (ByMethod(), "_version", "x._version"),
        (ByProperty(), "is_inference()", "self.seen.is_inference()"),
        (ByFunction(), "is_neg()", "x.is_neg()"),
        (ByDecorated(), "is_conj()", "one.is_conj()"),
        (ByHeld(), "Parameter", "isinstance(x, Parameter)"),
        (ByAttribute(), "Parameter", "isinstance(x, torch.nn.Parameter)"),
        (Around(), "data_ptr()", "x.data_ptr()"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, torch.nn.Module) else "",
)
def test_a_question_is_found_at_its_line(model: Any, shown: str, text: str) -> None:
    (fact,) = queried_facts(model)
    lines, _ = inspect.findsource(type(model))
    assert text in lines[fact.line - 1]
    assert str(fact) == f"{shown} ({FILE}:{fact.line})"


def test_the_method_that_is_called_is_searched() -> None:
    assert queried_facts(OutOfReach()) == []
    (fact,) = queried_facts(OutOfReach(), "load")
    assert fact.name == "data_ptr"


def test_facts_that_a_function_asks_for_are_found() -> None:
    from calltape_analyzer.model.calls import as_module

    names = [fact.name for fact in queried_facts(as_module(of_function))]
    assert names == ["is_neg"]
    assert [fact.name for fact in queried_facts(of_function)] == names


def test_torch_s_own_code_does_not_count() -> None:
    assert queried_facts(torch.nn.MultiheadAttention(4, 2)) == []
