"""What a call says of streams."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import diff, merge_tapes, open_tape, replay
from calltape_analyzer.reading.call import advice_on_outputs
from calltape_recorder import record
from tests.analyzer.cli.commands import run
from tests.analyzer.reading.ahead import ahead


class Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Service:
    def __init__(self) -> None:
        self.model = Inner()

    def stream(self, x: torch.Tensor, n: int) -> Iterator[torch.Tensor]:
        for i in range(n):
            if i == 7:
                raise ValueError("seven")
            yield self.model(x) + i

    async def astream(self, x: torch.Tensor, n: int) -> AsyncIterator[torch.Tensor]:
        for i in range(n):
            yield x + i

    async def answer(self, x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0)
        return x + 1


ONE = torch.ones(1)


def test_a_stream_is_one_call_whose_outputs_are_its_chunks(tmp_path: Path) -> None:
    service = Service()
    with record(service, tmp_path / "a.tape", method="stream"):
        expected = list(service.stream(ONE, 3))
        closed = service.stream(ONE, 5)
        next(closed)
        closed.close()
        with pytest.raises(ValueError, match="seven"):
            list(service.stream(ONE, 9))
    with open_tape(tmp_path / "a.tape") as tape:
        whole, early, raised = tape
        assert whole.outputs == expected == [torch.tensor([float(2 + i)]) for i in range(3)]
        assert whole.record.outputs_missing is None
        assert early.outputs == [torch.tensor([2.0])]
        assert early.record.outputs_missing == "closed by its consumer after 1 chunks"
        assert raised.outputs is None
        assert raised.error is not None
        assert raised.error.message == "seven"
        ok = [row.ok for row in replay(tape, service.stream)]
    # Of the one that was closed not all chunks are known; the last one raises as it did.
    assert ok == [True, False, True]
    listed = run("ls", tmp_path / "a.tape").out.splitlines()
    assert listed[1].endswith("-> [float32[1] ×3]")
    assert listed[2].endswith("-> [float32[1]] (closed by its consumer after 1 chunks)")
    assert listed[3].endswith("-> raised ValueError: seven")
    assert "closed by its consumer after 1 chunks" in run("show", tmp_path / "a.tape", 1).out


def test_more_chunks_than_a_call_holds(tmp_path: Path) -> None:
    class Long:
        def stream(self, n: int) -> Iterator[int]:
            yield from range(n)

    with record(long := Long(), tmp_path / "a.tape", method="stream"):
        assert len(list(long.stream(300))) == 300
    with open_tape(tmp_path / "a.tape") as tape:
        assert tape[0].outputs == list(range(256))
        assert tape[0].record.outputs_missing == "256 of 300 chunks kept: more than 256 chunks"


def test_async_streams_and_coroutines_have_their_outputs(tmp_path: Path) -> None:
    service = Service()

    async def serve() -> None:
        assert len([chunk async for chunk in service.astream(ONE, 2)]) == 2
        await service.answer(ONE)

    with (
        record(service, tmp_path / "a.tape", method="astream"),
        record(service, tmp_path / "b.tape", method="answer"),
    ):
        asyncio.run(serve())
    with open_tape(tmp_path / "a.tape") as tape:
        assert tape[0].outputs == [torch.tensor([1.0]), torch.tensor([2.0])]
    with open_tape(tmp_path / "b.tape") as tape:
        assert tape[0].outputs == torch.tensor([2.0])


def test_a_call_under_way_is_a_call_of_the_tape(tmp_path: Path) -> None:
    with open_tape(ahead(tmp_path, 3)) as tape:
        assert [call.number for call in tape.calls] == [0, 1, 2, 3]
        assert [call.number for call in tape.under_way] == [3]
        assert tape.under_way[0].index == 3
        assert tape[3].under_way
        assert not tape[0].under_way
        assert "1 of them under way when the process died" in repr(tape)
        assert (tape.coverage.seen, tape.coverage.kept) == (4, 4)
        assert tape.counters.missing == {str(tmp_path / "a.tape")}
        (variant,) = tape.variants()
        assert variant.findings.tensors[0].dimensions[0].max == 9
        assert tape.infer_arguments(3).args[0].shape == (9, 4)


def test_a_call_that_ended_after_all_is_there_once(tmp_path: Path) -> None:
    with open_tape(ahead(tmp_path, 1, 5)) as tape:
        assert [call.number for call in tape.calls] == [0, 1, 2, 5]
        assert [call.number for call in tape.under_way] == [5]
        assert tape.find(1).outputs is not None


def test_replay_leaves_a_call_under_way_out(tmp_path: Path) -> None:
    from calltape_analyzer import replay

    with open_tape(ahead(tmp_path, 3)) as tape:
        report = replay(tape, lambda x: x)
    assert report.ok
    assert [row.call for row in report] == [0, 1, 2]
    assert [*map(str, report.notes)] == ["1 call under way when the process died: left out"]


class Both(torch.nn.Module):
    def forward(self, x: torch.Tensor, twice: list[torch.Tensor]) -> torch.Tensor:
        return x + twice[0]


def test_inputs_are_moved_to_a_device(tmp_path: Path) -> None:
    model, x = Both(), torch.ones(2, requires_grad=True)
    with record(model, tmp_path / "t.tape"):
        model(x, [x])
    with open_tape(tmp_path / "t.tape") as tape:
        (found, (same,)), _ = tape.calls[0].inputs_on("meta")
        assert found.device.type == "meta"
        assert found.requires_grad
        assert found is same
        assert tape.calls[0].inputs_on("cpu").args[0].tolist() == [1, 1]


class Filling(torch.nn.Module):
    def forward(self, x: Any, fill: float = math.nan) -> Any:
        return x


def recorded(path: Path, calls: int) -> Path:
    model = Filling()
    with record(model, path) as recorder:
        for number in range(calls):
            model(torch.ones(number % 5 + 1))
            if number % 32 == 0:
                recorder.flush()
    return path


def test_calls_of_a_tape_with_a_summary_are_read(tmp_path: Path) -> None:
    """The file was said to have changed, because its manifest did not equal itself."""
    with open_tape(recorded(tmp_path / "a.tape", 300)) as tape:
        assert tape.segments[0].unscanned_end is not None
        assert tape.calls[260].inputs.args[0].shape == (260 % 5 + 1,)


def test_two_recordings_of_one_model_have_one_signature(tmp_path: Path) -> None:
    paths = [recorded(tmp_path / name, 3) for name in ("a.tape", "b.tape")]
    with open_tape(paths[0]) as tape, open_tape(paths[1]) as other, open_tape(paths) as both:
        assert tape.signature == other.signature
        assert "signature" not in str(diff(tape, other))
        assert merge_tapes(both, tmp_path / "c.tape").calls == 6


@pytest.mark.parametrize("reason", [
    "queue_full", "3 of 9 chunks kept: queue_full",
    "3 of 9 chunks kept: queue_full; closed by its consumer after 9 chunks",
])  # fmt: skip
def test_advice_follows_the_reason_why_outputs_are_missing(reason: str) -> None:
    assert "max_queue_bytes" in advice_on_outputs([None, reason])
    assert "max_queue_bytes" not in advice_on_outputs(["3 of 9 chunks kept: more than 3 chunks"])
