"""Programs for calls under autocast, and for models that ask for the grad or inference mode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from calltape_analyzer import NoVariant, Tape, export, load_programs, open_tape, replay
from calltape_analyzer.model.calls import as_called
from calltape_analyzer.observing.contexts import Context
from calltape_recorder import record
from tests.analyzer.exported import assert_same
from tests.analyzer.exporting.models import Model, t
from tests.recorder.contexts import default_dtype

Entered = Callable[[], Any]
no_grad, inference, gradients = torch.no_grad, torch.inference_mode, torch.enable_grad


def bfloat16() -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def float16() -> Any:
    return torch.autocast("cpu", dtype=torch.float16)


def float64() -> Any:
    return default_dtype(torch.float64)


class Layers(Model):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.norm = torch.nn.Linear(4, 8), torch.nn.LayerNorm(8)
        self.last = torch.nn.Linear(8, 4)

    def forward(self, x):
        return torch.softmax(self.last(self.norm(torch.relu(self.first(x)))), -1)


class Inner(Layers):
    """A part of it is not under the autocast of its caller."""

    def forward(self, x):
        y = self.first(x)
        with torch.autocast("cpu", enabled=False):
            return y, self.last(self.norm(y.float()))


class Asking(Model):
    def forward(self, x):
        return x * 2 if torch.is_grad_enabled() else x * 3


class AskingTensors(Layers):
    def forward(self, x):
        y = self.first(x)
        return y + 1 if y.requires_grad else y


class AskingInference(Model):
    def forward(self, x):
        return x * 2 if torch.is_inference_mode_enabled() else x * 3


class Making(Model):
    def forward(self, x):
        return x + torch.zeros(4) + torch.arange(4) / 2


class Unasking(Layers):
    """Its code names the mode, and its results do not depend on it."""

    def forward(self, x):
        if torch.is_grad_enabled():
            x = x.clone()
        with torch.no_grad():
            y = self.first(x)
        return self.last(y) + x


def taped(
    folder: Path, model: Any, contexts: Sequence[Entered], sizes: Sequence[int] = (2, 5)
) -> Tape:
    with record(model, folder / "calls.tape"):
        for entered in contexts:
            for size in sizes:
                with entered():
                    model(t(size, 4))
    return open_tape(folder / "calls.tape")


def assert_as_model(programs: Any, model: Any, entered: Entered, size: int = 7) -> None:
    x = t(size, 4)
    with entered():
        expected, got = model(x), programs(x)
    assert_same(detached(expected), got, 1e-2)


def detached(value: Any) -> Any:
    return tree_map(torch.Tensor.detach, value)


@pytest.mark.integration
@pytest.mark.parametrize("model", [Layers, Inner])
@pytest.mark.parametrize(
    ("to", "entered"), [("torch", bfloat16), ("torch", float16), ("onnx", bfloat16)]
)
def test_a_program_does_what_the_model_does_under_autocast(
    tmp_path: Path, model: Any, to: Any, entered: Entered
) -> None:
    module = model()
    programs = export(taped(tmp_path, module, [entered]), module, to=to)
    assert programs.verify().ok
    assert_as_model(programs, module, entered)


def test_calls_with_and_without_autocast_have_programs_of_their_own(tmp_path: Path) -> None:
    module = Layers()
    tape = taped(tmp_path, module, [bfloat16, no_grad])
    assert [v.name for v in tape.variants()] == ["autocast cpu bfloat16", "no autocast"]
    assert [v.findings.context for v in tape.variants()] == ["autocast cpu bfloat16", None]
    programs = export(tape, module)
    assert_as_model(programs, module, bfloat16)
    assert_as_model(programs, module, no_grad)
    with float16(), pytest.raises(NoVariant, match="called with autocast cpu float16"):
        programs(t(3, 4))
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    assert loaded.verify(tape).ok
    assert_as_model(loaded, module, bfloat16)
    with float16(), pytest.raises(NoVariant, match="the program is for autocast cpu bfloat16"):
        loaded(t(3, 4))


@pytest.mark.integration
def test_the_default_dtype_of_a_call_is_that_of_its_program(tmp_path: Path) -> None:
    module = Making()
    tape = taped(tmp_path, module, [float64, contextlib.nullcontext])
    assert [v.name for v in tape.variants()] == ["default dtype float64", "default dtype float32"]
    assert replay(tape, module).ok
    programs = export(tape, module)
    assert programs.verify().ok
    assert_as_model(programs, module, float64)
    assert_as_model(programs, module, contextlib.nullcontext)
    with default_dtype(torch.bfloat16), pytest.raises(NoVariant, match="default dtype bfloat16"):
        programs(t(3, 4))
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    assert loaded.verify(tape).ok
    other = tmp_path / "other"
    other.mkdir()
    assert replay(taped(other, module, [float64]), programs["default dtype float64"].exported).ok
    with default_dtype(torch.bfloat16), pytest.raises(NoVariant, match="for default dtype float64"):
        loaded(t(3, 4))
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.integration
def test_casts_are_not_made_twice(tmp_path: Path) -> None:
    # Outside of calltape's dispatch a program runs under whatever its caller is under.
    module = Layers()
    programs = export(taped(tmp_path, module, [no_grad]), module)
    (program,) = programs.values()
    with bfloat16():
        (got,) = program.model.run({"x": t(3, 4)})
        assert torch.is_autocast_enabled("cpu")
    assert got.dtype is torch.float32


@pytest.mark.integration
def test_replay_puts_each_call_into_its_context(tmp_path: Path) -> None:
    module = Layers()
    tape = taped(tmp_path, module, [bfloat16, no_grad, float16, inference])
    with float16():  # what the caller of replay is under does not count
        assert replay(tape, module).ok
        assert torch.is_autocast_enabled("cpu")
    assert replay(tape, export(tape, module)).ok


def test_no_mode_separates_calls_of_a_model_that_does_not_mind(tmp_path: Path) -> None:
    module = Unasking()
    tape = taped(tmp_path, module, [gradients, no_grad, inference])
    programs = export(tape, module)
    assert len(programs) == 1
    for entered in (gradients, no_grad, inference):
        assert_as_model(programs, module, entered)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("model", "on", "off"),
    [
        (Asking, gradients, no_grad),
        (AskingTensors, gradients, no_grad),
        (AskingInference, inference, no_grad),
    ],
)
def test_a_mode_separates_calls_of_a_model_that_asks_for_it(
    tmp_path: Path, model: Any, on: Entered, off: Entered
) -> None:
    module = model()
    tape = taped(tmp_path, module, [on, off])
    programs = export(tape, module)
    assert programs.verify().ok
    assert len(programs) == 2
    for entered in (on, off):
        assert_as_model(programs, module, entered)
    assert replay(tape, module).ok


def test_a_call_in_a_mode_that_was_not_recorded_is_refused(tmp_path: Path) -> None:
    module = Asking()
    programs = export(taped(tmp_path, module, [no_grad]), module)
    programs.save(tmp_path / "saved")
    for each in (programs, load_programs(tmp_path / "saved", trusted=True)):
        with no_grad():
            assert_same(module(x := t(3, 4)), each(x))
        with pytest.raises(NoVariant, match="called with gradients; the program is for no grad"):
            each(t(3, 4))


class AskingLeaf(Model):
    def forward(self, x):
        return x * 2 if x.requires_grad else x * 3


class AskingBoth(Model):
    def forward(self, x):
        return x * 2 if torch.is_grad_enabled() and x.requires_grad else x * 3


@pytest.mark.parametrize("recorded", [(False,), (True,), (True, False)])
@pytest.mark.parametrize("model", [AskingLeaf, AskingBoth])
def test_requires_grad_separates_calls_of_a_model_that_asks_for_it(
    tmp_path: Path, model: Any, recorded: Sequence[bool]
) -> None:
    module = model()
    with record(module, tmp_path / "calls.tape"):
        for wanted in recorded:
            module(t(2, 4).requires_grad_(wanted))
            module(t(5, 4).requires_grad_(wanted))
    tape = open_tape(tmp_path / "calls.tape")
    programs = export(tape, module)
    assert programs.verify().ok
    programs.save(tmp_path / "saved")
    for each in (programs, load_programs(tmp_path / "saved", trusted=True)):
        for wanted in (True, False):
            x = t(3, 4).requires_grad_(wanted)
            if wanted in recorded:
                assert_same(module(x), each(x))
            else:
                with pytest.raises(NoVariant, match=f"x is of requires_grad {wanted}"):
                    each(x)


def test_autocast_of_a_device_that_is_not_here_becomes_that_of_this_one() -> None:
    context = Context((("cuda", "float16"),), (("cuda", "float16"),))
    with as_called(context, "cpu"):
        assert torch.get_autocast_dtype("cpu") is torch.float16
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_that_met_no_argument_separates_nothing() -> None:
    def cuda() -> Any:
        stack = contextlib.ExitStack()
        stack.callback(torch.set_autocast_enabled, "cuda", False)
        torch.set_autocast_enabled("cuda", True)
        return stack

    with cuda():
        assert Context.now(["cpu"]).key == ()
        assert Context.now(["cuda:0"]).key != ()
