"""Joining tapes: the numbers of one recording stay, those of several follow each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import (
    TapeError,
    UsageError,
    filter_tape,
    merge_tapes,
    open_tape,
    private_data,
    recover_tape,
    redact,
)
from calltape_analyzer.cli.recordings import coverage_text
from calltape_analyzer.text import time_text
from calltape_analyzer.writing.new_tape import NewTape
from calltape_recorder import Novelty, record
from calltape_schema.end import Coverage
from tests.analyzer.editing.recordings import Model, contents, numbers, recorded
from tests.analyzer.tapes import target_of, write_tape


def merged(paths: list[Path], out: Path, **how: Any) -> Path:
    with open_tape(paths) as tape:
        assert tape.damage == []
        merge_tapes(tape, out, overwrite=True, **how)
    with open_tape(out, verify=True) as tape:
        assert tape.damage == []
        assert tape.sealed
        assert tape.counters is not None
        assert tape.damage == []
    return out


def test_recordings_are_joined(tmp_path: Path) -> None:
    paths = [recorded(tmp_path / "a.tape", [3, 4, -5]), recorded(tmp_path / "b.tape", [6, 7])]
    with open_tape(paths) as tape:
        every = contents(list(tape.calls))
        report = merge_tapes(tape, tmp_path / "m.tape")
        assert (report.calls, report.left_out, report.lost) == (5, 0, ())
        ids = [manifest.tape for manifest in tape.manifests]
        counted = tape.counters
    with open_tape(tmp_path / "m.tape", verify=True) as made:
        assert numbers(made) == [0, 1, 2, 3, 4]
        assert contents(list(made.calls)) == every
        assert made.manifest.tape not in ids
        (step,) = made.manifest.history or ()
        assert [(s.tape, s.files, s.calls, s.first) for s in step.sources] == [
            (ids[0], ("a.tape",), 3, 0),
            (ids[1], ("b.tape",), 2, 3),
        ]
        assert (made.coverage.seen, made.coverage.dropped) == (5, {})
        assert made.counters.groups == counted.groups
        assert made.damage == []
    again = merged(paths, tmp_path / "n.tape")
    assert again.read_bytes() == (tmp_path / "m.tape").read_bytes()


def test_segments_of_one_recording_stay_as_they_are(tmp_path: Path) -> None:
    model = Model()
    with record(model, f"{tmp_path}/r/", segment_bytes=8192) as recorder:
        for size in range(1, 60):
            model(torch.randn(size % 9 + 1, 4))
            recorder.flush()
    files = sorted((tmp_path / "r").glob("*.tape"))
    assert len(files) > 3
    out = merged(files, tmp_path / "m.tape")
    with open_tape(files) as tape, open_tape(out) as made:
        assert [c.raw_record() for c in made.calls] == [c.raw_record() for c in tape.calls]
        assert made.manifest.tape == tape.manifest.tape
        assert made.missing_files == {}
        assert made.coverage == tape.coverage
        assert made.counters.groups == tape.counters.groups
    out = merged(files[2:4], tmp_path / "m.tape")
    with open_tape(files[2:4]) as tape, open_tape(out) as made:
        assert contents(list(made.calls)) == contents(list(tape.calls))
        assert made.missing_files == tape.missing_files
        assert made.coverage == tape.coverage


def test_what_was_dropped_adds_up(tmp_path: Path) -> None:
    paths = [
        recorded(tmp_path / f"{name}.tape", [3, 3, 3, 5], keep=Novelty()) for name in ("a", "b")
    ]
    out = merged(paths, tmp_path / "m.tape")
    with open_tape(paths) as tape, open_tape(out) as made:
        assert made.coverage == tape.coverage
        assert made.coverage.dropped["policy"] == 4
        assert made.counters.groups == tape.counters.groups
        assert made.counters.calls == 8
        assert [v.findings.all_calls for v in made.variants()] == [
            v.findings.all_calls for v in tape.variants()
        ]


def test_calls_of_a_file_without_counters_are_counted(tmp_path: Path) -> None:
    counted = recorded(tmp_path / "a.tape", [3, 4])
    with open_tape(counted) as tape:
        target = tape.target
    bare = write_tape(
        tmp_path / "b.tape", [((torch.zeros(3, 4),), {})], target=target,
        tape_id=b"b" * 16, table=False,
    )  # fmt: skip
    with open_tape([counted, bare]) as tape:
        merge_tapes(tape, tmp_path / "m.tape")
    with open_tape(tmp_path / "m.tape", verify=True) as tape:
        assert tape.counters.complete
        assert tape.counters.calls == len(tape) == 3
        assert tape.damage == []


def test_different_targets_are_not_joined(tmp_path: Path) -> None:
    def one(x: Any) -> Any: ...
    def other(x: Any, y: int = 3) -> Any: ...

    tapes = [
        write_tape(tmp_path / f"{name}.tape", [((1,), {})], target=target,
                   tape_id=name.encode() * 16)
        for name, target in (("a", target_of(one)), ("b", target_of(other)))
    ]  # fmt: skip
    caught = pytest.raises(UsageError, match=r"signatures differ: a\.tape and b\.tape")
    with open_tape(tapes) as tape, caught:
        merge_tapes(tape, tmp_path / "m.tape")
    alien = write_tape(tmp_path / "c.tape", [((1,), {})], target=target_of(Model()))
    with pytest.raises(TapeError, match="different models"):
        open_tape([tapes[0], alien])


def test_a_tape_is_redacted_if_all_its_parts_are(tmp_path: Path) -> None:
    a, b = recorded(tmp_path / "a.tape", [3, 4]), recorded(tmp_path / "b.tape", [6])
    hidden = []
    for path in (a, b):
        with open_tape(path) as tape:
            redact(tape, path.with_suffix(".redacted.tape"))
        hidden.append(path.with_suffix(".redacted.tape"))
    half = merged([hidden[0], b], tmp_path / "half.tape")
    again = merged([half, recorded(tmp_path / "c.tape", [9])], tmp_path / "again.tape")
    for path in (half, again):
        with open_tape(path) as tape:
            assert tape.redacted == "part"
            private = private_data(tape)
            assert {"thread", "time"} <= {finding.kind for finding in private.findings}
            assert "only a part of the tape was redacted" in str(private)
            assert "Only a part of the tape was redacted" in (private.short(1) or "")
            redact(tape, tmp_path / "whole.tape", overwrite=True)
        with open_tape(tmp_path / "whole.tape") as tape:
            assert tape.redacted == "all"
    with open_tape(merged(hidden, tmp_path / "m.tape")) as tape:
        assert tape.redacted == "all"


def test_a_merge_of_redacted_and_raw_parts_is_redacted_in_part(tmp_path: Path) -> None:
    source = recorded(tmp_path / "a.tape", [3, 4, 5])
    with open_tape(source) as tape:
        redact(tape.only(calls="0"), tmp_path / "hidden.tape")
        filter_tape(tape.only(calls="1,2"), tmp_path / "raw.tape")
    path = merged([tmp_path / "hidden.tape", tmp_path / "raw.tape"], tmp_path / "m.tape")
    with open_tape(path) as tape:
        assert tape.redacted == "part"


def test_an_unsealed_part_makes_all_counts_lower_bounds(tmp_path: Path) -> None:
    a, b = recorded(tmp_path / "a.tape", [3, 4]), recorded(tmp_path / "b.tape", [6])
    data = a.read_bytes()
    a.write_bytes(data[: data.index(b"blobs/00000001")])
    with open_tape(merged([a, b], tmp_path / "m.tape")) as tape:
        until = time_text(tape.coverage.counted_ns or 0)
        says = f"2 of at least 2 calls seen were kept (counted until {until})"
        assert coverage_text(tape.coverage) == says
        filter_tape(tape, tmp_path / "part.tape")
    with open_tape(tmp_path / "part.tape") as tape:
        assert tape.coverage.at_least


def test_coverage_is_at_least_if_a_file_between_is_missing(tmp_path: Path) -> None:
    model = Model()
    with record(model, f"{tmp_path}/r/", segment_bytes=8192) as recorder:
        for size in range(1, 60):
            model(torch.randn(size % 9 + 1, 4))
            recorder.flush()
    files = sorted((tmp_path / "r").glob("*.tape"))
    with open_tape(merged([files[0], files[2]], tmp_path / "m.tape")) as tape:
        assert tape.coverage.at_least


def test_calls_that_two_files_have_are_not_lost(tmp_path: Path) -> None:
    source = recorded(tmp_path / "a.tape", [3, 4, 5, 6])
    with open_tape(source) as tape:
        every = contents(list(tape.calls))
        filter_tape(tape.only(calls="0..2"), tmp_path / "b.tape")
        filter_tape(tape.only(calls="1..3"), tmp_path / "c.tape")
    with open_tape([tmp_path / "b.tape", tmp_path / "c.tape"]) as tape:
        report = merge_tapes(tape, tmp_path / "m.tape")
    assert (report.calls, report.lost) == (4, ())
    assert "calls 1, 2 are in b.tape too, and count once" in report.notes[0]
    with open_tape(tmp_path / "m.tape", verify=True) as made:
        assert contents(list(made.calls)) == every
        first, second, merge = made.manifest.history or ()
        assert [(s.sources[0].calls, s.sources[0].left_out) for s in (first, second)] == [
            (4, 1)
        ] * 2
        assert (merge.sources[0].files, merge.sources[0].calls) == (("b.tape", "c.tape"), 4)


def test_a_damaged_call_is_taken_from_another_file(tmp_path: Path) -> None:
    source = recorded(tmp_path / "a.tape", [3, 4, 5, 6])
    with open_tape(source) as tape:
        every = contents(list(tape.calls))
        filter_tape(tape.only(calls="0..2"), tmp_path / "part.tape")
    data = bytearray(source.read_bytes())
    data[data.index(b"blobs/00000001.safetensors") + 800] ^= 1
    broken = tmp_path / "broken.tape"
    broken.write_bytes(data)
    for way, other in ((merge_tapes, source), (recover_tape, source), (merge_tapes, "part.tape")):
        with open_tape([broken, tmp_path / other]) as tape:
            report = way(tape, tmp_path / "m.tape", overwrite=True)
        assert report.lost == ()
        assert any("call 1 is corrupted in broken.tape" in note for note in report.notes)
        assert "nothing had to be recovered" not in str(report)
        with open_tape(tmp_path / "m.tape", verify=True) as made:
            assert contents(list(made.calls)) == every
            assert made.coverage == Coverage(seen=4, kept=4)


def test_a_damaged_record_that_another_file_has_is_not_lost(tmp_path: Path) -> None:
    source = recorded(tmp_path / "a.tape", [3, 4, 5, 6])
    with open_tape(source) as tape:
        every = contents(list(tape.calls))
        filter_tape(tape.only(calls="0,2,3"), tmp_path / "rest.tape")
    data = bytearray(source.read_bytes())
    data[data.index(b"records/00000001.msgpack") + 600] ^= 1
    (tmp_path / "broken.tape").write_bytes(data)
    for way in (merge_tapes, recover_tape):
        with open_tape([tmp_path / "broken.tape", source]) as tape:
            report = way(tape, tmp_path / "m.tape", overwrite=True)
        assert report.lost == ()
        assert "call 1 is corrupted in broken.tape; a.tape has it whole" in report.notes
        with open_tape(tmp_path / "m.tape", verify=True) as made:
            assert contents(list(made.calls)) == every
        with open_tape([tmp_path / "broken.tape", tmp_path / "rest.tape"]) as tape:
            report = way(tape, tmp_path / "m.tape", overwrite=True)
        assert report.calls == 3
        assert "call 1 is lost" in report.lost[0]


def test_coverage_that_would_overflow_is_rejected(tmp_path: Path) -> None:
    a, b = recorded(tmp_path / "a.tape", [3, 4]), recorded(tmp_path / "b.tape", [6])
    path = merged([a, b], tmp_path / "m.tape")
    most = 2**63 - 1
    with open_tape(path) as tape, NewTape(tmp_path / "claims.tape", tape.manifest) as writer:
        for call in tape.calls:
            writer.copy(call)
        dropped = dict.fromkeys(("x", "y", "z"), most)
        writer.seal(Coverage.model_construct(seen=most, kept=3, dropped=dropped))
    with open_tape(tmp_path / "claims.tape") as tape:
        assert tape.coverage.seen == most
        assert filter_tape(tape.only(calls="2"), tmp_path / "last.tape").calls == 1
    with open_tape([tmp_path / "claims.tape", a]) as tape, pytest.raises(TapeError) as caught:
        filter_tape(tape, tmp_path / "both.tape")
    assert caught.value.kind == "usage"
