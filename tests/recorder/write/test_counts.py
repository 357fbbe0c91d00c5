"""What a recorder has counted is on the disk before it is closed, whether calls are kept or not."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder import First, Novelty, Recorder, record
from calltape_recorder.write import disk_file, segments, writer
from calltape_schema.end import InterimCounts
from calltape_schema.reader import TapeReader
from calltape_schema.storage import BytesSource
from tests.recorder.models import Identity

KIB = 1024


class Clock:
    """Time that a test moves on."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(writer, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(segments, "time", clock)
    return clock


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def call(recorder: Recorder, model: Identity, calls: int, size: int = 1) -> None:
    for _ in range(calls):
        model(torch.ones(size))
    recorder.flush()


def counts_of(path: Path) -> InterimCounts | None:
    return TapeReader(BytesSource(path.read_bytes())).scan().counts


def has(path: Path, calls: int) -> bool:
    """Whether the file says that so many calls were seen."""
    counts = counts_of(path) if path.exists() and path.stat().st_size else None
    return counts is not None and counts.next_call == calls


def test_calls_that_are_not_kept_reach_the_disk(tmp_path: Path, clock: Clock) -> None:
    model, path = Identity(), tmp_path / "a.tape"
    with record(model, path, keep=Novelty()) as recorder:
        call(recorder, model, 300)
        assert counts_of(path) is None, "it is not time yet"
        clock.ahead += 60
        until(lambda: has(path, 300))
        kept = recorder.stats().kept
        with open_tape(path) as tape:
            found = tape.coverage
            assert (found.seen, found.kept, found.at_least) == (300, kept, True)
            assert found.dropped == {"policy": 300 - kept}
            assert found.counted_ns is not None
            assert found.counted_ns <= time.time_ns()
        sizes = set()
        for more in range(1, 6):
            call(recorder, model, 100)
            clock.ahead += 60
            until(lambda calls=300 + 100 * more: has(path, calls))
            sizes.add(path.stat().st_size)
        assert len(sizes) <= 1, "it grows once, by the second place"
        recorder.seal()
    with open_tape(tmp_path) as tape:
        assert (tape.coverage.seen, tape.coverage.at_least) == (800, None)
        assert tape.damage == []


def test_after_a_sealed_file_the_next_one_begins_without_a_call(
    tmp_path: Path, clock: Clock
) -> None:
    model, options = Identity(), {"keep": Novelty(), "segment_seconds": 10}
    with record(model, tmp_path / "a.tape", **options) as recorder:  # type: ignore[arg-type]
        call(recorder, model, 20)
        clock.ahead += 11
        until(lambda: recorder.stats().segments == 1 and recorder.seal())
        with open_tape(tmp_path) as tape:
            assert tape.sealed
            assert tape.continues
            assert (tape.coverage.seen, tape.coverage.at_least) == (20, True)
            assert not tape.counters.complete
        call(recorder, model, 30)
        clock.ahead += 11
        until(lambda: has(tmp_path / "a-00001.tape", 50))
        with open_tape(tmp_path) as tape:
            assert not tape.sealed
            assert not tape.continues
            assert (tape.coverage.seen, tape.coverage.at_least) == (50, True)
        # A call that is kept goes into that file, and ends it as old as any other.
        call(recorder, model, 1, size=7)
        assert recorder.stats().kept == recorder.stats().written
        assert [p.name for p in sorted(tmp_path.glob("*.tape"))] == ["a-00001.tape", "a.tape"]
    with open_tape(tmp_path) as tape:
        assert tape.sealed
        assert not tape.continues
        assert (tape.coverage.seen, tape.coverage.at_least) == (51, None)
        assert tape.missing_files == tape.deleted_files == {}


def test_nothing_is_written_where_nothing_was_called(tmp_path: Path, clock: Clock) -> None:
    model, path = Identity(), tmp_path / "a.tape"
    with record(model, path, segment_seconds=1) as recorder:
        call(recorder, model, 3)
        clock.ahead += 2
        until(lambda: recorder.stats().segments == 1 and recorder.seal())
        size = path.stat().st_size
        written = recorder.stats().written_bytes
        looks = recorder._handler.pipeline.writer._turns  # type: ignore[union-attr]
        clock.ahead += 1000
        until(lambda: recorder._handler.pipeline.writer._turns > looks + 20)  # type: ignore[union-attr]
        assert [path] == list(tmp_path.iterdir())
        assert (path.stat().st_size, recorder.stats().written_bytes) == (size, written)


