"""The status file: written in one step, also on a full disk, by its own recorder only."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import First, Recorder, record
from calltape_recorder.write import heartbeat, status_file, tape_writer, writer
from calltape_recorder.write.status_file import StatusFile
from calltape_schema.health import health_of
from calltape_schema.status import SIZE, Status, read_status
from tests.recorder.models import Add
from tests.recorder.processes import in_a_fork

TAPE = bytes(range(16))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorder that looks and writes its status all the time."""
    monkeypatch.setattr(writer, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.01)


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def statuses(folder: Path) -> list[Status]:
    return [read_status(str(path)) for path in sorted(folder.glob("*.status.json"))]


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    file = StatusFile(str(tmp_path / "a"), TAPE, 0o640)
    file.write(b"1" * SIZE)
    path = tmp_path / "a.00010203.status.json"
    before = path.stat()
    assert stat.S_IMODE(before.st_mode) == 0o640
    file.write(b"2" * SIZE)
    assert path.stat().st_ino != before.st_ino
    assert path.read_bytes() == b"2" * SIZE
    assert list(tmp_path.iterdir()) == [path]
    file.remove()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_takes_it_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = StatusFile(str(tmp_path / "a"), TAPE, 0o600)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):  # there is no place yet
            file.write(b"1" * SIZE)
        assert not list(tmp_path.iterdir())
    file.write(b"1" * SIZE)
    monkeypatch.setattr(os, "write", full)
    file.write(b"2" * SIZE)
    assert Path(file.path).read_bytes() == b"2" * SIZE
    assert len(list(tmp_path.iterdir())) == 1


def test_a_link_leads_nowhere(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    file = StatusFile(str(tmp_path / "a"), TAPE, 0o600)
    for name in (file.path, f"{file.path}.new"):
        os.symlink(victim, name)
    file.write(b"1" * SIZE)
    assert victim.read_text() == "mine"
    assert not Path(file.path).is_symlink()
    os.unlink(file.path)
    os.symlink(victim, file.path)
    file.remove()
    assert victim.exists()
    assert Path(file.path).is_symlink()  # it is somebody else's


def test_a_link_with_the_number_of_the_removed_file_is_somebody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems give the inode number of a removed file to the next one."""
    file = StatusFile(str(tmp_path / "a"), TAPE, 0o600)
    file.write(b"1" * SIZE)
    before = os.lstat(file.path)
    os.unlink(file.path)
    os.symlink(tmp_path, file.path)
    link = list(os.lstat(file.path))
    link[1] = before.st_ino
    monkeypatch.setattr(os, "lstat", lambda _: os.stat_result(link))
    file.remove()
    monkeypatch.undo()
    assert Path(file.path).is_symlink()


@pytest.mark.usefixtures("quick")
def test_a_recorder_has_a_status_until_its_tape_is_sealed(tmp_path: Path) -> None:
    model, x = Add(), torch.ones(2)
    with record(model, tmp_path / "a.tape", keep=First(2)) as recorder:
        for _ in range(3):
            model(x, x)
        recorder.flush()
        until(lambda: any(one.kept == 2 for one in statuses(tmp_path)))
        (one,) = statuses(tmp_path)
        assert (one.seen, one.kept, one.dropped) == (3, 2, {"policy": 1})
        assert (one.activity, one.file, one.process.pid) == ("recording", "a.tape", os.getpid())
        assert one.target == "tests.recorder.models:Add.forward"
        assert one.last_write_ns == recorder.stats().last_write_ns
        assert health_of(str(tmp_path)).state == "recording"
        (path,) = tmp_path.glob("*.status.json")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        recorder.pause()
        until(lambda: health_of(str(tmp_path)).state == "paused")
        recorder.resume()
        until(lambda: health_of(str(tmp_path)).state == "recording")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tape"]
    assert health_of(str(tmp_path)).state == "nothing"


def test_a_status_is_written_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_LOOK_SECONDS", 0.001)
    written: list[bytes] = []
    monkeypatch.setattr(StatusFile, "write", lambda _, content: written.append(content))
    model, x = Add(), torch.ones(2)
    with record(model, tmp_path / "a.tape") as recorder:
        for _ in range(50):
            model(x, x)
            recorder.flush()
            time.sleep(0.002)
    assert len(written) == 1


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("bound", [{"max_calls": 1}, {"max_seconds": 0.02}])
def test_a_recording_that_is_over_has_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bound: dict[str, Any]
) -> None:
    caplog.set_level("INFO", "calltape")
    model, x = Add(), torch.ones(2)
    with record(model, tmp_path / "a.tape", **bound):
        model(x, x)
        until(lambda: health_of(str(tmp_path)).state == "ended")
    (name,) = bound
    assert caplog.text.count(f"recording stopped: {name} is reached") == 1


@pytest.mark.usefixtures("quick")
def test_a_disk_that_is_full_and_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = Add(), torch.ones(2)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with record(model, tmp_path / "a.tape") as recorder:
        model(x, x)
        assert recorder.flush()
        until(lambda: health_of(str(tmp_path)).state == "recording")
        with monkeypatch.context() as patch:
            patch.setattr(tape_writer, "pwritev", full)
            patch.setattr(status_file.os, "write", full)  # nor is there room for a new status
            for _ in range(3):
                model(x, x)
                recorder.flush()
            until(lambda: health_of(str(tmp_path)).state == "full")
            assert recorder.stats().losing == "disk_full"
            assert health_of(str(tmp_path)).code == 11
        model(x, x)
        until(lambda: health_of(str(tmp_path)).state == "recording")
        assert recorder.stats().losing is None
    assert recorder.stats().dropped == {"disk_full": 3}
    assert caplog.text.count("No space left on device") == 1
    assert caplog.text.count("calls are written again") == 1
    assert "3 were lost" in caplog.text


@pytest.mark.usefixtures("quick")
def test_a_tape_that_cannot_be_sealed_stays_with_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = Add(), torch.ones(2)
    recorder = record(model, tmp_path / "a.tape")
    model(x, x)
    recorder.flush()
    until(lambda: statuses(tmp_path))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tape_writer, "pwritev", full)
    recorder.close()
    found = health_of(str(tmp_path))
    assert (found.state, found.code) == ("stale", 12)
    assert "could not seal it" in found.reason
    assert "No space left" in found.reason


@pytest.mark.usefixtures("quick")
def test_a_fork_has_a_status_of_its_own(tmp_path: Path) -> None:
    model, x = Add(), torch.ones(2)
    with Recorder(tmp_path / "a.tape").attach(model) as recorder:
        until(lambda: statuses(tmp_path))

        def work() -> bool:
            assert len(statuses(tmp_path)) == 1  # the parent's, until the first call
            model(x, x)
            until(lambda: len(statuses(tmp_path)) == 2)
            mine = [one for one in statuses(tmp_path) if one.process.pid == os.getpid()]
            recorder.close()
            return len(mine) == 1 and len(statuses(tmp_path)) == 1

        in_a_fork(work)
        assert health_of(str(tmp_path)).state == "recording"
    assert not statuses(tmp_path)


@pytest.mark.usefixtures("quick")
def test_a_directory_that_is_gone_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "tapes"
    model = Add()
    recorder = record(model, folder / "a.tape")
    until(lambda: statuses(folder))
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    until(lambda: "cannot be written" in caplog.text)
    assert not folder.exists()
    recorder.close()
    assert caplog.text.count(".status.json cannot be written") == 1
