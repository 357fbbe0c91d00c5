"""Joining tapes: numbers and ids stay apart, and what was joined can be taken apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer import CallRef, TapeError, UsageError, filter_tape, merge_tapes, open_tape
from calltape_recorder import Novelty, record
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


@given(sizes=st.lists(st.lists(st.integers(-2, 5), max_size=4), min_size=2, max_size=4))
def test_what_was_merged_is_taken_apart(
    sizes: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tapes")
    paths = [recorded(folder / f"{at}.tape", own) for at, own in enumerate(sizes)]
    first = merged(paths[:2], folder / "first.tape")
    whole = merged([first, *paths[2:]], folder / "m.tape") if paths[2:] else first
    with open_tape(whole) as tape:
        assert len(tape) == sum(map(len, sizes))
        for path in paths:
            with open_tape(path) as original:
                if not len(original):
                    continue
                recording = original.manifest.tape.hex()
                filter_tape(tape, folder / "part.tape", recording=recording, overwrite=True)
                with open_tape(folder / "part.tape", verify=True) as part:
                    assert part.damage == []
                    assert [c.ref for c in part.calls] == [c.ref for c in original.calls]
                    assert [c.record for c in part.calls] == [c.record for c in original.calls]
                    assert part.coverage == original.coverage


def test_parents_are_found_again(tmp_path: Path) -> None:
    class Tree(torch.nn.Module):
        def forward(self, x: Any, depth: int) -> Any:
            return self(x, depth - 1) + 1 if depth else x

    paths = []
    for name in ("a", "b"):
        model = Tree()
        with record(model, tmp_path / f"{name}.tape"):
            model(torch.zeros(1), 2)
        paths.append(tmp_path / f"{name}.tape")
    out = merged(paths, tmp_path / "m.tape")
    with open_tape(out) as tape:
        parents = {call.number: call.parent and call.parent.number for call in tape.calls}
        assert sorted(number for number in parents if parents[number] is None) == [0, 3]
        assert {parents[1], parents[2], parents[4], parents[5]} == {0, 1, 3, 4}
        assert all(
            call.parent is None or tape.calls.at(call.parent).tree == call.tree
            for call in tape.calls
        )


def test_a_recording_by_its_id(tmp_path: Path) -> None:
    paths = [recorded(tmp_path / "a.tape", [3, 4]), recorded(tmp_path / "b.tape", [6])]
    with open_tape(paths) as tape:
        wanted = tape.manifests[1].tape
        filter_tape(tape, tmp_path / "c.tape", recording=wanted.hex()[:8])
        with pytest.raises(UsageError, match="several recordings"):
            filter_tape(tape, tmp_path / "d.tape", recording="")
    with open_tape(tmp_path / "c.tape") as tape:
        assert [call.ref for call in tape.calls] == [CallRef(wanted, 0)]
        assert tape.coverage.dropped == {}


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


def test_a_file_without_counters_leaves_none(tmp_path: Path) -> None:
    counted = recorded(tmp_path / "a.tape", [3, 4])
    model = Model()
    bare = write_tape(
        tmp_path / "b.tape", [((torch.zeros(3, 4),), {})], target=target_of(model),
        tape_id=b"b" * 16,
    )  # fmt: skip
    with open_tape(counted) as tape:
        signature = tape.target and tape.target.signature
    assert signature
    with open_tape([counted, bare]) as tape:
        merge_tapes(tape, tmp_path / "m.tape", any_signature=True)
    with open_tape(tmp_path / "m.tape", verify=True) as tape:
        assert tape.counters.missing
        assert tape.damage == []


def test_different_targets_are_not_joined(tmp_path: Path) -> None:
    def one(x: Any) -> Any: ...
    def other(x: Any, y: int = 3) -> Any: ...

    tapes = [
        write_tape(tmp_path / f"{name}.tape", [((1,), {})], target=target,
                   tape_id=name.encode() * 16)
        for name, target in (("a", target_of(one)), ("b", target_of(other)))
    ]  # fmt: skip
    with open_tape(tapes) as tape:
        with pytest.raises(UsageError, match=r"signatures differ: a\.tape and b\.tape"):
            merge_tapes(tape, tmp_path / "m.tape")
        report = merge_tapes(tape, tmp_path / "m.tape", any_signature=True)
        assert any("signatures differ" in note for note in report.notes)
    alien = write_tape(tmp_path / "c.tape", [((1,), {})], target=target_of(Model()))
    with pytest.raises(TapeError, match="different models"):
        open_tape([tapes[0], alien])
