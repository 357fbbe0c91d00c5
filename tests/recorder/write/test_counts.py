"""What a recorder has counted is on the disk before it is closed, whether calls are kept or not."""

from __future__ import annotations

import errno
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder import First, Novelty, Recorder, record
from calltape_recorder.write import disk_file
from calltape_schema.reader import TapeReader
from calltape_schema.storage import BytesSource
from tests.recorder import disks
from tests.recorder.models import Identity
from tests.recorder.waiting import Clock, looked

KIB = 1024
DELETES: dict[str, Any] = {
    "segment_bytes": 20 * KIB, "max_disk_bytes": 200 * KIB, "when_full": "delete_oldest",
}  # fmt: skip


def call(recorder: Recorder, model: Identity, calls: int, size: int = 1) -> None:
    for _ in range(calls):
        model(torch.ones(size))
    recorder.flush()


def counted(path: Path) -> int | None:
    """How many calls the file says that were seen, while it is not sealed."""
    counts = TapeReader(BytesSource(path.read_bytes())).scan().counts
    return None if counts is None else counts.next_call


def test_calls_that_are_not_kept_reach_the_disk(tmp_path: Path, clock: Clock) -> None:
    model, path = Identity(), tmp_path / "a.tape"
    with record(model, path, keep=Novelty(), max_disk_bytes=128 * KIB) as recorder:
        call(recorder, model, 300)
        assert counted(path) is None, "it is not time yet"
        clock.ahead += 60
        assert looked(recorder)
        assert counted(path) == 300
        kept = recorder.stats().kept
        with open_tape(path) as tape:
            coverage = tape.coverage
            assert (coverage.seen, coverage.kept, coverage.at_least) == (300, kept, True)
            assert coverage.dropped == {"policy": 300 - kept}
            assert coverage.counted_ns is not None
            assert coverage.counted_ns <= time.time_ns()
        sizes = set()
        for more in range(1, 6):
            call(recorder, model, 100)
            clock.ahead += 60
            assert looked(recorder)
            assert counted(path) == 300 + 100 * more
            assert recorder.stats().disk_bytes == path.stat().st_size < 10 * KIB
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
        assert looked(recorder)
        with open_tape(tmp_path) as tape:
            assert tape.sealed
            assert tape.continues
            assert (tape.coverage.seen, tape.coverage.at_least) == (20, True)
            assert not tape.counters.complete
        written = recorder.stats().written_bytes
        clock.ahead += 1000
        assert looked(recorder)
        assert [path.name for path in tmp_path.iterdir()] == ["a.tape"]  # nothing was called
        assert recorder.stats().written_bytes == written
        call(recorder, model, 30)
        clock.ahead += 11
        assert looked(recorder)
        assert counted(tmp_path / "a-00001.tape") == 50
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


def test_a_file_is_counted_elsewhere_before_it_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process that is killed leaves them: just before a file is deleted, and just after.
    Counters only grow; what a call takes is known although files are deleted."""
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

    before = 0
    with record(model, folder / "a.tape", **DELETES) as recorder:
        monkeypatch.setattr(disk_file.TapeFile, "remove", removed)
        for calls in range(1, 41):
            call(recorder, model, 1, size=2000)
            stats = recorder.stats()
            assert stats.written == calls
            assert before < stats.written_bytes
            before = stats.written_bytes
            on_disk = sum(path.stat().st_size for path in folder.glob("*.tape"))
            assert stats.disk_bytes == on_disk <= 200 * KIB
        monkeypatch.undo()
    assert 16_000 <= before / 40 < 25_000  # each with a file
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
    paths = sorted(folder.glob("*.tape"))
    paths[1].unlink()  # by somebody else
    with open_tape(folder) as tape:
        assert list(tape.missing_files.values()) == [(int(paths[1].stem.removeprefix("a-")),)]
        assert tape.deleted_files
        assert tape.coverage.at_least or tape.coverage.seen == 40


def test_counts_that_the_disk_does_not_take_are_written_later(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, path = Identity(), tmp_path / "a.tape"
    with record(model, path, keep=First(1)) as recorder:
        call(recorder, model, 5)
        for calls in (5, 10):  # both places
            clock.ahead += 60
            assert looked(recorder)
            assert counted(path) == calls
            call(recorder, model, 5)
        disks.failing(monkeypatch, errno.EIO, after=0.5)
        clock.ahead += 60
        assert looked(recorder)
        assert counted(path) == 10, "what was said before still stands"
        assert caplog.text.count("the counters cannot be written") == 1
        disks.failing(monkeypatch, errno.EIO, lambda number, nbytes: False)
        assert looked(recorder)
        assert counted(path) == 15
    with open_tape(path) as tape:
        assert (tape.coverage.seen, tape.coverage.kept, tape.damage) == (15, 1, [])
