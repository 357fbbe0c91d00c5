"""Files that lie or are broken cost their own answer only: tapes among others, and surveys."""

from __future__ import annotations

import gzip
import itertools
import os
import random
from pathlib import Path
from typing import Any

import pytest

from calltape_analyzer import TapeError, open_tape, survey
from calltape_analyzer.reading import files
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.surveying import survey as surveying
from calltape_analyzer.surveying.survey import Loop
from calltape_schema.end import Coverage
from calltape_schema.inputs_table import InputsTable
from calltape_schema.records import Source, Step
from calltape_schema.storage import BytesSink
from calltape_schema.writer import TapeWriter
from tests.analyzer.cli.commands import run
from tests.analyzer.surveying.surveyed import fleet, of, tape_of, written
from tests.fixture_files import FIXTURES
from tests.forging.changes import change_end


def test_hostile_tapes_do_not_change_the_survey_of_good_ones(tmp_path: Path) -> None:
    good = fleet(tmp_path)
    expected = of(*good)
    hostile = sorted(p for p in (FIXTURES / "hostile").iterdir() if p.suffix == ".tape")
    assert len(hostile) > 20
    surveyed = survey([*good, *hostile], Loop())
    mine = surveyed.target(expected.name)
    assert mine.to_bytes() == expected.to_bytes()
    assert set(surveyed.targets) > {mine.name}
    assert surveyed.unreadable
    for number, target in enumerate(surveyed.targets.values()):
        assert all(str(error).isprintable() for error in target.damage)
        out = tmp_path / f"{number}.s"
        out.write_bytes(target.to_bytes())
        with open_tape(out) as tape:
            tape.variants()
            assert len(tape) == target.coverage.kept
            assert tape.counters.calls >= len(tape)


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    good = fleet(tmp_path)
    (tmp_path / "empty.tape").write_bytes(b"")
    (tmp_path / "text.tape").write_text("hello" * 300)
    (tmp_path / "gone.tape").symlink_to(tmp_path / "nothing")
    surveyed = survey(tmp_path, Loop())
    assert surveyed.target().to_bytes() == of(*good).to_bytes()
    assert [error.kind for error in surveyed.unreadable] == [
        "not_a_tape",
        "not_found",
        "not_a_tape",
    ]


def test_calls_that_break_the_format_are_damaged(tmp_path: Path) -> None:
    """What the survey says of the others is whole, and reads back."""
    path = FIXTURES / "hostile"
    for one in sorted(path.glob("*.tape")):
        surveyed = survey(one, Loop())
        for target in surveyed.targets.values():
            assert target.table.totals().kept == target.coverage.kept


def test_a_directory_that_cannot_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    tape_of(tmp_path / "a.tape")
    real = os.scandir

    def scandir(path: str) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(files.os, "scandir", scandir)
    surveyed = survey(tmp_path, executor=Loop())
    assert [error.path for error in surveyed.unreadable] == [str(tmp_path / "closed")]


