"""ONNX test data sets: ONNX's own backend test runner loads them, and the model reproduces them."""

from __future__ import annotations

import struct
import unittest
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import InferenceError, TapeError, open_tape
from calltape_analyzer.converting import write_onnx_test_data
from tests.analyzer.cli.commands import run
from tests.analyzer.converting.permissions import check_private
from tests.analyzer.tapes import Recorded, write_tape

onnx = pytest.importorskip("onnx")

pytestmark = pytest.mark.integration


class Scale(torch.nn.Module):
    def forward(self, x: Any, factor: Any) -> Any:
        return x * factor, x.sum(0)


def model_of(path: Path) -> Path:
    """``Scale`` as ONNX, whose inputs are not in the order of the arguments."""
    from onnx import TensorProto, helper

    f32 = TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "factor"], ["scaled"]),
            helper.make_node("ReduceSum", ["x", "axes"], ["total"], keepdims=0),
        ],
        "scale",
        [
            helper.make_tensor_value_info("factor", f32, []),
            helper.make_tensor_value_info("x", f32, ["n", 3]),
        ],
        [
            helper.make_tensor_value_info("scaled", f32, ["n", 3]),
            helper.make_tensor_value_info("total", f32, [3]),
        ],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, path)
    return path


@pytest.fixture
def tape_file(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model, calls = Scale(), []
    for n in (2, 5):
        x, factor = torch.randn(n, 3), torch.tensor(float(n))
        calls.append(Recorded(args=(x, factor), outputs=model(x, factor)))
    calls.append(Recorded(args=(torch.zeros(1, 3), torch.tensor(1.0)), error=("a:B", "no")))
    return write_tape(tmp_path / "a.tape", calls, target=model)


def run_backend_tests(folder: Path) -> unittest.TestResult:
    import onnx.backend.test.runner as runner
    from onnx.backend.test.case.test_case import TestCase
    from onnx.reference import ReferenceEvaluator

    class Rep:
        def __init__(self, model: Any) -> None:
            self.session = ReferenceEvaluator(model)

        def run(self, inputs: Any) -> Any:
            return self.session.run(None, dict(zip(self.session.input_names, inputs, strict=True)))

    class Backend:
        @classmethod
        def prepare(cls, model: Any, device: str, **_: Any) -> Rep:
            return Rep(model)

        @classmethod
        def supports_device(cls, device: str) -> bool:
            return device == "CPU"

        @classmethod
        def is_compatible(cls, model: Any, **_: Any) -> bool:
            return True

    case = TestCase(
        name="test_calltape", model_name="calltape", url=None, model_dir=str(folder), model=None,
        data_sets=None, kind="real", rtol=1e-5, atol=1e-6,
    )  # fmt: skip
    made = runner.Runner(Backend, __name__)
    made._add_model_test(case, "Real")
    item = made._test_items["RealModel"]["test_calltape_cpu"]

    class Case(unittest.TestCase):
        def test(self) -> None:
            item.func(self)

    result = unittest.TestResult()
    Case("test").run(result)
    return result


def test_the_backend_runner_gets_the_recorded_values(tape_file: Path, tmp_path: Path) -> None:
    with open_tape(tape_file) as tape:
        model = model_of(tmp_path / "m.onnx")
        assert write_onnx_test_data(tape, tmp_path / "case", model=model).calls == 2
    sets = sorted(path.name for path in (tmp_path / "case").iterdir())
    assert sets == ["model.onnx", "test_data_set_0", "test_data_set_1"]
    result = run_backend_tests(tmp_path / "case")
    assert (result.testsRun, result.errors, result.failures) == (1, [], [])
    data = (tmp_path / "case/test_data_set_1/output_0.pb").read_bytes()
    changed = onnx.TensorProto.FromString(data)
    changed.raw_data = changed.raw_data[:-4] + struct.pack("<f", 1e6)
    (tmp_path / "case/test_data_set_1/output_0.pb").write_bytes(changed.SerializeToString())
    assert run_backend_tests(tmp_path / "case").failures


def test_only_the_owner_may_read_it(tape_file: Path, tmp_path: Path) -> None:
    with open_tape(tape_file) as tape:
        write_onnx_test_data(tape, tmp_path / "case", model=model_of(tmp_path / "m.onnx"))
    check_private(tmp_path / "case")


def test_what_the_model_does_not_take_is_told(tmp_path: Path) -> None:
    given = {"x": torch.ones(2, 3), "factor": 2, "mask": torch.ones(2), "flag": True, "n": 5}
    recorded = Recorded(kwargs=given, outputs=(torch.ones(2, 3), torch.ones(3)))
    unknown = Recorded(kwargs=given)
    with open_tape(write_tape(tmp_path / "a.tape", [recorded, unknown])) as tape:
        found = write_onnx_test_data(tape, tmp_path / "case", model=model_of(tmp_path / "m.onnx"))
    assert (found.calls, found.raised, found.without_outputs) == (2, 0, 1)
    assert sorted(found.not_tensors) == ["flag", "n"]
    assert found.not_inputs == ("mask",)


def test_what_a_program_checks_is_no_output_of_a_call(tape_file: Path, tmp_path: Path) -> None:
    model = onnx.load(model_of(tmp_path / "m.onnx"))
    checks = onnx.helper.make_tensor_value_info("calltape_checks", onnx.TensorProto.BOOL, [1])
    model.graph.output.append(checks)
    onnx.save(model, tmp_path / "m.onnx")
    with open_tape(tape_file) as tape:
        write_onnx_test_data(tape, tmp_path / "case", model=tmp_path / "m.onnx")
    assert len(list((tmp_path / "case/test_data_set_0").glob("output_*"))) == 2


def test_names_are_there_for_perf_test(tape_file: Path, tmp_path: Path) -> None:
    with open_tape(tape_file) as tape:
        write_onnx_test_data(tape, tmp_path / "case", model=model_of(tmp_path / "m.onnx"))
        write_onnx_test_data(tape, tmp_path / "bare")
    names = [
        [onnx.TensorProto.FromString(p.read_bytes()).name for p in sorted(Path(f).glob("*.pb"))]
        for f in (tmp_path / "case/test_data_set_0", tmp_path / "bare/test_data_set_0")
    ]
    assert names == [["factor", "x", "scaled", "total"], ["x", "factor", "output_0", "output_1"]]


@pytest.mark.parametrize(
    "dtype",
    [
        "float64",
        "float16",
        "bfloat16",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "bool",
        "complex64",
        "complex128",
        "float8_e4m3fn",
    ],
)
def test_every_dtype_of_onnx(tmp_path: Path, dtype: str) -> None:
    value = torch.tensor([0, 1, 1, 0]).to(getattr(torch, dtype))
    path = write_tape(tmp_path / "a.tape", [Recorded(args=(value,), outputs=value)])
    with open_tape(path) as tape:
        write_onnx_test_data(tape, tmp_path / "case")
    proto = onnx.TensorProto.FromString((tmp_path / "case/test_data_set_0/input_0.pb").read_bytes())
    found = onnx.numpy_helper.to_array(proto)
    assert found.astype("complex64").tolist() == [0, 1, 1, 0]


def test_what_cannot_be_written(tape_file: Path, tmp_path: Path) -> None:
    none = write_tape(tmp_path / "n.tape", [((torch.zeros(2, 3),), {})], values="none")
    with open_tape(none) as tape, pytest.raises(InferenceError, match="not on the tape"):
        write_onnx_test_data(tape, tmp_path / "case")
    assert not (tmp_path / "case").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    (tmp_path / "taken").mkdir()
    with open_tape(tape_file) as tape:
        with pytest.raises(TapeError, match="there already"):
            write_onnx_test_data(tape, tmp_path / "taken")
        with pytest.raises(TapeError):
            write_onnx_test_data(tape, tmp_path / "case", model=tape_file)


def test_the_command(tape_file: Path, tmp_path: Path) -> None:
    model = model_of(tmp_path / "m.onnx")
    found = run("convert", tape_file, "--to", "onnx", "--onnx", model, "-o", tmp_path / "case")
    assert (found.code, found.err) == (0, "")
    assert "2 calls" in found.out
    assert run_backend_tests(tmp_path / "case").wasSuccessful()
    assert run("convert", tape_file, "-o", tmp_path / "x").code == 2
