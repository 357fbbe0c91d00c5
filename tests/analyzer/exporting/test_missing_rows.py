"""Recorded sizes and ints that one program does not serve get programs of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from calltape_analyzer import NoVariant
from tests.analyzer.exported import call, made
from tests.analyzer.exporting.models import Model, t


class Square(Model):
    """Does something else if both sizes are equal. No trace is made with equal sizes if others will
    do: so a second program for the other calls comes before the one for this call."""

    def forward(self, x):
        return x * 2 if x.shape[0] == x.shape[1] else x * 3


@pytest.mark.integration
def test_a_program_for_the_missing_size_beats_a_copy_of_another(tmp_path: Path) -> None:
    sizes = [(2, 3), (3, 5), (4, 7), (4, 4)]
    programs = made(tmp_path, Square(), [call(t(*s)) for s in sizes], [call(t(9, 2))])
    assert len(programs) == 2
    assert programs.inputs_for(t(4, 4))[0] != programs.inputs_for(t(2, 3))[0]


class Grid(Model):
    """Does something else if the grid of its patches is odd, which no recorded grid was."""

    def forward(self, x):
        return x * 2 if x.shape[0] // 8 % 2 == 0 else x * 3


def test_sizes_half_way_between_the_recorded_ones_get_a_program(tmp_path: Path) -> None:
    calls = [call(t(n, 3)) for n in (32, 48, 64)]
    unseen = [call(t(n, 3)) for n in (40, 56, 80, 88)]
    assert len(made(tmp_path, Grid(), calls, unseen)) == 2


class Windowed(Model):
    """As an attention window: something else beyond it, and something else again where it is just
    full."""

    def forward(self, x):
        if x.shape[1] == 6:
            return x * 3
        return x * 2 if x.shape[1] < 6 else x[:, -6:]


@pytest.mark.integration
def test_a_size_between_two_ranges_gets_a_program(tmp_path: Path) -> None:
    calls = [call(t(b, n)) for b, n in ((2, 3), (3, 5), (2, 4))]
    unseen = [call(t(b, n)) for b, n in ((4, 6), (7, 6), (5, 9), (3, 15))]
    programs = made(tmp_path, Windowed(), calls, unseen)
    assert len(programs) == 3


class Last(Model):
    """Keeps the last states, as many language models do with ``logits_to_keep``: an int is a count,
    anything else is an index. Who asks ``isinstance`` is told that a symbol is an int."""

    def forward(self, x, keep=0):
        index = slice(-keep, None) if type(keep) is int else keep
        return self.linear(x[:, index])


class LastOfInts(Last):
    def forward(self, x, keep=0):
        index = slice(-keep, None) if isinstance(keep, int) else keep
        return self.linear(x[:, index])


@pytest.mark.integration
def test_a_symbol_is_an_int_to_the_model(tmp_path: Path) -> None:
    calls = [call(t(2, n, 3), keep=k) for n, k in ((5, 1), (7, 2), (4, 1), (6, 3))]
    programs = made(tmp_path, LastOfInts(), calls, [call(t(2, 9, 3), keep=2)])
    assert "main, keep=2" not in programs
    assert programs(t(2, 9, 3), keep=5).shape == (2, 5, 3)


@pytest.mark.integration
def test_an_int_that_a_symbol_is_none_of_is_a_constant(tmp_path: Path) -> None:
    calls = [call(t(2, n, 3), keep=k) for n, k in ((5, 1), (7, 2), (4, 1), (6, 3))]
    programs = made(tmp_path, Last(), calls, [call(t(2, 9, 3), keep=2)])
    assert list(programs) == [
        "main, keep=1",
        "main, keep=2",
        "main, keep=3",
    ]
    with pytest.raises(NoVariant, match="keep is 5"):
        programs(t(2, 8, 3), keep=5)


class Times(Model):
    def forward(self, x, times=1):
        return self.linear(x) * times


def test_an_int_that_may_be_a_symbol_is_one(tmp_path: Path) -> None:
    calls = [call(t(n, 3), times=k) for n, k in ((5, 2), (7, 3), (4, 5))]
    assert len(made(tmp_path, Times(), calls, [call(t(6, 3), times=9)])) == 1


class Nearest(Model):
    def forward(self, x, k=4):
        return x.topk(k, dim=0).values


def test_an_int_that_is_left_to_its_default_is_taken(tmp_path: Path) -> None:
    calls = [call(t(9, n), k=k) for n, k in ((3, 3), (4, 5), (5, 6))]
    programs = made(tmp_path, Nearest(), calls, [call(t(9, 6)), call(t(9, 6), k=4)])
    assert len(programs) == 1
    assert programs.inputs_for(t(9, 6))[0] == "main"
