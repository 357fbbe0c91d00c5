"""Calls for the program that was exported from them: its manifest tells what a call lacks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import InferenceError, Tape, export, open_tape
from calltape_analyzer.converting import write_onnx_test_data
from tests.analyzer.exported import call, taped
from tests.analyzer.tapes import write_tape

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
runtime = pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.integration


class Growing(torch.nn.Module):
    """Sums what is cached and what comes; gives the grown cache back."""

    def forward(self, x: Any, cache: Any = None, scale: int = 2, note: Any = None) -> Any:
        grown = x if cache is None else torch.cat([cache, x], 1)
        return {"y": x * grown.sum(1, keepdim=True) * scale, "cache": grown}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("growing")
    sizes = [(1, 5, 0), (1, 1, 5), (1, 1, 6), (2, 4, 0), (2, 2, 4), (2, 1, 6)]
    steps = [
        call(torch.randn(batch, new, 3), cache=torch.randn(batch, past, 3) if past else None)
        for batch, new, past in sizes
    ]
    with taped(made, Growing(), steps) as tape:
        export(tape, Growing(), to="onnx").save(made / "saved")
    return made


@pytest.fixture
def tape(folder: Path) -> Tape:
    return open_tape(folder / "calls.tape")


def program_of(folder: Path) -> Path:
    (file,) = (folder / "saved").glob("*.onnx")
    return file


def values(folder: Path, side: str) -> dict[str, Any]:
    protos = [onnx.TensorProto.FromString(p.read_bytes()) for p in sorted(folder.glob(f"{side}_*"))]
    return {proto.name: onnx.numpy_helper.to_array(proto) for proto in protos}


def test_a_merged_program_takes_all_its_calls(folder: Path, tape: Tape, tmp_path: Path) -> None:
    written = write_onnx_test_data(tape, tmp_path / "case", model=program_of(folder))
    assert (written.calls, written.not_inputs) == (6, ())
    assert values(tmp_path / "case/test_data_set_0", "input")["cache"].shape == (1, 0, 3)
    session = runtime.InferenceSession(tmp_path / "case/model.onnx")
    for number in range(6):
        own = tmp_path / f"case/test_data_set_{number}"
        expected = values(own, "output")
        found = session.run(list(expected), values(own, "input"))
        for one, other in zip(found, expected.values(), strict=True):
            torch.testing.assert_close(torch.tensor(one), torch.tensor(other))


def test_a_file_without_its_manifest_says_what_to_do(
    folder: Path, tape: Tape, tmp_path: Path
) -> None:
    alone = shutil.copy(program_of(folder), tmp_path / "alone.onnx")
    with pytest.raises(InferenceError, match="not in the call") as caught:
        write_onnx_test_data(tape, tmp_path / "case", model=alone)
    assert "--variant NAME" in str(caught.value)
    decode = tape.only(variant="decode")
    assert write_onnx_test_data(decode, tmp_path / "case", model=alone).calls == 4


def test_other_calls_are_refused_with_the_reason(folder: Path, tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [((torch.zeros(1, 2, 9),), {})], target=Growing())
    with open_tape(path) as other, pytest.raises(InferenceError, match="call 0 is none of this"):
        write_onnx_test_data(other, tmp_path / "case", model=program_of(folder))


def test_an_argument_that_the_export_left_out_is_refused(tmp_path: Path) -> None:
    steps = [call(torch.randn(2, n, 3), note=torch.ones(1)) for n in (2, 4)]
    with taped(tmp_path, Growing(), steps) as tape:
        tape.remove_inputs(["note"])
        export(tape, Growing(), to="onnx").save(tmp_path / "saved")
        model = program_of(tmp_path)
        assert write_onnx_test_data(tape, tmp_path / "case", model=model).calls == 2
    with (
        open_tape(tmp_path / "calls.tape") as whole,
        pytest.raises(InferenceError, match="note is passed, which remove_inputs left out"),
    ):
        write_onnx_test_data(whole, tmp_path / "again", model=model)
