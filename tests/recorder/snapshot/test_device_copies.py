"""Tensors on a CUDA device. The real thing where there is one; the order of what is enqueued
everywhere, on a device made of notes."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from calltape_recorder import record
from calltape_recorder.snapshot import device_copies
from calltape_recorder.snapshot.buffers import Buffers
from calltape_recorder.snapshot.copies import wait_for_copies
from calltape_recorder.snapshot.device_copies import Copies, HostMemory, Landing, copy_out
from tests.recorder.models import Add, Identity
from tests.recorder.parts import recording
from tests.recorder.reading import read
from tests.recorder.waiting import in_threads

GIB = 1 << 30


class Stream:
    cuda_stream = 0

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def synchronize(self) -> None:
        self.log.append(f"{self.name} is empty")

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Event) -> None:
        self.log.append(f"{self.name} waits for the event")

    def __enter__(self) -> None:
        self.log.append(f"on {self.name}")

    def __exit__(self, *_: object) -> None:
        self.log.append(f"off {self.name}")


class Event:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def record(self, stream: Stream) -> None:
        self.log.append(f"event on {stream.name}")

    def synchronize(self) -> None:
        self.log.append("waited")


class Distant(torch.Tensor):
    """Pretends to be on device 0."""

    log: list[str]

    def get_device(self) -> int:
        return 0

    def record_stream(self, stream: Any) -> None:
        self.log.append(f"held for {stream.name}")


def enqueued(monkeypatch: pytest.MonkeyPatch, *, driver: bool) -> list[str]:
    """What two copies enqueue, in order: with a function of the driver, and with operators."""
    log: list[str] = []
    host, ours = Stream("host", log), Stream("ours", log)
    fake = SimpleNamespace(
        current_stream=lambda device: host,
        current_device=lambda: 0,
        Stream=lambda device: ours,
        stream=lambda stream: stream,
        Event=lambda: Event(log),
    )

    def copy(target: int, source: int, size: int, queue: int) -> int:
        log.append(f"{size} bytes")
        ctypes.memmove(target, source, size)
        return 0

    monkeypatch.setattr(device_copies, "cuda", fake)
    monkeypatch.setattr(device_copies, "stream_of", fake.Stream)
    monkeypatch.setattr(device_copies, "copier", lambda: copy if driver else None)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory, **k: empty(*a, **k))
    tensors: list[Any] = []
    for value in (1.0, 2.0):
        tensor = torch.full((3,), value).as_subclass(Distant)
        tensor.log = log
        tensors.append(tensor)

    def prepare(place: int) -> torch.Tensor:
        log.append(f"copy {place}")
        return tensors[place].as_subclass(torch.Tensor)

    sources = [(tensor.data_ptr(), 12) for tensor in tensors]
    pieces = copy_out(tensors, sources, prepare, HostMemory(1 << 20).pinned)
    assert [list(struct.unpack("3f", piece.data)) for piece in pieces] == [[1.0] * 3, [2.0] * 3]
    del tensors[:]
    places = [piece.owner for piece in pieces]
    before = len(log)
    wait_for_copies(places)
    wait_for_copies(places)
    assert log[before:] == ["waited"]
    return log[:before]


BEGIN, END = (
    ["ours waits for host", *["held for ours"] * 2],
    ["event on ours", "host waits for the event"],
)


@pytest.mark.parametrize(
    ("driver", "copies"),
    [(True, ["12 bytes"] * 2), (False, ["on ours", "copy 0", "copy 1", "off ours"])],
)
def test_copies_are_enqueued_between_begin_and_end(
    monkeypatch: pytest.MonkeyPatch, driver: bool, copies: list[str]
) -> None:
    assert enqueued(monkeypatch, driver=driver) == [*BEGIN, *copies, *END]


def test_memory_comes_back_when_its_copies_are_done() -> None:
    class Slow:
        done = False

        def query(self) -> bool:
            return self.done

    slow, pool = Slow(), Buffers(1 << 24)
    landing = Landing.of_size(100_000, Copies([slow]), pool)
    memory = landing.memory
    landing.release()
    assert Landing.of_size(100_000, Copies([]), pool).memory is not memory
    slow.done = True
    assert Landing.of_size(100_000, Copies([]), pool).memory is memory


def test_memory_that_nobody_gave_back_comes_back() -> None:
    pool = Buffers(1 << 24)
    landing = Landing.of_size(100_000, Copies([]), pool)
    memory = landing.memory
    del landing
    assert Landing.of_size(100_000, Copies([]), pool).memory is memory


def test_copies_that_failed_once_are_never_there() -> None:
    class Failing:
        def __init__(self) -> None:
            self.failures = 1

        def synchronize(self) -> None:
            self.failures -= 1
            if self.failures >= 0:
                raise RuntimeError("device-side assert")

    copies = Copies([Failing()])
    for _ in range(3):
        with pytest.raises(RuntimeError, match="device-side assert"):
            copies.wait()


@pytest.mark.cuda
def test_tensors_that_the_host_overwrites_at_once_are_recorded_as_passed(tmp_path: Path) -> None:
    model, x = Identity(), torch.zeros(4 * 1024 * 1024, device="cuda")
    with record(model, tmp_path / "t.tape", max_queue_bytes=GIB * 2) as recorder:
        for n in range(40):
            x.fill_(n)
            model(x)
            x.fill_(-1)
    assert recorder.stats().kept == 40
    for n, call in enumerate(read(tmp_path / "t.tape").calls):
        assert bool((call.input(0) == n).all())
        assert bool((call.output(0) == n).all())


@pytest.mark.cuda
def test_values_are_copied_before_their_memory_is_given_away(tmp_path: Path) -> None:
    model = Identity()
    with record(model, tmp_path / "t.tape", max_queue_bytes=GIB * 2) as recorder:
        for n in range(100):
            model(torch.full((1024, 1024), float(n), device="cuda"))
            torch.full((1024, 1024), -1.0, device="cuda")
    assert recorder.stats().kept == 100
    for n, call in enumerate(read(tmp_path / "t.tape").calls):
        assert bool((call.input(0) == n).all())


@pytest.mark.cuda
def test_all_kinds_of_tensors_are_copied_from_a_device(tmp_path: Path) -> None:
    base = torch.randn(8, 6, device="cuda")
    kinds = {
        "strided": base.t(),
        "expanded": base[:1].expand(8, 6),
        "conjugated": torch.randn(4, dtype=torch.complex64, device="cuda").conj(),
        "half": base.half(),
        "bool": base > 0,
        "empty": base[:0],
        "inference": None,
    }
    with torch.inference_mode():
        kinds["inference"] = torch.randn(3, device="cuda")
    model = Identity()
    with record(model, tmp_path / "t.tape") as recorder:
        for value in kinds.values():
            model(value)
    assert recorder.stats().dropped == {}
    for value, call in zip(kinds.values(), read(tmp_path / "t.tape").calls, strict=True):
        assert value is not None
        found = call.input(0)
        stored = value.resolve_conj().cpu()
        assert torch.equal(found.expand(stored.shape), stored)


@pytest.mark.cuda
def test_nothing_is_enqueued_while_a_graph_is_captured(tmp_path: Path) -> None:
    model = Add()
    x = torch.ones(1024, 1024, device="cuda")
    with record(model, tmp_path / "t.tape") as recorder:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(x, x)
        torch.cuda.current_stream().wait_stream(side)
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = model(x, x)
        x.fill_(2)
        graph.replay()
        torch.cuda.synchronize()
        assert bool((result == 4).all())
    assert recorder.stats().kept == 4
    last = read(tmp_path / "t.tape").calls[-1].record
    assert all("captured" in str(facts.missing) for facts in last.inputs.facts())


@pytest.mark.cuda
def test_graphs_are_captured_while_the_writer_waits(tmp_path: Path) -> None:
    busy, quiet = Identity(), Add()
    x = torch.ones(256, 256, device="cuda")
    graph: Any = torch.cuda.CUDAGraph()
    with record(busy, tmp_path / "t.tape", max_queue_bytes=GIB * 2) as recorder:
        for _ in range(20):
            busy(torch.ones(2048, 2048, device="cuda"))  # the writer is busy with these
        with torch.cuda.graph(graph):
            result = quiet(x, x)
        graph.replay()
        torch.cuda.synchronize()
    assert bool((result == 2).all())
    assert recorder.stats().kept == 20


@pytest.mark.cuda
def test_calls_on_many_threads_and_streams_are_not_mixed(tmp_path: Path) -> None:
    model = Identity()

    def work(n: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for k in range(50):
                x = torch.full((4096,), float(100 * n + k), device="cuda")
                assert bool((model(x) == 100 * n + k).all())

    with record(model, tmp_path / "t.tape") as recorder:
        in_threads(work, range(8))
    assert recorder.stats().kept == 400
    for call in read(tmp_path / "t.tape").calls:
        values = call.input(0)
        assert bool((values == values[0]).all())
        assert torch.equal(values, call.output(0))


@pytest.mark.cuda
def test_a_call_in_a_thread_that_never_used_the_device_is_recorded(tmp_path: Path) -> None:
    model, x = Identity(), torch.arange(6.0, device="cuda")
    with record(model, tmp_path / "t.tape") as recorder:
        in_threads(model, [x])
    assert recorder.stats().kept == 1
    assert read(tmp_path / "t.tape").calls[0].input(0).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.cuda
def test_pinned_memory_is_bounded_while_sizes_grow(tmp_path: Path) -> None:
    """A cache that grows leaves no buffer of each of its sizes."""
    model, bound = Identity(), 64 << 20
    with recording(model, tmp_path / "t.tape", max_queue_bytes=bound) as parts:
        for n in range(1, 200):
            model(torch.ones(n, 1 << 16, device="cuda"))
            torch.cuda.synchronize()
        assert parts.buffers.pinned.nbytes <= bound
    assert parts.ledger.seen == 199


@pytest.mark.cuda
def test_calls_that_repeat_are_recognized_and_keep_their_device(tmp_path: Path) -> None:
    model = Add()
    with recording(model, tmp_path / "t.tape") as parts:
        for n in range(5):
            x = torch.full((3, 2), float(n), device="cuda")
            model(x, x + 1)
        assert parts.snapshots.cache.latest_call is not None
    for n, call in enumerate(read(tmp_path / "t.tape").calls):
        assert bool((call.input(0) == n).all())
        assert {facts.device for facts in call.record.inputs.facts()} == {"cuda:0"}
