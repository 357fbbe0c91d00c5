"""The inputs of a program's file for a call, and the examples that write them for other tools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calltape_analyzer import NoVariant, export, load_programs, open_tape
from tests.analyzer.exported import call, taped

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
runtime = pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SIZES = [(1, 5, 0), (1, 1, 5), (1, 1, 6), (2, 4, 0), (2, 2, 4), (2, 1, 6)]


class Growing(torch.nn.Module):
    """Sums what is cached and what comes; gives the grown cache back."""

    def forward(self, x: Any, cache: Any = None, scale: int = 2, note: Any = None) -> Any:
        if x.shape[-1] != 3:
            raise ValueError("three features")
        grown = x if cache is None else torch.cat([cache, x], 1)
        return {"y": x * grown.sum(1, keepdim=True) * scale, "cache": grown}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("growing")
    steps = [
        call(torch.randn(batch, new, 3), cache=torch.randn(batch, past, 3) if past else None)
        for batch, new, past in SIZES
    ]
    with taped(made, Growing(), [call(torch.randn(1, 2, 4)), *steps]) as tape:
        assert tape[0].error is not None
        export(tape, Growing(), to="onnx").save(made / "saved")
    return made


def ran(example: str, folder: Path, out: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / example, folder / "calls.tape", folder / "saved", out],
        capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def reproduced(session: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    for got, expected in zip(session.run(list(outputs), inputs), outputs.values(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def values(folder: Path, side: str) -> dict[str, Any]:
    protos = [onnx.TensorProto.FromString(p.read_bytes()) for p in sorted(folder.glob(f"{side}_*"))]
    return {proto.name: onnx.numpy_helper.to_array(proto) for proto in protos}


def test_a_session_of_the_file_takes_them(folder: Path) -> None:
    programs = load_programs(folder / "saved")
    (name,) = programs
    session = runtime.InferenceSession(programs[name].exported)
    for batch, new, past in SIZES:
        x, cache = torch.randn(batch, new, 3), torch.randn(batch, past, 3) if past else None
        found, inputs = programs.inputs_for(x, cache=cache)
        assert (found, list(inputs)) == (name, [one.name for one in session.get_inputs()])
        assert inputs["cache"].shape == (batch, past, 3)  # a prefill has an empty one
        own = {key: value.numpy() for key, value in inputs.items()}
        outputs = {key: value.numpy() for key, value in Growing()(x, cache).items()}
        reproduced(session, own, dict(zip(_outputs(session), outputs.values(), strict=True)))


def _outputs(session: Any) -> list[str]:
    return [output.name for output in session.get_outputs() if output.name != "calltape_checks"]


def test_other_arguments_have_none(folder: Path) -> None:
    with pytest.raises(NoVariant, match="no program is for these arguments"):
        load_programs(folder / "saved").inputs_for(torch.randn(1, 2, 9))


def test_a_constant_is_compared(tmp_path: Path) -> None:
    """An argument of one value, which the program has as a constant, is no input of the file."""
    steps = [call(torch.randn(2, n, 3), scale=3) for n in (2, 4)]
    with taped(tmp_path, Growing(), steps) as tape:
        programs = export(tape, Growing(), to="onnx")
    x = torch.randn(2, 7, 3)
    assert list(programs.inputs_for(x, scale=3)[1].values()) == [x]
    with pytest.raises(NoVariant, match="scale"):
        programs.inputs_for(x, scale=4)


def test_the_inputs_for_a_call_run_the_exported_module(tmp_path: Path) -> None:
    with taped(tmp_path, Growing(), [call(torch.randn(2, n, 3)) for n in (2, 4)]) as tape:
        programs = export(tape, Growing())
    x = torch.randn(2, 7, 3)
    name, inputs = programs.inputs_for(x)
    found = programs[name].exported.module()(*inputs.values())
    assert torch.equal(found["y"], Growing()(x)["y"])


def test_the_example_writes_onnx_test_data_that_the_model_reproduces(
    folder: Path, tmp_path: Path
) -> None:
    ran("onnx_test_data.py", folder, tmp_path / "out")
    (made,) = (tmp_path / "out").iterdir()
    sets = sorted(path.name for path in made.iterdir())
    assert sets == ["model.onnx", *(f"test_data_set_{n}" for n in range(6))]
    session = runtime.InferenceSession(made / "model.onnx")
    for data_set in made.glob("test_data_set_*"):
        inputs, outputs = values(data_set, "input"), values(data_set, "output")
        assert list(inputs) == [one.name for one in session.get_inputs()]
        assert list(outputs) == _outputs(session)
        reproduced(session, inputs, outputs)
    with open_tape(folder / "calls.tape") as tape:
        first = values(made / "test_data_set_0", "input")["x"]
        assert first.tolist() == tape[1].inputs.args[0].tolist()


def test_the_example_writes_polygraphy_inputs_that_the_model_reproduces(
    folder: Path, tmp_path: Path
) -> None:
    comparator = pytest.importorskip("polygraphy.comparator")
    ran("polygraphy_inputs.py", folder, tmp_path)
    (inputs,), (outputs,) = tmp_path.glob("*.inputs.json"), tmp_path.glob("*.outputs.json")
    (model,) = (folder / "saved").glob("*.onnx")
    session = runtime.InferenceSession(model)
    feeds = list(comparator.StreamingDataLoader(str(inputs), allow_dirs=True))
    results = comparator.RunResults.load(str(outputs))["calltape"]
    assert len(feeds) == len(results) == 6
    for feed, result in zip(feeds, results, strict=True):
        assert result.runtime > 0
        assert list(result.keys()) == _outputs(session)
        reproduced(session, dict(feed), dict(result.items()))
