"""Surveys of tapes behind URLs: the same answers, and no secret of a URL in the document."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
import torch

from calltape_analyzer import open_tape, survey
from calltape_analyzer.surveying.executors import Loop
from calltape_analyzer.surveying.survey_file import survey_to_json
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import write_tape

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def test_a_survey_of_urls_is_that_of_the_files(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [((torch.zeros(i + 2, 4),), {}) for i in range(3)])
    system = fsspec.filesystem("memory")
    system.pipe_file("/survey/a.tape", path.read_bytes())
    try:
        found = survey("memory://survey/", executor=Loop()).tape()
        assert found.infer_dynamic_shapes() == open_tape(path).infer_dynamic_shapes()
        assert [file.path for file in found.files] == ["memory://survey/a.tape"]
    finally:
        system.rm("/survey", recursive=True)


def test_a_url_that_cannot_be_read_keeps_its_token(tmp_path: Path) -> None:
    write_tape(tmp_path / "a.tape", [((torch.zeros(2, 4),), {})])
    url = "http://127.0.0.1:1/b.tape?token=SECRET123"  # nobody listens there
    found = survey([tmp_path / "a.tape", url], executor=Loop())
    assert len(found.unreadable) == 1
    assert b"SECRET123" not in survey_to_json(found)
    assert "SECRET123" not in repr(found)
    assert "127.0.0.1:1/b.tape" in str(found.unreadable[0])


def test_one_target_of_tapes_behind_urls(tmp_path: Path) -> None:
    calls = [((torch.zeros(i + 2, 4),), {}) for i in range(3)]
    relu = write_tape(tmp_path / "a.tape", calls, target=torch.nn.ReLU(), tape_id=b"a" * 16)
    tanh = write_tape(tmp_path / "b.tape", calls[:1], target=torch.nn.Tanh(), tape_id=b"b" * 16)
    system = fsspec.filesystem("memory")
    for path in (relu, tanh):
        system.pipe_file(f"/targets/{path.name}", path.read_bytes())
    assert run("survey", relu, tanh, "-o", tmp_path / "s.json").code == 0
    try:
        for given in (["memory://targets"], [tmp_path / "s.json", "memory://targets"]):
            ran = run("variants", *given, "--target", "Tanh")
            assert (ran.code, ran.out) == (0, run("variants", tanh).out)
            several = run("variants", *given)
            assert several.code == 1
            assert "--target" in several.err
    finally:
        system.rm("/targets", recursive=True)


@pytest.mark.parametrize("name", ["s.json", "s.json.gz"])
def test_a_survey_behind_a_url(tmp_path: Path, name: str) -> None:
    tape = write_tape(tmp_path / "a.tape", [((torch.zeros(i + 2, 4),), {}) for i in range(3)])
    assert run("survey", tape, "-o", tmp_path / name).code == 0
    system = fsspec.filesystem("memory")
    system.pipe_file(f"/kept/{name}", (tmp_path / name).read_bytes())
    try:
        assert run("variants", f"memory://kept/{name}") == run("variants", tmp_path / name)
        assert run("survey", f"memory://kept/{name}").code == 0
        assert "no such file" in run("info", "memory://kept/none.json").err
        refused = run("survey", tape, "-o", f"memory://kept/new-{name}")
        assert "not behind a URL" in refused.err
    finally:
        system.rm("/kept", recursive=True)
