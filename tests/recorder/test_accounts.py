"""Every call is accounted for, memory is bounded, and the file keeps its promises."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import Recorder, TapeError, record, tape_writer
from calltape_recorder.buffers import Buffers
from calltape_recorder.stats import Stats
from calltape_recorder.structures import Structures
from tests.recorder.models import Add, Echo, Identity
from tests.recorder.reading import read


def adds_up(stats: Stats) -> bool:
    return stats.seen == stats.kept + sum(stats.dropped.values()) + stats.queued


def test_many_threads(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    wrong: list[Any] = []
    watched: list[Stats] = []

    together = threading.Barrier(16)

    def work(thread: int) -> None:
        together.wait()  # an ident is used again once its thread has ended
        for n in range(200):
            x = torch.full((3,), float(thread * 1000 + n))
            if not torch.equal(model(x, x), x * 2):
                wrong.append((thread, n))

    with record(model, path) as recorder:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            watched.append(recorder.stats())
            time.sleep(0.005)
        assert recorder.flush()
        assert recorder.stats().queued == 0
    assert not wrong
    assert all(adds_up(stats) for stats in watched)
    stats = recorder.stats()
    assert (stats.seen, stats.kept, stats.dropped) == (3200, 3200, {})
    tape = read(path)
    assert sorted(tape.numbers) == list(range(3200))
    assert all(torch.equal(call.output(0), call.input(0) * 2) for call in tape.calls)
    assert len({call.record.thread for call in tape.calls}) == 16
    values = {call.input(0)[0].item() for call in tape.calls}
    assert values == {thread * 1000 + n for thread in range(16) for n in range(200)}


def _slow_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The writer's next write waits until the event is set."""
    gate = threading.Event()
    plain = os.pwritev

    def waiting(file: int, parts: Any, offset: int) -> int:
        gate.wait()
        return plain(file, parts, offset)

    monkeypatch.setattr(tape_writer, "pwritev", waiting)
    return gate


def test_a_full_queue_drops_the_newest_call_without_copying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = Echo(), tmp_path / "t.tape"
    recorder = record(model, path, max_queue_bytes=10 * 4000)
    gate = _slow_disk(monkeypatch)
    for n in range(25):
        model(torch.full((1000,), float(n)))
        assert recorder.stats().queued_bytes <= 40_000
    assert recorder.stats().dropped == {"queue_full": 15}
    gate.set()
    assert recorder.flush()
    model(torch.zeros(1000))
    recorder.close()
    stats = recorder.stats()
    assert (stats.seen, stats.kept, stats.dropped) == (26, 11, {"queue_full": 15})
    assert stats.queued_bytes == 0
    tape = read(path)
    assert tape.numbers == [*range(10), 25]
    assert tape.trailer is not None
    assert tape.trailer.coverage.dropped == {"queue_full": 15}


