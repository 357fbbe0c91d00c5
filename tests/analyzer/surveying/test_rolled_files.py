"""Files that an honest recorder began one after another: a call may be counted in one file and
stand in the next one. Whatever part of them is surveyed, no file is accused of a contradiction."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape, survey
from calltape_analyzer.surveying.executors import Loop
from calltape_recorder import record


def recorded(folder: Path, calls: int, every: int, **options: Any) -> list[Path]:
    model = torch.nn.Identity()
    with record(model, f"{folder}/", values="none", segment_bytes=20_000, **options) as recorder:
        for number in range(calls):
            model(torch.zeros(number % 9 + 1, 3))
            if number % every == 0:
                recorder.flush()
    found = sorted(folder.glob("*.tape"))
    assert len(found) > 1
    return found


@pytest.fixture(scope="module", params=[10, 1000])
def rolled(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> list[Path]:
    """Of a writer that keeps up, and of one that is a thousand calls behind."""
    return recorded(tmp_path_factory.mktemp("rolled"), 1500, request.param)


def test_no_part_is_accused(rolled: list[Path]) -> None:
    for first, last in combinations(range(len(rolled) + 1), 2):
        part = rolled[first:last]
        tape = survey(part, Loop()).tape()
        assert not tape.damage, part
        with open_tape(part) as opened:
            tape.variants()
            opened.variants()
            assert not opened.damage, part


def test_all_of_them_have_the_counters_of_the_tape(rolled: list[Path]) -> None:
    with open_tape(rolled) as opened:
        assert opened.counters.complete
        assert survey(rolled, Loop()).tape().counters == opened.counters


@pytest.mark.parametrize("every", [10, 1000])
def test_files_that_were_deleted_left_their_counters(tmp_path: Path, every: int) -> None:
    options = {"max_disk_bytes": 140_000, "when_full": "delete_oldest"}
    files = recorded(tmp_path / "tapes", 3000, every, **options)
    with open_tape(files) as opened:
        tape = survey(files, Loop()).tape()
        assert opened.missing_files
        assert tape.counters.calls == opened.counters.calls
        assert tape.counters.missing == opened.counters.missing
        assert not tape.damage
