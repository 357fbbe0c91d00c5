"""Calls that take too long, and models that change what they are given, or are never the same."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from calltape_analyzer import Tape, UsageError, replay
from calltape_analyzer.comparison.judging import TimeBound
from tests.analyzer.exported import call, taped
from tests.analyzer.exporting.models import t


class Counting(torch.nn.Module):
    """Has a state that each call changes, and takes its time."""

    def __init__(self, *seconds: float) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        given = list(seconds)
        # Not in an attribute, which would be put back.
        self.nap = lambda: time.sleep(given.pop(0) if len(given) > 1 else given[0])
        self.naps = bool(given)

    def forward(self, x):
        self.count += 1
        if self.naps:
            self.nap()
        return x + self.count


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    return taped(tmp_path, Counting(), [call(t(n, 3)) for n in (4, 5)])


def test_what_is_slow_each_time_fails(tape: Tape) -> None:
    report = replay(tape, Counting(0.02), slower_than="10ms")
    assert [row.ok for row in report] == [False, False]
    error = str(report.rows[0].error)
    assert "in the fastest of 5 runs (at most 10 ms)" in error
    assert all(row.seconds is not None and row.seconds >= 0.02 for row in report)


def test_a_slow_first_run_is_no_failure_and_leaves_no_trace(tape: Tape) -> None:
    # The runs that only take the time do not count on: call 1 sees the state that call 0 left.
    report = replay(tape, Counting(0.3, 0.3, 0.0), slower_than=0.2)
    assert report.ok, report.table()


def test_without_a_bound_nothing_is_measured(tape: Tape) -> None:
    assert [row.seconds for row in replay(tape, Counting())] == [None, None]


def test_a_bound_may_be_a_multiple_of_the_recorded_duration(tape: Tape) -> None:
    assert replay(tape, Counting(), slower_than="100000x").ok
    report = replay(tape, Counting(0.02), slower_than="0.001x")
    assert "0.001 times the recorded duration" in str(report.rows[0].error)


@pytest.mark.parametrize(
    "given", ["", "fast", "3h", "x", "-1s", "0s", "nans", 0, -1.0, float("nan"), True]
)
def test_what_is_no_duration_is_rejected(given: float | str, tape: Tape) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        replay(tape, Counting(), slower_than=given)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("50ms", 0.05),
        ("2s", 2.0),
        ("1.5 s", 1.5),
        (3, 3),
        ("0.05", 0.05),
        ("3", 3.0),
        ("0.05s", 0.05),
        ("1us", 1e-6),
        ("1e-3", 1e-3),
        (".5", 0.5),
    ],
)
def test_durations_are_parsed(given: float | str, seconds: float) -> None:
    assert TimeBound.of(given).seconds == pytest.approx(seconds)


def test_a_wrong_value_is_told_before_a_slow_run(tape: Tape) -> None:
    report = replay(tape, lambda x: x, slower_than=1e-9)
    assert all("elements differ" in str(row.error) for row in report)


class Writing(torch.nn.Module):
    def forward(self, x, items):
        x += 1
        items.append(2)
        return x * len(items)


def test_a_model_may_change_its_arguments(tmp_path: Path) -> None:
    x, items = t(3, 2), [1]
    tape = taped(tmp_path, Writing(), [call(x, items), call(x, items)])
    report = replay(tape, Writing())
    assert report.ok, report.table()


class Random(torch.nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


def test_a_model_that_is_never_the_same_is_named(tmp_path: Path) -> None:
    tape = taped(tmp_path, Random(), [call(t(3, 2)), call(t(4, 2))])
    report = replay(tape, Random())
    assert not report.ok
    assert (
        sum("call 0 gives other values each time" in note for note in map(str, report.notes)) == 1
    )
    wrong = replay(tape, lambda x: x)
    assert not any("other values" in note for note in map(str, wrong.notes))


def test_the_first_elements_that_differ_are_in_the_row(tmp_path: Path) -> None:
    tape = taped(tmp_path, torch.nn.Identity(), [call(torch.arange(12.0).reshape(3, 4))])

    def other(x):
        y = x.clone()
        y[1, 2], y[2, 0] = 0.5, float("nan")
        return y

    (row,) = replay(tape, other)
    (leaf,) = row.differences
    assert leaf.path == "outputs"
    assert [(e.index, e.recorded, e.got) for e in leaf.elements] == [
        ((1, 2), "6", "0.5"), ((2, 0), "8", "nan")
    ]  # fmt: skip
