"""Calls that go on after they returned, as a tape has them: coroutines, generators, async
generators."""

from __future__ import annotations

import asyncio
import inspect
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import record
from calltape_recorder.bounds import MAX_CHUNKS
from calltape_recorder.snapshot import call as queued
from tests.recorder.host.streaming_hosts import awaits, c_cancelled, c_closes, c_fails
from tests.recorder.host.streaming_servers import Server
from tests.recorder.reading import ReadCall, read


def texts(call: ReadCall) -> list[Any]:
    """The recorded chunks, where they are ints and texts."""
    return [call.scalar(node, "outputs") for node in call.outputs.children]


@pytest.mark.parametrize("method", ["generate", "start_generate"])
def test_a_coroutine_is_recorded_to_its_end(tmp_path: Path, method: str) -> None:
    server, path = Server(), tmp_path / "t.tape"

    async def serve() -> None:
        coroutine = getattr(server, method)(torch.tensor([3.0]))
        assert recorder.flush()
        assert recorder.stats().kept == 0
        assert (await coroutine).item() == 6

    with record(server, path, method=method) as recorder:
        asyncio.run(serve())
    (call,) = read(path).calls
    assert call.output(0).item() == 6
    assert call.record.error is None


def test_a_coroutine_is_recorded_however_it_ends(tmp_path: Path) -> None:
    server, path = Server(), tmp_path / "t.tape"
    with record(server, path, method="generate"):
        for scenario in (c_fails, c_cancelled, c_closes):
            asyncio.run(scenario(server))
    assert [call.error.type for call in read(path).calls] == [
        "tests.recorder.host.streaming_servers:RefusedError",
        "asyncio.exceptions:CancelledError", "builtins:GeneratorExit",
    ]  # fmt: skip
    assert all(call.record.duration_ns is not None for call in read(path).calls)


def test_inputs_are_those_of_when_a_coroutine_starts(tmp_path: Path) -> None:
    server, path, x = Server(), tmp_path / "t.tape", torch.ones(1)
    with record(server, path, method="generate"):
        coroutine = server.generate(x)
        x += 6
        asyncio.run(awaits(coroutine))
    (call,) = read(path).calls
    assert (call.input(0).item(), call.output(0).item()) == (7, 14)


def test_calls_of_many_tasks_in_one_thread_keep_their_outputs(tmp_path: Path) -> None:
    server, path = Server(), tmp_path / "t.tape"

    async def serve() -> None:
        async def client(n: int) -> None:
            for step in range(5):
                x = torch.tensor([n * 10.0 + step])
                assert (await server.generate(x)).item() == 2 * x.item()

        await asyncio.gather(*(client(n) for n in range(40)))

    with record(server, path, method="generate"):
        asyncio.run(serve())
    calls = read(path).calls
    assert sorted(call.record.call for call in calls) == list(range(200))
    assert all(call.output(0).item() == 2 * call.input(0).item() for call in calls)


def test_chunks_are_recorded_as_they_were_when_they_were_yielded(tmp_path: Path) -> None:
    server, path, x = Server(), tmp_path / "t.tape", torch.zeros(3)
    with record(server, path, method="tokens"):
        assert all(chunk is x for chunk in server.tokens(x, 4))
    (call,) = read(path).calls
    assert call.record.outputs_missing is None
    assert call.input(0).tolist() == [0, 0, 0]
    assert [call.output(leaf)[0].item() for leaf in range(4)] == [1, 2, 3, 4]
    assert [node.kind for node in call.outputs.children] == ["tensor"] * 4


def test_aliases_within_a_chunk_share_one_leaf(tmp_path: Path) -> None:
    class Pairs:
        def run(self) -> Iterator[Any]:
            for n in range(3):
                x = torch.full((2, 2), float(n))
                yield {"x": x, "again": [x, x.t()], "view": x[0], "n": n, "text": "t" * n}

    pairs, path = Pairs(), tmp_path / "t.tape"
    with record(pairs, path, method="run"):
        list(pairs.run())
    (call,) = read(path).calls
    assert len(call.outputs.children) == 3
    for n, chunk in enumerate(call.outputs.children):
        by_name = dict(zip(chunk.keys, chunk.children, strict=True))
        x, again, transposed = by_name["x"], *by_name["again"].children
        assert again.leaf == x.leaf
        for node in (x, transposed, by_name["view"]):
            assert (call.output(node.leaf) == n).all()
        assert call.scalar(by_name["n"], "outputs") == n
        assert call.scalar(by_name["text"], "outputs") == "t" * n
    assert call.record.outputs is not None
    groups = [facts.storage for facts in call.record.outputs.facts()]
    assert len(set(groups)) == 3


