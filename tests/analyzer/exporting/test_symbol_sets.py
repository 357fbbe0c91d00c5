"""Models that make a set of sizes, or of lengths that only values tell."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest

from calltape_analyzer.errors import NoVariant
from calltape_analyzer.exporting.torch_fixes.symbol_sets import SymbolicSet
from tests.analyzer.exported import assert_as_module, call, made
from tests.analyzer.exporting.models import Model, t


class Square(Model):
    """Asks whether all sizes are the same."""

    def forward(self, x):
        return x.T * 2 if len(set(x.shape)) == 1 else x * 3


class AsLong(Model):
    """Asks whether all rows are as long."""

    def forward(self, x, mask):
        lengths = mask.sum(1).tolist()
        return x * mask if len(set(lengths)) > 1 else x + 1


def test_a_set_of_sizes_leaves_them_open(tmp_path: Path) -> None:
    programs = made(tmp_path, Square(), [call(t(n, n + 3)) for n in (4, 6, 9)])
    assert len(programs) == 1
    assert_as_module(programs, Square(), [call(t(5, 7))])


@pytest.mark.integration
def test_a_set_of_lengths_is_a_condition_of_the_values(tmp_path: Path) -> None:
    full = [call(t(2, n), t(2, n).abs() + 1 > 0) for n in (4, 6, 9)]
    programs = made(tmp_path, AsLong(), full)
    mask = t(2, 5).abs() + 1 > 0
    assert_as_module(programs, AsLong(), [call(t(2, 5), mask)])
    mask[0, 3:] = False
    with pytest.raises(NoVariant, match="is for calls in which"):  # and no wrong value
        programs(t(2, 5), mask)


def test_what_stands_for_set_is_a_set() -> None:
    assert SymbolicSet([3, 3, 4]) == {3, 4}
    assert type(SymbolicSet()) is builtins.set
    assert isinstance({1}, SymbolicSet)
    assert builtins.set == SymbolicSet