def test_outputs_that_do_not_fit_leave_the_inputs(tmp_path: Path) -> None:
    class Grow(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.repeat(1000)

    model, path = Grow(), tmp_path / "t.tape"
    with record(model, path, max_queue_bytes=1000) as recorder:
        model(torch.ones(10))
    assert recorder.stats().kept == 1
    call = read(path).calls[0]
    assert (call.record.outputs, call.record.outputs_missing) == (None, "queue_full")
    assert torch.equal(call.input(0), torch.ones(10))


def test_max_calls(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    with record(model, path, max_calls=3) as recorder:
        for _ in range(10):
            model(torch.ones(1), torch.ones(1))
    stats = recorder.stats()
    assert (stats.seen, stats.kept, stats.dropped) == (10, 3, {"max_calls": 7})
    assert read(path).numbers == [0, 1, 2]


def test_flush_means_in_the_file(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    with record(model, path) as recorder:
        for n in range(1, 20):
            model(torch.ones(n), torch.ones(n))
            assert recorder.flush()
            tape = read(path)
            assert len(tape.calls) == n == recorder.stats().kept
            assert tape.trailer is None
            assert recorder.stats().written_bytes == path.stat().st_size


def test_flush_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Add()
    recorder = record(model, tmp_path / "t.tape")
    gate = _slow_disk(monkeypatch)
    model(torch.ones(1), torch.ones(1))
    assert not recorder.flush(timeout=0.05)
    gate.set()
    assert recorder.flush(timeout=30)
    recorder.close()


def test_flush_from_many_threads(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    counted: list[bool] = []

    def work() -> None:
        for _ in range(20):
            model(torch.ones(1), torch.ones(1))
            counted.append(recorder.flush())

    with record(model, path) as recorder:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counted == [True] * 80
    assert len(read(path).calls) == 80


def test_close_seals_once_and_ends_the_thread(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    recorder = record(model, path)
    assert recorder.stats().state == "recording"
    model(torch.ones(1), torch.ones(1))
    recorder.close()
    size = path.stat().st_size
    recorder.close()
    recorder.detach()
    model(torch.ones(1), torch.ones(1))
    assert path.stat().st_size == size
    assert (recorder.stats().state, recorder.stats().seen) == ("closed", 1)
    assert recorder.flush()
    assert "calltape-writer" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(TapeError) as caught:
        recorder.attach(model)
    assert caught.value.kind == "closed"
    tape = read(path)
    assert tape.trailer is not None
    assert len(tape.trailer.index) == 16


def test_a_call_under_way_at_close_is_counted(tmp_path: Path) -> None:
    class Slow(torch.nn.Module):
        def forward(self) -> int:
            inside.set()
            go.wait()
            return 1

    inside, go = threading.Event(), threading.Event()
    model = Slow()
    recorder = record(model, tmp_path / "t.tape")
    thread = threading.Thread(target=model)
    thread.start()
    inside.wait()
    assert recorder.stats().queued == 1
    recorder.close()
    go.set()
    thread.join()
    assert recorder.stats().dropped == {"unfinished": 1}
    trailer = read(tmp_path / "t.tape").trailer
    assert trailer is not None
    assert trailer.coverage.dropped == {"unfinished": 1}


def test_detach_and_attach_again(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    recorder = record(model, path)
    with pytest.raises(TapeError, match="one module"):
        recorder.attach(Add())
    model(torch.ones(1), torch.ones(1))
    recorder.detach()
    model(torch.ones(1), torch.ones(1))
    with pytest.raises(TapeError, match="one class"):
        recorder.attach(Identity())
    recorder.attach(model)
    model(torch.ones(1), torch.ones(1))
    recorder.close()
    assert read(path).numbers == [0, 1]


def test_a_tape_never_attached(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.tape") as recorder:
        assert recorder.stats() == Stats(0, 0, segments=1)
        assert recorder.flush()
    tape = read(tmp_path / "t.tape")
    assert (tape.manifest.target, tape.calls) == (None, [])
    assert tape.trailer is not None


def test_an_existing_path_is_refused_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "t.tape"
    Recorder(path).close()
    before = path.read_bytes()
    with pytest.raises(TapeError) as caught:
        Recorder(path)
    assert caught.value.kind == "exists"
    assert "overwrite=True" in str(caught.value)
    assert path.read_bytes() == before
    Recorder(path, overwrite=True).close()
    assert path.read_bytes() != before


def test_overwriting_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "t.tape").symlink_to(tmp_path / "target")
    with pytest.raises(TapeError, match="already"):
        Recorder(tmp_path / "t.tape")
    Recorder(tmp_path / "t.tape", overwrite=True).close()
    assert (tmp_path / "target").read_text() == "precious"


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TapeError) as caught:
        Recorder(tmp_path / "file" / "t.tape")
    assert caught.value.kind in ("io", "exists")


def test_nothing_keeps_the_host_s_tensors_or_the_model_alive(tmp_path: Path) -> None:
    model = Identity()
    recorder = record(model, tmp_path / "t.tape")
    tensor = torch.randn(10)
    value = weakref.ref(tensor)
    model([tensor])
    recorder.flush()
    del tensor
    gc.collect()
    assert value() is None
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    recorder.close()


def test_the_pool_reuses_and_stays_within_its_bound() -> None:
    pool = Buffers(1 << 20)
    first = pool.take(200_000)
    assert first.size >= 200_000
    pool.give_back(first)
    assert pool.take(199_000) is first
    for size in (300_000, 900_000, 5_000_000):
        pool.give_back(pool.take(size))
    assert pool._bytes <= 1 << 20
    in_use = first.size
    assert pool._bytes == in_use + sum(b.size for idle in pool._idle.values() for b in idle)


# --- a disk that fails -------------------------------------------------------------------------


class Disk:
    """Stands in for ``os.pwritev``: fails the writes that it is told to, after some bytes."""

    def __init__(self, failing: set[int], error: int, *, after: int = 0) -> None:
        self.writes = 0
        self._failing = failing
        self._error = error
        self._after = after

    def __call__(self, file: int, parts: Any, offset: int) -> int:
        self.writes += 1
        if self.writes - 1 in self._failing:
            if self._after:
                os.pwrite(file, b"".join(bytes(part) for part in parts)[: self._after], offset)
            raise OSError(self._error, os.strerror(self._error))
        # Never more than 1000 bytes at once: partial writes are normal.
        return os.pwrite(file, b"".join(bytes(part) for part in parts)[:1000], offset)


@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EROFS"])
@pytest.mark.parametrize("after", [0, 700])
@pytest.mark.parametrize("truncates", [True, False])
def test_every_write_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    error: str, after: int, truncates: bool,
) -> None:  # fmt: skip
    import errno

    model = Add()
    writes = 40
    for failing in range(0, writes, 3):
        path = tmp_path / f"{failing}.tape"
        recorder = record(model, path)
        disk = Disk({failing, failing + 1}, getattr(errno, error), after=after)
        monkeypatch.setattr(tape_writer, "pwritev", disk)
        if not truncates:
            _refuses_once(monkeypatch)
        for n in range(8):
            x = torch.full((500,), float(n))
            assert torch.equal(model(x, x), x * 2)
            recorder.flush()
        recorder.close()
        monkeypatch.undo()
        stats = recorder.stats()
        assert adds_up(stats)
        assert stats.queued == 0
        tape = read(path)
        assert len(tape.calls) == stats.kept
        assert not tape.damage
        for call in tape.calls:
            assert torch.equal(call.input(0), torch.full((500,), float(call.record.call)))
        if failing < 8 * 8 and stats.kept < 8:
            assert set(stats.dropped) == {"io"}
    assert "cannot be" in caplog.text
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def _refuses_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, refusals = os.ftruncate, [1]

    def ftruncate(file: int, length: int) -> None:
        if refusals:
            refusals.pop()
            raise OSError(5, "no")
        plain(file, length)

    monkeypatch.setattr(os, "ftruncate", ftruncate)


def test_a_disk_that_never_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = Add(), tmp_path / "t.tape"
    recorder = record(model, path)
    monkeypatch.setattr(tape_writer, "pwritev", Disk(set(range(10_000)), 28))
    for _ in range(50):
        model(torch.ones(2), torch.ones(2))
    recorder.close()
    stats = recorder.stats()
    assert (stats.seen, stats.kept, stats.dropped) == (50, 0, {"io": 50})
    assert read(path).calls == []


def test_a_call_of_many_tensors_needs_many_parts(tmp_path: Path) -> None:
    model, path = Identity(), tmp_path / "t.tape"
    values = [torch.tensor([n]) for n in range(3000)]
    with record(model, path):
        model(values)
    call = read(path).calls[0]
    for n in (0, 511, 512, 2999):
        assert call.input(n).item() == call.output(n).item() == n


def test_trouble_is_one_line_and_its_traceback_is_for_debugging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "calltape")
    model, x = Add(), torch.ones(2)
    with record(model, tmp_path / "t.tape"):
        monkeypatch.setattr(tape_writer, "pwritev", Disk(set(range(100)), 28))
        model(x, x)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2  # not written, not sealed
    for warning in warnings:
        assert "No space left" in warning.getMessage()
        assert warning.exc_info is None
        assert "\n" not in warning.getMessage()
    assert any(r.exc_info for r in caplog.records if r.levelno == logging.DEBUG)


class BrokenHandler(logging.Handler):
    def handle(self, record: logging.LogRecord) -> bool:
        raise RuntimeError("broken handler")


def test_a_logging_handler_that_raises_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path, x = Echo(), tmp_path / "t.tape", torch.ones(2)
    handler, logger = BrokenHandler(), logging.getLogger("calltape")
    logger.addHandler(handler)
    try:
        with record(model, path) as recorder:
            monkeypatch.setattr(tape_writer, "pwritev", Disk({0}, 5))
            model(x)
            assert recorder.flush()
            with monkeypatch.context() as patch:
                patch.setattr("calltape_recorder.tap.capture_inputs", lambda *_: 1 / 0)
                model([x])
            model(x)
            assert recorder.flush()
            stats = recorder.stats()
    finally:
        logger.removeHandler(handler)
    assert (stats.kept, stats.queued, stats.dropped) == (1, 0, {"io": 1, "internal": 1})
    assert stats.queued_bytes == 0
    assert read(path).trailer is not None


def test_whatever_the_writer_meets_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, path, x = Echo(), tmp_path / "t.tape", torch.ones(2)
    with record(model, path) as recorder:
        writer: Any = recorder._tap.pipeline.writer  # type: ignore[union-attr]
        with monkeypatch.context() as patch:
            patch.setattr(writer, "_write", lambda *_: 1 / 0)
            model(x)
            assert recorder.flush()
        model(x)
        assert recorder.flush()
        assert recorder.stats().kept == 1
    assert adds_up(recorder.stats())
    assert read(path).numbers == [1]
    assert "division by zero" in caplog.text


def test_many_threads_meet_more_structures_than_are_remembered() -> None:
    structures = Structures(lambda _: None)
    wrong: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for n in range(900):
                names = tuple(f"k{(n * 7 + thread * 531 + k) % 1400}" for k in range(2))
                structures.of(("outputs", ("dict", names, None), "none", "none"))
        except BaseException as error:
            wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert len(structures._known) == 1024


def test_many_views_of_one_tensor_take_linear_time() -> None:
    from calltape_recorder.snapshot import see

    views = list(torch.zeros(50_000, 1))
    begin = time.perf_counter()
    seen = see(views, True)
    # One pass per view took 18 seconds; the bound leaves room for a busy machine.
    assert time.perf_counter() - begin < 8
    assert seen.storages == (0,) * len(views)
    assert seen.same == tuple(range(len(views)))