@pytest.mark.parametrize("method", ["stream", "start_stream"])
def test_a_stream_is_recorded_however_it_ends(tmp_path: Path, method: str) -> None:
    server, path = Server(), tmp_path / "t.tape"
    with record(server, path, method=method):
        make = getattr(server, method)
        list(make(3))
        stream = make(3)
        next(stream)
        stream.close()
        stream = make(3)
        next(stream)
        with pytest.raises(KeyError):
            stream.throw(KeyError("k"))
        for _ in make(3):
            break
    returned, closed, raised, broken = read(path).calls
    assert texts(returned) == [0, 1, 2]
    assert returned.record.outputs_missing is None
    for call in (closed, broken):
        assert texts(call) == [0]
        assert call.record.error is None
        assert call.record.outputs_missing == "closed by its consumer after 1 chunks"
    assert raised.error.type == "builtins:KeyError"
    assert raised.record.outputs is None
    assert raised.record.outputs_missing == "raised after 1 chunks"


@pytest.mark.parametrize("method", ["astream", "start_astream", "engine"])
def test_async_streams_are_recorded_with_all_chunks(tmp_path: Path, method: str) -> None:
    server, path = Server(), tmp_path / "t.tape"

    async def serve() -> None:
        async def client(n: int) -> None:
            stream = getattr(server, method)(n)
            if inspect.iscoroutine(stream):
                stream = await stream
            assert [chunk async for chunk in stream] == list(range(n))

        await asyncio.gather(*(client(n) for n in range(10)))

    with record(server, path, method=method):
        asyncio.run(serve())
    calls = sorted(read(path).calls, key=lambda call: call.record.call)
    assert [texts(call) for call in calls] == [list(range(n)) for n in range(10)]
    assert [call.record.outputs_missing for call in calls] == [None] * 10


class Gives:
    """A server whose stream has these chunks."""

    def __init__(self, chunks: list[Any]) -> None:
        self.chunks = chunks

    def stream(self) -> Iterator[Any]:
        yield from self.chunks


@pytest.mark.parametrize(
    ("chunks", "kept", "reason"),
    [
        ([*range(MAX_CHUNKS + 7)], MAX_CHUNKS, f"more than {MAX_CHUNKS} chunks"),
        (["\N{GRINNING FACE}" * 1000] * 5, 3, "more than one call can hold"),
        (["x" * 4000] * 5, 3, "more than one call can hold"),
        ([b"x" * 4000] * 5, 3, "more than one call can hold"),
        ([[*[None] * 30_000, torch.ones(50_000)]] * 3, 1, "more than one call can hold"),
    ],
    ids=["many chunks", "texts of four bytes", "texts of one byte", "bytes", "nodes"],
)
def test_a_stream_beyond_a_bound_is_cut_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: list[Any], kept: int, reason: str
) -> None:
    monkeypatch.setattr(queued, "MAX_TEXT_BYTES", 12_000)
    server = Gives(chunks)
    with record(server, tmp_path / "t.tape", method="stream") as recorder:
        assert list(server.stream()) == chunks
        assert recorder.flush()
        assert recorder.stats().queued_bytes == 0
    (call,) = read(tmp_path / "t.tape").calls
    assert len(call.outputs.children) == kept
    missing = f"{kept} of {len(chunks)} chunks kept: {reason}"
    assert call.record.outputs_missing == missing


def test_streams_that_do_not_fit_the_queue(tmp_path: Path) -> None:
    server, path = Server(), tmp_path / "t.tape"
    with record(server, path, method="tokens", max_queue_bytes=4100) as recorder:
        assert len(list(server.tokens(torch.zeros(200), 9))) == 9
        recorder.flush()
        assert recorder.stats().queued_bytes == 0
    (call,) = read(path).calls
    assert len(call.outputs.children) == 4
    assert call.record.outputs_missing == "4 of 9 chunks kept: queue_full"


def test_the_structure_of_all_chunks_counts_for_the_bound(tmp_path: Path) -> None:
    class Rows:
        def rows(self) -> Iterator[Any]:
            for n in range(10):
                yield {f"row-{n}-{'of-a-long-name' * 2}-{k}": torch.zeros(20_000) for k in range(4)}

    server, path = Rows(), tmp_path / "t.tape"
    for room, missing in ((2**24, None), (10 * 4 * 80_000 + 2000, "queue_full")):
        with record(server, path, method="rows", max_queue_bytes=room, overwrite=True) as recorder:
            assert len(list(server.rows())) == 10
            assert recorder.flush()
            assert recorder.stats().queued_bytes == 0
        (call,) = read(path).calls
        assert call.record.outputs_missing == missing


def test_an_interrupt_while_a_chunk_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)

    server, path = Server(), tmp_path / "t.tape"
    with record(server, path, method="stream") as recorder:
        stream = server.stream(3)
        with monkeypatch.context() as patch:
            patch.setattr("calltape_recorder.handler.capture_chunk", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(stream)
        assert list(server.stream(2)) == [0, 1]
    assert recorder.stats().kept == 2
    assert read(path).calls[0].error.type == "builtins:KeyboardInterrupt"


def test_trouble_while_a_chunk_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("broken")

    server, path = Server(), tmp_path / "t.tape"
    with record(server, path, method="stream"):
        monkeypatch.setattr("calltape_recorder.handler.capture_chunk", broken)
        assert list(server.stream(3)) == [0, 1, 2]
        monkeypatch.undo()
    (call,) = read(path).calls
    assert call.record.outputs_missing == "0 of 3 chunks kept: internal"
    assert len(caplog.records) == 1
