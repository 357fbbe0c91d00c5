"""What waits for the writer: in order, whole, and nothing that a garbage collector goes through."""

from __future__ import annotations

import errno
import gc
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from calltape_recorder import First, FlightRecorder, record
from calltape_recorder.write import writer
from tests.recorder import disks
from tests.recorder.parts import recording
from tests.recorder.reading import read
from tests.recorder.waiting import until


class Taking(nn.Module):
    """Returns what it was given, or raises."""

    raises = False

    def forward(self, x: Any, y: Any) -> Any:
        if self.raises:
            raise ValueError("asked to")
        return x


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """No writer runs until this is called."""
    waiting: list[tuple[Any, ...]] = []
    start = writer.start_thread
    monkeypatch.setattr(writer, "start_thread", lambda *args: waiting.append(args))

    def go() -> None:
        while waiting:
            start(*waiting.pop())

    return go


class Giving(nn.Module):
    """Returns nothing."""

    def forward(self, x: Any, y: Any) -> None:
        return None


@pytest.mark.integration
@pytest.mark.parametrize("model", [Taking(), Giving()], ids=["returns", "returns nothing"])
@pytest.mark.parametrize("options", [{}, {"values": "none"}, {"outputs": False}], ids=str)
def test_thousands_of_calls_that_wait_are_few_objects(
    tmp_path: Path, held: Callable[[], None], options: dict[str, Any], model: nn.Module
) -> None:
    x, y = torch.rand(4, 8), torch.arange(20)
    with record(model, tmp_path / "t.tape", **options) as recorder:
        for _ in range(10):
            model(x, y)
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(3000):
            model(x, y)
        assert len(gc.get_objects()) - before < 100
        held()
        assert recorder.flush()
        assert recorder.stats().kept == 3010
        assert recorder.stats().queued_bytes == 0
    tape = read(tmp_path / "t.tape")
    assert tape.numbers == list(range(3010))
    assert not tape.damage


def test_calls_that_wait_as_bytes_are_those_that_were_made(
    tmp_path: Path, held: Callable[[], None]
) -> None:
    """Beside others: with other sizes, scalars, errors and no tensors, in any order."""
    model = Taking()
    kinds = itertools.cycle((0, 0, 0, 1, 0, 2, 0, 3, 4, 5))
    sent: list[tuple[Any, Any, int]] = []
    with record(model, tmp_path / "t.tape") as recorder:
        for number in range(400):
            kind = next(kinds)
            size = 5 if kind else 4
            x = torch.full((size, 8), float(number))
            y: Any = torch.arange(number, number + 20) if kind != 2 else number
            y = torch.empty(0, 3) if kind == 3 else y
            if kind == 4:
                model.raises = True
                with pytest.raises(ValueError, match="asked to"):
                    model(x, y)
                model.raises = False
            else:
                model(x, y)
            sent.append((x, y, kind))
        held()
        assert recorder.flush()
    tape = read(tmp_path / "t.tape")
    assert tape.numbers == list(range(400))
    for call, (x, y, kind) in zip(tape.calls, sent, strict=True):
        assert torch.equal(call.input(0), x)
        if kind != 2:
            assert torch.equal(call.input(1), y)
        assert (call.record.error is not None) == (kind == 4)
        if kind != 4:
            assert torch.equal(call.output(0), x)
        assert call.ranges.get(1) == ((int(y[0]), int(y[-1])) if kind in (0, 1, 4, 5) else None)


def test_ids_that_are_copied_for_their_range_alone_are_not_remembered(tmp_path: Path) -> None:
    model, ids = Taking(), torch.arange(2000)
    with recording(model, tmp_path / "t.tape", values="none") as parts:
        for number in range(40):
            model(ids + number, ids.int())
        assert parts.writer.flush(None)
        assert parts.ledger.shared_bytes == 0
        assert parts.stats("recording").kept == 40
    tape = read(tmp_path / "t.tape")
    for number, call in enumerate(tape.calls):
        assert call.ranges == {0: (number, number + 1999), 1: (0, 1999)}
        assert call.record.blob is None


def test_what_waits_as_bytes_is_dropped_where_the_disk_takes_nothing(
    tmp_path: Path, held: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = Taking(), torch.rand(4, 8), torch.arange(20)
    with record(model, tmp_path / "t.tape") as recorder:
        for _ in range(300):
            model(x, y)
        with monkeypatch.context() as patched:
            disks.failing(patched, errno.ENOSPC)
            held()
            recorder.flush()
        assert recorder.stats().dropped == {"disk_full": 300}
        assert recorder.stats().queued_bytes == 0
        model(x, y)
        assert recorder.flush()
        assert recorder.stats().kept == 1


# --- a writer that sleeps until its next poll ---------------------------------------------------


@pytest.mark.parametrize(
    ("x", "calls", "options"),
    [
        (torch.ones(4), 100, {"max_queue_bytes": 256 * 1024}),
        (torch.ones(4), 300, {"max_queue_bytes": 4 * 1024 * 1024}),
        (torch.ones(25_000), 40, {}),
        (torch.ones(300_000), 1, {}),
    ],
    ids=["small queue", "small calls", "calls that wait as objects", "a large call"],
)
def test_a_small_queue_does_not_wait_for_the_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, x: Any, calls: int, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(writer, "POLL_SECONDS", 600.0)
    model = Taking()
    with record(model, tmp_path / "t.tape", **options) as recorder:
        model(x, x)
        assert recorder.flush()
        for _ in range(calls):
            model(x, x)
        until(lambda: recorder.stats().kept > max(1, calls * 3 // 4))
        assert recorder.stats().dropped == {}


@pytest.mark.parametrize(
    "options",
    [{}, {"keep": First(0), "flight_recorder": FlightRecorder()}],
    ids=["plain", "flight"],
)
def test_a_call_that_raises_does_not_wait_for_the_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """The process may end next."""
    monkeypatch.setattr(writer, "POLL_SECONDS", 600.0)
    model, x = Taking(), torch.ones(4)
    with record(model, tmp_path / "t.tape", **options) as recorder:
        for _ in range(3):
            model(x, x)
        assert recorder.flush()
        model.raises = True
        with pytest.raises(ValueError, match="asked to"):
            model(x, x)
        until(lambda: recorder.stats().kept == 4)
