"""What the zoo takes for rounding, and what it does not."""

from __future__ import annotations

import torch

from tests.zoo.comparing import is_rounding, nudged


def test_every_float_moves_by_its_last_digit() -> None:
    x, ids = torch.randn(50), torch.arange(3)
    moved, kept = nudged((x, ids))
    assert torch.equal(ids, kept)
    steps = (moved.double() - x.double()).abs() / x.double().abs()
    assert 0 < float(steps.max()) < 2.5e-7
    assert {bool(b) for b in moved > x} == {True, False}


def test_a_difference_that_the_last_digit_makes_is_rounding() -> None:
    x = torch.tensor([1.0, 2.0])
    assert is_rounding([x, 3], [x + 1e-4, 3], [x + 2e-5, 3])
    assert not is_rounding([x, 3], [x + 1e-3, 3], [x + 2e-5, 3])
    assert not is_rounding([x, 3], [x + 1e-4, 4], [x + 2e-5, 3])
    assert not is_rounding([x], [x[:1]], [x + 1])


def test_ints_and_what_is_infinite_are_no_rounding() -> None:
    ids = torch.arange(3)
    assert not is_rounding(ids, ids + 1, ids + 1)
    x = torch.tensor([1.0])
    assert not is_rounding(x, torch.tensor([torch.inf]), torch.tensor([torch.inf]))
    assert not is_rounding(x, torch.tensor([torch.nan]), x + 1)
