"""Exceptions of the model reach the host as they are, and those of the recorder do not."""

from __future__ import annotations

import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import record
from tests.recorder.calls import Via, adds_up, both
from tests.recorder.models import Add, Raises
from tests.recorder.reading import read

READ_FACTS = "calltape_recorder.snapshot.snapshots.read_facts"


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@both
@pytest.mark.parametrize(
    "error",
    [ValueError("no"), StopIteration(3), KeyboardInterrupt(), SystemExit(2), GeneratorExit()],
    ids=lambda e: type(e).__name__,
)
def test_exceptions_are_the_model_s_own(tmp_path: Path, via: Via, error: BaseException) -> None:
    model, path = Raises(), tmp_path / "t.tape"
    plain = _raised(model, error)
    with record(model, path, via=via) as recorder:
        recorded = _raised(model, error)
        if not isinstance(error, Exception):
            model(None)  # the next call finds out about one that hooks do not see
        recorder.flush()
        assert recorder.stats().queued == 0
    assert recorded is error is plain
    assert recorded.__context__ is None
    call = read(path).calls[0]
    assert call.record.call == 0
    assert call.record.outputs is None
    if via == "method" or isinstance(error, Exception):
        assert (call.error.type, call.error.message) == (
            f"builtins:{type(error).__name__}", str(error),
        )  # fmt: skip
    else:
        assert call.error.type == "builtins:BaseException"
    assert read(path).is_sealed


def _raised(model: Any, error: BaseException) -> BaseException:
    try:
        model(error)
    except BaseException as caught:
        frames = [frame.name for frame in traceback.extract_tb(caught.__traceback__)]
        assert frames[-1] == "forward"
        return caught
    raise AssertionError


def test_an_interrupt_that_leaves_the_with_statement_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.tape"
    model = Raises()
    with pytest.raises(KeyboardInterrupt, match="now"), record(model, path):
        model(KeyboardInterrupt("now"))
    error = read(path).calls[0].error
    assert (error.type, error.message) == ("builtins:KeyboardInterrupt", "now")


def test_an_exception_being_handled_is_not_the_call_s(tmp_path: Path) -> None:
    model, path = Raises(), tmp_path / "t.tape"
    with record(model, path):
        try:
            model(ValueError("first"))
        except ValueError:
            model(None)
    assert [call.record.error is None for call in read(path).calls] == [False, True]


def test_a_message_that_cannot_be_had(tmp_path: Path) -> None:
    model, path = Raises(), tmp_path / "t.tape"
    with record(model, path), pytest.raises(UnprintableError):
        model(UnprintableError())
    assert read(path).calls[0].error.message == "(its text raised RuntimeError)"


def test_trouble_in_the_recorder_is_counted_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("broken")

    model = Add()
    with record(model, tmp_path / "t.tape") as recorder:
        monkeypatch.setattr(READ_FACTS, broken)
        for _ in range(3):
            assert model(torch.ones(1), torch.ones(1)).item() == 2
        monkeypatch.undo()
        monkeypatch.setattr("calltape_recorder.snapshot.snapshots.capture_output", broken)
        model(torch.ones(1), torch.ones(1))
        monkeypatch.undo()
        recorder.flush()
        monkeypatch.setattr("calltape_recorder.write.encoding.leaf_document", broken)
        model(torch.ones(7), torch.ones(7))
        recorder.flush()
    assert recorder.stats().dropped == {"internal": 4}
    calls = read(tmp_path / "t.tape").calls
    assert [call.record.outputs_missing for call in calls] == ["internal"]
    assert len(caplog.records) == 2


def test_an_interrupt_within_the_recorder_passes_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)

    model = Add()
    with record(model, tmp_path / "t.tape") as recorder:
        monkeypatch.setattr(READ_FACTS, interrupted)
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1), torch.ones(1))
        monkeypatch.undo()
        assert model(torch.ones(1), torch.ones(1)).item() == 2
    assert recorder.stats().dropped == {"interrupted": 1}
    assert recorder.stats().kept == 1


def test_a_host_near_the_limit_of_recursion_gets_nearly_as_deep(tmp_path: Path) -> None:
    """Hooks that do nothing take a frame, those of the recorder three. What it does within fails,
    and there is no frame left to say so."""
    model, x = Add(), torch.ones(3)

    def depths() -> list[int]:
        return [depth for depth in range(40, 160) if _is_reached(lambda: model(x, x), depth)]

    handles = [
        model.register_forward_pre_hook(lambda *_: None, with_kwargs=True),
        model.register_forward_hook(lambda *_: None, with_kwargs=True, always_call=True),
    ]
    plain = depths()
    for handle in handles:
        handle.remove()
    with record(model, tmp_path / "t.tape") as recorder:
        model(x, x)
        recorded = depths()
    assert recorded in (plain, plain[:-1], plain[:-2])
    assert 40 in plain
    assert 159 not in plain
    assert adds_up(recorder.stats())


def _is_reached(call: Any, depth: int) -> bool:
    """Whether a call ends that begins so deep, where 150 frames are left."""
    before, frame, here = sys.getrecursionlimit(), sys._getframe(), 0
    while frame is not None:
        frame, here = frame.f_back, here + 1  # type: ignore[assignment]

    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        else:
            call()

    try:
        sys.setrecursionlimit(here + 150)
        deep(depth)
    except RecursionError:
        return False
    finally:
        sys.setrecursionlimit(before)
    return True
