"""Tapes of shapes replay through a model with made-up values; no value is called reproduced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Tape, TapeError, export, open_tape, replay
from calltape_analyzer.arguments.samples import complete_inputs
from calltape_analyzer.limits import Limits
from calltape_recorder import record
from tests.analyzer.exported import call, taped
from tests.analyzer.exporting.models import t
from tests.analyzer.tapes import write_tape


class Talking(torch.nn.Module):
    """Takes a table of ids, a mask, a text and numbers; gives values and a text."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(5000, 4)

    def forward(self, ids, mask=None, *, prompt="", numbers=()):
        assert type(prompt) is str
        x = self.table(ids) * (len(prompt) + 1) + sum(numbers)
        return {"x": x if mask is None else x * mask[..., None], "text": prompt, "n": 3}


def calls() -> list[Any]:
    ids = torch.randint(0, 5000, (2, 1500))
    numbers = [float(n) for n in range(12)]
    return [call(ids[:, :n], torch.ones(2, n), prompt="a secret", numbers=numbers)
            for n in (3, 1500)]  # fmt: skip


@pytest.fixture
def model() -> Talking:
    return Talking().eval()


@pytest.fixture
def tape(tmp_path: Path, model: Talking) -> Tape:
    return taped(tmp_path, model, calls(), values="none")


def test_shapes_are_compared_where_no_values_are_recorded(tape: Tape, model: Talking) -> None:
    report = replay(tape, model)
    assert report.ok, report.table()
    assert [row.against for row in report] == ["shapes", "shapes"]
    assert report.reproduced == 0
    assert [row.compared for row in report] == [0, 0]
    assert "2 calls agree in structure, dtypes and shapes; no value was compared" in report.summary
    assert any("arguments of 2 calls were synthetic" in note for note in map(str, report.notes))
    assert "verified" not in report.table(every=True)


CHANGES = {
    "dtype": lambda y: {**y, "x": y["x"].double()},
    "shape": lambda y: {**y, "x": y["x"][:, :2]},
    "structure": lambda y: {"x": y["x"]},
    "more": lambda y: {**y, "z": 1},
    "kind": lambda y: {**y, "text": 3},
    "number": lambda y: {**y, "n": 3.0},
    "nothing": lambda y: {},
    "none": lambda y: None,
}


@pytest.mark.parametrize("what", CHANGES)
def test_another_form_is_found_out(what: str, tape: Tape, model: Talking) -> None:
    report = replay(tape, lambda *args, **kwargs: CHANGES[what](model(*args, **kwargs)))
    assert [row.ok for row in report] == [False, False]
    assert report.reproduced == 0


def test_made_up_arguments_are_like_the_recorded_ones(tape: Tape) -> None:
    args, kwargs, made_up, _ = complete_inputs(tape.calls[1])
    ids, mask = args
    low, high = int(ids.min()), int(ids.max())
    assert 0 <= low <= high < 5000
    assert high > 1000  # within the recorded range, not 0 and 1
    assert (mask.shape, mask.dtype) == ((2, 1500), torch.float32)
    assert kwargs["prompt"] == "x" * len("a secret")
    assert [type(n) for n in kwargs["numbers"]] == [float] * 12
    assert made_up == 2 + 1 + 12
    again = complete_inputs(tape.calls[1])
    assert torch.equal(ids, again.args[0])
    assert ids is not again.args[0]


def test_what_fails_with_made_up_arguments_says_so(tape: Tape) -> None:
    def fails(*args, **kwargs):
        raise IndexError("index out of range in self")

    report = replay(tape, fails)
    assert {str(row.error) for row in report} == {
        "IndexError: index out of range in self (with synthetic arguments: the tape has no values)"
    }


def test_values_are_compared_where_there_are_some(tmp_path: Path, model: Talking) -> None:
    withheld = {"*": "all", "outputs.x": "none"}
    tape = taped(tmp_path, model, calls(), values=withheld)
    report = replay(tape, model)
    assert report.ok, report.table()
    assert {row.against for row in report} == {"part"}
    assert report.reproduced == 0
    assert "not on the tape, so compared in dtype and shape only: outputs.x" in map(
        str, report.notes
    )
    other = replay(tape, lambda *a, **k: {**model(*a, **k), "n": 4})
    assert [row.ok for row in other] == [False, False]
    assert "n is 4 instead of 3" in str(other)
    assert not replay(tape, lambda *a, **k: CHANGES["shape"](model(*a, **k))).ok


def test_an_output_of_made_up_arguments_is_not_compared(tmp_path: Path, model: Talking) -> None:
    """The tape has all outputs, but one argument is not on it: its outputs are others."""
    tape = taped(tmp_path, model, calls(), values={"*": "all", "ids": "none"})
    report = replay(tape, model)
    assert report.ok, report.table()
    assert {row.against for row in report} == {"shapes"}
    assert report.reproduced == 0


