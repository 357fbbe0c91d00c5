"""Rolling files, bounds of disk, time and free space, and disks that come back."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder import Recorder, TapeError, record
from calltape_recorder.bounds import LEAST_DISK_BYTES
from calltape_recorder.write import disk_file
from tests.recorder import disks
from tests.recorder.models import Add, Identity
from tests.recorder.reading import read
from tests.recorder.waiting import looked
from tests.recorder.write.accounts import (
    KIB,
    block,
    call,
    check_ends,
    open_files,
    size_on_disk,
    tapes,
    tapes_in,
)


def test_a_full_segment_is_followed_by_the_next(tmp_path: Path) -> None:
    model = Identity()
    with record(model, tmp_path / "a.tape", segment_bytes=100 * KIB, outputs=False) as recorder:
        call(recorder, model, 25)
        assert recorder.stats().segments == len(tapes(tmp_path)) > 2
        assert recorder.stats().disk_bytes == size_on_disk(tmp_path)
    names = [path.name for path in tapes(tmp_path)]
    assert names == ["a-00001.tape", "a-00002.tape", "a-00003.tape", "a.tape"]
    assert all(path.stat().st_size < 120 * KIB for path in tapes(tmp_path))
    check_ends(recorder.stats(), tapes_in(tmp_path))
    with open_tape(tmp_path) as tape:
        assert tape.sealed
        assert [c.number for c in tape] == list(range(25))
        assert len({m.tape for m in tape.manifests}) == 1
        assert tape.coverage.seen == 25
        for n in (0, 12, 24):
            assert tape.find(n).inputs[0][0][0].item() == n
    parts = {path.name: read(path).manifest.segment for path in tapes(tmp_path)}
    assert parts["a.tape"].number == 0  # type: ignore[union-attr]
    assert parts["a-00001.tape"].first_call == 8  # type: ignore[union-attr]


def test_calls_that_wait_go_to_as_many_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Identity()
    with record(model, tmp_path / "a.tape", segment_bytes=100 * KIB, outputs=False) as recorder:
        gate = disks.slow(monkeypatch)
        for n in range(60):
            model(block(float(n)))
        gate.set()
    assert all(path.stat().st_size < 130 * KIB for path in tapes(tmp_path))
    assert recorder.stats().kept == 60
    check_ends(recorder.stats(), tapes_in(tmp_path))


def test_the_oldest_goes_when_the_disk_is_full(tmp_path: Path) -> None:
    model = Identity()
    bound = 400 * KIB
    with record(
        model, tmp_path / "a.tape", max_disk_bytes=bound, when_full="delete_oldest", outputs=False
    ) as recorder:
        for n in range(100):
            call(recorder, model, 1, n)
            assert size_on_disk(tmp_path) <= bound
    assert size_on_disk(tmp_path) <= bound
    stats = recorder.stats()
    assert stats.kept + stats.dropped["deleted"] == stats.seen == 100
    assert stats.kept > 10
    check_ends(stats, tapes_in(tmp_path))
    with open_tape(tmp_path) as tape:
        numbers = [c.number for c in tape]
        assert numbers == list(range(100 - stats.kept, 100))


def test_recording_stops_at_its_limit_on_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Identity()
    with record(model, tmp_path / "a.tape", max_disk_bytes=300 * KIB, outputs=False) as recorder:
        call(recorder, model, 50)
    stats = recorder.stats()
    assert stats.kept + stats.dropped["max_disk_bytes"] == 50
    assert 15 < stats.kept < 30
    assert size_on_disk(tmp_path) <= 300 * KIB
    check_ends(stats, tapes_in(tmp_path))
    assert caplog.text.count("max_disk_bytes") == 1


def test_nothing_is_written_below_the_floor_of_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [10**9]

    class Space:
        f_frsize = 1

        @property
        def f_bavail(self) -> int:
            return free[0]

    monkeypatch.setattr(os, "statvfs", lambda _: Space())
    model = Identity()
    with record(model, tmp_path / "a.tape", min_free_bytes=10**8, outputs=False) as recorder:
        call(recorder, model, 3)
        free[0] = 10**8
        call(recorder, model, 4, 3)
        free[0] = 10**9
        call(recorder, model, 2, 7)
    stats = recorder.stats()
    assert (stats.kept, stats.dropped) == (5, {"disk_full": 4})
    check_ends(stats, tapes_in(tmp_path))


@pytest.mark.usefixtures("looks_always")
def test_a_removed_file_is_followed_by_another(tmp_path: Path) -> None:
    model = Identity()
    with record(model, tmp_path / "a.tape", outputs=False) as recorder:
        call(recorder, model, 3)
        (tmp_path / "a.tape").unlink()
        assert looked(recorder)
        call(recorder, model, 2, 3)
    stats = recorder.stats()
    assert (stats.seen, stats.kept, stats.dropped) == (5, 2, {"file_removed": 3})
    check_ends(stats, tapes_in(tmp_path))
    assert read(tmp_path / "a-00001.tape").numbers == [3, 4]


@pytest.mark.parametrize("comes_back", [True, False])
@pytest.mark.usefixtures("looks_always")
def test_a_folder_that_vanished_is_made_again(tmp_path: Path, comes_back: bool) -> None:
    """A volume that is mounted anew, or a folder that somebody removed to make room."""
    model, folder = Identity(), tmp_path / "on" / "a" / "volume"
    with record(model, folder / "a.tape", min_free_bytes=1, outputs=False) as recorder:
        call(recorder, model, 2)
        if comes_back:
            (tmp_path / "on").rename(tmp_path / "off")
        else:
            shutil.rmtree(folder)
        assert looked(recorder)
        call(recorder, model, 2, 2)
    assert (recorder.stats().kept, recorder.stats().dropped) == (2, {"file_removed": 2})
    assert read(folder / "a-00001.tape").numbers == [2, 3]
    assert not comes_back or read(tmp_path / "off/a/volume/a.tape").numbers == [0, 1]


@pytest.mark.parametrize("to_the_header", [False, True])
def test_nothing_is_written_behind_a_hole_where_somebody_cut_the_file(
    tmp_path: Path, *, to_the_header: bool
) -> None:
    model, path = Identity(), tmp_path / "a.tape"
    with record(model, path, outputs=False) as recorder:
        begin = path.stat().st_size
        call(recorder, model, 1)
        first = path.stat().st_size
        call(recorder, model, 2, 1)
        os.truncate(path, begin if to_the_header else first)
        before = open_files()
        call(recorder, model, 2, 3)
        assert open_files() <= before
    stats = recorder.stats()
    assert (stats.seen, stats.kept, stats.dropped) == (5, 1, {"file_removed": 3, "io": 1})
    assert path.stat().st_size == begin if to_the_header else first
    assert read(path).numbers == ([] if to_the_header else [0])
    assert not read(path).damage
    assert read(tmp_path / "a-00001.tape").numbers == [4]


@pytest.mark.parametrize("ends", ["seal", "close"])
def test_a_file_that_somebody_cut_does_not_keep_the_others_from_their_ends(
    tmp_path: Path, ends: str
) -> None:
    model, path = Identity(), tmp_path / "a.tape"
    with record(model, path, outputs=False) as recorder:
        begin = path.stat().st_size
        call(recorder, model, 2)
        os.truncate(path, begin)
        if ends == "seal":
            assert recorder.seal()
            call(recorder, model, 1, 2)
            assert recorder.seal()
    stats = recorder.stats()
    kept = 1 if ends == "seal" else 0
    assert (stats.kept, stats.dropped) == (kept, {"file_removed": 2})
    assert "somebody" in (stats.last_error or "")
    path.unlink()
    check_ends(stats, tapes_in(tmp_path))


def descriptor_of(path: Path) -> int:
    """That of the recorder."""
    (found,) = (
        number
        for number in map(int, os.listdir("/proc/self/fd"))
        if os.path.lexists(f"/proc/self/fd/{number}")
        and os.readlink(f"/proc/self/fd/{number}") == str(path)
    )
    return found


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="there is no /proc")


@needs_proc
@pytest.mark.parametrize("again", ["closed", "another file has its number", "and its inode"])
@pytest.mark.parametrize("removed", [False, True])
def test_a_file_of_the_host_in_place_of_a_closed_one_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str, removed: bool
) -> None:
    model, path, mine = Identity(), tmp_path / "t.tape", tmp_path / "mine"
    mine.write_bytes(b"mine")
    with record(model, path) as recorder:
        model(1)
        recorder.flush()
        number, status, real = descriptor_of(path), path.stat(), os.fstat
        os.close(number)
        if again != "closed":
            opened = os.open(mine, os.O_RDWR)
            os.dup2(opened, number)
        if again == "and its inode":
            monkeypatch.setattr(os, "fstat", lambda n: status if n == number else real(n))
        if removed:
            path.unlink()
            path.write_bytes(b"also mine")
        model(2)
        recorder.flush()
        monkeypatch.undo()
        stats = recorder.stats()
    assert mine.read_bytes() == b"mine"
    if again != "closed":
        assert os.fstat(number).st_size == 4  # open still
        for one in {opened, number}:
            os.close(one)
    if removed:
        assert stats.dropped == {"file_removed": 1, "io": 1}
        assert path.read_bytes() == b"also mine"
    else:
        assert stats.dropped == {}
        assert read(path).numbers == [0, 1]


@needs_proc
def test_a_path_that_leads_elsewhere_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "t.tape"
    recorder = Recorder(path)
    os.close(descriptor_of(path))
    path.unlink()
    path.write_bytes(b"mine")
    with pytest.raises(TapeError):
        recorder.attach(Identity())
    recorder.close()
    assert path.read_bytes() == b"mine"


@pytest.mark.usefixtures("looks_always")
def test_a_recorder_stays_in_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    model = Identity()
    with record(model, "a.tape", outputs=False) as recorder:
        call(recorder, model, 1)
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert looked(recorder)
        call(recorder, model, 1)
    assert recorder.stats().dropped == {}
    assert read(tmp_path / "a.tape").numbers == [0, 1]


def test_sealing_while_recording_begins_a_new_file(tmp_path: Path) -> None:
    model = Add()
    x = torch.ones(2)
    with record(model, tmp_path / "a.tape") as recorder:
        model(x, x)
        assert recorder.seal(20)
        assert recorder.seal(20)  # nothing more to seal
        tape = read(tmp_path / "a.tape")
        assert tape.end.coverage.kept == 1
        model(x, x)
        model(x, x)
    assert [p.name for p in tapes(tmp_path)] == ["a-00001.tape", "a.tape"]
    assert read(tmp_path / "a-00001.tape").numbers == [1, 2]
    check_ends(recorder.stats(), tapes_in(tmp_path))
    assert not recorder.seal()


def test_calls_are_kept_once_the_disk_takes_a_next_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = Add(), torch.ones(2)
    with record(model, tmp_path / "a.tape") as recorder:
        model(x, x)
        assert recorder.seal(20)
        real = os.open

        def refuses(path: Any, *args: Any, **kwargs: Any) -> int:
            if str(path).endswith(".tape"):
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(path, *args, **kwargs)

        monkeypatch.setattr(disk_file.os, "open", refuses)
        model(x, x)
        assert recorder.flush()
        assert recorder.stats().dropped == {"disk_full": 1}
        monkeypatch.undo()
        model(x, x)
    assert recorder.stats().kept == 2
    check_ends(recorder.stats(), tapes_in(tmp_path))


def test_names_that_are_taken_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a-00001.tape").write_text("somebody's")
    model = Identity()
    with record(model, tmp_path / "a.tape", segment_bytes=50 * KIB, overwrite=True) as recorder:
        call(recorder, model, 8)
    assert (tmp_path / "a-00001.tape").read_text() == "somebody's"
    assert (tmp_path / "a-00002.tape").exists()


def test_tapes_in_a_directory_are_named_by_model_and_process(tmp_path: Path) -> None:
    model, x = Add(), torch.ones(2)
    with record(model, tmp_path) as one, record(model, f"{tmp_path}/new/") as two:
        model(x, x)
    assert [p.name for p in tapes(tmp_path)] == [f"Add-{os.getpid()}.tape"]
    assert [p.name for p in tapes(tmp_path / "new")] == [f"Add-{os.getpid()}.tape"]
    with record(model, tmp_path) as three:
        model(x, x)
    assert Path(three.path).name == f"Add-{os.getpid()}.2.tape"
    assert one.stats().kept == two.stats().kept == three.stats().kept == 1


def test_pause_and_rate_drop_calls_until_they_end(tmp_path: Path) -> None:
    model, x = Add(), torch.ones(2)
    with record(model, tmp_path / "a.tape") as recorder:
        model(x, x)
        recorder.pause()
        assert recorder.stats().paused
        model(x, x)
        model(x, x)
        recorder.resume()
        model(x, x)
        recorder.set_rate(0.0)
        model(x, x)
        recorder.set_rate(None)
        model(x, x)
        with pytest.raises(TapeError):
            recorder.set_rate(2)
    stats = recorder.stats()
    assert (stats.kept, stats.dropped) == (3, {"paused": 2, "policy": 1})
    check_ends(stats, tapes_in(tmp_path))


def test_the_smallest_bound_has_room_for_calls(tmp_path: Path) -> None:
    with pytest.raises(TapeError, match=r"max_disk_bytes=50000 leaves .*Pass at least 131072"):
        record(Add(), tmp_path / "a.tape", max_disk_bytes=50_000)
    model = Identity()
    with record(model, tmp_path / "a.tape", max_disk_bytes=LEAST_DISK_BYTES) as recorder:
        call(recorder, model, 1)
    assert recorder.stats().kept == 1
