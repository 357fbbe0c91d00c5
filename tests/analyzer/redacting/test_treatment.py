"""One function of a path and a kind of fact decides what stays on a redacted tape."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.redacting.treatment import Fact, Treatments

OPEN = {"setting": "kept", "range": "replaced", "text": "replaced", "number": "replaced"}
"""What is not withheld by default; keys are never withheld, because paths are made of them."""


def fate(fact: Any, path: str = "kwargs.x", **asked: list[str]) -> str:
    return Treatments(asked, Signature.of(None)).fate(path, fact)  # type: ignore[arg-type]


@pytest.mark.parametrize("fact", get_args(Fact))
def test_each_fact_has_its_fate(fact: str) -> None:
    assert fate(fact) == (OPEN | {"key": "replaced"}).get(fact, "withheld")
    assert fate(fact, keep=["x"]) == "kept"
    assert fate(fact, keep=["y"]) == fate(fact)
    few = {"key": "replaced"}
    assert fate(fact, shapes_only=["x"]) == few.get(fact, "withheld")
    assert fate(fact, shapes_only=["*"]) == (few | {"setting": "kept"}).get(fact, "withheld")


def test_a_fact_without_an_entry_is_withheld() -> None:
    assert fate("the colour of the sky") == "withheld"


def test_the_most_specific_pattern_decides_and_of_equal_ones_the_more_private() -> None:
    assert fate("text", keep=["*"], shapes_only=["x"]) == "withheld"
    assert fate("text", keep=["x"], shapes_only=["*"]) == "kept"
    assert fate("text", keep=["x"], shapes_only=["x"]) == "withheld"