def test_a_file_is_counted_elsewhere_before_it_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process that is killed leaves them: just before a file is deleted, and just after."""
    model, folder, moments = Identity(), tmp_path / "tapes", []
    remove = disk_file.TapeFile.remove

    def removed(file: disk_file.TapeFile) -> bool:
        for is_gone in (False, True):
            copy = tmp_path / f"moment-{len(moments)}"
            shutil.copytree(folder, copy)
            stats = recorder.stats()
            moments.append((copy, stats.seen - stats.queued, stats.seen))
            if not is_gone:
                assert remove(file)
        return True

    options: Any = {"segment_bytes": 20 * KIB, "max_disk_bytes": 200 * KIB}
    with record(model, folder / "a.tape", when_full="delete_oldest", **options) as recorder:
        monkeypatch.setattr(disk_file.TapeFile, "remove", removed)
        for _ in range(40):
            call(recorder, model, 1, size=2000)
        monkeypatch.undo()
    assert len(moments) > 20
    for copy, accounted, seen in moments:
        with open_tape(copy) as tape:
            found = tape.coverage
            assert found.at_least
            assert accounted <= found.seen <= seen
            assert found.kept == len(tape)
            assert tape.missing_files == {}
            assert tape.damage == []
    with open_tape(folder) as tape:
        stats, found = recorder.stats(), tape.coverage
        assert (found.seen, found.kept, found.dropped) == (40, stats.kept, stats.dropped)
        assert not found.at_least
        ((runs,),) = [tape.deleted_files.values()]
        assert sum(last - first + 1 for first, last in runs) == len(moments) // 2
        assert tape.missing_files == {}


def test_what_somebody_else_deletes_is_missing(tmp_path: Path) -> None:
    model, options = Identity(), {"segment_bytes": 20 * KIB, "max_disk_bytes": 200 * KIB}
    with record(model, tmp_path / "a.tape", when_full="delete_oldest", **options) as recorder:  # type: ignore[arg-type]
        for _ in range(40):
            call(recorder, model, 1, size=2000)
    paths = sorted(tmp_path.glob("*.tape"))
    assert len(paths) > 3
    paths[1].unlink()
    number = int(paths[1].stem.removeprefix("a-"))
    with open_tape(tmp_path) as tape:
        assert list(tape.missing_files.values()) == [(number,)]
        assert tape.deleted_files
        assert tape.coverage.at_least or tape.coverage.seen == 40


def test_counts_that_the_disk_does_not_take_are_written_later(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, path, failed, fails = Identity(), tmp_path / "a.tape", [], [True]
    pwritev = os.pwritev

    def failing(file: int, parts: Any, offset: int) -> int:
        if not fails:
            return pwritev(file, parts, offset)
        failed.append(offset)
        pwritev(file, [b"".join(map(bytes, parts))[:600]], offset)  # torn
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with record(model, path, keep=First(1)) as recorder:
        call(recorder, model, 5)
        for calls in (5, 10):  # both places
            clock.ahead += 60
            until(lambda calls=calls: has(path, calls))
            call(recorder, model, 5)
        monkeypatch.setattr(disk_file, "pwritev", failing)
        clock.ahead += 60
        until(lambda: len(failed) > 2)
        assert has(path, 10), "what was said before still stands"
        assert caplog.text.count("the counters cannot be written") == 1
        fails.clear()
        until(lambda: has(path, 15))
    with open_tape(path) as tape:
        assert (tape.coverage.seen, tape.coverage.kept, tape.damage) == (15, 1, [])


def test_a_bound_of_the_disk_holds_for_counts(tmp_path: Path, clock: Clock) -> None:
    model, bound = Identity(), 128 * KIB
    with record(model, tmp_path / "a.tape", keep=Novelty(), max_disk_bytes=bound) as recorder:
        for calls in range(1, 30):
            call(recorder, model, 1)
            clock.ahead += 60
            until(lambda calls=calls: has(tmp_path / "a.tape", calls))
            assert recorder.stats().disk_bytes == (tmp_path / "a.tape").stat().st_size < 10 * KIB


def test_nothing_that_was_written_is_unwritten(tmp_path: Path) -> None:
    """Counters only grow; what a call takes is known although files are deleted."""
    model, options = Identity(), {"segment_bytes": 20 * KIB, "max_disk_bytes": 200 * KIB}
    before = (0, 0)
    with record(model, tmp_path / "a.tape", when_full="delete_oldest", **options) as recorder:  # type: ignore[arg-type]
        for calls in range(1, 41):
            call(recorder, model, 1, size=2000)
            stats = recorder.stats()
            assert stats.written == calls
            assert before <= (stats.written, stats.written_bytes)
            before = stats.written, stats.written_bytes
            assert stats.disk_bytes == sum(p.stat().st_size for p in tmp_path.glob("*.tape"))
            assert stats.disk_bytes <= 200 * KIB
        assert stats.kept < 40
        assert stats.written_bytes > 40 * 8000 > stats.disk_bytes
        assert 16_000 <= stats.written_bytes / stats.written < 25_000  # each with a file
