"""Surveys of tapes behind URLs, and surveys behind URLs: the same answers, and no secret of a URL
in what is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from calltape_analyzer import open_tape, survey
from calltape_analyzer.surveying.survey import Loop
from tests.analyzer.cli.commands import run
from tests.analyzer.surveying.surveyed import of, written
from tests.analyzer.tapes import write_tape

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/survey", recursive=True)


def tape_of_three(path: Path, **options: Any) -> Path:
    return write_tape(path, [((torch.zeros(i + 2, 4),), {}) for i in range(3)], **options)


def test_a_survey_of_urls_is_that_of_the_files(tmp_path: Path, memory: Any) -> None:
    path = tape_of_three(tmp_path / "a.tape")
    memory.pipe_file("/survey/a.tape", path.read_bytes())
    surveyed = survey("memory://survey/", executor=Loop())
    assert surveyed.target().to_bytes() == of(path).to_bytes()


def test_a_token_stands_nowhere(tmp_path: Path, memory: Any) -> None:
    tape_of_three(tmp_path / "a.tape")
    memory.pipe_file("/survey/b.tape?token=SECRET123", b"no tape")
    url = "memory://survey/b.tape?token=SECRET123"
    surveyed = survey([tmp_path / "a.tape", url], executor=Loop())
    assert len(surveyed.unreadable) == 1
    assert b"SECRET123" not in surveyed.target().to_bytes()
    assert "SECRET123" not in repr(surveyed)
    assert "SECRET123" not in str(surveyed.unreadable[0])
    assert "survey/b.tape" in str(surveyed.unreadable[0])


def test_a_target_is_chosen_among_tapes_behind_urls(tmp_path: Path, memory: Any) -> None:
    relu = tape_of_three(tmp_path / "a.tape", target=torch.nn.ReLU(), tape_id=b"a" * 16)
    tanh = tape_of_three(tmp_path / "b.tape", target=torch.nn.Tanh(), tape_id=b"b" * 16)
    for path in (relu, tanh):
        memory.pipe_file(f"/survey/{path.name}", path.read_bytes())
    ran = run("variants", "memory://survey", "--target", "Tanh")
    assert (ran.code, ran.out) == (0, run("variants", tanh).out)
    several = run("variants", "memory://survey")
    assert several.code == 1
    assert "--target" in several.err
    assert run("survey", "memory://survey", "--target", "Tanh", "-o", tmp_path / "s").code == 0


def test_a_survey_behind_a_url_is_read(tmp_path: Path, memory: Any) -> None:
    out = written(tmp_path / "s.tape", tape_of_three(tmp_path / "a.tape"))
    memory.pipe_file("/survey/s.tape", out.read_bytes())
    assert run("variants", "memory://survey/s.tape") == run("variants", out)
    assert run("survey", "memory://survey/s.tape").code == 0
    with open_tape("memory://survey/s.tape") as tape:
        assert len(tape) == 3
    assert "no such file" in run("info", "memory://survey/none.tape").err
