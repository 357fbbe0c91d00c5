"""What a file may cost is bounded in the threads of an executor too, as in a worker of Dask."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from calltape_analyzer import Limits, survey
from calltape_analyzer.limits import bounded
from calltape_analyzer.reading.segment import Segment
from calltape_schema.scan import Scan
from tests.analyzer.cli.commands import run
from tests.analyzer.surveying.surveyed import tape_of


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Four tapes, of which the third is read for ever."""
    made = [tape_of(tmp_path / f"{n}.tape", recording=n) for n in range(4)]
    real = Segment.scan

    def scan(segment: Segment) -> Scan:
        while segment.path == str(made[2]):
            pass  # for ever, as far as the reader knows
        return real(segment)

    monkeypatch.setattr(Segment, "scan", scan)
    return made


def test_a_slow_file_costs_its_own_answer(paths: list[Path]) -> None:
    with ThreadPoolExecutor(2) as pool, Limits(seconds=0.3):
        surveyed = survey(paths, pool, scan=True)
        # Nothing is left behind that would end a later task of these threads.
        assert list(pool.map(lambda n: sum(range(n)), [200_000] * 20)) == [19_999_900_000] * 20
    assert surveyed.target().files == 3
    (error,) = surveyed.unreadable
    assert (error.kind, error.path) == ("limit", str(paths[2]))
    assert "0.3 s of processor time" in str(error)


def test_the_command_skips_a_slow_file(paths: list[Path]) -> None:
    ran = run("--max-seconds", "0.3", "survey", *paths, "--jobs", "1", "--scan")
    assert ran.code == 3
    assert "3 files of 3 recordings" in ran.out
    assert "2.tape" in ran.err


def test_a_file_that_waits_costs_nothing(tmp_path: Path) -> None:
    @bounded()
    def wait(_: Limits) -> str:
        time.sleep(0.6)
        return "done"

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(wait, Limits(seconds=0.2)).result() == "done"
