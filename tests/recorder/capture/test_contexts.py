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
from tests.recorder.models import Echo
from tests.recorder.reading import read


def autocast(dtype: torch.dtype) -> Any:
    return torch.autocast("cpu", dtype=dtype)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


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
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_each_context_is_on_the_tape(tmp_path: Path, name: str) -> None:
    entered, expected = CONTEXTS[name]
    model = Echo().eval()
    with record(model, tmp_path / "a.tape"), entered():
        model(torch.ones(2), [1, "text"])
    (call,) = read(tmp_path / "a.tape").calls
    assert call.record.inputs.spec().context == expected
    assert call.record.outputs is not None
    assert call.record.outputs.spec().context is None


def test_calls_that_look_alike_keep_their_contexts(tmp_path: Path) -> None:
    # Equal tensors are recognized without a look at them: in another context they are not equal.
    model, given = Echo().eval(), (torch.ones(2, 3), torch.zeros(2, 3))
    order = [
        "none",
        "none",
        "none",
        "bfloat16",
        "float16",
        "none",
        "no_grad",
        "inference",
        "default",
        "none",
    ]
    with record(model, tmp_path / "a.tape"):
        for name in order:
            with CONTEXTS[name][0]():
                model(*given)
    calls = read(tmp_path / "a.tape").calls
    assert [c.record.inputs.spec().context for c in calls] == [CONTEXTS[n][1] for n in order]


def test_a_nested_region_counts_as_the_caller_sees_it(tmp_path: Path) -> None:
    model = Echo().eval()
    with (
        record(model, tmp_path / "a.tape"),
        autocast(torch.bfloat16),
        torch.autocast("cpu", enabled=False),
        torch.no_grad(),
        torch.enable_grad(),
    ):
        model(torch.ones(2))
    (call,) = read(tmp_path / "a.tape").calls
    assert call.record.inputs.spec().context is None


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


def test_the_mode_of_the_model_is_on_the_tape(tmp_path: Path) -> None:
    model = Echo()
    with record(model, tmp_path / "a.tape"), torch.no_grad():
        for is_training in (True, True, False, True, False, False):
            model.train(is_training)
            model(torch.ones(2))
    found = [call.record.inputs.spec().context for call in read(tmp_path / "a.tape").calls]
    assert [context is not None and context.training for context in found] == [
        True, True, False, True, False, False
    ]  # fmt: skip

    class Plain:
        def run(self, x: torch.Tensor) -> torch.Tensor:
            return x

    plain = Plain()
    with record(plain, tmp_path / "b.tape", method="run"), torch.no_grad():
        plain.run(torch.ones(2))
    (call,) = read(tmp_path / "b.tape").calls
    context = call.record.inputs.spec().context
    assert context is not None
    assert not context.training  # a function has no mode


@pytest.mark.parametrize("name", CONTEXTS)
def test_training_mode_is_beside_the_rest_of_the_context(tmp_path: Path, name: str) -> None:
    entered, expected = CONTEXTS[name]
    model = Echo().train()
    with record(model, tmp_path / "a.tape"), entered():
        model(torch.ones(2), [1, "text"])
    (call,) = read(tmp_path / "a.tape").calls
    document = {} if expected is None else expected.model_dump()
    assert call.record.inputs.spec().context == CallContext(**(document | {"training": True}))


def test_a_mode_that_cannot_be_asked_is_none(tmp_path: Path) -> None:
    class Odd(Echo):
        training = property(lambda _: 1 / 0, lambda *_: None)

    model = Odd()
    with record(model, tmp_path / "a.tape"):
        model(torch.ones(2))
    assert len(list(read(tmp_path / "a.tape").calls)) == 1
