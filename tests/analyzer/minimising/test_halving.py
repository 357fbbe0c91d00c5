"""How many questions the searches by halves ask, and that what they find is smallest."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.minimising.search import (
    CheckResult,
    Search,
    fewest,
    normalised,
    smallest_number,
    without_most,
)
from calltape_analyzer.writing.lineage import Numbering
from tests.analyzer.tapes import write_tape


@pytest.mark.parametrize("least", [0, 17, 40])
def test_few_tapes_stay_on_disk_and_the_whole_one_does(tmp_path: Path, least: int) -> None:
    """However many steps there are: each leaves out one call. Later, those of less than ``least``
    calls do not fail any more."""
    most, is_later = 0, False

    class Counting:
        name = "counting"

        def run(self, path: str, seconds: float) -> CheckResult:
            nonlocal most
            most = max(most, len(list((tmp_path / "tried").iterdir())))
            with open_tape(path) as tape:
                fails = len(tape) > (least if is_later else 0)
            return CheckResult("failed", ("same",)) if fails else CheckResult("passed")

    (tmp_path / "tried").mkdir()
    whole = write_tape(tmp_path / "whole.tape", [((torch.zeros(n),), {}) for n in range(41)])
    with open_tape(whole) as tape:
        manifest = tape.manifest
        search = Search(Counting(), tmp_path / "tried", manifest)
        with closing(search):
            search.begin(tape.calls, Numbering(manifest.tape))
            while len(search.tape) > 1:
                assert search.keeps("one less", list(search.tape.calls)[1:])
            is_later = True
            doubted = search.confirm()
            assert len(search.tape) == (41 if least else 1)
    assert (doubted > 0) is (least > 0)
    assert most < 12


def test_a_tape_that_is_read_stays_on_disk(tmp_path: Path) -> None:
    class Failing:
        name = "failing"

        def run(self, path: str, seconds: float) -> CheckResult:
            with open_tape(path) as tape:
                return CheckResult("failed", ("same",)) if len(tape) else CheckResult("passed")

    (tmp_path / "tried").mkdir()
    whole = write_tape(tmp_path / "whole.tape", [((torch.zeros(n),), {}) for n in range(21)])
    with open_tape(whole) as tape:
        search = Search(Failing(), tmp_path / "tried", tape.manifest)
        with closing(search):
            search.begin(tape.calls, Numbering(tape.manifest.tape))
            assert search.keeps("one less", list(search.tape.calls)[1:])
            with search.opened() as base:
                while len(search.tape) > 1:
                    assert search.keeps("one less", list(search.tape.calls)[1:])
                assert Path(*base.paths).exists()


@pytest.mark.parametrize("wanted", [{0}, {499}, {77}, {3, 480}, {10, 11, 300}])
def test_the_fewest_of_five_hundred_are_found_in_few_questions(wanted: set[int]) -> None:
    asked: list[int] = []

    def enough(some: list[int]) -> bool:
        asked.append(len(some))
        return wanted <= set(some)

    assert set(fewest(range(500), enough)) == wanted
    if len(wanted) == 1:
        assert len(asked) <= 18
    assert len(asked) < 200


@pytest.mark.parametrize("wanted", [set(), {5}, {0, 9}])
def test_what_can_be_left_out(wanted: set[int]) -> None:
    assert set(without_most(range(10), lambda some: wanted <= set(some))) == wanted


def test_a_search_ends_after_so_many_tries() -> None:
    assert without_most(range(1000), lambda some: len(some) == 1000, tries=5) == list(range(1000))


@pytest.mark.parametrize("least", [1, 2, 3, 41, 128, 999])
@pytest.mark.parametrize("unit", [1, 16])
def test_the_smallest_number_is_found_in_few_questions(least: int, unit: int) -> None:
    asked: list[int] = []

    def enough(number: int) -> bool:
        asked.append(number)
        return number >= least

    assert smallest_number(1000, unit, enough) == least
    assert min(asked) > 0
    assert len(asked) <= 24


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("size 5 is not 7", "size 12 is not -3"),
        ("shapes [2, 3] and [4, 5, 6]", "shapes [1, 1, 1] and [2, 2]"),
        ("at 0x7fffe0", "at 0xabc"),
        ("1.5e-3 differs", "0 differs"),
    ],
)
def test_messages_are_the_same_but_for_numbers(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


def test_messages_of_other_dtypes_differ() -> None:
    assert normalised("float32 differs") != normalised("float16 differs")
    assert normalised("\ud800 is no text").isascii()
