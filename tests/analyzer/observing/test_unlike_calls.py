"""A call of another structure is refused with what differs, as a person would say it."""

from __future__ import annotations

import enum
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import zeros

from tests.analyzer.exported import call, taped

Pair = namedtuple("Pair", "a b")
Other = namedtuple("Other", "a b")


class Kind(enum.Enum):
    SUM = "sum"
    MAX = "max"


class Taking(torch.nn.Module):
    """Takes anything."""

    def forward(self, x, n=None):
        return x


class Many(torch.nn.Module):
    def forward(self, *xs):
        return sum(x.sum() for x in xs)


class More(torch.nn.Module):
    def forward(self, x, *more, scale=1.0, flag=True, mode="sum"):
        return x


def refused(folder: Path, model: torch.nn.Module, recorded: Any, given: Any) -> str:
    name = f"{type(model).__name__}.tape"
    (variant,) = taped(folder, model, [recorded], name=name).variants()
    found = variant.accepts(*given)
    assert not found.accepted
    return str(found.reason)


@pytest.mark.parametrize(
    ("known", "given", "said"),
    [
        (3, 2.5, "n is 2.5, not an int"),
        (3, True, "n is True, not an int"),
        (2.5, 2, "n is 2, not a float"),
        (2.5, zeros(2), "n is a tensor, not a float"),
        ("sum", 2, "n is 2, not a text"),
        (True, 1, "n is 1, not True"),
        (zeros(2), 1.5, "n is 1.5, not a tensor"),
        ((0, 1), [0, 1], "n is a list, not a tuple"),
        ((0, 1), (0,), "n has 1 item, not 2"),
        ((0, 1), (0, 1.5), "n.1 is 1.5, not an int"),
        ([zeros(2)], [None], "n.0 is None, not a tensor"),
        ({"a": 1}, {"b": 1}, "n has no key 'a', unlike in the recorded calls"),
        ({"a": 1}, {"a": 1, "b": 2}, "n has the key 'b', unlike in the recorded calls"),
        ({"a": {"b": 1}}, {"a": {"b": "x"}}, "n.a.b is 'x', not an int"),
        (Pair(1, 2), Other(1, 2), "n is a Other, not a Pair"),
        (Pair(1, 2), Pair(1, None), "n.b is None, not an int"),
        (torch.float32, torch.int64, "n is int64, not float32"),
        (Kind.SUM, Kind.MAX, "n is Kind.MAX, not Kind.SUM"),
        (slice(0, 2), slice(0, None), "n.1 is None, not an int"),
        (..., None, "n is missing"),
    ],
    ids=repr,
)
def test_what_differs_is_said(tmp_path: Path, known: Any, given: Any, said: str) -> None:
    assert refused(tmp_path, Taking(), call(zeros(2), known), call(zeros(2), given)) == said


def test_a_text_that_may_be_private_is_not_shown(tmp_path: Path) -> None:
    said = refused(tmp_path, Taking(), call(zeros(2), 3), call(zeros(2), "my name is so"))
    assert said == "n is text of 13 characters, not an int"


def test_how_many_arguments_is_said(tmp_path: Path) -> None:
    two = call(zeros(2), zeros(2))
    assert refused(tmp_path, Many(), two, call(zeros(2))) == "*xs has 1 argument, not 2"
    three = call(zeros(2), zeros(2), zeros(2))
    assert refused(tmp_path, More(), two, three) == "*more has 2 arguments, not 1"


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        ({"flag": False}, "flag is True, not False"),
        ({"scale": 2.0}, "scale is 1.0, not 2.0"),
        ({"mode": "max"}, "mode is 'sum', not 'max'"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("passes", [False, True])
def test_a_default_is_a_value(
    tmp_path: Path, recorded: dict[str, Any], said: str, passes: bool
) -> None:
    defaults = {"flag": True, "scale": 1.0, "mode": "sum"}
    given = {name: defaults[name] for name in recorded} if passes else {}
    found = refused(tmp_path, More(), call(zeros(2), **recorded), call(zeros(2), **given))
    assert found == said
