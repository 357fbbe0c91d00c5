"""Files that have calls of one recording twice: each call counts once, and it is said."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import TapeError, filter_tape, open_tape
from calltape_analyzer.reading import duplicates
from calltape_analyzer.surveying.survey import survey
from calltape_analyzer.tape import Tape
from calltape_recorder import record
from calltape_recorder.host.target import rank_now
from calltape_schema.records import Segment as Place
from tests.analyzer.cli.commands import run
from tests.analyzer.reading.ranks import STEPS, Tokens, recorded, sizes
from tests.analyzer.tapes import Recorded, write_tape


def calls(sizes: range | list[int], first: int = 0) -> list[Recorded]:
    return [
        Recorded(args=(torch.zeros(size, 3),), number=first + i) for i, size in enumerate(sizes)
    ]


def said(tape: Tape) -> list[tuple[str, str]]:
    return [(os.path.basename(error.path or ""), error.reason) for error in tape.damage]


@pytest.fixture
def original(tmp_path: Path) -> Path:
    return write_tape(tmp_path / "a.tape", calls(range(2, 7)))


def test_a_copy_counts_once_and_is_said(original: Path) -> None:
    shutil.copy(original, original.with_name("b.tape"))
    with open_tape(original.parent) as tape:
        assert sizes(tape) == [2, 3, 4, 5, 6]
        assert tape.paths == (str(original),)
        assert (tape.coverage.seen, tape.coverage.kept) == (5, 5)
        assert said(tape) == [
            ("b.tape", "the file is a copy of a.tape, and its 5 calls count once")
        ]
        assert tape.find(3).number == 3
        (variant,) = tape.variants()
        assert variant.facts.calls == 5
    shown = run("info", original.parent)
    assert shown.code == 3
    assert "b.tape: the file is a copy of a.tape" in shown.err
    assert "5 of 5 calls" in shown.out
    assert "all match; copies of files, listed on stderr: 1" in shown.out
    merged = run("merge", original.parent, "-o", original.parent.parent / "merged.tape").out
    assert "note: " in merged
    assert "lost" not in merged


def test_a_copy_of_the_counters_counts_once(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 1)
    with record(model, tmp_path / "a.tape"):
        for size in (2, 5):
            model(torch.zeros(size, 3))
    shutil.copy(tmp_path / "a.tape", tmp_path / "b.tape")
    with open_tape(tmp_path) as tape:
        assert tape.counters.calls == 2


def test_a_copy_from_when_it_was_recorded_counts_once(original: Path) -> None:
    data = write_tape(original.with_name("0.tape"), calls(range(2, 5)), sealed=False).read_bytes()
    early = original.with_name("0.tape")
    early.write_bytes(data + b"calls/000")
    with open_tape(original.parent) as tape:
        assert tape.sealed
        assert sizes(tape) == [2, 3, 4, 5, 6]
        assert said(tape) == [
            ("0.tape", "the file is a copy of a.tape, and its 3 calls count once")
        ]


def test_other_calls_of_the_same_numbers_are_left_out(original: Path) -> None:
    """The first file counts: its calls are never used for those of the second, or the other way."""
    other = write_tape(original.with_name("b.tape"), calls([2, 30, 4, 50], first=0))
    with open_tape([original, other]) as tape:
        assert sizes(tape) == [2, 3, 4, 5, 6]
        assert said(tape) == [
            ("b.tape", "calls 0, 2 are in a.tape too, and count once"),
            (
                "b.tape",
                "calls 1, 3 are left out, because a.tape has other calls with these numbers",
            ),
        ]
        for variant in tape.variants():
            assert "30" not in str(variant.infer_dynamic_shapes())
        assert (tape.coverage.seen, tape.coverage.kept) == (5, 5)
    assert run("variants", original, other).code == 3


def test_two_variants_under_one_number_do_not_mix(tmp_path: Path) -> None:
    """The first file's call was taken for the second's variant: a static dimension was dynamic."""
    first = write_tape(tmp_path / "a.tape", calls([2, 5]))
    ints = [Recorded(args=(torch.zeros(n, 3, dtype=torch.int64),), number=i)
            for i, n in enumerate((4, 4))]  # fmt: skip
    second = write_tape(tmp_path / "b.tape", ints)
    with open_tape([first, second]) as tape:
        (variant,) = tape.variants()
        assert variant.facts.calls == 2
        assert {str(tensor.dtype) for tensor in (tape[0].inputs.args[0],)} == {"torch.float32"}
        assert "calls 0, 1 are left out" in str(tape.damage[0])


def test_what_only_the_second_file_has_counts(original: Path) -> None:
    other = write_tape(original.with_name("b.tape"), calls([6, 9], first=4))
    with open_tape([original, other]) as tape:
        assert sizes(tape) == [2, 3, 4, 5, 6, 9]
        assert [call.number for call in tape.calls] == list(range(6))
        assert tape.calls.at(tape[5].ref).number == 5
        assert said(tape) == [("b.tape", "call 4 is in a.tape too, and counts once")]


def test_parts_of_one_tape_are_no_copies(original: Path, tmp_path: Path) -> None:
    with open_tape(original) as tape:
        filter_tape(tape.only(calls="0,2"), tmp_path / "x.tape")
        filter_tape(tape.only(calls="3"), tmp_path / "y.tape")
    with open_tape([tmp_path / "x.tape", tmp_path / "y.tape"]) as tape:
        assert sizes(tape) == [2, 4, 5]
        assert not tape.damage
        assert (tape.coverage.seen, tape.coverage.kept) == (5, 3)
        assert sum(tape.coverage.dropped.values()) == 2
    with open_tape([original, tmp_path / "x.tape"]) as tape:
        assert sizes(tape) == [2, 3, 4, 5, 6]
        assert said(tape) == [
            ("x.tape", "the file is a copy of a.tape, and its 2 calls count once")
        ]


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_one_file_under_two_names_is_one(original: Path, link: Any) -> None:
    link(original, original.with_name("b.tape"))
    with open_tape([original.parent, str(original.parent / "?.tape")]) as tape:
        assert len(tape) == 5
        assert not tape.damage


def test_a_tape_does_not_differ_from_its_copy(original: Path) -> None:
    copy = shutil.copy(original, original.with_name("b.tape"))
    assert run("diff", original, copy).code == 0


def test_a_call_ahead_counts_once(tmp_path: Path) -> None:
    """What a killed process leaves: calls on the tape, one of them also ahead, and one that was
    under way while a later one ended."""
    given = calls(range(2, 6))
    ahead = [Recorded(args=call.args, number=call.number, outputs_missing="under way")
             for call in given]  # fmt: skip
    write_tape(tmp_path / "a.tape", [given[0], given[1], given[3]], sealed=False)
    write_tape(tmp_path / "a.ahead-0.tape", [ahead[1]], sealed=False)
    write_tape(tmp_path / "a.ahead-1.tape", [ahead[2]], sealed=False)
    write_tape(tmp_path / "a.ahead-2.tape", [], sealed=False)
    write_tape(tmp_path / "a.ahead-3.tape", [], sealed=False)
    with open_tape(tmp_path) as tape:
        assert sorted(sizes(tape)) == [2, 3, 4, 5]
        assert [call.number for call in tape.under_way] == [2]
        assert (tape.coverage.seen, tape.coverage.kept, tape.coverage.dropped) == (4, 4, {})
        assert not tape.damage
    shutil.copy(tmp_path / "a.ahead-1.tape", tmp_path / "b.tape")
    with open_tape(tmp_path) as tape:
        assert sorted(sizes(tape)) == [2, 3, 4, 5]
        assert said(tape) == [
            ("b.tape", "the file is a copy of a.ahead-1.tape, and its call counts once")
        ]


def test_files_that_follow_each_other_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 files of a million calls: only where numbers meet are there sets of them."""
    compared: list[int] = []
    find = duplicates.repeated_numbers
    monkeypatch.setattr(
        duplicates,
        "repeated_numbers",
        lambda files: compared.append(len(files)) or find(files),
    )
    for part in range(4):
        segment = Place(number=part, first_call=5 * part)
        write_tape(tmp_path / f"a-{part}.tape", calls(range(1, 6), 5 * part), segment=segment)
    with open_tape(tmp_path) as tape:
        assert len(tape) == 20
        assert not tape.damage
    assert max(compared) == 1


