"""What a command may spend on reading, and how it ends when that is spent."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
import torch
from typer.testing import CliRunner

from calltape_analyzer import Limits, Tape, TapeError
from calltape_analyzer import limits as budget
from calltape_analyzer.cli.verbs import app
from calltape_analyzer.limits import REDACTION_EFFORT, received_bytes
from tests.analyzer.tapes import write_tape


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """A collection calls hypothesis, and what is raised there is lost."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    return write_tape(
        tmp_path / "a.tape", [{"x": torch.ones(n % 7 + 1), "n": n} for n in range(4000)]
    )


def ask(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stderr


# What takes long enough to be looked at: all calls are read.
SCAN = ("variants", "--scan")


@pytest.mark.integration
@pytest.mark.parametrize("words", [("info", "--scan"), ("ls",), SCAN], ids=lambda words: words[0])
def test_reading_ends_when_it_takes_more_time_than_the_budget(
    tape: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "LOOK_EVERY", 0.004)
    code, stderr = ask("--max-seconds", "0", *words, str(tape))
    assert code == 1
    assert stderr.startswith("calltape: reading took more than 0.0 s of processor time. ")
    assert "--max-seconds" in stderr
    assert len(stderr.splitlines()) == 1
    assert ask(*words, str(tape)) == (0, "")


def test_the_limit_is_told_also_if_a_library_wraps_the_error(
    tape: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pydantic does, which calls our serializers back."""

    def wrapped(*_: object) -> None:
        try:
            while True:
                sum(range(1000))
        except budget.Exceeded as error:
            raise ValueError(f"Error calling function `<lambda>`: {error}") from None

    monkeypatch.setattr(budget, "LOOK_EVERY", 0.004)
    monkeypatch.setattr(Tape, "variants", wrapped)
    code, stderr = ask("--max-seconds", "0.01", "variants", str(tape))
    assert code == 1
    assert stderr.startswith("calltape: reading took more than 0.0 s of processor time. ")


def test_reading_ends_when_it_takes_more_memory_than_the_budget(
    tape: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "LOOK_EVERY", 0.004)
    held = iter(range(0, 2**40, 2**20))
    monkeypatch.setattr(budget, "memory_now", lambda: next(held))
    code, stderr = ask("--max-memory", "1", *SCAN, str(tape))
    assert code == 1
    assert stderr.startswith("calltape: reading took more than 1 MiB of memory. ")


def test_the_environment_sets_the_budget(tape: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "LOOK_EVERY", 0.004)
    monkeypatch.setenv("CALLTAPE_MAX_SECONDS", "0")
    assert ask(*SCAN, str(tape))[0] == 1


def test_a_budget_is_by_the_size_of_the_files(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(range(256)) * 4096 * 16)
    with budget.reading([str(path)]):
        made = budget.current()
        assert made is not None
        assert made.seconds == 16 * budget.SECONDS_PER_MEBIBYTE
        with budget.reading([str(path), str(tmp_path / "none")]):
            assert made.seconds == 32 * budget.SECONDS_PER_MEBIBYTE > budget.LEAST_SECONDS
        assert made.nbytes == min(2**30 + 64 * 32 * 2**20, budget.most_bytes())
    assert budget.current() is None


@pytest.mark.integration
@pytest.mark.parametrize("verb", ["redact", "bundle"])
def test_a_redaction_may_take_longer_than_reading(
    tape: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks the analysis of two tapes, and again under other keys."""
    made: list[budget.Spending] = []
    monkeypatch.setattr(budget.Spending, "look", lambda self, *_: made.append(self))
    monkeypatch.setattr(budget, "LOOK_EVERY", 0.004)
    assert ask(verb, str(tape), "-o", str(tape.with_suffix(".out")))[0] == 0
    with budget.reading([str(tape)]):
        now = budget.current()
        assert now is not None
        assert made[0].seconds == REDACTION_EFFORT * now.seconds
    with Limits(seconds=7.0):
        assert budget.seconds_for(2**20, effort=10) == 7


def test_a_budget_counts_what_came_of_its_own_urls(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x")
    received_bytes(64 * 2**20)
    with budget.reading([str(path)]):
        made = budget.current()
        assert made is not None
        assert made.seconds == budget.LEAST_SECONDS
        received_bytes(32 * 2**20)
        assert made.seconds == pytest.approx(32 * budget.SECONDS_PER_MEBIBYTE, rel=1e-3)


def test_a_hole_is_worth_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(2**30)
    with budget.reading([str(path)]):
        made = budget.current()
        assert made is not None
        assert made.tape_bytes < 2**20


def test_what_is_imported_is_not_counted() -> None:
    spent = budget.Spending()
    sum(range(200_000))

    def importing() -> None:
        spent.look(_frame())

    exec(compile("importing()", "<frozen importlib._bootstrap>", "exec"), {"importing": importing})
    assert spent.spent == 0
    sum(range(200_000))
    spent.look(None)
    assert spent.spent > 0


def _frame() -> FrameType:
    return sys._getframe()


def test_a_thread_that_has_ended_spends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock cannot be read: mostly not at once, which no test can wait for."""
    ended = False

    def clock() -> float:
        if ended:
            raise OSError(22, "Invalid argument")
        return time.thread_time()

    monkeypatch.setattr(budget, "clock_of_thread", lambda: clock)
    with Limits(seconds=0):
        spent = budget.Spending(is_process=False)
    ended = True
    assert spent.look(None) is None
    ended = False
    assert spent.look(None) is not None


def test_a_command_that_handles_errors_is_ended_too() -> None:
    with Limits(seconds=0):
        spent = budget.Spending()

    def persistent() -> None:
        while True:
            with contextlib.suppress(Exception):
                error = spent.look(None)
                if error is not None:
                    raise budget.Exceeded(error)

    with pytest.raises(budget.Exceeded) as caught:
        persistent()
    assert isinstance(caught.value.error, TapeError)
    assert caught.value.error.kind == "limit"


def test_nothing_is_raised_where_python_would_lose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is raised within a ``__del__`` is printed, and the code goes on."""
    monkeypatch.setattr(budget, "LOOK_EVERY", 0.0005)
    reached: list[str] = []

    class Finalized:
        def __del__(self) -> None:
            _work(0.4)
            reached.append("the end of __del__")

    def read() -> None:
        with budget.reading([]):
            Finalized()
            while True:
                _work(0.05)
                reached.append("after it")

    with Limits(seconds=0.1), pytest.raises(budget.Exceeded):  # more than it takes to come there
        read()
    assert reached[0] == "the end of __del__"
    assert len(reached) < 4


def _work(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        sum(range(1000))


@pytest.mark.timeout(60)
def test_a_budget_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that was kept nor one that was exceeded: a profiler, as pdb, coverage and torch
    have them, works afterwards."""
    monkeypatch.setattr(budget, "LOOK_EVERY", 0.004)
    for seconds in (60.0, 0.0):
        with Limits(seconds), contextlib.suppress(budget.Exceeded), budget.reading([]):
            _work(0.05 if seconds else 20)  # a busy machine may be slow to look
        seen: list[str] = []
        add = seen.append
        sys.setprofile(lambda frame, event, _, add=add: add(event))
        _frame()
        sys.setprofile(None)
        assert "call" in seen
    assert budget.spent() is not None


def test_a_budget_ends_whenever_it_is_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is raised may come while the block begins, or while it ends."""
    monkeypatch.setattr(budget, "LOOK_EVERY", 0.0005)
    for length in range(200):
        with Limits(seconds=0), contextlib.suppress(budget.Exceeded), budget.reading([]):
            for _ in range(length % 40):
                sum(range(3000))
        assert budget.current() is None
