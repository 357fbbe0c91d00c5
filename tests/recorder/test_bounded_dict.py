"""What is remembered of earlier calls has a bound, however large the calls are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from calltape_recorder import bounds, record
from calltape_recorder.bounds import MAX_CACHED_WEIGHT, BoundedDict
from calltape_recorder.capture.structures import Structure, Structures
from calltape_recorder.capture.walk import capture_inputs
from tests.recorder.models import Add
from tests.recorder.reading import read
from tests.recorder.waiting import in_threads


def made(most: int = 1000) -> BoundedDict[int, str]:
    return BoundedDict(most, lambda _, value: len(value))


def test_the_oldest_entries_are_dropped_first() -> None:
    known = made(3)
    for number in range(5):
        known.keep(number, "x")
    assert [known.get(number) for number in range(5)] == [None, None, "x", "x", "x"]


def test_large_entries_leave_room_for_few() -> None:
    known = made()
    for number in range(100):
        known.keep(number, "x" * (MAX_CACHED_WEIGHT // 4))
    assert [number for number in range(100) if known.get(number)] == [96, 97, 98, 99]


def test_one_that_is_too_large_is_not_remembered_and_displaces_nothing() -> None:
    known = made()
    known.keep(1, "x")
    known.keep(2, "x" * (MAX_CACHED_WEIGHT + 1))
    known.keep(1, "y")
    assert (known.get(1), known.get(2), len(known)) == ("y", None, 1)


def test_structures_that_never_come_again_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 calls of 3,000 tensors took 400 MB, whatever the bound of the queue was."""
    monkeypatch.setattr(bounds, "MAX_CACHED_WEIGHT", 4000)
    x, built = torch.zeros(1), list[Structure]()
    structures = Structures(built.append)
    each = [capture_inputs(([x] * (500 + number),), {})[0] for number in range(20)]
    for tokens in each:
        structures.of(tokens)
    remembered = 0
    for tokens in reversed(each):  # the latest are remembered
        structures.of(tokens)
        remembered += len(built) == len(each)
    assert 0 < remembered <= 4000 // 500


def test_structures_and_leaves_are_the_same_bytes_for_the_same_call(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    with record(model, path):
        for size in (2, 2, 2, 3):
            model(torch.ones(size), torch.ones(size))
    trees = [call.record.inputs for call in read(path).calls]
    assert len({tree.structure for tree in trees}) == 1
    assert len({tree.leaves for tree in trees}) == 2


def test_many_threads_meet_more_structures_than_are_remembered() -> None:
    structures = Structures(lambda _: None)

    def work(thread: int) -> None:
        for n in range(900):
            names = tuple(f"k{(n * 7 + thread * 531 + k) % 1400}" for k in range(2))
            structures.of(("outputs", ("dict", names, None), "none", "none"))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads(work, range(8))
    finally:
        sys.setswitchinterval(interval)
