"""The calls of a file count once, whichever copies and states of it were surveyed, and when."""

from __future__ import annotations

import itertools
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Survey, UsageError, open_tape, survey
from calltape_analyzer.surveying.executors import Loop
from calltape_analyzer.surveying.survey_file import survey_to_json
from calltape_recorder import Recorder
from calltape_schema.records import Segment
from tests.analyzer.reading.test_summaries import Model, some
from tests.analyzer.tapes import write_tape


def of(*paths: Path) -> Survey:
    return survey(paths, Loop())


def merged(*surveys: Survey) -> Survey:
    return Survey().merge(*surveys)


def test_a_copy_counts_once_and_is_told(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", some(9), target=Model())
    copy = Path(shutil.copy(path, tmp_path / "b.tape"))
    for found in (of(path, copy), of(copy, path), merged(of(copy), of(path))):
        tape = found.tape()
        assert (len(tape), tape.paths, tape.copies) == (9, (str(path),), (str(copy),))
        assert tape.damage == [], "a copy is no damage; the command tells it in a row"
        assert survey_to_json(found) == survey_to_json(of(path, copy))


def test_a_file_that_is_in_both_surveys_counts_once(tmp_path: Path) -> None:
    paths = [
        write_tape(
            tmp_path / f"{n}.tape",
            some(4 + n),
            target=Model(),
            summary=True,
            tape_id=bytes([n] * 16),
        )
        for n in range(3)
    ]
    one, all_three = of(paths[0]), of(*paths)
    for parts in itertools.permutations([one, all_three, one]):
        assert survey_to_json(merged(*parts)) == survey_to_json(all_three)
    with pytest.raises(UsageError, match=r"1 file in common, such as .*1\.tape"):
        merged(of(*paths[:2]), of(*paths[1:]))
    again = survey(paths[1:], Loop(), onto=of(*paths[:2]))
    assert survey_to_json(again) == survey_to_json(all_three)


def test_a_later_state_of_a_file_replaces_the_earlier_one(tmp_path: Path) -> None:
    early, later, sealed = tmp_path / "1.tape", tmp_path / "2.tape", tmp_path / "3.tape"
    write_tape(early, some(3), target=Model(), sealed=False)
    write_tape(later, some(6), target=Model(), sealed=False)
    write_tape(sealed, some(9), target=Model())
    for order in itertools.permutations([early, later, sealed]):
        found = merged(*map(of, order))
        assert survey_to_json(found) == survey_to_json(of(*order))
        tape = found.tape()
        assert (len(tape), tape.paths) == (9, (str(sealed),))
        assert tape.copies == (str(early), str(later))
    assert len(merged(of(later), of(early)).tape()) == 6


def test_the_same_path_read_again_when_it_was_longer_is_no_copy(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "1.tape", some(3), target=Model(), sealed=False)
    monday = of(path)
    write_tape(path, some(9), target=Model())
    tape = merged(monday, of(path)).tape()
    assert (len(tape), tape.copies, tape.damage) == (9, (), [])


def test_parts_of_one_recording_are_no_copies(tmp_path: Path) -> None:
    calls = some(9)
    for number, call in enumerate(calls):
        call.number = number
    for part in range(3):
        write_tape(
            tmp_path / f"{part}.tape", calls[3 * part : 3 * part + 3], target=Model(),
            segment=Segment(number=part, first_call=3 * part),
        )  # fmt: skip
    tape = survey(tmp_path, Loop()).tape()
    assert (len(tape), tape.damage) == (9, [])


def test_files_that_claim_the_same_calls_are_told(tmp_path: Path) -> None:
    one = write_tape(tmp_path / "1.tape", some(5), target=Model())
    other = write_tape(tmp_path / "2.tape", some(6)[::-1], target=Model())
    tape = of(one, other).tape()
    assert "have calls of the same numbers: each counts" in str(tape.damage[0])


class Slow(torch.nn.Module):
    """A call with a barrier is under way while other calls fill the file."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()

    def forward(self, x: Any, wait: bool = False) -> Any:
        if wait:
            self.begun.set()
            self.go.wait(10)
        return x


def test_a_call_that_is_counted_in_the_file_before(tmp_path: Path) -> None:
    """The counters of the second file lack a call that is on it. In one survey they are used, and
    in the sum of two, whichever comes first."""
    model = Slow()
    recorder = Recorder(tmp_path / "a.tape", segment_bytes=20_000).attach(model)
    other = threading.Thread(target=model, args=(torch.zeros(7, 7), True))
    other.start()
    model.begun.wait(10)
    while len(list(tmp_path.glob("*.tape"))) < 2:
        for _ in range(50):
            model(torch.zeros(2, 3))
        recorder.flush()
    model.go.set()
    other.join()
    recorder.close()
    paths = sorted(tmp_path.glob("*.tape"))
    with open_tape(tmp_path) as tape:
        assert not tape.counters.missing
        for found in (of(*paths), merged(*map(of, paths)), merged(*map(of, reversed(paths)))):
            assert found.tape().counters == tape.counters
            assert [v.findings for v in found.tape().variants()] == [
                v.findings for v in tape.variants()
            ]
    alone = [of(path).tape().counters for path in paths]
    assert any(one.missing for one in alone)
