"""Seeded failures: the same reason, the least calls, at most 1% of the bytes.
``python -m benchmarks.minimising`` prints the table."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.minimising import is_small, measured, still_fails
from benchmarks.seeded_failures import FAILURES, Failure


def expect_small(failure: Failure, folder: Path) -> None:
    ((_, report),) = measured([failure], folder)
    assert is_small(failure, report), str(report)
    assert still_fails(failure, report, folder), str(report)


_QUICK_NAMES = ("a crash beyond a size", "NaN from an empty mask", "a state")
_QUICK = [one for one in FAILURES if one.name.startswith(_QUICK_NAMES)]
"""The others take minutes; the benchmark has them all."""


@pytest.mark.integration
@pytest.mark.parametrize("failure", _QUICK, ids=lambda failure: failure.name)
def test_a_failure_becomes_small(failure: Failure, tmp_path: Path) -> None:
    expect_small(failure, tmp_path)


def test_some_failures_are_quick() -> None:
    assert len(_QUICK) == 3
