"""Nested tensors are refused at once, in one sentence that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal
from unittest import mock

import pytest
import torch

from calltape_analyzer import ExportError, ExportOptions, NoVariant, Tape, export, open_tape
from calltape_analyzer.programs.reasons import Untraceable, UntraceableKind
from calltape_analyzer.programs.strategies import Strategy
from calltape_recorder import record
from tests.analyzer.exported import call, export_with, taped
from tests.analyzer.exporting.models import Model
from tests.analyzer.nested import Attends, Scales, nested


class Returns(Model):
    def forward(self, x):
        return [torch.nested.as_nested_tensor(x, layout=torch.jagged)]


class Pads(Model):
    def forward(self, x):
        made = torch.nested.as_nested_tensor(x, layout=torch.jagged)
        return made.to_padded_tensor(0.0) * 2


def refusal(tape: Tape, model: torch.nn.Module, **options: Any) -> ExportError:
    with pytest.raises(ExportError) as caught, mock.patch.object(torch.export, "export") as traces:
        export_with(tape, model, **options)
    assert not traces.called
    assert {attempt.strategy for attempt in caught.value.attempts} == {Strategy.NOT_TRACED}
    return caught.value


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.parametrize("to", ["torch", "onnx"])
def test_the_argument_is_named(
    tmp_path: Path, layout: torch.layout, to: Literal["torch", "onnx"]
) -> None:
    model = Scales().train()
    with record(model, tmp_path / "a.tape"):
        for lengths in ((2, 3), (4, 2, 1)):
            model(nested(*lengths, layout=layout))
    tape = open_tape(tmp_path / "a.tape")
    error = str(refusal(tape, model, to=to))
    assert "main: x is a nested tensor, and torch.export makes no program" in error
    assert "a forward that takes the values and the offsets" in error
    assert "padded tensors with a mask" in error
    assert "remove_inputs" not in error
    assert "eval()" not in error  # which would help nobody


def test_a_sparse_call_does_not_keep_the_others_from_a_program(tmp_path: Path) -> None:
    class Doubles(Model):
        def forward(self, x):
            return (x.to_dense() if x.is_sparse else x) * 2

    dense = [call(torch.ones(n, 3)) for n in (2, 4)]
    tape = taped(tmp_path, Doubles(), [*dense, call(torch.ones(3, 3).to_sparse())])
    programs = export(tape, Doubles().eval(), options=ExportOptions(probe="none"))
    assert list(programs) == ["main"]
    (reason,) = programs.missing.values()
    assert reason == Untraceable(UntraceableKind.SPARSE, ("x",), ("sparse_coo",))
    assert [row.ok for row in programs.verify()] == [True, True, False]


def test_nested_tensors_are_named_in_one_error(tmp_path: Path) -> None:
    model = Scales().eval()
    one = nested(2, 3)
    tape = taped(tmp_path, model, [call(one), call(one, one * 2)])
    error = str(refusal(tape, model))
    assert error.count("padded tensors") == 1
    assert "likewise other present" in error


def test_an_error_says_where_in_a_container_a_nested_tensor_is(tmp_path: Path) -> None:
    class Takes(Model):
        def forward(self, batch):
            return batch["items"][0].values()

    tape = taped(tmp_path, Takes(), [call({"items": [nested(2)]})])
    assert "batch.items.0 is a nested tensor" in str(refusal(tape, Takes()))


def test_an_error_says_that_the_model_returns_a_nested_tensor(tmp_path: Path) -> None:
    tape = taped(tmp_path, Returns(), [call(torch.randn(n, 3, 2)) for n in (2, 3)])
    error = str(refusal(tape, Returns()))
    assert "the model returns a nested tensor (outputs.0)" in error


def test_an_error_says_where_the_model_makes_a_nested_tensor(tmp_path: Path) -> None:
    tape = taped(tmp_path, Pads(), [call(torch.randn(n, 3, 2)) for n in (2, 3)])
    with pytest.raises(ExportError) as caught:
        export(tape, Pads())
    error = str(caught.value)
    assert "the model makes a nested tensor at test_untraceable.py:" in error
    assert "in forward: made = torch.nested.as_nested_tensor" in error
    assert "padded tensors with a mask" in error


def test_other_variants_are_exported(tmp_path: Path) -> None:
    model = Scales().eval()
    calls = [call(torch.randn(n, 8)) for n in (2, 5)]
    tape = taped(tmp_path, model, [*calls, call(nested(2, 3))])
    programs = export(tape, model)
    assert programs.verify().reproduced == 2
    (reason,) = programs.missing.values()
    assert reason == Untraceable(UntraceableKind.NESTED, ("x",))
    with pytest.raises(NoVariant, match="x is a nested tensor"):
        programs(nested(2, 3))


class OnValues(torch.nn.Module):
    """What the sentence advises: the values and the offsets as arguments."""

    def __init__(self, model: Attends) -> None:
        super().__init__()
        self.model = model

    def forward(self, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        parts = self.model.project(values).chunk(3, -1)
        q, k, v = (part.unflatten(-1, [2, 4]).transpose(0, 1)[None] for part in parts)
        owner = torch.bucketize(torch.arange(values.shape[0]), offsets[1:], right=True)
        mask = owner[:, None] == owner[None]
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return mixed[0].transpose(0, 1).flatten(-2)


@pytest.mark.integration
def test_the_advice_works(tmp_path: Path) -> None:
    attends = Attends().eval()
    model = OnValues(attends).eval()
    with record(model, tmp_path / "a.tape") as recorder, torch.no_grad():
        for lengths in ((2, 3), (4, 1, 5), (3, 3, 1, 2)):
            one = nested(*lengths)
            expected = attends(one).values()
            torch.testing.assert_close(model(one.values(), one.offsets()), expected)
    assert recorder.stats().kept == 3
    with open_tape(tmp_path / "a.tape") as tape:
        programs = export(tape, model)
        assert len(programs) == 1
        assert programs.verify().ok
