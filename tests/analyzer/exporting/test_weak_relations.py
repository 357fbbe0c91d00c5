"""What one or two calls suggest of sizes is no reason to refuse what the model takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calltape_analyzer import NoVariant
from calltape_analyzer.variants.alternatives import breaks, looser_variants
from tests.analyzer.exported import call, made
from tests.analyzer.exporting.models import Model, t
from tests.analyzer.observed import Optional, given, tape_of, zeros


def shapes(folder: Path, calls: list[Any]) -> list[list[tuple[list[str], bool]]]:
    (variant,) = tape_of(folder, calls, Optional()).variants()
    layout = variant.facts.group.layout
    return [
        [([layout.column_name(c) for c in s.columns], s.relation is not None) for s in v.symbols]
        for v in looser_variants(variant.facts)
    ]


def test_equal_sizes_of_different_axes_are_apart_after_two_calls(tmp_path: Path) -> None:
    calls = [given(zeros(n, n), zeros(n)) for n in (3, 5)]
    assert shapes(tmp_path, calls) == [[(["x[0]", "mask[0]"], False), (["x[1]"], False)]]
    assert shapes(tmp_path, [*calls, given(zeros(8, 8), zeros(8))]) == []


def test_a_multiple_that_two_calls_suggest_is_none(tmp_path: Path) -> None:
    calls = [given(zeros(n, 3 * n)) for n in (2, 4)]
    assert shapes(tmp_path, calls) == [[(["x[0]"], False), (["x[1]"], False)]]
    assert shapes(tmp_path, [*calls, given(zeros(5, 15))]) == []


def test_only_sizes_beyond_the_suggested_relation_contradict_it(tmp_path: Path) -> None:
    calls = [given(zeros(n, n), zeros(3 * n)) for n in (3, 5)]
    (variant,) = tape_of(tmp_path, calls, Optional()).variants()
    looser = next(looser_variants(variant.facts))
    assert breaks(variant.facts, looser, [4, 7, 13])
    assert not breaks(variant.facts, looser, [4, 4, 13])
    assert not breaks(variant.facts, looser, [4, 7, 12])


class Wide(Model):
    """Takes any two sizes."""

    def forward(self, x):
        return x.cumsum(0) * 2


class Product(Model):
    """Needs a square."""

    def forward(self, x):
        return x @ x


@pytest.mark.integration
def test_a_batch_that_equals_the_length_by_chance_may_be_another(tmp_path: Path) -> None:
    programs = made(tmp_path, Wide(), [call(t(n, n)) for n in (3, 5)], [call(t(4, 9))])
    assert len(programs) == 1


def test_sizes_that_the_model_needs_equal_stay_so(tmp_path: Path) -> None:
    programs = made(tmp_path, Product(), [call(t(n, n)) for n in (3, 5)], [call(t(9, 9))])
    assert len(programs) == 1
    with pytest.raises(NoVariant):
        programs(t(4, 9))