def test_a_made_up_tensor_is_bounded(tmp_path: Path) -> None:
    huge = torch.empty(2**20, 2**20, device="meta")
    path = write_tape(tmp_path / "a.tape", [((huge,), {})], outputs=[t(2)], values="none")
    manifest = open_tape(path)
    # The leaf says "meta": what has no value was passed.
    assert manifest.calls[0].record.inputs.facts()[0].device == "meta"
    assert complete_inputs(manifest.calls[0]).synthetic == 0


def test_a_withheld_text_of_any_length_is_bounded(tmp_path: Path) -> None:
    from tests.forging.call import Forged, inputs_of

    made = Forged(tmp_path / "a.tape", (torch.ones(2),))
    text = {"kind": "opaque", "type": "builtins:str", "reason": "policy", "of": "str", "length": 0}
    made.set_root(inputs_of({"kind": "tensor", "leaf": 0}, text), leaves=1, scalars=1)
    made.inputs["scalars"] = [2**40]
    tape = open_tape(made.write())
    with pytest.raises(TapeError) as caught:
        complete_inputs(tape.calls[0])
    assert caught.value.kind == "limit"
    with Limits(nbytes=100), pytest.raises(TapeError):
        complete_inputs(tape.calls[0])


def test_without_outputs_only_success_can_be_expected(tmp_path: Path, model: Talking) -> None:
    with record(model, tmp_path / "b.tape", values="none", outputs=False):
        model(torch.tensor([[1, 2]]))
    with pytest.raises(TapeError, match="no outputs"):
        replay(open_tape(tmp_path / "b.tape"), model)
    assert replay(open_tape(tmp_path / "b.tape"), model, expect="success").ok


# --- saved programs ------------------------------------------------------------------------------


class Table(torch.nn.Module):
    """Gives what is at an id, in a dict, in a form of its own for each test."""

    def __init__(self, dtype: torch.dtype = torch.float32, width: int = 4, key: str = "x") -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, width)
        self.dtype, self.key = dtype, key

    def forward(self, ids):
        return {self.key: self.table(ids).to(self.dtype), "rows": ids + 1}


def table_tape(folder: Path, name: str, model: torch.nn.Module, **options: Any) -> Tape:
    calls = [call(torch.randint(0, 50, (2, n))) for n in (3, 5, 9)]
    return taped(folder, model, calls, name=name, **options)


def test_shapes_replay_through_saved_programs_as_through_the_model(tmp_path: Path) -> None:
    model = Table().eval()
    tape = table_tape(tmp_path, "shapes.tape", model, values="none")
    programs = export(tape, model)
    assert {row.against for row in programs.verify()} == {"module"}
    programs.save(tmp_path / "saved")
    report, direct = replay(tape, tmp_path / "saved", trusted=True), replay(tape, model)
    assert report.ok, report.table()
    assert [row.against for row in report] == ["shapes"] * 3
    assert [row.compared for row in report] == [0, 0, 0]
    assert report.reproduced == 0
    assert "3 calls agree in structure, dtypes and shapes; no value was compared" in report.summary
    assert set(direct.notes) <= set(report.notes)
    assert "synthetic" in str(*direct.notes)
    assert "verified" not in report.table(every=True)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("form", "error"),
    [
        ({"dtype": torch.float64}, "outputs.x is float64[2, 3, 4] instead of float32[2, 3, 4]"),
        ({"width": 6}, "outputs.x is float32[2, 3, 6] instead of float32[2, 3, 4]"),
        ({"key": "z"}, "other outputs (missing: outputs.x; unexpected: outputs.z)"),
    ],
)
def test_saved_programs_of_another_form_fail(tmp_path: Path, form: Any, error: str) -> None:
    tape = table_tape(tmp_path, "shapes.tape", Table().eval(), values="none")
    other = Table(**form).eval()
    export(table_tape(tmp_path, "other.tape", other), other).save(tmp_path / "saved")
    report = replay(tape, tmp_path / "saved", trusted=True)
    assert [row.ok for row in report] == [False] * 3
    assert str(report.rows[0].error).startswith(error)
    assert "with synthetic arguments" in str(report.rows[0].error)
    assert report.reproduced == 0


def test_saved_programs_are_compared_where_there_are_values(tmp_path: Path) -> None:
    model = Table().eval()
    tape = table_tape(tmp_path, "part.tape", model, values={"*": "all", "outputs.x": "none"})
    export(tape, model).save(tmp_path / "saved")
    report = replay(tape, tmp_path / "saved", trusted=True)
    assert report.ok, report.table()
    assert {row.against for row in report} == {"part"}
    assert report.reproduced == 0
    assert "not on the tape, so compared in dtype and shape only: outputs.x" in map(
        str, report.notes
    )


def test_outputs_of_synthetic_arguments_are_compared_by_shape(tmp_path: Path) -> None:
    """The tape has all outputs, but not what they were made of: other values come out."""
    model = Table().eval()
    tape = table_tape(tmp_path, "ids.tape", model, values={"*": "all", "ids": "none"})
    export(tape, model).save(tmp_path / "saved")
    report = replay(tape, tmp_path / "saved", trusted=True)
    assert report.ok, report.table()
    assert {row.against for row in report} == {"shapes"}
    assert report.reproduced == 0
