"""What makes a model, by a name that a user may have mistyped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from calltape_analyzer import UsageError
from calltape_analyzer.cli.options import imported

SOURCE = """
from json import dumps


def seq(): ...


class Zoo:
    def llama(self): ...


number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "made_models.py").write_text(SOURCE)
    (tmp_path / "breaking.py").write_text("import no_such_dependency")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "made_models"
    sys.modules.pop("made_models", None)


@pytest.mark.parametrize(
    ("name", "reason", "advice"),
    [
        ("made_models:sqe", "made_models has no sqe", "name one that is there, such as seq"),
        ("made_models:nope", "made_models has no nope", "name one that is there, such as seq, Zoo"),
        ("made_models:Zoo.lama", "made_models has no Zoo.lama", "such as llama"),
        ("made_models:number.x", "made_models has no number.x", "name one that is there"),
        ("made_models.py:seq", "made_models.py is the name of a file", "write made_models:seq"),
        ("no_such:seq", "no module no_such in the current", "run it in the directory"),
        ("json.no_such:seq", "no module json.no_such in", "run it in the directory"),
    ],
)
def test_a_name_that_means_nothing_is_rejected_with_advice(
    module: str, name: str, reason: str, advice: str
) -> None:
    with pytest.raises(UsageError) as caught:
        imported(name)
    assert reason in caught.value.reason
    assert advice in str(caught.value.advice)
    assert "CALLTAPE_DEBUG" not in str(caught.value)


def test_a_module_that_cannot_be_imported_is_there(module: str) -> None:
    with pytest.raises(UsageError, match=r"No module named 'no_such_dependency'\. CALLTAPE"):
        imported("breaking:seq")


def test_debugging_shows_the_error_itself(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLTAPE_DEBUG", "1")
    with pytest.raises(ModuleNotFoundError) as caught:
        imported("breaking:seq")
    assert caught.value.__cause__ is None


def test_a_nested_name_is_imported(module: str) -> None:
    assert imported("made_models:Zoo.llama").__name__ == "llama"
