"""A bar comes on a terminal, after two seconds, for the outermost loop only."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from calltape_analyzer import open_tape, progress
from calltape_analyzer.progress import later_bar, shown_progress, steps, watched
from tests.analyzer.tapes import write_tape


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """What stderr is, also after pytest has captured it anew."""
    made = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=made, modules=sys.modules))
    return made


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar comes without delay."""
    monkeypatch.setattr(progress, "AFTER_SECONDS", -1.0)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any loop is soon over."""
    monkeypatch.setattr(progress, "AFTER_SECONDS", 600.0)


def test_a_loop_that_is_soon_over_shows_nothing(terminal: Terminal, late: None) -> None:
    with shown_progress():
        assert list(steps(range(1000), "calls", 1000)) == list(range(1000))
    assert terminal.getvalue() == ""


def test_a_long_loop_shows_what_is_done_the_rate_and_the_rest(
    terminal: Terminal, at_once: None
) -> None:
    with shown_progress():
        for _ in steps(range(5), "calls", 10):
            pass
    shown = terminal.getvalue()
    assert "calls" in shown
    assert "5/10" in shown
    assert "left" in shown


def test_work_elsewhere_that_is_soon_over_shows_nothing(terminal: Terminal, late: None) -> None:
    with later_bar("files", 3) as advance:
        advance(3, 3)
    assert terminal.getvalue() == ""


def test_long_work_elsewhere_has_a_bar_before_a_step_is_done(
    terminal: Terminal, at_once: None
) -> None:
    with later_bar("files", 3) as advance:
        while "0/3" not in terminal.getvalue():
            time.sleep(0.01)
        advance(2, 3)
    assert "2/3" in terminal.getvalue()
    assert "/100" not in terminal.getvalue()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_bar_has_no_colour_where_none_is_wanted(
    name: str, value: str, terminal: Terminal, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    with shown_progress():
        list(steps(range(5), "calls", 5))
    shown = terminal.getvalue()
    assert not re.search(r"\x1b\[[0-9;]+m", shown)  # a cursor may move; nothing is coloured or bold
    assert name == "NO_COLOR" or "\x1b" not in shown


def test_nothing_is_shown_elsewhere(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    items = range(3)
    assert steps(items, "calls", 3) is items
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with shown_progress():
        assert steps(items, "calls", 3) is items
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_a_loop_within_a_loop_has_no_bar(terminal: Terminal, at_once: None) -> None:
    with shown_progress():
        for _ in steps(range(2), "outer", 2):
            assert list(steps(range(3), "inner", 3)) == [0, 1, 2]
    assert "outer" in terminal.getvalue()
    assert "inner" not in terminal.getvalue()


def test_another_thread_has_no_bar(terminal: Terminal, at_once: None) -> None:
    items = range(3)
    found: list[object] = []
    with shown_progress():
        worker = threading.Thread(target=lambda: found.append(steps(items, "calls", 3)))
        worker.start()
        worker.join()
    assert found == [items]


def test_a_loop_that_is_left_gives_the_bar_back(terminal: Terminal, at_once: None) -> None:
    with shown_progress():
        for _ in steps(range(9), "first", 9):
            break
        second = iter(steps(map(int, ["1", "no number"]), "second", 2))
        assert next(second) == 1
        with pytest.raises(ValueError, match="no number"):
            next(second)
        list(steps(range(9), "third", 9))
    assert "third" in terminal.getvalue()


def test_calls_and_bytes_of_a_tape_are_steps(
    tmp_path: Path, terminal: Terminal, at_once: None
) -> None:
    path = write_tape(tmp_path / "a.tape", [((torch.zeros(2 + i),), {}) for i in range(7)])
    with shown_progress(), open_tape(path, scan=True) as tape:
        assert "bytes" in terminal.getvalue()
        assert len(list(tape.calls)) == 7
    assert "7/7" in terminal.getvalue()
    assert list(watched([1, 2], True)) == [1, 2]
    assert "2/2" in terminal.getvalue()