def test_files_of_different_models_are_refused_as_ever(original: Path) -> None:
    linear, relu = torch.nn.Linear(1, 1), torch.nn.ReLU()
    one = write_tape(original.with_name("x.tape"), calls([1]), target=linear)
    other = write_tape(original.with_name("y.tape"), calls([1]), target=relu)
    with pytest.raises(TapeError, match="different models"):
        open_tape([one, other])


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_step_counts_once(tmp_path: Path, of_rank: Any, ranks: int) -> None:
    for rank in range(ranks):
        of_rank(rank, ranks)
        recorded(tmp_path / f"{rank}.tape")
    with open_tape(tmp_path) as tape:
        assert len(tape) == tape.coverage.kept == tape.counters.calls == 4
        assert [len(variant) for variant in tape.variants()] == [4]
        assert tape.paths == (str(tmp_path / "0.tape"),)
        assert sorted(tape.other_ranks) == [str(tmp_path / f"{r}.tape") for r in range(1, ranks)]
    for rank in range(ranks):
        assert len(open_tape(tmp_path / f"{rank}.tape")) == 4


@pytest.mark.parametrize("options", [{"values": "none"}, {"segment_bytes": 4096}], ids=str)
def test_however_they_were_recorded(tmp_path: Path, of_rank: Any, options: Any) -> None:
    for rank in (0, 1):
        of_rank(rank)
        recorded(tmp_path / f"{rank}.tape", sizes=STEPS * 4, **options)
    with open_tape(tmp_path) as tape:
        assert len(tape) == 16


