"""Seeded failures: the same reason, the least calls, at most 1% of the bytes.
``python -m benchmarks.minimising`` prints the table."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.minimising import is_small, measured
from benchmarks.seeded_failures import FAILURES, Failure

from calltape_analyzer import minimise_tape, open_tape


def expect_small(failure: Failure, folder: Path) -> None:
    ((_, report),) = measured([failure], folder)
    assert is_small(failure, report), str(report)
    with open_tape(report.path) as tape:
        assert tape.verify() == []
        # Another look at the result, which knows nothing of the search.
        again = minimise_tape(tape, folder / "again.tape", max_seconds=0.01, **failure.options)
    assert again.reason == report.reason
    assert again.calls == report.calls


_QUICK = [one for one in FAILURES if one.name.startswith(("a crash", "NaN", "a state"))]
"""The others take minutes; the benchmark has them all."""


@pytest.mark.integration
@pytest.mark.parametrize("failure", _QUICK, ids=lambda failure: failure.name)
def test_a_failure_becomes_small(failure: Failure, tmp_path: Path) -> None:
    expect_small(failure, tmp_path)


def test_some_failures_are_quick() -> None:
    assert len(_QUICK) == 3
