"""No recorded call makes a result worse, except those in ``evidence.csv``; ``python -m
tests.evidence`` asks every case."""

from __future__ import annotations

from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.answers.steps import STEPS
from tests.answers.subjects import subjects
from tests.evidence import Worse, asked, reasons

_QUICK = "small/ceiling", "small/default_int", "small/squeezed"
_LONGER = {
    "integration": ("small/window", "small/float_branch"),
    "slow": (
        "small/float_in_a_part", "small/empty_first_cache", "small/negative_int",
        "small/every_expert", "zoo/t5_loss", "zoo/loop_over_rows",
    ),
}  # fmt: skip
_CASES = [
    *_QUICK,
    *(
        pytest.param(name, marks=getattr(pytest.mark, tier))
        for tier, names in _LONGER.items() for name in names
    ),
]  # fmt: skip


def _here(folder: Path, step: str, words: list[str]) -> dict[str, Any]:
    """Does a step in this process."""
    found: dict[str, Any] = STEPS[step](folder, words)
    return found


@pytest.mark.parametrize("name", _CASES)
def test_no_call_makes_a_result_worse(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")  # as a step sets it
    _, removals = asked(subjects()[name], "torch", tmp_path, partial(_here, tmp_path))
    assert set(chain.from_iterable(removals.values())) <= set(reasons())


def test_a_call_without_which_an_unseen_call_is_right_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    name = "small/ceiling"

    def run(step: str, words: list[str]) -> dict[str, Any]:
        if step == "record":
            return _here(tmp_path, step, words)
        said = {"recorded 0": "right", "unseen 0": "right", "unseen 1": "WRONG: 3 elements"}
        if "1" in words[2:]:
            said = {"unseen 0": "rejected: main: x[1] == 4", "unseen 1": "right up to rounding"}
        return {"answers": {name: {"export to torch": {"calls": said}}}}

    every, removals = asked(subjects()[name], "torch", tmp_path, run)
    assert every == {"0": True, "1": False}
    assert removals == {"0": [], "1": [Worse(name, "torch", "1", "1")], "2": []}


def test_each_exception_has_a_case_and_a_reason() -> None:
    assert {one.case for one in reasons()} <= set(subjects())
    assert all(reasons().values())
