"""Mending tapes: every sound call survives, whatever happened to the rest, and all is accounted."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer import TapeError, diagnose, open_tape, recover_tape
from calltape_schema.end import Coverage
from tests.analyzer.editing.recordings import as_copied, recorded
from tests.analyzer.tapes import refer, write_tape
from tests.fixture_files import FIXTURES, HOSTILE, WITH_CALLS
from tests.forging.changes import flip, member_list


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("tapes") / "a.tape", [3, 4, -2, 5, 9])


def mended(path: Path, out: Path) -> tuple[list[tuple[str, bytes]], tuple[str, ...]]:
    """The records of the calls of the mended tape, and what was lost."""
    with open_tape(path) as tape:
        report = recover_tape(tape, out, overwrite=True)
    with open_tape(out, verify=True) as made:
        assert made.damage == []
        assert made.sealed
        coverage = made.coverage
        assert coverage.kept == len(made) == report.calls
        assert coverage.seen == coverage.kept + sum(coverage.dropped.values())
        assert made.counters is not None
        assert made.damage == []
        return [as_copied(call) for call in made.calls], report.lost


def whole_records(path: Path) -> list[tuple[str, bytes]]:
    with open_tape(path) as tape:
        return [as_copied(call) for call in tape]


def check_truncated(source: Path, folder: Path, size: int) -> None:
    cut = folder / "cut.tape"
    cut.write_bytes(source.read_bytes()[:size])
    try:
        expected = whole_records(cut)
    except TapeError:
        with pytest.raises(TapeError):
            open_tape(cut)
        assert size < 2048, "only a tape whose manifest is torn cannot be mended"
        return
    records, lost = mended(cut, folder / "mended.tape")
    assert records == expected
    assert records == whole_records(source)[: len(records)]
    with open_tape(cut) as tape:
        assert bool(lost) == bool(tape.damage or tape.unfinished)


@given(data=st.data())
def test_a_tape_cut_anywhere_is_recovered(
    source: Path, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    size = data.draw(st.integers(0, source.stat().st_size))
    check_truncated(source, tmp_path_factory.mktemp("cut"), size)


@pytest.mark.integration
def test_a_tape_cut_at_every_byte_of_a_call_is_recovered(source: Path, tmp_path: Path) -> None:
    data = source.read_bytes()
    start = data.index(b"blobs/00000002")
    for size in range(start, data.index(b"blobs/00000003") + 600, 7):
        check_truncated(source, tmp_path, size)


def test_what_came_after_the_last_call_is_not_known(source: Path, tmp_path: Path) -> None:
    """A file that ends between two records lost nothing that anybody can count."""
    data = source.read_bytes()
    cut = tmp_path / "cut.tape"
    cut.write_bytes(data[: data.index(b"blobs/00000003")])
    for path, words in ((cut, "whether calls followed"), (source, "nothing had to be recovered")):
        with open_tape(path) as tape:
            notes = recover_tape(tape, tmp_path / "mended.tape", overwrite=True).notes
        assert any(words in note for note in notes)


@given(seed=st.integers(0, 2**32))
def test_recovering_keeps_every_whole_record_wherever_the_damage_is(
    source: Path, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, rng = tmp_path_factory.mktemp("damaged"), random.Random(seed)
    data = bytearray(source.read_bytes())
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        length = rng.choice([1, 1, 40, 700])
        data[at : at + length] = rng.randbytes(min(length, len(data) - at))
    path = folder / "a.tape"
    path.write_bytes(data)
    try:
        expected = whole_records(path)
    except TapeError:
        return
    with open_tape(path) as tape:
        was_damaged = bool(tape.verify())
    records, lost = mended(path, folder / "mended.tape")
    assert records == expected
    assert bool(lost) >= was_damaged
    assert set(records) <= set(whole_records(source))


@pytest.mark.parametrize("path", WITH_CALLS, ids=lambda path: path.stem)
def test_every_golden_tape_is_mended(path: Path, tmp_path: Path) -> None:
    assert mended(path, tmp_path / "m.tape")[0] == whole_records(path)


@pytest.mark.parametrize("path", HOSTILE, ids=lambda p: p.stem)
def test_a_hostile_tape_is_mended_or_refused(path: Path, tmp_path: Path) -> None:
    try:
        with open_tape(path, verify=True) as tape:
            expected = [as_copied(call) for call in tape.calls]
    except TapeError:
        with pytest.raises(TapeError):
            open_tape(path)
        return
    records, _ = mended(path, tmp_path / "m.tape")
    assert records == expected


@pytest.mark.parametrize(
    ("name", "calls"),
    [("required_by_a_call", 1), ("required_flag", 1), ("extension_type", 1), ("codec_of_a_blob", 2),
     ("codec_of_a_group", 2), ("dtype_in_a_blob", 1)],
)  # fmt: skip
def test_calls_of_a_later_version_are_not_damaged(name: str, calls: int, tmp_path: Path) -> None:
    mended(FIXTURES / "future" / f"{name}.tape", tmp_path / "m.tape")
    with open_tape(tmp_path / "m.tape") as tape:
        assert tape.coverage.dropped == {"needs a later version": calls}
        (lost,) = (symptom for symptom in diagnose(tape).symptoms if symptom.kind == "lost")
        assert "upgrade calltape-analyzer" in lost.advice


def test_damaged_calls_are_told_apart_from_those_of_a_later_version(tmp_path: Path) -> None:
    data = bytearray((FIXTURES / "future" / "required_by_a_call.tape").read_bytes())
    data[data.index(b"blobs/00000000") + 512 + 129] ^= 1
    (tmp_path / "a.tape").write_bytes(data)
    mended(tmp_path / "a.tape", tmp_path / "m.tape")
    with open_tape(tmp_path / "m.tape") as tape:
        assert tape.coverage.dropped == {"needs a later version": 1, "damaged": 1}


def test_a_sound_tape_is_told_so(source: Path, tmp_path: Path) -> None:
    with open_tape(source) as tape:
        report = recover_tape(tape, tmp_path / "b.tape")
    assert report.lost == ()
    assert "nothing had to be recovered" in str(report)
    with open_tape(source) as tape, open_tape(tmp_path / "b.tape") as made:
        assert made.coverage == tape.coverage
        assert made.counters.groups == tape.counters.groups


def test_an_unsealed_tape_is_sealed(source: Path, tmp_path: Path) -> None:
    data = source.read_bytes()
    path = tmp_path / "a.tape"
    path.write_bytes(data[: data.index(b"blobs/00000004") + 700])
    records, lost = mended(path, tmp_path / "b.tape")
    assert len(records) == 4
    assert "of calls that were being written" in lost[0]
    with open_tape(tmp_path / "b.tape") as tape:
        assert [step.verb for step in tape.manifest.history or ()] == ["recover"]
        until = max(call.record.time_ns for call in tape)
        assert tape.coverage == Coverage(seen=4, kept=4, at_least=True, counted_ns=until)


def test_calls_that_are_missing_on_an_unsealed_tape(source: Path, tmp_path: Path) -> None:
    data = bytearray(source.read_bytes())
    data[data.index(b"records/00000001.msgpack") + 600] ^= 1
    path = tmp_path / "a.tape"
    path.write_bytes(data[: data.index(b"blobs/00000003")])
    mended(path, tmp_path / "b.tape")
    with open_tape(tmp_path / "b.tape") as tape:
        assert tape.coverage.at_least
        assert tape.coverage.dropped == {"unknown (the tape was not sealed)": 1}


def test_damage_is_told_once(source: Path, tmp_path: Path) -> None:
    data = bytearray(source.read_bytes())
    data[data.index(b"blobs/00000001.safetensors") + 800] ^= 1
    path = tmp_path / "a.tape"
    path.write_bytes(data)
    _, lost = mended(path, tmp_path / "b.tape")
    assert len(lost) == 1


def test_a_member_that_is_not_there_is_told_once(source: Path, tmp_path: Path) -> None:
    """The walk finds no member, and the call no tensors: that is one loss."""
    path = tmp_path / "a.tape"
    shutil.copy(source, path)
    flip(path, source.read_bytes().index(b"blobs/00000001.safetensors") + 10)
    _, lost = mended(path, tmp_path / "b.tape")
    assert len(lost) == 1
    assert "the tensors of call 1 are not there" in lost[0]


@pytest.mark.parametrize("wrong", ["content", "header"])
def test_calls_that_refer_to_a_damaged_one_are_recovered_from_a_copy(
    wrong: str, tmp_path: Path
) -> None:
    """Alone each of them is lost; beside a copy that is whole, none is."""
    x = torch.arange(900.0)
    calls = [((x, torch.tensor(n)), {}) for n in range(4)]
    whole = refer(write_tape(tmp_path / "whole.tape", calls))
    broken = tmp_path / "broken.tape"
    shutil.copy(whole, broken)
    blob = next(
        member for member in member_list(whole) if member.name == "blobs/00000000.safetensors"
    )
    flip(broken, blob.offset + 10 if wrong == "header" else blob.start + blob.size - 3)
    records, lost = mended(broken, tmp_path / "b.tape")
    assert records == []
    assert [f"call {n} has tensors of call 0" in "".join(lost) for n in (1, 2, 3)] == [True] * 3
    assert len(lost) == 4
    with open_tape([broken, whole]) as tape:
        report = recover_tape(tape, tmp_path / "c.tape")
    assert (report.calls, report.lost) == (4, ())
    assert "call 3 is corrupted in broken.tape; whole.tape has it whole" in report.notes
    assert whole_records(tmp_path / "c.tape") == whole_records(whole)


def test_a_torn_manifest_is_that_of_the_end(source: Path, tmp_path: Path) -> None:
    data = bytearray(source.read_bytes())
    data[600] ^= 0xFF
    path = tmp_path / "torn.tape"
    path.write_bytes(data)
    with open_tape(path) as tape, open_tape(source) as whole:
        assert tape.manifest == whole.manifest
        assert [error.member for error in tape.damage] == ["tape.msgpack"]
    with open_tape(path) as tape:
        recover_tape(tape, tmp_path / "whole.tape")
    with open_tape(tmp_path / "whole.tape") as tape, open_tape(source) as whole:
        assert len(tape) == len(whole)
        assert not tape.verify()


def test_a_torn_manifest_leaves_nothing_without_an_end(source: Path, tmp_path: Path) -> None:
    data = source.read_bytes()[:-1]
    header, content = bytearray(data), bytearray(data)
    header[130] ^= 0xFF
    content[600] ^= 0xFF
    for damaged, reason in (
        (data[:100], "ends within its manifest"),
        (header, "header is corrupted"),
        (content, "checksum"),
    ):
        path = tmp_path / "torn.tape"
        path.write_bytes(damaged)
        with pytest.raises(TapeError, match=reason) as caught:
            open_tape(path)
        assert caught.value.kind == "damaged"
        assert "nothing here can be read" in str(caught.value)
        assert "still readable" not in str(caught.value)
