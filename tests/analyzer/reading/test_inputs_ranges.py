"""The ranges of integer tensors, which the walk over a file adds up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from calltape_analyzer.reading.inputs_ranges import InputsRanges
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer import open_tape
from calltape_analyzer.reading import inputs_ranges
from calltape_recorder import record
from calltape_schema.packing import pack

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-40, 40)
RANGES = st.lists(st.tuples(st.integers(0, 5), NUMBERS, NUMBERS), max_size=6)


def encoded(ranges: list[tuple[int, int, int]]) -> bytes:
    return pack([{"leaf": leaf, "min": low, "max": high} for leaf, low, high in ranges])


@given(st.lists(st.tuples(st.integers(0, 3), RANGES), max_size=12))
def test_ranges_add_up(calls: list[tuple[int, list[tuple[int, int, int]]]]) -> None:
    found = InputsRanges()
    expected: dict[int, dict[int, list[int]]] = {}
    for inputs, ranges in calls:
        found.add(inputs, encoded(ranges))
        for leaf, low, high in ranges:
            span = expected.setdefault(inputs, {}).setdefault(leaf, [low, high])
            span[:] = min(span[0], low), max(span[1], high)
    for inputs in range(4):
        spans = expected.get(inputs, {})
        assert found.of(inputs) == tuple((leaf, *spans[leaf]) for leaf in sorted(spans))


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_ranges, "_MAX_RANGES", 10)
    found = InputsRanges()
    for inputs in range(6):
        found.add(inputs, encoded([(0, inputs, inputs + 1), (1, 0, 0)]))
    assert not found.complete
    assert found.of(0) == ()


class Model(torch.nn.Module):
    def forward(self, ids: Any, mask: Any = None) -> Any:
        return ids * 2  # outputs have ranges too, which are not those of the inputs


@pytest.fixture(params=["all", "none"])
def tape(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Six calls of two shapes: each call has other ranges. With tensors, and without: those records
    share members. The numbers are many, because the range of few would tell them."""
    model, path = Model(), tmp_path / "a.tape"
    with record(model, path, values=request.param):
        for call in range(6):
            ids = torch.arange(2000 + call % 2) + 100 * call
            model(ids, mask=None if call % 2 else torch.arange(2000, dtype=torch.int32) + call)
    return path


def ranges(path: Path, **how: Any) -> dict[str, list[tuple[int, int]]]:
    with open_tape(path, scan=True, **how) as opened:
        groups = opened.observations().groups.values()
        return {
            str(sorted(group.layout.arguments)): [(s.min, s.max) for s in group.ranges.values()]
            for group in groups
        }


def test_they_are_those_of_all_calls(tape: Path) -> None:
    """Of the calls 0, 2, 4, with a mask, and of 1, 3, 5."""
    assert ranges(tape) == {
        "['ids', 'mask']": [(0, 2399), (0, 2003)],
        "['ids']": [(100, 2500)],
    }


def test_variants_say_the_same_by_the_records_and_by_the_end(tape: Path) -> None:
    told = []
    for scan in (False, True):
        with open_tape(tape, scan=scan) as opened:
            tensors = [one for found in opened.variants() for one in found.findings.tensors]
            told.append(sorted((one.name, one.range) for one in tensors))
    assert told[0] == told[1]
    assert ("mask", (0, 2003)) in told[0]


def test_of_a_part_only_its_calls_count(tape: Path) -> None:
    with open_tape(tape, scan=True) as opened:
        (group,) = opened.only(calls="2..4", ignore=["mask"]).observations().groups.values()
    assert (group.ranges[0].min, group.ranges[0].max) == (200, 2399)


def test_without_memory_for_them_the_records_tell(
    tape: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs_ranges, "_MAX_RANGES", 1)
    test_they_are_those_of_all_calls(tape)
