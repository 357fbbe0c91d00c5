"""The script of a tape that ``minimise`` made: it shows the failure."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import merge_tapes, open_tape
from calltape_analyzer.writing.lineage import derived_manifest
from calltape_analyzer.writing.new_tape import NewTape
from tests.analyzer.cli.commands import run, script_of
from tests.analyzer.tapes import Recorded, target_of, write_tape

MODELS = """
import torch


class Refuses(torch.nn.Module):
    def forward(self, x):
        if len(x) == 3:
            raise ValueError(f"cannot take 3 rows, {self.training}")
        return x


def refuses():
    return Refuses()
"""


class Refuses(torch.nn.Module):
    def forward(self, x: Any) -> Any: ...


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A model in a module of the current directory, which is forgotten afterwards."""
    (tmp_path / "refusing_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "refusing_models:refuses"
    sys.modules.pop("refusing_models", None)


def small(path: Path, options: dict[str, Any], **given: Any) -> Path:
    """A tape of two calls without outcomes, with the history of one that was made small."""
    calls = [Recorded((torch.ones(rows, 2),), **given) for rows in (2, 3)]
    whole = write_tape(path.with_suffix(".whole"), calls, target=target_of(Refuses()))
    with (
        open_tape(whole) as tape,
        NewTape(str(path), derived_manifest(tape.segments, "minimise", options)) as writer,
    ):
        for call in tape.calls:
            writer.copy(call)
        writer.seal()
    return path


def ran(source: str) -> int:
    """The exit code of a script."""
    scope: dict[str, Any] = {"__name__": "script", "__file__": "script.py"}
    exec(source, scope)
    code: int = scope["main"]()
    return code


def test_all_calls_run(models: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = small(tmp_path / "small.tape", {"check": 'python """check.py {}'})
    found = script_of(path, "--model", models)
    assert "made small to show a failure" in found
    assert "check.py" not in found
    assert 'replay(part, model, expect="success")' in found
    capsys.readouterr()
    assert ran(found) == 1
    said = capsys.readouterr().out
    assert "ValueError: cannot take 3 rows, False" in said
    assert "call 1: " in said
    assert ran(script_of(path, "--model", models, "--call", 0)) == 0
    assert ran(script_of(path, "--model", models, "--call", 1)) == 1
    assert "export(tape, model" in script_of(path, "--to", "torch")


def test_a_call_without_an_outcome_only_has_to_return(models: str, tmp_path: Path) -> None:
    calls = [Recorded((torch.ones(rows, 2),)) for rows in (2, 3)]
    path = write_tape(tmp_path / "plain.tape", calls, target=Refuses())
    for call in (0, 1):
        assert ran(script_of(path, "--model", models, "--call", call)) == call


def test_recorded_outputs_are_compared(models: str, tmp_path: Path) -> None:
    path = small(tmp_path / "small.tape", {"check": "false"}, outputs=torch.zeros(2, 2))
    source = script_of(path, "--model", models)
    assert "expect=" not in source
    assert ran(source) == 1


def test_a_bundle_shows_it_too(models: str, tmp_path: Path) -> None:
    """Whose redaction takes the check away, and leaves that there was one."""
    path = small(tmp_path / "small.tape", {"check": "false"})
    assert run("redact", path, "-o", tmp_path / "redacted.tape").code == 0
    for name in ("small", "redacted"):
        out = tmp_path / f"{name}.zip"
        result = run("bundle", tmp_path / f"{name}.tape", "--model", models, "-o", out)
        assert result.code == 0, result.err
        with zipfile.ZipFile(out) as archive:
            source = archive.read("reproduce.py").decode()
            archive.extract("bug.tape", tmp_path)
        assert "made small to show a failure" in source
        assert ran(source) == 1


def test_a_tape_that_more_was_added_to_is_not_about_it(models: str, tmp_path: Path) -> None:
    path = small(tmp_path / "small.tape", {"check": "false"})
    other = write_tape(
        tmp_path / "other.tape", [((torch.ones(1),), {})], tape_id=b"other tape of 16"
    )
    with open_tape([path, other]) as both:
        merge_tapes(both, tmp_path / "merged.tape")
    assert "made small" not in script_of(tmp_path / "merged.tape", "--model", models)
