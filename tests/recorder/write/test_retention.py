"""Files that are deleted because of their age, and files that somebody moved away."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

import pytest

from calltape_analyzer import open_tape
from calltape_recorder import Novelty, record
from tests.recorder.models import Identity
from tests.recorder.waiting import Clock, looked, until
from tests.recorder.write.accounts import KIB, block, call, check_ends, tapes, tapes_in


def test_files_that_are_old_are_deleted_and_counted(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "calltape")
    model = Identity()
    mine = tmp_path / "other.tape"
    mine.write_bytes(b"somebody else's")
    options: Any = {"segment_seconds": 10, "max_age_seconds": 100}
    with record(model, tmp_path / "tapes" / "a.tape", **options) as recorder:
        folder = tmp_path / "tapes"
        call(recorder, model, 3)
        clock.ahead += 11
        assert looked(recorder)
        call(recorder, model, 2, 3)
        clock.ahead += 90  # the first file ended 90 s ago
        assert looked(recorder)
        assert recorder.stats().kept == 5
        clock.ahead += 11
        assert looked(recorder)
        assert recorder.stats().dropped == {"expired": 3}
        # What was deleted was counted in a file before: it has no calls.
        assert [path.name for path in tapes(folder)] == ["a-00001.tape", "a-00002.tape"]
        assert recorder.stats().kept == 2
        assert recorder.stats().unwanted == {"expired": 3}  # it was asked for
        # Without a call, the last one is deleted too.
        clock.ahead += 101
        assert looked(recorder)
        assert recorder.stats().dropped == {"expired": 5}
        assert [path.name for path in tapes(folder)] == ["a-00002.tape"]
        call(recorder, model, 1, 5)
    stats = recorder.stats()
    assert (stats.seen, stats.kept, stats.dropped) == (6, 1, {"expired": 5})
    check_ends(stats, tapes_in(folder))
    assert mine.exists()
    assert "deleted files that ended 100 s ago (files: 1, calls: 3)" in caplog.text
    with open_tape(folder) as tape:
        assert len(tape) == 1
        assert not tape.damage
        assert tape.coverage.dropped == {"expired": 5}
        assert tape.counters is not None  # they count calls whose files are gone


def test_evidence_that_was_deleted_is_gathered_again(tmp_path: Path, clock: Clock) -> None:
    model = Identity()
    options: Any = {"keep": Novelty(), "max_age_seconds": 80}
    with record(model, tmp_path / "a.tape", **options) as recorder:
        for n in range(20):
            call(recorder, model, 1, n)
        kept = recorder.stats().kept
        assert 0 < kept < 20
        clock.ahead += 11  # an eighth of the age: the file ends
        assert looked(recorder)
        clock.ahead += 81
        assert looked(recorder)
        assert recorder.stats().dropped.get("expired") == kept
        call(recorder, model, 1)
        assert recorder.stats().kept == 1


def test_what_an_earlier_process_wrote_stays(tmp_path: Path, clock: Clock) -> None:
    model = Identity()
    options: Any = {"segment_seconds": 1, "max_age_seconds": 5}
    with record(model, f"{tmp_path}/", **options) as recorder:
        call(recorder, model, 1)
    earlier = tapes(tmp_path)
    assert earlier
    with record(model, f"{tmp_path}/", **options) as recorder:
        call(recorder, model, 1)
        clock.ahead += 100
        assert looked(recorder)
        clock.ahead += 100
        assert looked(recorder)
        assert recorder.stats().dropped == {"expired": 1}
    assert set(earlier) <= set(tapes(tmp_path))


def test_files_that_were_moved_away_count_as_kept(tmp_path: Path, clock: Clock) -> None:
    """As an agent does it: the bound of the disk is for what is there."""
    model, away = Identity(), tmp_path / "away"
    away.mkdir()
    folder = tmp_path / "tapes"
    options: Any = {"segment_bytes": 15 * KIB, "max_disk_bytes": 150 * KIB, "max_age_seconds": 100}
    with record(model, folder / "a.tape", **options) as recorder:
        for n in range(18):  # 180 KiB
            call(recorder, model, 1, n)
            assert recorder.seal()
            for path in tapes(folder):
                shutil.move(path, away / path.name)
            assert looked(recorder)
            assert recorder.stats().segments == 0
        clock.ahead += 200
        assert looked(recorder)
        assert (recorder.stats().kept, recorder.stats().dropped) == (18, {})
        assert recorder.stats().disk_bytes < 15 * KIB
    stats = recorder.stats()
    assert (stats.kept, stats.dropped) == (18, {})
    for path in tapes(folder):
        shutil.move(path, away / path.name)
    check_ends(stats, tapes_in(away))


def test_a_link_that_is_left_in_the_place_of_a_moved_file_is_not_the_file(
    tmp_path: Path, clock: Clock
) -> None:
    model, away = Identity(), tmp_path / "away.tape"
    (tmp_path / "tapes").mkdir()
    folder = tmp_path / "link"  # in the path of the folder a link is as good as any other name
    folder.symlink_to(tmp_path / "tapes")
    options: Any = {"segment_seconds": 3600, "max_age_seconds": 100}
    with record(model, folder / "a.tape", **options) as recorder:
        call(recorder, model, 2)
        assert recorder.seal()
        (folder / "a.tape").rename(away)
        (folder / "a.tape").symlink_to(away)
        clock.ahead += 101
        assert looked(recorder)
        assert recorder.stats().segments == 0
        call(recorder, model, 1, 2)
        assert looked(recorder)
        assert (recorder.stats().kept, recorder.stats().dropped) == (3, {})
    stats = recorder.stats()
    assert (stats.kept, stats.dropped) == (3, {})
    check_ends(stats, tapes_in(folder))


def test_calls_are_dropped_until_there_is_room(tmp_path: Path, clock: Clock) -> None:
    """With when_full="stop", which is the default."""
    model, away, folder = Identity(), tmp_path / "away", tmp_path / "tapes"
    away.mkdir()
    options: Any = {"segment_bytes": 30 * KIB, "max_disk_bytes": 300 * KIB}
    with record(model, folder / "a.tape", outputs=False, **options) as recorder:
        call(recorder, model, 60)
        full = recorder.stats()
        assert full.dropped["max_disk_bytes"] > 20
        assert "deleted" not in full.dropped
        assert recorder.seal()
        for path in tapes(folder):
            shutil.move(path, away / path.name)
        assert looked(recorder)
        assert recorder.stats().segments == 0
        call(recorder, model, 5, 60)
        assert recorder.stats().dropped == full.dropped
        assert recorder.stats().kept == full.kept + 5


def test_sealed_files_may_be_compressed_by_others(tmp_path: Path, clock: Clock) -> None:
    model = Identity()
    with record(model, tmp_path / "a.tape", segment_bytes=30 * KIB) as recorder:
        call(recorder, model, 10)
        assert recorder.seal()
        for path in tapes(tmp_path):
            Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        clock.ahead += 10
        assert looked(recorder)
        assert recorder.stats().segments == 0
        call(recorder, model, 2, 10)
    assert (recorder.stats().kept, recorder.stats().dropped) == (12, {})
    with open_tape(tmp_path) as tape:
        assert [found.number for found in tape] == list(range(12))
        assert not tape.damage
        assert tape.coverage is not None
        assert (tape.coverage.seen, tape.coverage.kept) == (12, 12)


def test_many_files_are_looked_for_a_few_at_a_time(tmp_path: Path, clock: Clock) -> None:
    model = Identity()
    with record(model, tmp_path / "a.tape") as recorder:
        for _ in range(36):
            model(block(kib=1))
            assert recorder.seal()
        for path in tapes(tmp_path)[::2]:
            path.unlink()
        left = len(tapes(tmp_path))
        until(lambda: looked(recorder) and recorder.stats().segments == left)
        assert recorder.stats().dropped == {}
