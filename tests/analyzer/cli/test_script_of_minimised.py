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
from calltape_analyzer.editing.failure_shown import shown_failure
from calltape_analyzer.writing.lineage import derived
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
        NewTape(str(path), derived(tape.segments, "minimise", options)) as writer,
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


def test_a_replay_is_shown(models: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = small(tmp_path / "small.tape", {"fails_replay": models})
    found = script_of(path, "--model", models)
    assert "made small to show how the replay of refusing_models:refuses fails" in found
    assert "export" not in found
    capsys.readouterr()
    assert ran(found) == 1
    said = capsys.readouterr().out
    assert "ValueError: cannot take 3 rows, False" in said
    assert "call 1: " in said
    one = script_of(path, "--model", models, "--call", 0)
    assert ran(one) == 0
    assert ran(script_of(path, "--model", models, "--call", 1)) == 1


def test_a_call_without_an_outcome_only_has_to_return(models: str, tmp_path: Path) -> None:
    calls = [Recorded((torch.ones(rows, 2),)) for rows in (2, 3)]
    path = write_tape(tmp_path / "plain.tape", calls, target=Refuses())
    for call in (0, 1):
        assert ran(script_of(path, "--model", models, "--call", call)) == call


def test_recorded_outputs_are_compared(models: str, tmp_path: Path) -> None:
    options = {"fails_replay": models, "reference": models}
    path = small(tmp_path / "small.tape", options, outputs=torch.zeros(2, 2))
    source = script_of(path, "--model", models)
    assert "expect=" not in source
    assert ran(source) == 1


def test_an_export_is_shown(tmp_path: Path) -> None:
    path = small(tmp_path / "a.tape", {"fails_export": "a:b"}, error=("builtins:ValueError", "x"))
    source = script_of(path)
    assert 'export(tape, model, to="torch", options=ExportOptions(probe="none"))' in source
    path = small(tmp_path / "b.tape", {"fails_export": "a:b", "to": "onnx"})
    assert 'to="onnx", probe="none"' in script_of(path)
    assert 'to="torch", probe="none"' in script_of(path, "--to", "torch")


def test_a_predicate_is_named_and_the_calls_run(models: str, tmp_path: Path) -> None:
    path = small(tmp_path / "small.tape", {"fails_predicate": "checks:is_wrong"})
    source = script_of(path, "--model", models)
    assert "how the predicate checks:is_wrong fails, which this file does not run" in source
    assert ran(source) == 1
    path = small(tmp_path / "odd.tape", {"fails_predicate": 'no name"""'})
    assert "how a predicate fails" in script_of(path)


def test_a_bundle_shows_it_too(models: str, tmp_path: Path) -> None:
    """Whose redaction takes the names away, and leaves what failed."""
    path = small(tmp_path / "small.tape", {"fails_replay": models})
    assert run("redact", path, "-o", tmp_path / "redacted.tape").code == 0
    for name in ("small", "redacted"):
        out = tmp_path / f"{name}.zip"
        found = run("bundle", tmp_path / f"{name}.tape", "--model", models, "-o", out)
        assert found.code == 0, found.err
        with zipfile.ZipFile(out) as archive:
            source = archive.read("reproduce.py").decode()
            archive.extract("bug.tape", tmp_path)
        assert "how the replay fails" in source
        assert 'replay(part, model, expect="success")' in source
        assert "return model\n" in source
        assert ran(source) == 1


def test_a_tape_that_more_was_added_to_is_not_about_it(models: str, tmp_path: Path) -> None:
    path = small(tmp_path / "small.tape", {"fails_replay": models})
    other = write_tape(
        tmp_path / "other.tape", [((torch.ones(1),), {})], tape_id=b"other tape of 16"
    )
    with open_tape([path, other]) as both:
        assert shown_failure(both) is None
        merge_tapes(both, tmp_path / "merged.tape")
    with open_tape(tmp_path / "merged.tape") as merged:
        assert shown_failure(merged) is None
    with open_tape(path) as tape:
        found = shown_failure(tape)
        assert found is not None
        assert (found.kind, found.name) == ("replay", models)
