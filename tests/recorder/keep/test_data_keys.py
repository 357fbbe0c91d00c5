"""Dicts keyed by the ids of requests: the keys are no structure, so calls with other ones add no
evidence, and nothing of them is held."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder import First, Keep, Novelty, PerStructure, record
from tests.recorder.models import Echo
from tests.recorder.reading import read

NOVELTY = Novelty()


def ids(calls: int, each: int = 4) -> list[list[str]]:
    chance = random.Random(1)
    return [[f"{chance.getrandbits(32):08x}" for _ in range(each)] for _ in range(calls)]


def kept(path: Path, arguments: list[Any], keep: Keep = NOVELTY) -> list[int]:
    model = Echo()
    with record(model, path, keep=keep, overwrite=True) as recorder:
        for value in arguments:
            model(value)
    stats = recorder.stats()
    assert stats.seen == len(arguments)
    return read(path).numbers


@pytest.mark.parametrize("keep", [Novelty(), PerStructure(1)], ids=str)
@pytest.mark.parametrize(
    "of",
    [
        lambda number, names: dict.fromkeys(names, 1),
        lambda number, names: {name: torch.zeros(3) for name in names},
        lambda number, names: {name: {"length": len(name), "also": name} for name in names},
        lambda number, names: {name: [name] for name in names},
        lambda number, names: {name: {other: 1} for name, other in pairwise(names)},
        lambda number, names: dict.fromkeys(names[: number % 4], 1),
    ],
    ids=["ints", "tensors", "dicts", "texts", "dicts of other ids", "more or fewer of them"],
)
def test_other_ids_are_no_evidence(tmp_path: Path, keep: Keep, of: Any) -> None:
    calls = [of(number, names) for number, names in enumerate(ids(300))]
    assert len(kept(tmp_path / "a.tape", calls, keep)) <= 16


def test_what_stands_beside_them_is_evidence(tmp_path: Path) -> None:
    calls = [{"x": torch.zeros(5), names[0]: i} for i, names in enumerate(ids(100))]
    calls[60]["x"] = torch.zeros(9)
    calls[80] = {"x": torch.zeros(5, dtype=torch.int8), "other": 1}
    found = kept(tmp_path / "a.tape", calls)
    assert {60, 80} <= set(found)
    assert len(found) <= 14


def test_names_stay_structure(tmp_path: Path) -> None:
    calls = [{f"kind{i % 8}": torch.zeros(2)} for i in range(200)]
    assert kept(tmp_path / "a.tape", calls) == list(range(8))
    calls = [{f"layer.{n}": torch.zeros(2) for n in range(i % 3 + 30)} for i in range(60)]
    assert kept(tmp_path / "a.tape", calls) == [0, 1, 2]


def test_keys_that_are_data_are_counted_without_a_structure(tmp_path: Path) -> None:
    calls = [dict.fromkeys(names, 1) for names in ids(300)]
    numbers = kept(tmp_path / "a.tape", calls)
    table = read(tmp_path / "a.tape").table
    assert len(table.rows) == len(numbers) <= 12
    assert len(table.kinds) <= 9
    assert table.totals().seen == 300


def test_steps_that_differ_in_keys_that_are_data_are_counted_alike(tmp_path: Path) -> None:
    model = Echo()
    with record(model, tmp_path / "a.tape", keep=First(1)):
        for (name,) in ids(40, each=1):
            batch = {name: torch.zeros(2)}
            for _ in range(5):
                model(batch)
    table = read(tmp_path / "a.tape").table
    assert len(table.kinds) == 8
    assert sum(kind.seen for kind in table.kinds.values()) == 39
    assert (len(table.rows), table.other.seen) == (1, 160)
    with open_tape(tmp_path / "a.tape", scan=True) as tape:
        assert not tape.damage
        assert len(tape.counters.groups) == 8