def test_a_file_that_was_compressed_meanwhile_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tape_of(tmp_path / "a.tape")
    named = [str(path)]
    monkeypatch.setattr("calltape_analyzer.surveying.survey.files_of", lambda *_: named)
    (tmp_path / "a.tape.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()  # its name was read before
    surveyed = survey(path, executor=Loop())
    assert not surveyed.unreadable
    assert surveyed.target().coverage.kept == 3


def test_a_tape_that_claims_too_many_calls_costs_its_own_answer_only(tmp_path: Path) -> None:
    good, most = fleet(tmp_path, 2), 2**63 - 1
    for number, name in enumerate(("00", "two")):
        path = tape_of(tmp_path / f"{name}.tape", recording=90 + number)
        claimed = Coverage(seen=most, kept=3, dropped={"x": most - 3})
        change_end(path, lambda end, claimed=claimed: {"coverage": claimed})
    surveyed = survey([*good, tmp_path / "00.tape", tmp_path / "two.tape"], Loop())
    assert [error.kind for error in surveyed.unreadable] == ["limit", "limit"]
    assert surveyed.target().to_bytes() == of(*good).to_bytes()


def test_a_fault_of_ours_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs the answer of its file, and is told as what it is."""
    good = fleet(tmp_path)
    real = Segment.sources.func  # type: ignore[attr-defined]

    def sources(segment: Segment) -> Any:
        if segment.path.endswith("3.tape"):
            raise ZeroDivisionError("of ours")
        return real(segment)

    monkeypatch.setattr(Segment, "sources", property(sources))
    surveyed = survey(good, Loop())
    (error,) = surveyed.unreadable
    assert (error.kind, error.path) == ("io", str(good[3]))
    assert "unexpected ZeroDivisionError: of ours" in str(error)
    assert "The file may be intact" in str(error)
    assert surveyed.target().files == len(good) - 1


def test_no_hostile_file_makes_one(tmp_path: Path) -> None:
    for path in sorted((FIXTURES / "hostile").glob("*.tape")):
        for scan in (False, True):
            unreadable = survey(path, Loop(), scan=scan).unreadable
            assert not any("unexpected" in str(error) for error in unreadable), path


def test_adding_up_stops_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for the last file is left out as well, and each file is accounted for."""
    ticks = itertools.count()
    monkeypatch.setattr(surveying.time, "thread_time", lambda: float(next(ticks)))
    unsealed = [tape_of(tmp_path / f"u{n}.tape", recording=50 + n, sealed=False) for n in range(2)]
    paths = [*fleet(tmp_path), *unsealed]
    left: list[int] = []
    for seconds in range(40):
        sizes: list[int] = []

        def may_take(nbytes: int, seconds: int = seconds, sizes: list[int] = sizes) -> float:
            sizes.append(nbytes)
            return seconds

        monkeypatch.setattr("calltape_analyzer.surveying.survey.seconds_for", may_take)
        surveyed = survey(paths, Loop())
        counts = sum(target.files for target in surveyed.targets.values())
        assert counts + surveyed.left_out == len(paths)
        assert not surveyed.unreadable
        assert sizes == sorted(sizes)
        left.append(surveyed.left_out)
    assert left == sorted(left, reverse=True)
    assert (left[0], left[-1]) == (len(paths), 0)
    assert len(set(left)) > 4, "it stops between any two files"


def test_each_byte_of_a_survey_may_lie(tmp_path: Path) -> None:
    """It is read, or refused with a TapeError."""
    data = bytearray(written(tmp_path / "s.tape", *fleet(tmp_path)).read_bytes())
    rng, out, refused = random.Random(3), tmp_path / "x.tape", 0
    for _ in range(150):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        out.write_bytes(changed)
        try:
            with open_tape(out) as tape:
                tape.variants()
                str(tape.damage)
        except TapeError:
            refused += 1
        survey(out, Loop())
    assert 50 < refused < 150


def forged(path: Path, sources: tuple[Source, ...], **facts: int) -> Path:
    """A survey with these sources, and the table of another one."""
    model = written(path.with_suffix(".s"), tape_of(path.with_suffix(".t"), 9))
    with open_tape(model) as tape:
        manifest, table = tape.manifest, tape.segments[0].table
        coverage = tape.coverage
    assert manifest.history is not None
    (step,) = manifest.history
    sink = BytesSink()
    made: Step = step.model_copy(update={"sources": sources})
    writer = TapeWriter(sink, manifest.model_copy(update={"history": (made,)}))
    writer.table = table or InputsTable()
    writer.seal(coverage, elsewhere=facts)
    path.write_bytes(bytes(sink.data))
    return path


@pytest.mark.parametrize(
    "sources",
    [
        (),
        (Source(tape=b"a" * 16, first=2**63 - 1),),
        (Source(tape=b"a" * 16, first=-(2**63)), Source(tape=b"b" * 16, first=2**62)),
        tuple(Source(tape=bytes([n]) * 16, first=0) for n in range(20, 220)),
        (Source(tape=b"a" * 16, first=5, parts=((2, 9), (11, 2**63 - 1))),),
    ],
    ids=["none", "high", "low", "alike", "parts"],
)
def test_sources_may_lie(tmp_path: Path, sources: tuple[Source, ...]) -> None:
    path = forged(tmp_path / "f.tape", sources, first_ns=2**62, last_ns=3)
    for verb in (["info"], ["variants"], ["explain", "x", "0"], ["survey"]):
        ran = run(verb[0], path, *verb[1:])
        assert "unexpected" not in ran.err
        assert ran.code in (0, 1, 2, 3)
    good = fleet(tmp_path)
    surveyed = survey([path, *good], Loop())
    assert surveyed.target().files + len(surveyed.unreadable) == len(good) + 1
    surveyed.target().to_bytes()
