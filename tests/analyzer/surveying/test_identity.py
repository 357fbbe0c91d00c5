"""The calls of a file count once, whichever copies and states of it were surveyed, and when."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import filter_tape, merge_tapes, open_tape, survey
from calltape_analyzer.errors import UsageError
from calltape_analyzer.surveying import target_survey as module
from calltape_analyzer.surveying.survey import Loop
from calltape_recorder import Recorder, record
from calltape_schema.bounds import MAX_PARTS
from calltape_schema.records import Segment, Source, joined_parts
from tests.analyzer.cli.commands import run
from tests.analyzer.reading.ahead import ahead
from tests.analyzer.reading.summarised import Model, some
from tests.analyzer.surveying.surveyed import of, tape_of, written
from tests.analyzer.tapes import write_tape


def test_the_sealed_state_of_a_file_counts_whatever_its_name(tmp_path: Path) -> None:
    for names in itertools.permutations("abc"):
        folder = tmp_path / "".join(names)
        folder.mkdir()
        early, later, sealed = (folder / f"{name}.tape" for name in names)
        tape_of(early, 3, sealed=False)
        tape_of(later, 6, sealed=False)
        tape_of(sealed, 9)
        surveyed = of(early, later, sealed)
        assert (surveyed.coverage.kept, surveyed.coverage.at_least) == (9, None)
        assert sorted(surveyed.copies) == sorted(map(str, (early, later)))
        assert of(early, later).coverage.kept == 6


def test_a_file_that_claims_to_be_another_one_is_told(tmp_path: Path) -> None:
    one, other = tape_of(tmp_path / "1.tape", 5), tape_of(tmp_path / "2.tape", 6)
    surveyed = of(one, other)
    assert surveyed.coverage.kept == 5
    assert "it has other calls than" in str(surveyed.damage[0])
    shutil.copy(one, other)
    assert not of(one, other).damage


@pytest.mark.parametrize("sealed", [True, False])
def test_a_part_of_a_tape_does_not_count_in_its_place(tmp_path: Path, sealed: bool) -> None:
    """What ``filter`` and ``recover`` write has the id of the recording, and fewer calls."""
    whole = tape_of(tmp_path / "m.tape", 9, sealed=sealed)
    with open_tape(whole) as tape:
        filter_tape(tape.only(calls=range(2, 6)), tmp_path / "a.tape")
        filter_tape(tape.only(calls=range(4)), tmp_path / "z.tape")
    parts = [tmp_path / "a.tape", tmp_path / "z.tape"]
    for paths in itertools.permutations([whole, *parts]):
        surveyed = of(*paths)
        assert surveyed.coverage.kept == 9
        assert sorted(surveyed.copies) == sorted(map(str, parts))
        assert not surveyed.damage
        assert not surveyed.coverage.lost


def test_calls_that_count_twice_are_told(tmp_path: Path) -> None:
    """A merge is a recording of its own, and says which ones it was made of."""
    one, two, three = (tape_of(tmp_path / f"{n}.tape", 4 + n, recording=n) for n in range(3))
    merged = {}
    for name, paths in {
        "a": [one, two],
        "b": [two, three],
        "c": [tmp_path / "a.tape", three],
    }.items():
        merged[name] = str(tmp_path / f"{name}.tape")
        with open_tape(paths) as tape:
            merge_tapes(tape, merged[name])
    a, b, c = (merged[name] for name in "abc")
    for paths, told in (
        ([one, a], [a]), ([a, b], [a, b]), ([three, a], []), ([a, c], [a, c]), ([one, c], [c]),
        ([one, two, three], []), ([a, c, three], [a, c]), ([a], []),
    ):  # fmt: skip
        for order in (paths, paths[::-1]):
            surveyed = of(*map(Path, order))
            assert sorted(surveyed.made_of_others) == told
            assert (surveyed.copies, surveyed.damage) == ([], [])
    ran = run("survey", one, a)
    assert ran.code == 0
    (line,) = [line for line in ran.out.splitlines() if line.startswith("twice")]
    assert "a.tape" in line
    assert "may count twice" in ran.out
    assert "twice" not in run("survey", three, a).out
    assert json.loads(run("survey", one, a, "--json").out)[0]["made_of_others"] == 1


def test_the_tensors_of_unsealed_tapes_count(tmp_path: Path) -> None:
    sealed = tape_of(tmp_path / "a.tape", 5)
    unsealed = tape_of(tmp_path / "b.tape", 5, recording=2, sealed=False)
    sizes = []
    for path in (sealed, unsealed):
        with open_tape(written(tmp_path / f"{path.stem}-survey.tape", path)) as tape:
            end = tape.segments[0].end
            assert end is not None
            sizes.append(end.tensor_bytes)
    assert sizes[0] == sizes[1] > 0


def part(folder: Path, number: int, calls: int = 3) -> Path:
    made = some(calls)
    for at, call in enumerate(made):
        call.number = calls * number + at
    return write_tape(
        folder / f"part-{number}.tape", made, target=Model(),
        segment=Segment(number=number, first_call=calls * number),
    )  # fmt: skip


def test_parts_of_one_recording_are_no_copies(tmp_path: Path) -> None:
    paths = [part(tmp_path, number) for number in range(3)]
    surveyed = of(*paths)
    assert (surveyed.coverage.kept, surveyed.recordings, surveyed.damage) == (9, 1, [])
    assert not surveyed.coverage.at_least
    assert of(*paths[1:]).coverage.at_least, "calls of the first part are not here"


def test_other_parts_of_a_recording_are_added_to_a_survey(tmp_path: Path) -> None:
    paths = [part(tmp_path, number) for number in range(4)]
    monday = written(tmp_path / "monday.s", *paths[:2])
    tuesday = written(tmp_path / "tuesday.s", paths[2])
    both = written(tmp_path / "both.s", tuesday, monday)
    all_parts = written(tmp_path / "all.s", both, paths[3])
    with open_tape(all_parts) as tape, open_tape(paths) as tapes:
        assert len(tape) == len(tapes) == 12
        assert [v.findings for v in tape.variants()] == [v.findings for v in tapes.variants()]
        refs = [{str(seen.first) for seen in one.calls.by_inputs()} for one in (tape, tapes)]
        assert refs[0] <= refs[1]
        (source,) = tape.segments[0].sources
        assert (source.parts, source.calls) == (((0, 3),), 12)
    with open_tape([monday, paths[3], tuesday]) as tape:
        assert (len(tape), tape.damage) == (12, [])
    for again in ([both, paths[1]], [monday, both], [paths[2], tuesday]):
        with pytest.raises(UsageError, match="would count twice"):
            survey(again, Loop())


def test_runs_of_parts_are_bounded() -> None:
    assert joined_parts([(5, 5), (0, 1), (2, 2), (9, 12), (11, 13)]) == ((0, 2), (5, 5), (9, 13))
    many = joined_parts((n * n, n * n) for n in range(MAX_PARTS + 9))
    assert len(many) == MAX_PARTS
    source = Source(tape=bytes(16), parts=many)
    assert all(source.shares(bytes(16), ((n * n, n * n),)) for n in range(MAX_PARTS + 9))
    assert not source.shares(bytes(16), ((4097, 4200),))
    assert not source.shares(b"x" * 16, None)


def test_recordings_that_are_not_named_keep_their_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call is said to be of a recording that does not have it."""
    paths = [tape_of(tmp_path / f"{n}.tape", 1 + n, recording=n) for n in range(6)]
    monkeypatch.setattr(module, "MAX_SOURCES", 4)
    out = written(tmp_path / "s.s", *paths)
    with open_tape(out) as tape:
        sources = tape.segments[0].sources
        assert [one.tape[0] for one in sources[:3]] == [0, 1, 2]
        assert (sources[3].tape, sources[3].calls) == (tape.manifest.tape, 4 + 5 + 6)
        assert sources[3].other_files == 3
    more = written(tmp_path / "more.s", out, tape_of(tmp_path / "z.tape", 2, recording=9))
    with open_tape(more) as tape:
        assert len(tape) == 21 + 2
        assert {seen.first.tape for seen in tape.calls.by_inputs()} <= {
            source.tape for source in tape.segments[0].sources
        }


