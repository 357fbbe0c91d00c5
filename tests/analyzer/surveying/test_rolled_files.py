"""Files that an honest recorder began one after another. Whatever part of them is surveyed, no file
is accused of a contradiction."""

from __future__ import annotations

import threading
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder import Recorder, record
from tests.analyzer.cli.commands import run
from tests.analyzer.surveying.surveyed import of, written


def recorded(folder: Path, calls: int, every: int, **options: Any) -> list[Path]:
    model = torch.nn.Identity()
    with record(model, f"{folder}/", values="none", segment_bytes=20_000, **options) as recorder:
        for number in range(calls):
            model(torch.zeros(number % 9 + 1, 3))
            if number % every == 0:
                recorder.flush()
    return sorted(folder.glob("*.tape"))


@pytest.fixture(scope="module", params=[10, 1000])
def rolled(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> list[Path]:
    """Of a writer that keeps up, and of one that is a thousand calls behind."""
    found = recorded(tmp_path_factory.mktemp("rolled"), 1500, request.param)
    assert len(found) > 1
    return found


def test_no_part_is_accused(rolled: list[Path]) -> None:
    for first, last in combinations(range(min(len(rolled), 4) + 1), 2):
        part = rolled[first:last]
        found = of(*part)
        assert not found.damage, part
        with open_tape(part) as opened:
            opened.variants()
            assert not opened.damage, part
            assert opened.coverage == found.coverage


def test_a_survey_of_all_has_their_counters(tmp_path: Path, rolled: list[Path]) -> None:
    out = written(tmp_path / "s.tape", *rolled)
    with open_tape(rolled) as opened, open_tape(out) as found:
        assert opened.counters.complete
        assert found.counters == opened.counters
        assert found.coverage == opened.coverage


@pytest.mark.parametrize("every", [10, 1000])
def test_files_that_were_deleted_left_their_counters(tmp_path: Path, every: int) -> None:
    options = {"max_disk_bytes": 140_000, "when_full": "delete_oldest"}
    files = recorded(tmp_path / "tapes", 3000, every, **options)
    out = written(tmp_path / "s.tape", *files)
    with open_tape(files) as opened, open_tape(out) as found:
        assert opened.deleted_files
        assert not opened.missing_files
        assert found.coverage == opened.coverage
        assert found.counters == opened.counters
        assert found.counters.calls == 3000
        assert not found.damage


def test_a_survey_of_a_part_says_at_least(tmp_path: Path, rolled: list[Path]) -> None:
    out = written(tmp_path / "s.tape", *rolled[1:])
    with open_tape(rolled[1:]) as opened, open_tape(out) as found:
        assert found.coverage == opened.coverage
        assert found.coverage.at_least
        assert found.counters.calls == opened.counters.calls
        assert found.counters.missing == {str(out)}
    traffic = next(x for x in run("info", out).out.splitlines() if x.startswith("traffic"))
    assert "at least" in traffic


class Slow(torch.nn.Module):
    """A call with a barrier is under way while other calls fill the file."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()

    def forward(self, x: Any, wait: bool = False) -> Any:
        if wait:
            self.begun.set()
            assert self.go.wait(250)
        return x


def test_a_call_that_ended_in_the_next_file(tmp_path: Path) -> None:
    model = Slow()
    recorder = Recorder(tmp_path / "a.tape", segment_bytes=20_000).attach(model)
    other = threading.Thread(target=model, args=(torch.zeros(7, 7), True))
    other.start()
    assert model.begun.wait(60)
    while len(list(tmp_path.glob("*.tape"))) < 2:
        for _ in range(50):
            model(torch.zeros(2, 3))
        recorder.flush()
    model.go.set()
    other.join()
    recorder.close()
    paths = sorted(tmp_path.glob("*.tape"))
    parts = [written(tmp_path / f"{n}.s", path) for n, path in enumerate(paths)]
    with open_tape(paths) as tape:
        assert not tape.counters.missing
        for order in (paths, parts, parts[::-1]):
            out = written(tmp_path / f"{len(list(tmp_path.iterdir()))}.all", *order)
            with open_tape(out) as found:
                assert found.counters.groups == tape.counters.groups
                assert [v.findings for v in found.variants()] == [
                    v.findings for v in tape.variants()
                ]
