"""Ranks of one job make the same calls: a survey counts each step once, as a tape does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calltape_analyzer import open_tape
from tests.analyzer.cli.commands import run
from tests.analyzer.reading.ranks import STEPS, recorded
from tests.analyzer.surveying.surveyed import of


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_step_counts_once(tmp_path: Path, of_rank: Any, ranks: int) -> None:
    for rank in range(ranks):
        of_rank(rank, ranks)
        recorded(tmp_path / f"{rank}.tape")
    surveyed = of(tmp_path)
    with open_tape(tmp_path) as tape:
        assert surveyed.coverage == tape.coverage
        assert surveyed.coverage.kept == len(STEPS)
        assert len(surveyed.other_ranks) == ranks - 1
    ran = run("survey", tmp_path)
    assert f"{ranks - 1} file" in next(x for x in ran.out.splitlines() if x.startswith("ranks"))
    (facts,) = json.loads(run("survey", tmp_path, "--json").out)
    assert facts["other_ranks"] == ranks - 1


def test_other_data_counts(tmp_path: Path, of_rank: Any) -> None:
    for rank in range(2):
        of_rank(rank)
        recorded(tmp_path / f"{rank}.tape", first=100 * rank)
    with open_tape(tmp_path) as tape:
        assert of(tmp_path).coverage == tape.coverage
        assert len(tape) == 2 * len(STEPS)


@pytest.mark.parametrize("killed", [0, 1])
def test_the_rank_that_was_killed_is_left_out(tmp_path: Path, of_rank: Any, killed: int) -> None:
    for rank in range(2):
        of_rank(rank)
        is_killed = rank == killed
        sizes = STEPS[: len(STEPS) - is_killed]
        recorded(tmp_path / f"{rank}.tape", sizes=sizes, seals=not is_killed)
    surveyed = of(tmp_path)
    assert (surveyed.coverage.kept, surveyed.unsealed) == (len(STEPS), 0)
    assert surveyed.other_ranks == [str(tmp_path / f"{killed}.tape")]


def test_a_copy_of_a_rank_is_no_rank(tmp_path: Path, of_rank: Any) -> None:
    of_rank(1)
    path = recorded(tmp_path / "a.tape")
    (tmp_path / "b.tape").write_bytes(path.read_bytes())
    surveyed = of(tmp_path)
    assert (surveyed.copies, surveyed.other_ranks) == ([str(tmp_path / "b.tape")], [])
    assert surveyed.coverage.kept == len(STEPS)