def test_a_call_under_way_counts_unless_it_ended(tmp_path: Path) -> None:
    folder = ahead(tmp_path, 1, 5)
    with open_tape(folder) as tape:
        surveyed = of(folder)
        assert surveyed.coverage == tape.coverage
        assert surveyed.table.totals().kept == len(tape) == 4
        assert (surveyed.copies, surveyed.damage) == ([], [])


def test_a_write_ahead_file_without_a_call_is_none(tmp_path: Path) -> None:
    folder = ahead(tmp_path, 3)
    (folder / "a.ahead-4.tape").write_bytes(b"")
    ran = run("survey", folder)
    assert (ran.code, ran.err) == (0, "")
    assert "4 with" in ran.out


def test_a_link_to_a_file_counts_once(tmp_path: Path) -> None:
    one = tape_of(tmp_path / "a.tape")
    os.symlink(one, tmp_path / "b.tape")
    surveyed = of(tmp_path)
    assert (surveyed.files, surveyed.copies) == (1, [])


@pytest.mark.parametrize("options", [{}, {"sealed": False}, {"table": False}])
def test_one_file_is_surveyed_as_it_is_read(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tape_of(tmp_path / "a.tape", 7, dropped={"policy": 4}, **options)
    with open_tape(path) as tape:
        assert of(path).coverage == tape.coverage


def recorded(folder: Path, calls: int, every: int, **options: Any) -> list[Path]:
    model = torch.nn.Identity()
    with record(model, f"{folder}/", values="none", segment_bytes=20_000, **options) as recorder:
        for number in range(calls):
            model(torch.zeros(number % 9 + 1, 3))
            if number % every == 0:
                recorder.flush()
    return sorted(folder.glob("*.tape"))


@pytest.fixture(scope="module", params=[10, 1000])
def rolled(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> list[Path]:
    """Of a writer that keeps up, and of one that is a thousand calls behind."""
    found = recorded(tmp_path_factory.mktemp("rolled"), 1500, request.param)
    assert len(found) > 1
    return found


def test_no_part_is_accused(rolled: list[Path]) -> None:
    for first, last in combinations(range(min(len(rolled), 4) + 1), 2):
        part = rolled[first:last]
        surveyed = of(*part)
        assert not surveyed.damage, part
        with open_tape(part) as opened:
            opened.variants()
            assert not opened.damage, part
            assert opened.coverage == surveyed.coverage


def test_a_survey_of_all_has_their_counters(tmp_path: Path, rolled: list[Path]) -> None:
    out = written(tmp_path / "s.tape", *rolled)
    with open_tape(rolled) as opened, open_tape(out) as tape:
        assert opened.counters.complete
        assert tape.counters == opened.counters
        assert tape.coverage == opened.coverage


@pytest.mark.parametrize("every", [10, 1000])
def test_files_that_were_deleted_left_their_counters(tmp_path: Path, every: int) -> None:
    options = {"max_disk_bytes": 140_000, "when_full": "delete_oldest"}
    files = recorded(tmp_path / "tapes", 3000, every, **options)
    out = written(tmp_path / "s.tape", *files)
    with open_tape(files) as opened, open_tape(out) as tape:
        assert opened.deleted_files
        assert not opened.missing_files
        assert tape.coverage == opened.coverage
        assert tape.counters == opened.counters
        assert tape.counters.calls == 3000
        assert not tape.damage


def test_a_survey_of_a_part_says_at_least(tmp_path: Path, rolled: list[Path]) -> None:
    out = written(tmp_path / "s.tape", *rolled[1:])
    with open_tape(rolled[1:]) as opened, open_tape(out) as tape:
        assert tape.coverage == opened.coverage
        assert tape.coverage.at_least
        assert tape.counters.calls == opened.counters.calls
        assert tape.counters.missing == {str(out)}
    traffic = next(x for x in run("info", out).out.splitlines() if x.startswith("traffic"))
    assert "at least" in traffic


class Slow(torch.nn.Module):
    """A call with a barrier is under way while other calls fill the file."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()

    def forward(self, x: Any, wait: bool = False) -> Any:
        if wait:
            self.begun.set()
            assert self.go.wait(250)
        return x


def test_surveys_of_parts_agree_on_a_call_that_ended_in_the_next_file(tmp_path: Path) -> None:
    model = Slow()
    recorder = Recorder(tmp_path / "a.tape", segment_bytes=20_000).attach(model)
    other = threading.Thread(target=model, args=(torch.zeros(7, 7), True))
    other.start()
    assert model.begun.wait(60)
    while len(list(tmp_path.glob("*.tape"))) < 2:
        for _ in range(50):
            model(torch.zeros(2, 3))
        recorder.flush()
    model.go.set()
    other.join()
    recorder.close()
    paths = sorted(tmp_path.glob("*.tape"))
    parts = [written(tmp_path / f"{n}.s", path) for n, path in enumerate(paths)]
    with open_tape(paths) as tape:
        assert not tape.counters.missing
        for order in (paths, parts, parts[::-1]):
            out = written(tmp_path / f"{len(list(tmp_path.iterdir()))}.all", *order)
            with open_tape(out) as found:
                assert found.counters.groups == tape.counters.groups
                assert [v.findings for v in found.variants()] == [
                    v.findings for v in tape.variants()
                ]
