"""What is remembered of earlier calls has a bound, however large the calls are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_recorder import record
from calltape_recorder.bounds import MAX_REMEMBERED_PARTS, Remembered
from tests.recorder.models import Echo


def made(most: int = 1000) -> Remembered[int, str]:
    return Remembered(most, lambda _, value: len(value))


def test_the_oldest_go_first() -> None:
    known = made(3)
    for number in range(5):
        known.keep(number, "x")
    assert [known.get(number) for number in range(5)] == [None, None, "x", "x", "x"]


def test_large_ones_leave_room_for_few() -> None:
    known = made()
    for number in range(100):
        known.keep(number, "x" * (MAX_REMEMBERED_PARTS // 4))
    assert [number for number in range(100) if known.get(number)] == [96, 97, 98, 99]


def test_one_that_is_too_large_is_not_remembered_and_displaces_nothing() -> None:
    known = made()
    known.keep(1, "x")
    known.keep(2, "x" * (MAX_REMEMBERED_PARTS + 1))
    known.keep(1, "y")
    assert (known.get(1), known.get(2), len(known)) == ("y", None, 1)


@pytest.mark.integration
def test_structures_that_never_come_again_are_forgotten(tmp_path: Path) -> None:
    """300 calls of 3,000 tensors took 400 MB, whatever the bound of the queue was."""
    model, x = Echo(), torch.zeros(1)
    with record(model, tmp_path / "t.tape", values="none") as recorder:
        for number in range(130):
            model([x] * (3000 + number))
        mine = recorder._handler.pipeline
        assert mine is not None
        assert len(mine.structures._known) <= MAX_REMEMBERED_PARTS // 3000
        recorder.flush()
    assert recorder.stats().kept == 130
