"""The recorder tells what it costs, and keeps that under a share of the time of the calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder import First, FlightRecorder, Rate, record
from calltape_recorder.keep.ledger import Ledger, Share
from calltape_recorder.snapshot.call import QueuedCall
from tests.recorder.calls import adds_up
from tests.recorder.models import Add, Identity
from tests.recorder.parts import recording
from tests.recorder.reading import read

MS = 1_000_000


def recorded(share: Share, calls: int, *, took: int, cost: int) -> list[bool]:
    """Which of these calls are recorded, if each takes so long, and to record one costs so much."""
    spent, found = 0, []
    for _ in range(calls):
        found.append(share.affords(spent))
        if found[-1]:
            spent += cost
            share.note(took)
    return found


@pytest.mark.parametrize(("most", "cost"), [(0.01, MS), (0.01, MS // 20), (0.5, 20 * MS), (1, MS)])
def test_the_cost_stays_below_the_share(most: float, cost: int) -> None:
    took, calls = 10 * MS, 20_000
    found = recorded(Share(most), calls, took=took, cost=cost)
    assert found[0]
    wanted = min(most * took / cost, 1) * calls
    assert wanted - 2 <= sum(found) <= wanted + 2 + most * 1000 * MS / cost
    last = found[calls // 2 :]  # it goes on through the whole recording
    assert abs(sum(last) - wanted / 2) <= 2 + most * 1000 * MS / cost


def test_one_long_call_earns_little() -> None:
    share = Share(0.01)
    share.note(60_000 * MS)  # the first call compiles the model
    for _ in range(2):
        share.note(MS)
    assert share.affords(0)
    assert sum(recorded(share, 1000, took=MS, cost=MS)) <= 1000 * 0.01 + 12


@pytest.mark.parametrize(("short", "typical"), [(7, 100 * MS), (8, MS)])
def test_a_typical_call_is_the_median_of_the_last_fifteen(short: int, typical: int) -> None:
    share = Share(1)
    for took in [100 * MS] * 50 + [MS] * short:
        share.note(took)
    assert share.affords(typical)  # what the first call earned
    assert not share.affords(3 * typical)


def test_what_is_saved_up_is_bounded() -> None:
    share = Share(0.01)
    share.note(10 * MS)
    for _ in range(100_000):  # cheap calls for a long time
        share.affords(0)
    assert share.affords(9 * MS)
    assert not share.affords(12 * MS)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_pause_of_the_process_within_a_call_is_no_cost(is_recorded: bool) -> None:
    """As a debugger or SIGSTOP makes one. The accounts have it nevertheless."""
    ledger, call, pause = Ledger(10**9, max_share=0.05), QueuedCall(0, 0, 0), 60_000 * MS
    call.duration_ns, call.cost_ns = 10 * MS, pause if is_recorded else MS
    ledger.note(call)
    if not is_recorded:
        ledger.spend(17 * pause)  # of a call that stands for 17
    assert ledger.in_calls_ns >= pause
    assert sum(ledger.next_number() is not None for _ in range(1000)) > 500


def test_what_a_large_copy_takes_is_a_cost() -> None:
    ledger, call = Ledger(10**9, max_share=0.05), QueuedCall(0, 0, 0)
    assert ledger.reserve(call, 10**9)
    call.duration_ns, call.cost_ns = 10 * MS, 1000 * MS
    ledger.note(call)
    assert not any(ledger.next_number() is not None for _ in range(1000))


class Clock:
    """Nanoseconds that pass with each look at them."""

    def __init__(self, step: int) -> None:
        self.now, self.step = 0, step

    def __call__(self) -> int:
        self.now += self.step
        return self.now


def test_the_accounts_have_the_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calltape_recorder.handler.clock", Clock(1000))
    model, x = Add(), torch.ones(3)
    with record(model, tmp_path / "t.tape", keep=First(2)) as recorder:
        for _ in range(2 + 2 * 17):
            model(x, x)
        assert recorder.flush()
    stats = recorder.stats()
    assert adds_up(stats)
    # Two looks at the clock before the model, two after it. Of the others, each 17th is measured.
    assert stats.in_calls_ns == 2 * 2 * 1000 + 2 * 17 * 1000
    assert stats.in_thread_ns > 0


@pytest.mark.parametrize("options", [{}, {"flight_recorder": FlightRecorder()}, {"max_calls": 20}])
def test_calls_beyond_the_share_are_only_counted(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calltape_recorder.handler.clock", Clock(1000))
    model, x = Add(), torch.ones(3)
    with record(model, tmp_path / "t.tape", max_share=1e-6, **options) as recorder:
        for _ in range(50):
            model(x, x)
            recorder.flush()
    stats = recorder.stats()
    assert adds_up(stats)
    assert (stats.seen, stats.kept) == (50, 1)
    assert stats.dropped == stats.unwanted == {"max_share": 49}
    with open_tape(tmp_path / "t.tape") as tape:
        assert tape.coverage.unwanted == {"max_share": 49}
        assert tape.manifests[0].policy.max_share == 1e-6


def test_calls_beyond_the_share_widen_no_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are counted by number only."""
    monkeypatch.setattr("calltape_recorder.handler.clock", Clock(1000))
    model = Identity()
    with record(model, tmp_path / "t.tape", max_share=1e-6) as recorder:
        for rows in (3, 4096):
            model(torch.ones(rows))
            recorder.flush()
    assert recorder.stats().dropped == {"max_share": 1}
    (row,) = read(tmp_path / "t.tape").table.rows.values()
    assert (row.seen, read(tmp_path / "t.tape").table.totals().seen) == (1, 1)


def test_calls_that_are_held_cost_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calltape_recorder.handler.clock", Clock(1000))
    model, x = Add(), torch.ones(3)
    options: dict[str, Any] = {"keep": Rate(0), "flight_recorder": FlightRecorder()}
    with record(model, tmp_path / "t.tape", max_share=1e-6, **options) as recorder:
        for _ in range(50):
            model(x, x)
            recorder.flush()
        assert recorder.stats().in_calls_ns == 2 * 1000
    stats = recorder.stats()
    assert adds_up(stats)
    assert stats.dropped == {"max_share": 49, "flight_recorder": 1}


def test_all_calls_are_recorded_until_one_has_ended() -> None:
    share = Share(1e-9)
    assert all(share.affords(MS) for _ in range(5))
    share.note(MS)
    assert not share.affords(MS)


def test_a_server_that_waits_owes_nothing() -> None:
    """What the recorder's thread does each second, with no call, is not paid by calls."""
    ledger = Ledger(10**9, max_share=0.01)
    ended = QueuedCall(0, 0, 0)
    ended.duration_ns, ended.cost_ns = 100 * MS, 1000
    ledger.account([ended], None)
    ledger.in_thread_ns = 10**12
    assert ledger.next_number() is not None
    ledger.writing_ns = 10**12
    assert ledger.next_number() is None


def test_what_calls_cause_in_the_thread_is_paid(tmp_path: Path) -> None:
    model, x = Add(), torch.ones(3)
    with recording(model, tmp_path / "t.tape", max_share=1) as parts:
        for _ in range(50):
            model(x, x)
        assert parts.writer.flush(None)
    assert 0 < parts.ledger.writing_ns < parts.ledger.in_thread_ns
