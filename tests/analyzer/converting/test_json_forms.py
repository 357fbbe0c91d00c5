"""JSON forms: Polygraphy loads what was written, and gets the same values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calltape_analyzer import UsageError, open_tape
from calltape_analyzer.converting import (
    write_polygraphy_inputs,
    write_polygraphy_outputs,
)
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import Recorded, write_tape

pytestmark = pytest.mark.integration


def function(x: Any, cache: Any, mask: Any = None) -> Any: ...


@pytest.fixture
def calls() -> list[Recorded]:
    torch.manual_seed(0)
    return [
        Recorded(
            args=(torch.randn(1, n),),
            kwargs={"cache": {"k": [torch.arange(n).expand(2, n)]}, "mask": torch.ones(1, n) > 0},
            outputs={"y": torch.randn(1, n).t(), "n": 3},
        )
        for n in (2, 3)
    ]


@pytest.fixture
def tape_file(tmp_path: Path, calls: list[Recorded]) -> Path:
    return write_tape(tmp_path / "a.tape", calls, target=function)


def expected_inputs(call: Recorded) -> dict[str, Any]:
    return {
        "x": call.args[0].numpy(),
        "cache_k_0": call.kwargs["cache"]["k"][0].numpy(),
        "mask": call.kwargs["mask"].numpy(),
    }


def test_polygraphy_loads_the_inputs(
    tape_file: Path, tmp_path: Path, calls: list[Recorded]
) -> None:
    comparator = pytest.importorskip("polygraphy.comparator")
    with open_tape(tape_file) as tape:
        assert write_polygraphy_inputs(tape, tmp_path / "in.json").calls == 2
    loader = comparator.StreamingDataLoader(str(tmp_path / "in.json"), allow_dirs=True)
    found = list(loader)
    assert len(found) == 2
    for one, call in zip(found, calls, strict=True):
        expected = expected_inputs(call)
        assert list(one) == list(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(one[name], array, strict=True)


def test_polygraphy_loads_the_outputs(
    tape_file: Path, tmp_path: Path, calls: list[Recorded]
) -> None:
    comparator = pytest.importorskip("polygraphy.comparator")
    with open_tape(tape_file) as tape:
        assert write_polygraphy_outputs(tape, tmp_path / "out.json").calls == 2
    found = comparator.RunResults.load(str(tmp_path / "out.json"))
    results = found["calltape"]
    assert [result.runtime for result in results] == [0.0015, 0.0015]
    for result, call in zip(results, calls, strict=True):
        assert list(result.keys()) == ["output_y"]
        np.testing.assert_array_equal(result["output_y"], call.outputs["y"].numpy(), strict=True)


def test_dtypes_that_a_form_lacks(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [((torch.zeros(2).bfloat16(),), {})])
    with (
        open_tape(path) as tape,
        pytest.raises(UsageError, match=r"NumPy has no torch\.bfloat16.*safetensors"),
    ):
        write_polygraphy_inputs(tape, tmp_path / "p.json")
    assert [one.name for one in tmp_path.iterdir()] == ["a.tape"]


def test_the_command(tape_file: Path, tmp_path: Path) -> None:
    for form in ("polygraphy", "polygraphy-outputs"):
        found = run("convert", tape_file, "--to", form, "-o", tmp_path / f"{form}.json")
        assert found.code == 0, found.err
        assert found.out.endswith(f"{form}.json: 2 calls\n")
        assert json.loads((tmp_path / f"{form}.json").read_text())


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    x = torch.zeros(1, 3)
    given = [
        Recorded(args=(x,), kwargs={"cache": {"k": [x], "n": 7}, "mask": "causal"},
                 outputs={"y": x, "n": 3}),
        Recorded(args=(x, None), error=("builtins:ValueError", "no")),
    ]  # fmt: skip
    path = write_tape(tmp_path / "a.tape", given, target=function)
    inputs = ["cache.n", "mask"]
    both = [*inputs, "outputs.n"]
    for form, names in (
        ("polygraphy", inputs), ("polygraphy-outputs", ["outputs.n"]), ("onnx", both),
    ):  # fmt: skip
        out = tmp_path / form
        told = run("convert", path, "--to", form, "-o", out)
        assert told.code == 0, told.err
        assert "left out: 1 call that raised; values that are no tensors: " in told.out
        assert told.out.rstrip().endswith(", ".join(names))


def test_calls_of_several_variants_are_told(tmp_path: Path) -> None:
    x = torch.zeros(1, 3)
    given = [
        Recorded(args=(x, x), outputs=x),
        Recorded(args=(x, x), kwargs={"mask": x}, outputs=x),
    ]
    path = write_tape(tmp_path / "a.tape", given, target=function)
    for form in ("polygraphy", "onnx"):
        told = run("convert", path, "--to", form, "-o", tmp_path / form)
        assert told.code == 0, told.err
        assert "note: only some of the calls have mask; " in told.out
        assert "--variant" in told.out
        words = ("convert", path, "--to", form, "-o", tmp_path / f"{form}.one", "--calls", "1")
        assert "note:" not in run(*words).out
    told = run("convert", path, "--to", "polygraphy-outputs", "-o", tmp_path / "outputs")
    assert "note:" not in told.out


def test_no_call_to_write_is_an_error(tmp_path: Path) -> None:
    raised = Recorded(args=(torch.zeros(1, 3), None), error=("builtins:ValueError", "no"))
    path = write_tape(tmp_path / "a.tape", [raised], target=function)
    for form in ("polygraphy", "polygraphy-outputs", "onnx"):
        found = run("convert", path, "--to", form, "-o", tmp_path / "out")
        assert found.code == 1
        assert "there is no call to write: 1 raised" in found.err
        assert "Choose calls that returned" in found.err
    assert list(tmp_path.iterdir()) == [path]
