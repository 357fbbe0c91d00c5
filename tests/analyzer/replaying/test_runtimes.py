"""A runtime that nobody knows yet: one class, and it is replayed, checked, verified and loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Tape, TapeError, Tolerances, check, replay
from calltape_analyzer.errors import UsageError
from calltape_analyzer.facts import Rejection
from calltape_analyzer.programs import loading
from calltape_analyzer.programs.conditions import Sized
from calltape_analyzer.programs.exported_model import ExportedModel, TorchModel
from calltape_analyzer.programs.loading import runtime_of
from calltape_analyzer.programs.onnx_model import OnnxModel
from calltape_analyzer.programs.reasons import OtherCall, OutOfRange
from tests.analyzer.exported import call, taped
from tests.analyzer.exporting.models import Model, t

SIZES = (2, 3, 5, 8)


class Scaling(Model):
    """Has an input that its program does not use, and one that is an int."""

    def forward(self, x: Any, unused: Any, times: int) -> Any:
        return x * times


class AbacusModel(ExportedModel):
    """``{"inputs": ["x", "times"], "rows": 5}``: multiplies at most so many rows."""

    runtime = "Abacus"
    suffix = ".abacus"
    tolerances = Tolerances(rtol=0.25, atol=0.0)

    @classmethod
    def takes(cls, source: Any) -> bool:
        return isinstance(source, str | os.PathLike) and os.fspath(source).endswith(cls.suffix)

    @property
    def _facts(self) -> dict[str, Any]:
        try:
            return dict(json.loads(Path(self.exported).read_text()))
        except ValueError:
            raise TapeError("invalid", "no beads", path=self.exported) from None

    @property
    def input_names(self) -> Sequence[str]:
        return list(self._facts["inputs"])

    def run(self, inputs: Mapping[str, Any]) -> list[Any]:
        assert set(inputs) == set(self.input_names)
        if len(inputs["x"]) > self._facts["rows"]:
            raise RuntimeError("out of beads")
        return [inputs["x"] * inputs["times"] * 1.1]  # beads are not exact

    def rejects(self, sizes: Mapping[str, Sized | int]) -> Rejection | None:
        x, times = sizes["x"], sizes["times"]
        assert isinstance(x, Sized)
        assert isinstance(times, int)
        if x.shape[0] > self._facts["rows"]:
            return OutOfRange("x[0]", x.shape[0], most=self._facts["rows"])
        return OtherCall("nothing to do") if times == 1 else None


@pytest.fixture
def tape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tape:
    # Before OnnxModel, which takes files of any name.
    monkeypatch.setattr(loading, "RUNTIMES", [AbacusModel, *loading.RUNTIMES])
    calls = [call(t(n, 3), t(1, 3), times) for n, times in zip(SIZES, (2, 3, 1, 2), strict=True)]
    return taped(tmp_path, Scaling(), calls)


def written(folder: Path, inputs: Sequence[str] = ("x", "times"), rows: int = 5) -> Path:
    path = folder / "model.abacus"
    path.write_text(json.dumps({"inputs": inputs, "rows": rows}))
    return path


def test_a_runtime_of_the_user_is_replayed(tape: Tape, tmp_path: Path) -> None:
    report = replay(tape, written(tmp_path))
    assert [row.ok for row in report] == [True, True, True, False]
    assert "out of beads" in str(report.rows[3].error)
    assert not any(row.ok for row in replay(tape, written(tmp_path), tolerances=Tolerances()))


def test_a_runtime_of_the_user_is_checked(tape: Tape, tmp_path: Path) -> None:
    report = check(tape, written(tmp_path))
    assert [row.ok for row in report] == [True, True, False, False]
    assert [getattr(row.error, "dimension", None) for row in report] == [None] * 3 + ["x[0]"]
    assert [str(row.error) for row in report][2:] == [
        "nothing to do",
        "x[0] is 8; the program takes at most 5",
    ]


@pytest.mark.parametrize("run", [replay, check])
def test_inputs_that_the_calls_do_not_have(run: Any, tape: Tape, tmp_path: Path) -> None:
    report = run(tape, written(tmp_path, ["x", "times", "speed"]))
    assert not report.ok
    assert "the model's inputs speed are not in the call" in str(report)


@pytest.mark.parametrize("run", [replay, check])
def test_a_file_that_cannot_be_read_is_not_an_error_of_a_call(
    run: Any, tape: Tape, tmp_path: Path
) -> None:
    path = tmp_path / "model.abacus"
    path.write_text("beads")
    if run is check:
        with pytest.raises(TapeError, match="no beads"):
            run(tape, path)
    path.unlink()
    with pytest.raises(TapeError) as caught:
        run(tape, path)
    assert caught.value.kind == "not_found"


def test_what_it_does_not_do_is_said(tmp_path: Path) -> None:
    model = AbacusModel.from_file(written(tmp_path))
    with pytest.raises(UsageError, match="a model for Abacus cannot be saved"):
        model.save(tmp_path / "copy")
    assert model.module is None


class InferenceSession:
    """Named as ONNX Runtime's is."""


@pytest.mark.parametrize(
    ("source", "runtime"),
    [
        ("model.pt2", TorchModel),
        (Path("MODEL.PT2"), TorchModel),
        ("model.onnx", OnnxModel),
        ("model", OnnxModel),
        (b"\x08\x09", OnnxModel),
        (InferenceSession(), OnnxModel),
        (type("Own", (InferenceSession,), {})(), OnnxModel),
        (torch.nn.Linear(1, 1), None),
        (torch.fx.symbolic_trace(torch.nn.Linear(1, 1)), None),  # has a graph, as ONNX models have
        (len, None),
        (3, None),
        (None, None),
    ],
)
def test_the_runtime_follows_from_the_source(source: Any, runtime: Any) -> None:
    assert runtime_of(source) is runtime
