"""Complete files are compressed in the background; whatever happens, each call is readable once."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder import Recorder, TapeError, record
from calltape_recorder.options import parse_options
from calltape_recorder.write import compression, tape_file
from calltape_recorder.write.segments import Segments
from calltape_recorder.write.tape_file import TapeFile

KIB = 1024
FORMS = {"zstd": ".zst", "gz": ".gz"}


class Model(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x + 1


def run(recorder: Recorder, model: Any, calls: int, size: int = 64) -> None:
    for number in range(calls):
        model(torch.full((size + number % 3, 16), float(number)))
        if number % 20 == 0:
            recorder.flush()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def numbers(folder: Path) -> list[int]:
    with open_tape(folder) as tape:
        assert tape.damage == []
        assert tape.verify() == []
        return [call.number for call in tape.calls]


def until(answer: Any) -> None:
    end = time.monotonic() + 30
    while not answer():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("form", FORMS)
def test_all_files_are_compressed(tmp_path: Path, form: Any) -> None:
    model = Model()
    with record(
        model, tmp_path / "a.tape", compress=form, segment_bytes=100 * KIB, file_mode=0o640
    ) as recorder:
        run(recorder, model, 100)
    stats = recorder.stats()
    assert stats.segments > 5
    assert (stats.compressed, stats.uncompressed) == (stats.segments, 0)
    assert all(name.endswith(f".tape{FORMS[form]}") for name in names(tmp_path))
    assert len(names(tmp_path)) == stats.segments
    assert stats.written_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o640}
    assert numbers(tmp_path) == list(range(100))
    assert recorder.stats().path in map(str, tmp_path.iterdir())
    with open_tape(tmp_path / "a.tape") as tape:  # as it was called
        assert len(tape) > 0
        assert tape.counters.calls == 100 or tape.missing_files == {}


@pytest.mark.parametrize("form", FORMS)
def test_one_file_with_its_owner_only(tmp_path: Path, form: Any) -> None:
    model = Model()
    with record(model, tmp_path / "a.tape", compress=form):
        model(torch.zeros(3))
    (path,) = tmp_path.iterdir()
    assert path.name == f"a.tape{FORMS[form]}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert numbers(tmp_path) == [0]


def test_it_happens_in_the_writers_thread_while_no_call_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()
    real = compression._Job.step

    def step(job: Any, has_room: Any) -> bool:
        threads.add(threading.current_thread().name)
        return real(job, has_room)

    monkeypatch.setattr(compression._Job, "step", step)
    model = Model()
    with record(model, tmp_path / "a.tape", compress="gz", segment_bytes=50 * KIB) as recorder:
        run(recorder, model, 60)
        until(lambda: recorder.stats().compressed == recorder.stats().segments - 1)
        assert threads == {"calltape-writer"}
        assert sum(name.endswith(".tape") for name in names(tmp_path)) == 1


def test_shapes_only_tapes_shrink(tmp_path: Path) -> None:
    model = Model()
    with record(model, tmp_path / "a.tape", values="none", compress="zstd") as recorder:
        run(recorder, model, 5000)
        recorder.flush()
        plain = recorder.stats().written_bytes
    assert recorder.stats().written_bytes < plain / 2
    assert len(numbers(tmp_path)) == 5000


def test_bytes_that_do_not_shrink_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_TRIAL_BYTES", 64 * KIB)
    model = Model()
    with record(model, tmp_path / "a.tape", outputs=False, compress="zstd") as recorder:
        noise = torch.frombuffer(bytearray(os.urandom(2**20)), dtype=torch.uint8)
        model(noise)
    assert names(tmp_path) == ["a.tape"]
    assert (recorder.stats().compressed, recorder.stats().uncompressed) == (0, 1)
    assert recorder.stats().last_error is None


def test_what_readers_would_refuse_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader takes no file that becomes many times larger when it is decompressed."""
    monkeypatch.setattr(compression, "UNPACKED_BYTES", 100 * KIB)
    model = Model()
    with record(model, tmp_path / "a.tape", compress="zstd") as recorder:
        model(torch.zeros(2**20))
    assert names(tmp_path) == ["a.tape"]
    assert recorder.stats().uncompressed == 1


