"""Disks that fail, at every single write of a run, and disks that are full or slow."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import Recorder, TapeError, record
from calltape_recorder.keep.ledger import Stats
from calltape_recorder.write import disk_file
from tests.recorder import disks
from tests.recorder.calls import appearance_of
from tests.recorder.models import Identity
from tests.recorder.waiting import in_threads
from tests.recorder.write.accounts import (
    OPTIONS,
    check_accounts,
    check_ends,
    open_files,
    size_on_disk,
    tapes_in,
    tensor_of,
)

ROOT = Path(__file__).parents[3]
CALLS = 20  # the last but two is large, and written alone
ONCE, FOR_GOOD, CUT_SHORT, UNCUT = "once", "for good", "cut short", "cut short, and not cut"


class Disk:
    """Stands in for ``os.pwritev`` and ``os.ftruncate``, and for ``os.open`` where it creates a
    tape: write ``first`` fails (a new file is one), or all from there on; perhaps after some bytes,
    which perhaps cannot be cut off at once, nor at the next try."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: int, first: int, how: str) -> None:
        self.writes = 0
        self.failed = 0
        self.works = False
        self._uncut = 2
        self._error = error
        self._first = first
        self._how = how
        self._pwritev, self._ftruncate, self._open = os.pwritev, os.ftruncate, os.open
        monkeypatch.setattr(disk_file, "pwritev", self.pwritev)
        monkeypatch.setattr(os, "ftruncate", self.ftruncate)
        monkeypatch.setattr(os, "open", self.open)

    def open(self, path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_CREAT and str(path).endswith(".tape") and self._fails():
            raise OSError(self._error, os.strerror(self._error))
        return self._open(path, flags, *more, **options)

    def pwritev(self, file: int, parts: list[Any], offset: int) -> int:
        if self._fails():
            if self._how in (CUT_SHORT, UNCUT):
                data = b"".join(parts)
                self._pwritev(file, [data[: len(data) // 2]], offset)
            raise OSError(self._error, os.strerror(self._error))
        return self._pwritev(file, parts, offset)

    def ftruncate(self, file: int, length: int) -> None:
        if self._how == UNCUT and self.failed and self._uncut and not self.works:
            self._uncut -= 1
            raise OSError(self._error, os.strerror(self._error))
        self._ftruncate(file, length)

    def _fails(self) -> bool:
        number, self.writes = self.writes, self.writes + 1
        if self.works or number < self._first or (self._how != FOR_GOOD and number > self._first):
            return False
        self.failed += 1
        return True


def serve(recorder: Recorder, model: torch.nn.Module, first: int, calls: int) -> None:
    """Calls, one write for each or a few; what comes out is what went in."""
    for number in range(first, first + calls):
        value = tensor_of(number)
        assert model(value) is value
        assert torch.equal(value, tensor_of(number))
        if number % 3:
            assert recorder.flush()


def check_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """One line per kind of trouble, and nothing louder."""
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(set(said)) == len(caplog.records)
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def run(folder: Path, disk: Disk, options: dict[str, Any], *, back: bool) -> Stats | None:
    """One recording on this disk, which works again for the last calls (``back``) or does not;
    None where it did not even begin."""
    model = Identity()
    looks = appearance_of(model)
    try:
        recorder = record(model, folder / "t.tape", **options)
    except TapeError as error:
        if error.kind != "io":
            raise
        return None
    serve(recorder, model, 0, CALLS)
    assert appearance_of(model) == looks
    if back:
        disk.works = True
        before = recorder.stats()
        serve(recorder, model, CALLS, 3)
        recorder.close()
        after = recorder.stats()
        lost = {reason for reason in after.dropped if reason != "deleted"}
        assert all(after.dropped[reason] == before.dropped.get(reason) for reason in lost)
    else:
        recorder.close()
    assert appearance_of(model) == looks
    return recorder.stats()


def check_run(folder: Path, stats: Stats, reason: str, *, back: bool, is_last: bool) -> None:
    """What is on the disk after a run that failed; ``is_last``: in the last write."""
    tapes = tapes_in(folder)
    check_accounts(stats, tapes)
    assert set(stats.dropped) <= {reason, "deleted"}
    if not is_last and all(tape.is_sealed for tape in tapes):
        assert size_on_disk(folder) == stats.disk_bytes  # nothing lies behind the end
    if back:
        check_ends(stats, tapes)
    assert not list(folder.glob("*.ahead*"))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize(
    ("kind", "step"),
    [("one file", 9), *(pytest.param(kind, 1, marks=pytest.mark.chaos) for kind in OPTIONS)],
)
def test_every_write_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    kind: str, step: int, error: int,
) -> None:  # fmt: skip
    options, counts = OPTIONS[kind], Counter[str]()
    reason = "disk_full" if error == errno.ENOSPC else "io"
    clean = Disk(monkeypatch, error, sys.maxsize, ONCE)
    (tmp_path / "clean").mkdir()
    stats = run(tmp_path / "clean", clean, options, back=False)
    assert stats is not None
    assert not sum(stats.dropped.values()) - stats.dropped.get("deleted", 0)
    monkeypatch.undo()
    before = open_files()
    for first in range(0, clean.writes, step):
        for how in (ONCE, FOR_GOOD, CUT_SHORT, UNCUT):
            for back in (True, False):
                folder = tmp_path / f"{first} {how} {back}"
                folder.mkdir()
                caplog.clear()
                disk = Disk(monkeypatch, error, first, how)
                stats = run(folder, disk, options, back=back)
                monkeypatch.undo()
                if not disk.failed:  # it was back by then, or more calls went into one write
                    assert back or disk.writes <= first
                    continue
                counts["runs"] += 1
                counts["failed"] += disk.failed
                check_warnings(caplog)
                if stats is None:
                    assert not list(folder.iterdir())
                    continue
                check_run(folder, stats, reason, back=back, is_last=disk.writes == first + 1)
                counts["sealed"] += back
                counts.update(seen=stats.seen, kept=stats.kept, **stats.dropped)
    assert open_files() <= before
    assert counts["seen"] == counts["kept"] + counts[reason] + counts["deleted"]
    assert counts[reason]
    assert counts["runs"] > 4 * clean.writes // step


# --- a disk that is really full ----------------------------------------------------------------


def mounting() -> list[str] | None:
    """A command that may mount, in a name space of its own; None where there is none."""
    if shutil.which("unshare") is None:
        return None
    for command in (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"]):
        tried = [*command, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
        if subprocess.run(tried, capture_output=True, check=False).returncode == 0:
            return command
    return None


@pytest.mark.chaos
@pytest.mark.parametrize("kind", [kind for kind in OPTIONS if kind != "oldest deleted"])
def test_all_calls_are_counted_on_a_full_file_system(tmp_path: Path, kind: str) -> None:
    command = mounting()
    if command is None:
        pytest.skip("no file system can be mounted here")
    work = [sys.executable, "-m", "tests.recorder.write.full_disk", str(tmp_path / "m"), kind]
    done = subprocess.run(
        [*command, *work], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["rounds"] >= 3
    assert said["disk_full"]
    assert said["seen"] == said["kept"] + said["disk_full"]


# --- a disk that is slow -----------------------------------------------------------------------


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["one file", "segments"])
def test_no_call_waits_for_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    bound, threads, each = 400_000, 8, 500
    model, most = Identity(), [0] * threads
    looks = appearance_of(model)
    recorder = record(model, tmp_path / "t.tape", max_queue_bytes=bound, **OPTIONS[kind])
    gate = disks.slow(monkeypatch)
    model(tensor_of(0))
    assert gate.reached.wait(60)

    def work(thread: int) -> None:
        for number in range(each):
            value = tensor_of(number)
            assert model(value) is value
            assert torch.equal(value, tensor_of(number))
            most[thread] = max(most[thread], recorder.stats().queued_bytes)

    in_threads(work, range(threads))
    # The gate is closed until four minutes have passed: no call waited for the disk.
    assert not gate.is_set()
    assert appearance_of(model) == looks
    stuck = recorder.stats()
    assert (stuck.seen, stuck.kept) == (1 + threads * each, 0)
    assert stuck.queued + stuck.dropped["queue_full"] == stuck.seen
    assert bound // 2 < max(most) <= bound
    gate.set()
    model(tensor_of(1))
    recorder.close()
    stats = recorder.stats()
    assert set(stats.dropped) == {"queue_full"}
    assert (stats.queued, stats.queued_bytes) == (0, 0)
    assert stats.seen == stats.kept + stats.dropped["queue_full"] == 2 + threads * each
    assert sum(len(tape.numbers) for tape in tapes_in(tmp_path)) == stats.kept
    check_ends(stats, tapes_in(tmp_path))
