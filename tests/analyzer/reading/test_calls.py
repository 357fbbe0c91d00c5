"""What a call says of streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch

from calltape_analyzer import open_tape, replay
from calltape_recorder import record
from tests.analyzer.cli.commands import run


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


def test_async_streams_and_coroutines(tmp_path: Path) -> None:
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
