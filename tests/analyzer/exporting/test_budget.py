"""When the time of an export is up, what was found is kept and what is missing is said."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from calltape_analyzer import ExportError, ExportOptions, export
from calltape_analyzer.errors import UsageError
from calltape_analyzer.exporting.session import budget as budgets
from calltape_analyzer.exporting.session.budget import TimeBudget, time_limit
from calltape_analyzer.programs.reasons import TimeUp
from tests.analyzer.exported import call, taped
from tests.analyzer.exporting.models import Model, t

pytestmark = pytest.mark.timeout(300, method="thread")  # the other method uses the alarm itself


class Clock:
    """Stands still, or jumps when a text is said."""

    def __init__(self, at: str = "never") -> None:
        self.now, self.at = 100.0, at
        self.lines: list[str] = []

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic

    def thread_time(self) -> float:
        return 0.0

    def hear(self, text: str) -> None:
        self.lines.append(text)
        if self.at in text:
            self.now += 1000


class Masked(Model):
    def forward(self, x, mask=None):
        y = self.linear(x)
        return y if mask is None else y * mask


CALLS = [call(t(2, 3)), call(t(4, 3)), call(t(3, 3), t(3, 3)), call(t(5, 3), t(5, 3))]


def exported(folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(budgets, "time", clock)
    module = Masked()
    tape = taped(folder, module, CALLS)
    programs = export(tape, module, progress=clock.hear, options=ExportOptions(max_seconds=600))
    names = list(programs)
    assert all(programs[name] is not None for name in names)
    for name, reason in programs.missing.items():
        assert name not in names
        assert reason == TimeUp(600)
    return [*names, *(f"-{name}" for name in programs.missing)]


@pytest.mark.integration
def test_with_time_all_is_tried_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    assert len(exported(tmp_path, clock, monkeypatch)) == 2
    assert sum("tracing call" in line for line in clock.lines) >= 2
    assert sum("comparing" in line for line in clock.lines) >= 2
    assert all(line.startswith("0 s: ") for line in clock.lines)


@pytest.mark.integration
def test_programs_before_the_end_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    first, second = exported(tmp_path, clock, monkeypatch)
    late = Clock(f"{second}: tracing")
    (tmp_path / "again").mkdir()
    assert exported(tmp_path / "again", late, monkeypatch) == [first, f"-{second}"]


def test_a_program_that_was_not_compared_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "time", clock := Clock("comparing"))
    module = Masked()
    tape = taped(tmp_path, module, CALLS)
    with pytest.raises(ExportError, match="not tried: the time of 600 s for all was up"):
        export(tape, module, progress=clock.hear, options=ExportOptions(max_seconds=600))


def test_an_export_without_time_fails_at_once(tmp_path: Path) -> None:
    tape = taped(tmp_path, Masked(), CALLS)
    with pytest.raises(ExportError, match="the time of 1e-09 s for all was up"):
        export(tape, Masked(), options=ExportOptions(max_seconds=1e-9))
    with pytest.raises(UsageError, match="max_seconds=0"):
        export(tape, Masked(), options=ExportOptions(max_seconds=0))


@pytest.mark.usefixtures("runs_here")
def test_sizes_that_were_not_probed_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Masked()
    tape = taped(tmp_path, module, CALLS[:2])
    monkeypatch.setattr(budgets, "time", clock := Clock())
    eager = torch.nn.Linear.forward
    runs: list[int] = []

    def counted(self: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling() and type(x) is torch.Tensor and len(x) not in (2, 4):
            runs.append(len(x))
            clock.now += 1000
        return eager(self, x)

    monkeypatch.setattr(torch.nn.Linear, "forward", counted)
    programs = export(tape, module, options=ExportOptions(max_seconds=600))
    (attempt,) = programs.attempts
    assert attempt.ok
    assert len(runs) == 1
    assert any("the time of 600 s for all was up" in str(text) for text in attempt.untried)


def test_a_trace_that_is_interrupted_for_all_of_the_time_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "time", clock := Clock())

    def slow(*_: object, **__: object) -> None:
        clock.now += 1000
        raise TimeoutError("not done after 0 s, and interrupted")

    monkeypatch.setattr(torch.export, "export", slow)
    module = Masked()
    with pytest.raises(
        ExportError,
        match=r"main: interrupted: the time of 600 s for all was up; the calls were recorded in",
    ) as at:
        export(taped(tmp_path, module, CALLS[:2]), module, options=ExportOptions(max_seconds=600))
    assert [attempt.error for attempt in at.value.attempts] == [None]


def test_a_limit_is_never_none() -> None:
    assert TimeBudget(1.0).within(0.5) == 0.5
    assert 0 < TimeBudget(1e-9).within(60) < 0.01
    assert TimeBudget().within(60) == 60


def _work(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_the_clock_interrupts_what_waits() -> None:
    with pytest.raises(TimeoutError, match="not done after 0 s, and"), time_limit(0.1, 60):
        time.sleep(20)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_processor_time_interrupts_what_works() -> None:
    with pytest.raises(TimeoutError, match="of processor time"), time_limit(600, 0.1):
        _work(20)


def test_what_waits_takes_no_processor_time() -> None:
    with time_limit(600, 0.2):
        time.sleep(0.7)
        done = True
    assert done


def test_what_is_done_in_time_is_left_alone() -> None:
    with time_limit(60, 60):
        _work(0.05)
    with pytest.raises(KeyError), time_limit(60):
        raise KeyError


def test_another_thread_has_no_limit() -> None:
    ended = []

    def work() -> None:
        with time_limit(0.01, 0.01):
            _work(0.1)
        ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == [True]
