"""A difference at sizes that no call had proves something only if the model itself is sure."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.analyzer.exported import call, made
from tests.analyzer.exporting.test_arguments import Model, t


class Noisy(Model):
    """Draws numbers, but not at sizes that users call it with; a program of it does not."""

    def forward(self, x):
        if torch.compiler.is_exporting():
            return x + 0
        return x + torch.rand_like(x) * (x.shape[0] > 6)


class Random(Model):
    """Draws numbers that show at sizes only that users do not call it with."""

    def forward(self, x):
        return x + torch.rand_like(x) * (x.shape[0] > 6)


class Unanswered(Model):
    """Divides nothing by nothing from some size on."""

    def forward(self, x):
        late = (torch.arange(x.shape[0]) > 6)[:, None]
        return torch.where(late, x.new_full((), float("nan")) * x.sum(), x)


class Rounding(Model):
    """The difference of two large sums: what is left is rounding alone."""

    def forward(self, x):
        big = x.sum(0) * 1e6
        if not torch.compiler.is_exporting():
            big = x.flip(0).sum(0) * 1e6
        return big - big.round()


def notes(programs) -> str:
    return "\n".join(str(note) for p in programs.values() for note in p.told)


@pytest.mark.integration
def test_a_model_that_draws_is_no_evidence(tmp_path: Path) -> None:
    programs = made(tmp_path, Noisy(), [call(t(n, 3)) for n in (2, 3, 5)], [])
    assert "returns something else each time" in notes(programs)
    assert "wrong values" not in notes(programs)


@pytest.mark.integration
def test_numbers_that_both_draw_are_the_same(tmp_path: Path) -> None:
    programs = made(tmp_path, Random(), [call(t(n, 3)) for n in (2, 3, 5)], [])
    assert "the same as the model" in notes(programs)


def test_rounding_is_no_wrong_value(tmp_path: Path) -> None:
    sizes = (2, 3, 5)
    programs = made(tmp_path, Rounding(), [call(torch.ones(n, 3)) for n in sizes], [])
    assert "wrong values" not in notes(programs)


class Wrong(Model):
    """Does something else from some size on, and torch does not see it."""

    def forward(self, x):
        is_large = not torch.compiler.is_exporting() and x.shape[0] > 6
        return x * 3 if is_large else x * 2


def test_a_wrong_value_is_one(tmp_path: Path) -> None:
    programs = made(tmp_path, Wrong(), [call(t(n, 3)) for n in (2, 3, 5)], [])
    assert "wrong values" in notes(programs)
