"""What is said without running a model is what running it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Tape, TapeError, check, export, replay
from calltape_analyzer.errors import UsageError
from tests.analyzer.exported import call, taped
from tests.analyzer.exporting.models import Model, t

SIZES = (2, 3, 4, 6, 8, 10, 11)


class Plain(Model):
    def forward(self, x, y):
        return self.linear(x) + y


class Branching(Model):
    def forward(self, x, y):
        return self.linear(x) + y if x.shape[0] <= 6 else self.linear(x) - y


class Halved(Model):
    def forward(self, x, y):
        return self.linear(x).view(-1, 2, 3)[:, 0] + y[:1]


def tape_of(folder: Path, module: torch.nn.Module) -> Tape:
    return taped(
        folder,
        module,
        [call(t(n, 3), t(n, 3)) for n in SIZES if n % 2 == 0 or type(module) is not Halved],
    )


def agree(tape: Tape, model: Any) -> list[int]:
    """The sizes that are refused, which are those that fail when they are run."""
    checked, replayed = check(tape, model), replay(tape, model)
    rows = list(zip(checked.rows, replayed.rows, strict=True))
    for said, ran in rows:
        # Values do not matter here: a call that a program takes may give others.
        others = ("elements differ", "outputs is")
        failed = not ran.ok and not any(words in str(ran.error) for words in others)
        assert said.ok is not failed, (said, ran)
        assert said.ok or said.error
    return [c.record.inputs.facts()[0].shape[0]
            for c, (said, _) in zip(tape.calls, rows, strict=True) if not said.ok]  # fmt: skip


def exported(module: torch.nn.Module, dim: Any) -> Any:
    shapes = {"x": {0: dim}, "y": {0: dim}}
    return torch.export.export(module, (t(4, 3), t(4, 3)), dynamic_shapes=shapes)


def test_sizes_outside_a_declared_range_are_rejected(tmp_path: Path) -> None:
    module = Plain()
    tape = tape_of(tmp_path, module)
    program = exported(module, torch.export.Dim("n", min=3, max=10))
    assert agree(tape, program) == [2, 11]
    torch.export.save(program, str(tmp_path / "model.pt2"))
    report = check(tape, tmp_path / "model.pt2", trusted=True)
    refused = [row for row in report.rows if not row.ok]
    assert [row.error.dimension for row in refused] == ["x[0]", "x[0]"]
    assert "at least 3" in str(refused[0].error)
    assert "at most 10" in str(refused[1].error)


def test_condition_that_the_trace_made(tmp_path: Path) -> None:
    module = Branching()
    assert agree(tape_of(tmp_path, module), exported(module, torch.export.Dim.AUTO)) == [8, 10, 11]


def test_sizes_that_are_no_multiple_are_rejected(tmp_path: Path) -> None:
    module = Halved()
    tape = taped(tmp_path, Plain(), [call(t(n, 3), t(n, 3)) for n in SIZES])
    assert agree(tape, exported(module, torch.export.Dim.AUTO)) == [2, 3, 11]


def test_sizes_other_than_a_constant_are_rejected(tmp_path: Path) -> None:
    module = Plain()
    program = torch.export.export(module, (t(4, 3), t(4, 3)))
    assert agree(tape_of(tmp_path, module), program) == [2, 3, 6, 8, 10, 11]


def test_programs_and_their_directory_are_checked_alike(tmp_path: Path) -> None:
    module = Branching()
    few = taped(tmp_path, module, [call(t(n, 3), t(n, 3)) for n in (2, 3)], name="few.tape")
    programs = export(few, module)
    programs.save(tmp_path / "saved")
    tape = tape_of(tmp_path, module)
    ours, theirs = check(tape, programs), check(tape, str(tmp_path / "saved"))
    assert [r.ok for r in ours.rows] == [r.ok for r in theirs.rows]
    for row, ran in zip(ours.rows, programs.verify(tape), strict=True):
        assert row.ok is ran.ok


@pytest.mark.parametrize("name", ["no.pt2", "no.onnx"])
def test_missing_file_is_not_found(name: str, tmp_path: Path) -> None:
    with pytest.raises(TapeError) as caught:
        check(tape_of(tmp_path, Plain()), tmp_path / name)
    assert caught.value.kind == "not_found"


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        check(tape_of(tmp_path, Plain()), 3)


# --- ONNX ----------------------------------------------------------------------------------------


def onnx_model(x: Any, y: Any, dtype: str = "FLOAT", more: tuple[str, ...] = ()) -> Any:
    from onnx import TensorProto, helper

    kind = getattr(TensorProto, dtype)
    inputs = [helper.make_tensor_value_info(name, kind, shape)
              for name, shape in (("x", x), ("y", y), *((m, [1]) for m in more))]  # fmt: skip
    output = helper.make_tensor_value_info("out", kind, None)
    graph = helper.make_graph([helper.make_node("Add", ["x", "y"], ["out"])], "g", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("x", "y", "refused"),
    [
        (["n", 3], ["n", 3], []),
        (["n", 3], ["m", 3], []),
        ([4, 3], ["n", 3], [2, 3, 6, 8, 10, 11]),
        (["n", 3], [6, 3], [2, 3, 4, 8, 10, 11]),
        (["n", 4], ["n", 4], list(SIZES)),
        (["n", "n"], ["n", 3], [2, 4, 6, 8, 10, 11]),
        (["n", 3, 1], ["n", 3], list(SIZES)),
        ([None, None], [None, None], []),
    ],
)
def test_declared_dimensions_of_onnx_models_reject_other_sizes(
    x: Any, y: Any, refused: list[int], tmp_path: Path
) -> None:
    report = check(tape_of(tmp_path, Plain()), onnx_model(x, y))
    assert [n for n, row in zip(SIZES, report.rows, strict=True) if not row.ok] == refused
    if x == [4, 3]:
        assert {row.error.dimension for row in report.rows if not row.ok} == {"x[0]"}


@pytest.mark.integration
@pytest.mark.parametrize(("x", "y"), [([4, 3], ["n", 3]), (["n", 3], [6, 3]), (["n", 4], ["n", 4])])
def test_static_dimensions_are_refused_by_the_runtime_too(x: Any, y: Any, tmp_path: Path) -> None:
    agree(tape_of(tmp_path, Plain()), onnx_model(x, y))


class Sum(Model):
    def forward(self, x, y):
        return x + y


@pytest.mark.integration
@pytest.mark.parametrize("dtype", ["float16", "float", "double", "int32", "int64"])
def test_inputs_of_each_dtype_are_taken(dtype: str, tmp_path: Path) -> None:
    """ONNX and torch have different names for some of them."""
    kind = getattr(torch, dtype)
    tape = taped(tmp_path, Sum(), [call(t(n, 3).to(kind), t(n, 3).to(kind)) for n in SIZES])
    assert agree(tape, onnx_model(["n", 3], ["n", 3], dtype.upper())) == []


@pytest.mark.integration
@pytest.mark.parametrize("model", [{"dtype": "DOUBLE"}, {"more": ("state",)}])
def test_other_types_and_missing_inputs_are_refused(model: Any, tmp_path: Path) -> None:
    tape = tape_of(tmp_path, Plain())
    assert agree(tape, onnx_model(["n", 3], ["n", 3], **model)) == list(SIZES)
