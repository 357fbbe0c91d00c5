"""The ranges of integer tensors, of all calls of equal inputs together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder import record
from tests.analyzer.tapes import change_table, write_tape


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


def test_forged_ranges_are_damage_when_the_records_were_read(tmp_path: Path) -> None:
    given = [((torch.arange(2000) + 100 * call,), {}) for call in range(3)]
    path = write_tape(tmp_path / "a.tape", given, target=Model())

    def forge(table: Any) -> None:
        (row,) = table.rows.values()
        row.ranges = {0: (-5, 9)}

    change_table(path, forge)
    with open_tape(path) as opened:
        (group,) = opened.observations().groups.values()
        assert (group.ranges[0].min, group.ranges[0].max) == (-5, 9), "nobody can tell"
        assert not opened.damage
    with open_tape(path, scan=True) as opened:
        (group,) = opened.observations().groups.values()
        assert (group.ranges[0].min, group.ranges[0].max) == (0, 2199)
        (error,) = opened.damage
        assert (error.path, error.member) == (str(path), "end.msgpack")
        assert "other ranges of integers" in str(error)
        opened.observations()
        assert len(opened.damage) == 1
