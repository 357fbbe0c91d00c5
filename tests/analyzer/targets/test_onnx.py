"""dynamic_axes: names for what goes in and what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import InferenceError, dynamic_axes, open_tape
from tests.analyzer.tapes import Recorded, write_tape


def t(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def forward(x, y=None):
    return x


def tape_of(tmp_path: Path, *calls: tuple[Any, Any]) -> Any:
    recorded = [Recorded(args, outputs=outputs) for args, outputs in calls]
    return open_tape(write_tape(tmp_path / "a.tape", recorded, target=forward))


def test_outputs_share_the_names_of_inputs(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, ((t(2, 5),), t(2, 7)), ((t(3, 6),), t(3, 7)))
    axes = dynamic_axes(tape)
    assert axes == {"x": {0: "x_dim_0", 1: "x_dim_1"}, "output": {0: "x_dim_0"}}
    assert (axes.input_names, axes.output_names) == (["x"], ["output"])


def test_an_output_size_of_its_own_has_a_name_of_its_own(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, ((t(2, 8),), (t(4, 4), t(2))), ((t(3, 8),), (t(6, 4), t(3))))
    axes = dynamic_axes(tape)
    assert axes == {
        "x": {0: "x_dim_0"}, "outputs.0": {0: "outputs_0_dim_0"}, "outputs.1": {0: "x_dim_0"}
    }  # fmt: skip


def test_nested_tensors_and_fields_have_names(tmp_path: Path) -> None:
    def call(n: int) -> Any:
        return (t(n, 1), [t(n), {"k": t(1)}]), {"logits": t(n, 4), "x": None, "y": (t(n), t(2))}

    axes = dynamic_axes(tape_of(tmp_path, call(2), call(3)))
    assert axes.input_names == ["x", "y.0", "y.1.k"]
    assert axes.output_names == ["logits", "outputs.y.0", "y.1"]
    assert set(axes) == {"x", "y.0", "logits", "outputs.y.0"}


def test_outputs_at_other_places_are_no_single_graph(tmp_path: Path) -> None:
    calls = [((t(n, 5),), {name: t(n, 4)}) for n, name in ((2, "logits"), (3, "loss"))]
    with pytest.raises(InferenceError, match="call 1 returned 1 tensor, and an earlier one 1, or"):
        dynamic_axes(tape_of(tmp_path, *calls))


def test_names_can_be_given(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, ((t(2, 5),), t(2)), ((t(3, 5),), t(3)))
    axes = dynamic_axes(
        tape, ["pixels"], ["score"], dim_names={"x": {0: "batch"}, "output": {0: "batch"}}
    )
    assert axes == {"pixels": {0: "batch"}, "score": {0: "batch"}}
    with pytest.raises(ValueError, match="2 input names for 1 tensor "):
        dynamic_axes(tape, ["a", "b"])


def test_a_declared_batch_goes_through(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, ((t(2, 5),), t(2, 3)), ((t(2, 6),), t(2, 3)))
    assert dynamic_axes(tape) == {"x": {1: "x_dim_1"}}
    assert dynamic_axes(tape, set_batch_dimension_for={"x"}) == {
        "x": {0: "x_dim_0", 1: "x_dim_1"}, "output": {0: "x_dim_0"}
    }  # fmt: skip


def test_outputs_are_needed(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [((t(2),), {})], target=forward)
    with pytest.raises(InferenceError, match="No outputs"):
        dynamic_axes(open_tape(path))
    with pytest.raises(InferenceError, match="returned 2 tensors"):
        dynamic_axes(tape_of(tmp_path, ((t(2),), t(2)), ((t(3),), (t(2), t(3)))))


def test_a_call_with_outputs_that_raised_is_no_evidence(tmp_path: Path) -> None:
    """No recorder writes one, but a stranger's tape may have it."""
    calls = [Recorded((t(n, 5),), outputs=t(n)) for n in (2, 3)]
    calls.append(Recorded((t(4, 6),), outputs=t(9), error=("builtins:ValueError", "no")))
    tape = open_tape(write_tape(tmp_path / "a.tape", calls, target=forward))
    assert dynamic_axes(tape) == {"x": {0: "x_dim_0"}, "output": {0: "x_dim_0"}}