@pytest.mark.parametrize(
    "other",
    [{"first": 100}, {"sizes": (3, 4, 14, 4)}, {"sizes": (3, 14, 4)}, {"sizes": (3, 14, 4, 4, 4)}],
    ids=str,
)
def test_other_data_counts(tmp_path: Path, of_rank: Any, other: Any) -> None:
    of_rank(0)
    recorded(tmp_path / "0.tape")
    of_rank(1)
    recorded(tmp_path / "1.tape", **other)
    with open_tape(tmp_path) as tape:
        assert len(tape) == 4 + len(other.get("sizes", STEPS))
        assert not tape.other_ranks


def test_one_that_was_killed_lacks_the_last_calls(tmp_path: Path, of_rank: Any) -> None:
    of_rank(0)
    recorded(tmp_path / "0.tape", sizes=STEPS[:3], seals=False)
    of_rank(1)
    recorded(tmp_path / "1.tape")
    with open_tape(tmp_path) as tape:
        assert tape.other_ranks == (str(tmp_path / "0.tape"),)
        assert len(tape) == 4


def test_one_that_was_killed_has_seen_fewer_values(tmp_path: Path, of_rank: Any) -> None:
    model = Tokens()
    for rank, calls in ((0, 3), (1, 5)):
        of_rank(rank)
        path = tmp_path / f"{rank}.tape"
        recorder = record(model, path)
        for value in range(calls):
            model(torch.tensor([value]))
        recorder.flush()
        content = path.read_bytes()
        recorder.close()
        if not rank:
            path.write_bytes(content)  # as if the process was killed now
    with open_tape(tmp_path) as tape:
        assert tape.other_ranks == (str(tmp_path / "0.tape"),)
        assert len(tape) == 5
    assert survey(tmp_path).target().coverage.kept == 5


def test_one_that_was_killed_has_other_data_of_the_same_range(tmp_path: Path, of_rank: Any) -> None:
    """As in data-parallel training: only the calls one by one tell."""
    model = Tokens()
    for rank, calls in ((0, [(0, 5), (0, 9)]), (1, [(0, 9), (0, 5), (0, 9)])):
        of_rank(rank)
        path = tmp_path / f"{rank}.tape"
        with record(model, path) as recorder:
            for values in calls:
                model(torch.tensor(values))
            recorder.flush()
            content = path.read_bytes()
        path.write_bytes(content)
    with open_tape(tmp_path) as tape:
        assert not tape.other_ranks
        assert len(tape) == 5


def test_two_runs_of_a_job_have_steps_of_their_own(tmp_path: Path, of_rank: Any) -> None:
    for job in "ab":
        for rank in (0, 1):
            of_rank(rank)
            recorded(tmp_path / f"{job}{rank}.tape")
    with open_tape(tmp_path) as tape:
        assert len(tape) == 8


def test_processes_of_no_job_all_count(tmp_path: Path) -> None:
    assert rank_now() is None
    for worker in (0, 1):
        recorded(tmp_path / f"{worker}.tape")
    with open_tape(tmp_path) as tape:
        assert len(tape) == 8


def test_info_and_survey_say_that_ranks_made_the_same_calls(tmp_path: Path, of_rank: Any) -> None:
    for rank in (0, 1):
        of_rank(rank)
        recorded(tmp_path / f"{rank}.tape")
    result = run("info", tmp_path)
    assert result.code == 0
    assert "ranks      0 of 2; 1 file of other ranks ignored: a step counts once" in result.out
    assert "another rank of the job made the same calls" in result.err
    told = run("survey", tmp_path)
    assert "1 file of other ranks ignored: a step counts once" in " ".join(told.out.split())
    assert survey(tmp_path).target().coverage.kept == 4
