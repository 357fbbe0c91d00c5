"""One function of a path and a kind of fact decides what stays on a redacted tape."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.redacting.policy import Policy, PrivateFact

OPEN = {"setting": "kept", "size": "kept", "range": "replaced", "text": "replaced"}
"""What is not omitted by default; keys are never omitted, because paths are made of them."""


def fate(fact: Any, path: str = "kwargs.x", **asked: list[str]) -> str:
    return Policy(Signature.of(None), **asked).fate(path, fact)


@pytest.mark.parametrize("fact", get_args(PrivateFact))
def test_each_fact_has_its_fate(fact: str) -> None:
    key = {"key": "replaced"}
    assert fate(fact) == (OPEN | key).get(fact, "omitted")
    assert fate(fact, keep=["x"]) == "kept"
    assert fate(fact, keep=["y"]) == fate(fact)
    assert fate(fact, shapes_only=["x"]) == key.get(fact, "omitted")
    assert fate(fact, shapes_only=["*"]) == (key | {"setting": "kept"}).get(fact, "omitted")


def test_a_fact_without_an_entry_is_omitted() -> None:
    assert fate("the colour of the sky") == "omitted"


def test_the_most_specific_pattern_decides_and_of_equal_ones_the_more_private() -> None:
    assert fate("text", keep=["*"], shapes_only=["x"]) == "omitted"
    assert fate("text", keep=["x"], shapes_only=["*"]) == "kept"
    assert fate("text", keep=["x"], shapes_only=["x"]) == "omitted"