@pytest.mark.parametrize("what", ["write", "rename", "fsync", "room"])
def test_a_failure_leaves_the_file_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def refuse(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    options: dict[str, Any] = {}
    if what == "room":
        monkeypatch.setattr(compression, "LAST_COMPRESSION_SECONDS", 0.0)
    else:
        monkeypatch.setattr(compression.os, what, refuse)
    model = Model()
    with record(
        model, tmp_path / "a.tape", compress="gz", segment_bytes=50 * KIB, **options
    ) as recorder:
        run(recorder, model, 3)
    monkeypatch.undo()
    stats = recorder.stats()
    assert names(tmp_path) == ["a.tape"]
    assert (stats.compressed, stats.uncompressed) == (0, 1)
    assert stats.last_error is not None
    assert "not compressed" in stats.last_error
    assert numbers(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("when_full", ["stop", "delete_oldest"])
def test_the_disk_budget_counts_both_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when_full: Any
) -> None:
    bound = 400 * KIB
    most = 0
    real = compression._Job.step

    def step(job: Any, has_room: Any) -> bool:
        nonlocal most
        done = real(job, has_room)
        most = max(most, sum(path.stat().st_size for path in tmp_path.iterdir()))
        return done

    monkeypatch.setattr(compression._Job, "step", step)
    monkeypatch.setattr(compression, "_PIECE", 8 * KIB)
    model, made = Model(), 2000
    with record(
        model, tmp_path / "a.tape", compress="gz", segment_bytes=60 * KIB, max_disk_bytes=bound,
        when_full=when_full, values={"*": "all", "outputs": "none"},
    ) as recorder:  # fmt: skip
        for number in range(made):
            model(torch.rand(number % 7 + 1, 16))
            if number % 50 == 0:
                recorder.flush()
    stats = recorder.stats()
    assert 0 < most <= bound
    assert stats.compressed > 3
    assert stats.seen == made == stats.kept + sum(stats.dropped.values())
    if when_full == "delete_oldest":
        assert stats.dropped["deleted"] > 0
    with open_tape(tmp_path) as tape:
        assert tape.damage == []
        assert len(tape) == stats.kept
        # The counters of files that are gone were read from their compressed ends.
        assert tape.counters.calls == made
        assert not tape.counters.other_calls


def test_no_file_is_deleted_after_the_last_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing on the tape would say so. On a busy machine, many files wait at the end."""
    monkeypatch.setattr(Segments, "compress_some", lambda _: False)
    model, made = Model(), 560  # the last file is half full then
    with record(
        model, tmp_path / "a.tape", compress="gz", segment_bytes=150 * KIB,
        max_disk_bytes=330 * KIB, when_full="delete_oldest", values={"*": "all"},
    ) as recorder:  # fmt: skip
        for number in range(made):
            model(torch.rand(number % 7 + 1, 16))
            if number % 50 == 0:
                recorder.flush()
    stats = recorder.stats()
    assert stats.dropped["deleted"] > 0
    assert stats.uncompressed > 0
    with open_tape(tmp_path) as tape:
        assert len(tape) == stats.kept
        assert tape.counters.calls == made
        coverage = tape.coverage
        assert coverage is not None
        assert coverage.dropped["deleted"] == stats.dropped["deleted"]


def test_the_oldest_file_may_go_while_it_is_compressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "_PIECE", 64)
    model = Model()
    with record(
        model, tmp_path / "a.tape", compress="gz", segment_bytes=30 * KIB,
        max_disk_bytes=200 * KIB, when_full="delete_oldest",
    ) as recorder:  # fmt: skip
        run(recorder, model, 300)
    stats = recorder.stats()
    assert stats.dropped["deleted"] > 0
    assert not list(tmp_path.glob("*.tmp"))
    assert len(numbers(tmp_path)) == stats.kept


def test_names_of_earlier_recordings_are_not_taken(tmp_path: Path) -> None:
    model = Model()
    for _ in range(2):
        with record(model, f"{tmp_path}/runs/", compress="gz"):
            model(torch.zeros(3))
    assert len(names(tmp_path / "runs")) == 2
    with record(model, tmp_path / "a.tape", compress="gz"):
        model(torch.zeros(3))
    with pytest.raises(TapeError) as caught:
        Recorder(tmp_path / "a.tape", compress="gz")
    assert caught.value.kind == "exists"
    with record(model, tmp_path / "a.tape", compress="gz", overwrite=True):
        model(torch.zeros(3))
        model(torch.zeros(3))
    with open_tape(tmp_path / "a.tape.gz") as tape:
        assert len(tape) == 2


def test_a_file_of_another_name_stays(tmp_path: Path) -> None:
    """No reader would take the compressed file for a tape."""
    model = Model()
    with record(model, tmp_path / "a.calls", compress="gz") as recorder:
        model(torch.zeros(3))
    assert names(tmp_path) == ["a.calls"]
    assert recorder.stats().uncompressed == 1
    assert "ends with .tape" in (recorder.stats().last_error or "")


def test_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    """Else each restart would leave some bytes that nobody counts. A living one has a lock."""
    for name in ("old.tape.gz.tmp", "new.tape.zst.tmp", "notes.tmp", "x.gz.tmp"):
        (tmp_path / name).write_bytes(b"half")
    model = Model()
    with open(tmp_path / "new.tape.zst.tmp", "rb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        with record(model, tmp_path / "a.tape", compress="gz"):
            model(torch.zeros(3))
    assert names(tmp_path) == ["a.tape.gz", "new.tape.zst.tmp", "notes.tmp", "x.gz.tmp"]


def test_a_file_under_way_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_PIECE", 1)
    model = Model()
    with record(model, tmp_path / "a.tape", compress="gz", segment_bytes=20 * KIB) as recorder:
        run(recorder, model, 20)
        until(lambda: list(tmp_path.glob("*.tmp")))
        (path,) = tmp_path.glob("*.tmp")
        with open(path, "rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        monkeypatch.setattr(compression, "_PIECE", 2**18)
    assert recorder.stats().uncompressed == 0


def test_later_files_take_free_names(tmp_path: Path) -> None:
    (tmp_path / "a-00001.tape.gz").write_bytes(b"of somebody else")
    model = Model()
    with record(model, tmp_path / "a.tape", compress="gz", segment_bytes=20 * KIB) as recorder:
        run(recorder, model, 10)
    assert (tmp_path / "a-00001.tape.gz").read_bytes() == b"of somebody else"
    assert recorder.stats().uncompressed == 0
    assert (tmp_path / "a-00002.tape.gz").exists()


def test_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert parse_options({"compress": "zstd"}) == {"compress": "zstd"}
    assert parse_options({"compress": "none"}) == {"compress": None}
    for wrong in ("bz2", True, 3):
        with pytest.raises(TapeError, match="compress"):
            Recorder(tmp_path / "a.tape", compress=wrong)  # type: ignore[arg-type]
        with pytest.raises(TapeError, match="compress"):
            parse_options({"compress": wrong})

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(tape_file.importlib, "import_module", missing)
    with pytest.raises(TapeError, match="Zstandard") as caught:
        Recorder(tmp_path / "a.tape", compress="zstd")
    assert "calltape-recorder[zstd]" in str(caught.value)
    assert names(tmp_path) == []


def test_a_fork_leaves_the_files_of_its_parent(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(compression, "_PIECE", 1)
    model = Model()
    with record(model, tmp_path / "a.tape", compress="gz", segment_bytes=20 * KIB) as recorder:
        run(recorder, model, 20)
        until(lambda: list(tmp_path.glob("*.tmp")))
        child = os.fork()
        if not child:
            monkeypatch.setattr(compression, "_PIECE", 2**18)
            try:
                model(torch.zeros(3))
                recorder.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        monkeypatch.setattr(compression, "_PIECE", 2**18)
    assert recorder.stats().uncompressed == 0
    assert recorder.stats().last_error is None
    assert len(numbers(tmp_path)) == 21


def test_a_file_that_cannot_be_removed_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TapeFile, "remove", lambda self: False)
    model = Model()
    with record(model, tmp_path / "a.tape", compress="gz") as recorder:
        model(torch.zeros(3))
    assert names(tmp_path) == ["a.tape"]
    assert recorder.stats().uncompressed == 1


SERVER = """
import sys, torch
from calltape_recorder import record
from calltape_recorder.write import compression
compression._PIECE = 2048
class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1
model = Model()
recorder = record(model, sys.argv[1], compress=sys.argv[2], segment_bytes=30_000)
for number in range(10**9):
    model(torch.full((number % 5 + 1, 64), float(number)))
    if number % 10 == 0:
        recorder.flush()
        print(number, flush=True)
"""


@pytest.mark.chaos
@pytest.mark.parametrize("form", FORMS)
def test_a_kill_leaves_each_call_readable_once(tmp_path: Path, form: str) -> None:
    for trial in range(5):
        folder = tmp_path / str(trial)
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(folder / "a.tape"), form],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert server.stdout is not None
        until_number = 200 + 90 * trial
        last = 0
        for line in server.stdout:
            last = int(line)
            if last >= until_number:
                break
        time.sleep(trial / 100)
        server.send_signal(signal.SIGKILL)
        server.wait()
        server.stdout.close()
        assert any(name.endswith(FORMS[form]) for name in names(folder)), names(folder)
        for path in folder.glob("*.tape"):
            if not path.stat().st_size:  # killed between its creation and its first write
                path.unlink()
        found = numbers(folder)
        assert found == list(range(len(found)))
        assert len(found) > last
