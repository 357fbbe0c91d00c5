"""Tapes of the ranks of one job: a step counts once, other data does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.surveying.survey import survey
from calltape_recorder import record
from calltape_recorder.host.target import rank_now
from tests.analyzer.cli.commands import run


class Tokens(torch.nn.Module):
    def forward(self, input_ids, positions=None):
        return input_ids


@pytest.fixture
def of_rank(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this process the rank of a job."""

    def become(rank: int, ranks: int = 2) -> None:
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: ranks)

    return become


STEPS = (3, 14, 4, 4)


def recorded(
    path: Path, *, sizes: Sequence[int] = STEPS, first: int = 0, seals: bool = True, **options: Any
) -> Path:
    model = Tokens()
    recorder = record(model, path, **options)
    for size in sizes:
        model(torch.arange(first, first + size), positions=torch.arange(size))
    recorder.close() if seals else recorder.flush()
    if not seals:
        content = path.read_bytes()  # as if the process was killed now
        recorder.close()
        path.write_bytes(content)
    return path


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_step_counts_once(tmp_path: Path, of_rank: Any, ranks: int) -> None:
    for rank in range(ranks):
        of_rank(rank, ranks)
        recorded(tmp_path / f"{rank}.tape")
    with open_tape(tmp_path) as tape:
        assert len(tape) == tape.coverage.kept == tape.counters.calls == 4
        assert [len(variant) for variant in tape.variants()] == [4]
        assert tape.paths == (str(tmp_path / "0.tape"),)
        assert sorted(tape.other_ranks) == [str(tmp_path / f"{r}.tape") for r in range(1, ranks)]
    for rank in range(ranks):
        assert len(open_tape(tmp_path / f"{rank}.tape")) == 4


@pytest.mark.parametrize("options", [{"values": "none"}, {"segment_bytes": 4096}], ids=str)
def test_however_they_were_recorded(tmp_path: Path, of_rank: Any, options: Any) -> None:
    for rank in (0, 1):
        of_rank(rank)
        recorded(tmp_path / f"{rank}.tape", sizes=STEPS * 4, **options)
    with open_tape(tmp_path) as tape:
        assert len(tape) == 16


@pytest.mark.parametrize(
    "other",
    [{"first": 100}, {"sizes": (3, 4, 14, 4)}, {"sizes": (3, 14, 4)}, {"sizes": (3, 14, 4, 4, 4)}],
    ids=str,
)
def test_other_data_counts(tmp_path: Path, of_rank: Any, other: Any) -> None:
    of_rank(0)
    recorded(tmp_path / "0.tape")
    of_rank(1)
    recorded(tmp_path / "1.tape", **other)
    with open_tape(tmp_path) as tape:
        assert len(tape) == 4 + len(other.get("sizes", STEPS))
        assert not tape.other_ranks


def test_one_that_was_killed_lacks_the_last_calls(tmp_path: Path, of_rank: Any) -> None:
    of_rank(0)
    recorded(tmp_path / "0.tape", sizes=STEPS[:3], seals=False)
    of_rank(1)
    recorded(tmp_path / "1.tape")
    with open_tape(tmp_path) as tape:
        assert tape.other_ranks == (str(tmp_path / "0.tape"),)
        assert len(tape) == 4


def test_one_that_was_killed_has_seen_fewer_values(tmp_path: Path, of_rank: Any) -> None:
    model = Tokens()
    for rank, calls in ((0, 3), (1, 5)):
        of_rank(rank)
        path = tmp_path / f"{rank}.tape"
        recorder = record(model, path)
        for value in range(calls):
            model(torch.tensor([value]))
        recorder.flush()
        content = path.read_bytes()
        recorder.close()
        if not rank:
            path.write_bytes(content)  # as if the process was killed now
    with open_tape(tmp_path) as tape:
        assert tape.other_ranks == (str(tmp_path / "0.tape"),)
        assert len(tape) == 5
    assert survey(tmp_path).target().coverage.kept == 5


def test_one_that_was_killed_has_other_data_of_the_same_range(tmp_path: Path, of_rank: Any) -> None:
    """As in data-parallel training: only the calls one by one tell."""
    model = Tokens()
    for rank, calls in ((0, [(0, 5), (0, 9)]), (1, [(0, 9), (0, 5), (0, 9)])):
        of_rank(rank)
        path = tmp_path / f"{rank}.tape"
        with record(model, path) as recorder:
            for values in calls:
                model(torch.tensor(values))
            recorder.flush()
            content = path.read_bytes()
        path.write_bytes(content)
    with open_tape(tmp_path) as tape:
        assert not tape.other_ranks
        assert len(tape) == 5


def test_two_runs_of_a_job_have_steps_of_their_own(tmp_path: Path, of_rank: Any) -> None:
    for job in "ab":
        for rank in (0, 1):
            of_rank(rank)
            recorded(tmp_path / f"{job}{rank}.tape")
    with open_tape(tmp_path) as tape:
        assert len(tape) == 8


def test_processes_of_no_job_all_count(tmp_path: Path) -> None:
    assert rank_now() is None
    for worker in (0, 1):
        recorded(tmp_path / f"{worker}.tape")
    with open_tape(tmp_path) as tape:
        assert len(tape) == 8


def test_it_is_said(tmp_path: Path, of_rank: Any) -> None:
    for rank in (0, 1):
        of_rank(rank)
        recorded(tmp_path / f"{rank}.tape")
    found = run("info", tmp_path)
    assert found.code == 0
    assert "ranks      0 of 2; 1 file of other ranks ignored: a step counts once" in found.out
    assert "another rank of the job made the same calls" in found.err
    told = run("survey", tmp_path)
    assert "1 file of other ranks ignored: a step counts once" in " ".join(told.out.split())
    assert survey(tmp_path).target().coverage.kept == 4
