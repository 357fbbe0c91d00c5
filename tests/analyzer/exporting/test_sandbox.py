"""A run with made-up arguments may die, hang or take all memory: that is a reason, and no more."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensor

from calltape_analyzer import ExportOptions, Programs, export
from calltape_analyzer.errors import ExportError
from calltape_analyzer.exporting.session import sandbox as module_apart
from calltape_analyzer.exporting.session.sandbox import AnswerError, RunEndedError, Sandbox
from calltape_recorder import record
from tests.analyzer.exported import assert_same, call, taped

pytestmark = [
    pytest.mark.forks,
    pytest.mark.skipif(not module_apart.may_fork("cpu"), reason="no process is forked here"),
]


def answered(question: Any, say: Any) -> Any:
    say(str(question))
    if question == "abort":
        os.abort()
    if question == "exit":
        os._exit(3)
    if question == "kill":
        os.kill(os.getpid(), signal.SIGSEGV)
    if question == "sleep":
        time.sleep(1000)
    if question == "raise":
        raise ValueError("a reason")
    if question == "memory":
        return torch.ones(2**47, dtype=torch.uint8).numel()
    if question == "unpicklable":
        return lambda: None
    return question, os.getpid()


def test_fork_answers_many_questions_and_is_replaced_when_it_dies() -> None:
    with Sandbox(answered, "cpu") as runs:
        first = runs.ask(1, 60)
        assert first[0] == 1
        assert first[1] != os.getpid()
        assert runs.ask(2, 60) == (2, first[1])
        for question, how in (("abort", "SIGABRT"), ("exit", "exit code 3"), ("kill", "SIGSEGV")):
            with pytest.raises(RunEndedError) as raised:
                runs.ask(question, 60)
            assert (raised.value.ended.how, raised.value.doing) == (how, question)
        assert runs.ask(3, 60)[1] != first[1]


def test_run_that_takes_too_long_is_ended() -> None:
    with Sandbox(answered, "cpu") as runs:
        pid = runs.ask(1, 60)[1]
        with pytest.raises(RunEndedError, match="took more than 0 s, and was ended"):
            runs.ask("sleep", 0.2)
        assert not Path(f"/proc/{pid}").exists()
        assert runs.ask(2, 60)[0] == 2


@pytest.mark.parametrize(
    ("question", "words"),
    [("raise", "ValueError: a reason"), ("memory", "memory"), ("unpicklable", "pickle")],
)
def test_error_is_told_and_the_fork_lives(question: str, words: str) -> None:
    with Sandbox(answered, "cpu") as runs:
        pid = runs.ask(1, 60)[1]
        with pytest.raises(AnswerError, match=words):
            runs.ask(question, 60)
        assert runs.ask(2, 60)[1] == pid


def test_nothing_is_left_at_the_end() -> None:
    gc.collect()  # what earlier tests left open does not end meanwhile
    before = set(os.listdir("/proc/self/fd"))
    with Sandbox(answered, "cpu") as runs:
        pid = runs.ask(1, 60)[1]
    assert not Path(f"/proc/{pid}").exists()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_generators_of_the_host_stay_as_they_were() -> None:
    def draw(_: Any, __: Any) -> Any:
        return torch.rand(3).tolist(), random.random()

    torch.manual_seed(1)
    random.seed(1)
    with Sandbox(draw, "cpu") as runs:
        numbers, number = runs.ask(None, 60)
    assert torch.rand(3).tolist() == numbers
    assert random.random() == number


def test_recorder_of_the_host_does_not_see_what_runs_apart(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 3)
    with record(model, tmp_path / "calls.tape") as recorder, torch.no_grad():
        model(torch.rand(2, 3))
        with Sandbox(lambda rows, say: tuple(model(torch.rand(rows, 3)).shape), "cpu") as runs:
            assert runs.ask(4, 60) == (4, 3)
        model(torch.rand(5, 3))
    assert recorder.stats().kept == 2
    assert [path.name for path in tmp_path.iterdir()] == ["calls.tape"]


def test_kernels_run_in_a_fork_beside_a_pool_of_threads() -> None:
    def multiply(_: Any, __: Any) -> int:
        one = torch.rand(600, 600)
        picture = torch.rand(4, 8, 64, 64)
        torch.nn.functional.conv2d(picture, torch.rand(8, 8, 3, 3))
        return (one @ one).softmax(-1).numel()

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        multiply(None, None)
        for _ in range(5):
            with Sandbox(multiply, "cpu") as runs:
                assert [runs.ask(None, 60), runs.ask(None, 60)] == [360_000, 360_000]
            multiply(None, None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.integration
def test_fork_that_cannot_do_what_was_done_here_is_of_no_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = os.getpid()

    def locked(question: Any, _: Any) -> int:
        if os.getpid() != here:
            time.sleep(1000)  # as for a lock that a thread of the host held
        return os.getpid()

    monkeypatch.setattr(module_apart, "FIRST_SECONDS", 0.5)
    monkeypatch.setattr(module_apart, "unusable_because", [])
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with Sandbox(locked, "cpu", first="recorded") as runs:
            assert runs.ask(1, 60) == here
            assert runs.runs_here
        assert not module_apart.may_fork("cpu")
    finally:
        stop.set()
        thread.join()


def test_no_fork_is_made_for_another_device() -> None:
    assert not module_apart.may_fork("cuda:0")
    runs = Sandbox(lambda question, say: os.getpid(), "meta")
    assert runs.ask(None, 60) == os.getpid()


class Harmful(torch.nn.Module):
    """Does harm at rows that no call has."""

    def __init__(self, harm: str, rows: tuple[int, ...]) -> None:
        super().__init__()
        self.harm, self.rows = harm, rows
        self.register_buffer("counted", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        is_run = not isinstance(x, FakeTensor) and not torch.compiler.is_exporting()
        if is_run and x.shape[0] in self.rows:
            answered(self.harm, lambda _: None)
        return x * 2


_NO_ROWS = [(harm, (0,)) for harm in ("abort", "exit", "kill", "memory")]
_MORE = [("sleep", (0,)), ("sleep", (5, 6, 7, 8)), ("kill", (0, 1, 4, 5, 6, 7, 8, 9, 14))]


@pytest.mark.parametrize(
    ("harm", "rows"),
    [*_NO_ROWS, *(pytest.param(*one, marks=pytest.mark.integration) for one in _MORE)],
)
def test_harm_at_sizes_that_nobody_recorded_is_a_reason(
    tmp_path: Path, harm: str, rows: tuple[int, ...]
) -> None:
    model = Harmful(harm, rows)
    recorded = [call(torch.rand(n, 4)) for n in (2, 3, 7) if n not in rows]
    tape = taped(tmp_path, model, recorded)
    programs = export(tape, model, options=ExportOptions(attempt_seconds=2))
    assert programs.verify().ok
    for args, _ in recorded:
        assert_same(args[0] * 2, programs(*args))
    if 0 in rows:
        _assert_refuses_no_rows(programs, harm)


def test_harm_of_values_that_are_made_up_is_a_reason(tmp_path: Path) -> None:
    class Indexing(torch.nn.Module):
        def forward(self, x: Any, places: Any) -> Any:
            if not isinstance(x, FakeTensor) and not torch.compiler.is_exporting() and x.any():
                answered("kill", lambda _: None)
            return x[places]

    model = Indexing()
    calls = [call(torch.zeros(n, 4), torch.zeros(n, dtype=torch.long)) for n in (2, 3, 7)]
    tape = taped(tmp_path, model, calls, values="none")
    with pytest.raises(ExportError, match=r"synthetic ones the model does not finish: .*SIGSEGV"):
        export(tape, model)


def _assert_refuses_no_rows(programs: Programs, harm: str) -> None:
    reasons = {
        "abort": r"the model itself ended its process when that was tried \(SIGABRT\)",
        "exit": r"the model itself ended its process when that was tried \(exit code 3\)",
        "kill": r"the model itself ended its process when that was tried \(SIGSEGV\)",
        "sleep": r"it was not tried \(the model itself took more than \d s, and was ended\)",
        "memory": "the model itself raised RuntimeError",
    }
    with pytest.raises(Exception, match=reasons[harm]):
        programs(torch.rand(0, 4))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks are used on Linux only")
def test_a_program_needs_one_fork_which_ends_with_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2

    sizes = (2, 3), (4, 5), (7, 4)
    tape = taped(tmp_path, Scaled(), [call(torch.randn(*size)) for size in sizes])
    forks: list[int] = []
    fork = os.fork

    def counted() -> int:
        if pid := fork():
            forks.append(pid)
        return pid

    monkeypatch.setattr(os, "fork", counted)
    (program,) = export(tape, Scaled()).values()
    assert program.variant.zeros is not None  # sizes of 0 were tried, after others
    assert len(forks) == 2  # the model alone, then with its program
    for pid in forks:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.integration
def test_box_pooling_is_exported(tmp_path: Path) -> None:
    """Of torchvision: its kernel reads beyond its memory if a picture has no height."""
    ops = pytest.importorskip("torchvision").ops

    class Pool(torch.nn.Module):
        def forward(self, features: Any, boxes: Any) -> Any:
            return ops.roi_align(features, boxes, (2, 2), spatial_scale=0.25, sampling_ratio=2)

    def given(pictures: int, boxes: int, height: int, width: int) -> Any:
        number = torch.arange(boxes).remainder(pictures).float()[:, None]
        corners = torch.rand(boxes, 2) * 16
        table = torch.cat([number, corners, corners + 8], 1)
        return call(torch.randn(pictures, 3, height, width), table)

    model = Pool()
    calls = [given(2, 5, 8, 8), given(3, 7, 10, 12), given(1, 4, 6, 9)]
    programs = export(taped(tmp_path, model, calls), model)
    assert programs.verify().ok
    for args, _ in [*calls, given(4, 9, 16, 7), given(2, 1, 5, 5)]:
        assert_same(model(*args), programs(*args))
