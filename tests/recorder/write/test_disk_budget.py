"""What a recording takes of the disk, and what it tells of files that are gone."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import Rate, TapeError, record
from calltape_recorder.keep.ledger import UnkeptCounter
from calltape_recorder.write import disk_file, segments, writer
from calltape_recorder.write.disk_file import TapeFile
from calltape_recorder.write.segments import DiskBudget
from calltape_schema import writer as tape_writer
from calltape_schema.end import End
from calltape_schema.inputs_table import InputsTable
from tests.recorder.models import Identity
from tests.recorder.reading import read
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

DELETES: dict[str, Any] = {"when_full": "delete_oldest", "outputs": False}


def tables(folder: Path) -> list[InputsTable]:
    return [read(path).table for path in tapes(folder)]


def seen_in(tables: list[InputsTable]) -> int:
    return sum(table.totals().seen for table in tables)


# --- the end -----------------------------------------------------------------------------------


def test_a_file_has_so_many_calls_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MAX_CALLS_IN_FILE", 3, raising=False)
    model = Identity()
    with record(model, tmp_path / "a.tape") as recorder:
        call(recorder, model, 7)
    names = ("a.tape", "a-00001.tape", "a-00002.tape")
    assert [read(tmp_path / name).numbers for name in names] == [[0, 1, 2], [3, 4, 5], [6]]
    check_ends(recorder.stats(), tapes_in(tmp_path))


def test_a_file_that_cannot_be_sealed_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = tape_writer.encode_end

    def encode(end: End, offset: int) -> bytes:
        if end.coverage.kept == 1:
            raise TapeError("limit", "too many")
        return real(end, offset)

    monkeypatch.setattr(tape_writer, "encode_end", encode)
    model, before = Identity(), open_files()
    with record(model, tmp_path / "a.tape") as recorder:
        for count in (1, 2, 1, 3):
            call(recorder, model, count)
            assert recorder.seal(20)
        assert open_files() <= before + 1  # that of the current file
    found = [read(path) for path in tapes(tmp_path)]
    assert sorted(n for tape in found for n in tape.numbers) == list(range(7))
    assert sum(not tape.is_sealed for tape in found) == 2
    assert (recorder.stats().kept, recorder.stats().dropped) == (7, {})
    assert caplog.text.count("cannot be sealed") == 1


def test_counters_that_fail_cost_only_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = Identity()
    monkeypatch.setattr(UnkeptCounter, "drain", lambda _: 1 / 0)
    with record(model, tmp_path / "a.tape", keep=Rate(0.5)) as recorder:
        call(recorder, model, 20)
    stats = recorder.stats()
    tape = read(tmp_path / "a.tape")
    assert not tape.damage
    assert tape.end.coverage.seen == stats.seen == 20
    assert tape.table.totals().seen == stats.kept > 0
    assert "could not be counted" in caplog.text


@pytest.mark.integration
def test_an_end_that_has_no_room_counts_its_calls_all_the_same(tmp_path: Path) -> None:
    model = Identity()
    options = DELETES | {"max_disk_bytes": 400 * KIB}
    with record(model, tmp_path / "a.tape", values="none", **options) as recorder:
        for n in range(4000):  # the table of a file would have megabytes
            model([torch.empty((n % 97, n), device="meta") for _ in range(6)])
            if not n % 16:
                recorder.flush()
                assert size_on_disk(tmp_path) <= 400 * KIB
        assert recorder.flush()
    stats = recorder.stats()
    assert stats.seen == 4000
    assert stats.dropped["deleted"] > 100
    check_ends(stats, tapes_in(tmp_path))
    assert seen_in(tables(tmp_path)) == 4000


# --- deleting ----------------------------------------------------------------------------------


def test_a_call_that_can_never_fit_deletes_nothing(tmp_path: Path) -> None:
    model = Identity()
    with record(model, tmp_path / "a.tape", max_disk_bytes=400 * KIB, **DELETES) as recorder:
        call(recorder, model, 10)
        before = tapes(tmp_path)
        model(block(kib=500))
        assert recorder.flush()
        assert tapes(tmp_path) == before
        call(recorder, model, 1)
    assert recorder.stats().kept == 11
    assert recorder.stats().dropped == {"max_disk_bytes": 1}
    check_ends(recorder.stats(), tapes_in(tmp_path))


class Space:
    f_frsize = 1

    def __init__(self, folder: Path, others: int) -> None:
        self.f_bavail = 10**9 - others - size_on_disk(folder)


@pytest.mark.parametrize("helps", [True, False])
def test_the_floor_deletes_what_helps_and_nothing_where_nothing_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helps: bool
) -> None:
    taken = [0]
    monkeypatch.setattr(os, "statvfs", lambda _: Space(tmp_path, taken[0]))
    model = Identity()
    floor = 10**6
    with record(
        model, tmp_path / "a.tape", min_free_bytes=floor, segment_bytes=40 * KIB, **DELETES
    ) as recorder:
        call(recorder, model, 8)
        # Of the space above the floor the others leave what three segments take, or less than none.
        taken[0] = 10**9 - floor - (150 * KIB if helps else -150 * KIB)
        call(recorder, model, 4, 8)
        kept, dropped = recorder.stats().kept, recorder.stats().dropped
    if helps:
        assert 0 < dropped["deleted"] < 8
        assert kept == 12 - dropped["deleted"]
    else:
        assert (kept, dropped) == (8, {"disk_full": 4})
    check_ends(recorder.stats(), tapes_in(tmp_path))


def test_what_a_deleted_file_counted_is_counted_on(tmp_path: Path) -> None:
    model = Identity()
    with record(model, tmp_path / "a.tape", max_disk_bytes=400 * KIB, **DELETES) as recorder:
        model(torch.zeros(7, 3, dtype=torch.int16))
        call(recorder, model, 60)
    assert recorder.stats().dropped["deleted"] > 20
    found = tables(tmp_path)
    assert seen_in(found) == 61
    (rare,) = [k for t in found for k in t.kinds.values() if k.dtypes == ["int16"]]
    assert (rare.seen, rare.kept) == (1, 0)
    assert [axis and axis.sizes for axis in rare.axes] == [{7: 1}, {3: 1}]
    assert not any(table.other.seen for table in found)


@pytest.mark.parametrize("link", [False, True])
def test_a_file_that_was_moved_away_is_not_one_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, link: bool
) -> None:
    """Also where its room is needed before anybody has looked whether it is there."""
    monkeypatch.setattr(writer, "LOOK_SECONDS", 3600)
    model, folder, away = Identity(), tmp_path / "tapes", tmp_path / "away.tape"
    with record(model, folder / "a.tape", max_disk_bytes=400 * KIB, **DELETES) as recorder:
        call(recorder, model, 2)
        assert recorder.seal()
        (folder / "a.tape").rename(away)
        if link:
            (folder / "a.tape").symlink_to(away)
        call(recorder, model, 60, 2)
    stats = recorder.stats()
    assert stats.dropped["deleted"] > 20
    there = {path.resolve() for path in (away, *tapes(folder))}
    assert sum(len(read(path).numbers) for path in there) == stats.kept


# --- the bound ---------------------------------------------------------------------------------


def test_a_file_that_cannot_be_deleted_still_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, bound = Identity(), 400 * KIB

    def refuses(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with record(model, tmp_path / "a.tape", max_disk_bytes=bound, **DELETES) as recorder:
        with monkeypatch.context() as patch:
            patch.setattr(disk_file.os, "unlink", refuses)
            call(recorder, model, 60)
            stats = recorder.stats()
            assert stats.disk_bytes == size_on_disk(tmp_path) <= bound
            assert stats.kept + stats.dropped["max_disk_bytes"] == 60
            assert "deleted" not in stats.dropped
        call(recorder, model, 1)
    assert recorder.stats().kept > 1
    assert recorder.stats().dropped["deleted"] >= 1
    check_ends(recorder.stats(), tapes_in(tmp_path))


@pytest.mark.integration
@pytest.mark.parametrize("when_full", ["stop", "delete_oldest"])
def test_the_end_is_within_the_bound(tmp_path: Path, when_full: Any) -> None:
    model, bound = Identity(), 300 * KIB
    dtypes = [torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64]
    with record(
        model, tmp_path / "a.tape", max_disk_bytes=bound, when_full=when_full, outputs=False,
        values="none",
    ) as recorder:  # fmt: skip
        for n in range(1200):
            shape = [1 + (n * 7 + axis) % 40 for axis in range(1 + n % 4)]
            for dtype in dtypes[n % 6 :: 3]:
                model([n, *[torch.zeros(shape, dtype=dtype)] * (1 + n % 7)])
        assert recorder.flush()
    assert size_on_disk(tmp_path) <= bound
    assert seen_in(tables(tmp_path)) == recorder.stats().seen
    check_ends(recorder.stats(), tapes_in(tmp_path))


def test_calls_under_way_are_within_the_bound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bound = 400 * KIB
    ahead: list[int] = []

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert size_on_disk(tmp_path) == recorder.stats().disk_bytes <= bound
            ahead.append(sum(len(read(p).numbers) for p in tmp_path.glob("*.ahead-*")))
            return x

    model = Model()
    with record(
        model, tmp_path / "a.tape", max_disk_bytes=bound, write_ahead=True, **DELETES
    ) as recorder:
        call(recorder, model, 60)
        assert ahead == [1] * 60  # old files leave room for it
        model(block(kib=500))
    assert ahead[60:] == [0]
    assert caplog.text.count("could not be written ahead") == 1
    assert recorder.stats().kept > 10
    check_ends(recorder.stats(), tapes_in(tmp_path))


def test_a_budget_lends_only_what_nobody_claimed() -> None:
    budget = DiskBudget(1000)
    assert budget.claim(700)
    assert not budget.lend(400)
    assert budget.lend(200)
    assert not budget.claim(801)
    budget.give_back(200)
    assert not budget.claim(801)  # what was needed ahead stays free
    assert budget.claim(800)
    assert budget.lend(200)
    assert not budget.lend(1)
    budget = DiskBudget(None)
    assert budget.lend(10**12)
    assert budget.claim(10**12)
    assert (budget.lent, budget.for_tapes) == (10**12, None)


# --- the disk ----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.ESTALE, errno.EACCES, errno.EIO])
def test_a_disk_that_does_not_tell_has_removed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    tape = TapeFile(str(tmp_path / "folder" / "t.tape"), overwrite=False)

    def refuses(*_: Any) -> None:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patch:
        patch.setattr(disk_file.os, "lstat", refuses)
        assert tape.is_there()
    (tmp_path / "folder").rename(tmp_path / "other")
    assert not tape.is_there()
    (tmp_path / "folder").touch()
    assert not tape.is_there()
    (tmp_path / "folder").unlink()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "t.tape").touch()
    assert not tape.is_there()
    tape.close()
