"""Exports in a process of their own."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import ExportError, export
from calltape_analyzer.exporting import isolation
from tests.analyzer.exported import assert_as_module, call, taped
from tests.analyzer.exporting.test_arguments import t

pytestmark = pytest.mark.integration

NAME = "models_of_the_isolation_tests"
SOURCE = """
import os
import signal

import torch


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x, mask=None):
        y = self.linear(x)
        return y if mask is None else y * mask


class Raising(Classifier):
    def forward(self, x):
        if torch.compiler.is_exporting():
            raise RuntimeError("not while you look")
        return self.linear(x)


class Dying(Classifier):
    def forward(self, x):
        if torch.compiler.is_exporting():
            os.kill(os.getpid(), signal.SIGKILL)
        return self.linear(x)
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / f"{NAME}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module(NAME)
    sys.modules.pop(NAME, None)


@pytest.mark.parametrize("to", ["torch", "onnx"])
def test_isolated_export_gives_what_the_export_gives(to: Any, models: Any, tmp_path: Path) -> None:
    module = models.Classifier()
    calls = [call(t(n, 3), *more) for n in (4, 6) for more in ((), (t(n, 2),))]
    tape = taped(tmp_path, module, calls)
    programs, own = (export(tape, module, to=to, isolate=isolate) for isolate in (True, False))
    report = programs.verify()
    assert report.ok, report.table()
    assert [(r.call, r.variant, r.ok) for r in report] == [
        (r.call, r.variant, r.ok) for r in own.verify()
    ]
    assert [a.what for a in programs.attempts] == [a.what for a in own.attempts]
    assert_as_module(programs, module, [call(t(5, 3))], rtol=1e-3)


def test_what_failed_there_is_told_here(
    models: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    module = models.Raising()
    tape = taped(tmp_path, module, [call(t(n, 3)) for n in (4, 6)])
    with pytest.raises(ExportError, match="not while you look") as caught:
        export(tape, module, isolate=True)
    assert "Traceback" in str(caught.value.__cause__)
    assert "Traceback" not in capfd.readouterr().err


def test_a_process_that_was_killed_is_told(models: Any, tmp_path: Path) -> None:
    module = models.Dying()
    tape = taped(tmp_path, module, [call(t(n, 3)) for n in (4, 6)])
    said: list[str] = []
    with pytest.raises(ExportError, match=r"died \(ended by SIGKILL, .* too much memory") as caught:
        export(tape, module, isolate=True, progress=said.append)
    assert re.search(r"the last that it did, after \d+ s: main: tracing call 0", str(caught.value))
    assert ".attempts" not in str(caught.value)  # it has none
    assert any("main: tracing call 0" in line for line in said)


def test_a_process_that_takes_too_long_is_ended(
    models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "_GRACE", 0.0)
    module = models.Classifier()
    tape = taped(tmp_path, module, [call(t(n, 3)) for n in (4, 6)])
    with pytest.raises(ExportError, match=r"after max_seconds=0.01, and was ended"):
        export(tape, module, isolate=True, max_seconds=0.01)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system tells no memory")
def test_a_process_that_takes_too_much_memory_is_ended(
    models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "half_of_free", lambda: 2**20)
    module = models.Classifier()
    tape = taped(tmp_path, module, [call(t(n, 3)) for n in (4, 6)])
    with pytest.raises(ExportError, match=r"took .* GiB of memory, more than 90% of what was free"):
        export(tape, module, isolate=True)


def test_model_that_cannot_be_pickled_says_so(tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 2)
    module.note = lambda: None  # type: ignore[assignment]
    tape = taped(tmp_path, module, [call(t(n, 3)) for n in (4, 6)])
    with pytest.raises(ExportError, match="cannot be sent"):
        export(tape, module, isolate=True)
