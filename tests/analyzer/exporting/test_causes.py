"""A failed trace says in one sentence where in the model, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import ExportError, export
from calltape_analyzer.exporting.causes import cause_of
from calltape_analyzer.foreign_errors import ErrorMeaning, Raised
from tests.analyzer.exported import call, taped
from tests.analyzer.exporting.models import Model, t


class Branching(Model):
    """No trace without values takes it; each side of the ``if`` gets a program by its values."""

    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        return x - 1


class Failing(Model):
    def forward(self, x):
        if torch.compiler.is_exporting():
            raise RuntimeError("not while you look")
        return x


def error_of(folder: Path, model: Model, calls: list[Any]) -> str:
    with pytest.raises(ExportError) as caught:
        export(taped(folder, model, calls), model, to="onnx")
    return str(caught.value)


@pytest.mark.integration
def test_an_error_names_the_line_of_the_model_and_a_remedy(tmp_path: Path) -> None:
    calls = [call(-torch.ones(4, 3)), call(torch.ones(5, 3))]
    programs = export(taped(tmp_path, Branching(), calls), Branching(), to="onnx")
    errors = {str(attempt.error) for attempt in programs.attempts if not attempt.tried}
    assert errors
    for error in errors:
        assert "the model needs the value of a tensor at test_causes.py:" in error
        assert "in forward: if x.sum() > 0:" in error
        assert "use torch.where or torch.cond" in error
        assert len(error) < 600
    assert programs.verify().ok


def test_other_errors_keep_their_words(tmp_path: Path) -> None:
    error = error_of(tmp_path, Failing(), [call(t(n, 3)) for n in (4, 5)])
    assert "RuntimeError: not while you look (at test_causes.py:" in error
    assert "the value of a tensor" not in error


def test_an_error_without_a_traceback_is_its_text() -> None:
    cause = cause_of(RuntimeError("data-dependent"))
    assert cause == Raised("RuntimeError", "data-dependent", (ErrorMeaning.NEEDS_VALUE,))
    assert str(cause) == "RuntimeError: data-dependent"


def test_the_cause_of_a_cause_is_found() -> None:
    def inner() -> None:
        raise ValueError("unlucky")

    def outer() -> None:
        try:
            inner()
        except ValueError as error:
            raise RuntimeError("outer") from error

    with pytest.raises(RuntimeError) as caught:
        outer()
    assert "in inner: raise ValueError" in str(cause_of(caught.value))
