"""The context of a call on the tape: autocast, the grad and the inference mode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import PerStructure, record
from calltape_recorder.capture import contexts
from calltape_schema.tree import CallContext
from tests.recorder.contexts import default_dtype
from tests.recorder.models import Echo
from tests.recorder.reading import read


def autocast(dtype: torch.dtype) -> Any:
    return torch.autocast("cpu", dtype=dtype)


@contextlib.contextmanager
def within_others() -> Iterator[None]:
    """What counts is what the caller sees."""
    off = torch.autocast("cpu", enabled=False)
    with autocast(torch.bfloat16), off, torch.no_grad(), torch.enable_grad():
        yield


CONTEXTS: dict[str, tuple[Callable[[], Any], CallContext | None]] = {
    "none": (contextlib.nullcontext, None),
    "no_grad": (torch.no_grad, CallContext(grad=False)),
    "inference": (torch.inference_mode, CallContext(grad=False, inference=True)),
    "bfloat16": (
        lambda: autocast(torch.bfloat16),
        CallContext(autocast=({"device": "cpu", "dtype": "bfloat16"},)),
    ),
    "float16": (
        lambda: autocast(torch.float16),
        CallContext(autocast=({"device": "cpu", "dtype": "float16"},)),
    ),
    "default": (lambda: default_dtype(torch.float64), CallContext(default_dtype="float64")),
    "disabled": (lambda: torch.autocast("cpu", enabled=False), None),
    "within others": (within_others, None),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", CONTEXTS)
def test_each_context_is_on_the_tape(tmp_path: Path, name: str, training: bool) -> None:
    entered, expected = CONTEXTS[name]
    model = Echo().train(training)
    with record(model, tmp_path / "a.tape"), entered():
        model(torch.ones(2), [1, "text"])
    (call,) = read(tmp_path / "a.tape").calls
    if training:
        document = {} if expected is None else expected.model_dump()
        expected = CallContext(**(document | {"training": True}))
    assert call.record.inputs.spec().context == expected
    assert call.record.outputs is not None
    assert call.record.outputs.spec().context is None


def test_calls_that_look_alike_keep_their_contexts(tmp_path: Path) -> None:
    # Equal tensors are recognized without a look at them: in another context they are not equal.
    model, given = Echo().eval(), (torch.ones(2, 3), torch.zeros(2, 3))
    order = ("none", "none", "none", "bfloat16", "float16", "none", "no_grad", "inference")
    order += ("default", "none")
    with record(model, tmp_path / "a.tape"):
        for name in order:
            with CONTEXTS[name][0]():
                model(*given)
    calls = read(tmp_path / "a.tape").calls
    assert [c.record.inputs.spec().context for c in calls] == [CONTEXTS[n][1] for n in order]


def test_a_call_of_each_context_is_kept_per_structure(tmp_path: Path) -> None:
    model = Echo()
    with record(model, tmp_path / "a.tape", keep=PerStructure(1)):
        for _ in range(3):
            model(torch.ones(2))
            with autocast(torch.bfloat16):
                model(torch.ones(2))
    assert len(read(tmp_path / "a.tape").calls) == 2


def test_autocast_of_another_device_is_noted() -> None:
    torch.set_autocast_enabled("cuda", True)
    try:
        assert ("cuda", "float16") in contexts.context_now(False)[3]
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert contexts.context_now(False) == contexts.ORDINARY


class Plain:
    def run(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Odd(Echo):
    training = property(lambda _: 1 / 0, lambda *_: None)


def test_the_mode_of_the_model_is_that_of_each_call(tmp_path: Path) -> None:
    model, modes = Echo(), [True, True, False, True, False, False]
    with record(model, tmp_path / "a.tape"), torch.no_grad():
        for mode in modes:
            model.train(mode)
            model(torch.ones(2))
    found = [call.record.inputs.spec().context for call in read(tmp_path / "a.tape").calls]
    assert [context is not None and context.training for context in found] == modes


def test_some_have_no_mode(tmp_path: Path) -> None:
    plain, odd = Plain(), Odd()
    with (
        torch.no_grad(),
        record(plain, tmp_path / "plain.tape", method="run"),
        record(odd, tmp_path / "odd.tape"),
    ):
        plain.run(torch.ones(2))
        odd(torch.ones(2))
    for name in ("plain", "odd"):
        (call,) = read(tmp_path / f"{name}.tape").calls
        context = call.record.inputs.spec().context
        assert context is not None
        assert not context.training
