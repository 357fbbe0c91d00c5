"""Tapes of strangers in a test suite: a failure in words, whatever is on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calltape_analyzer import TapeError, open_tape, replay
from calltape_analyzer.arguments.samples import complete_inputs
from calltape_analyzer.testing import assert_replays
from calltape_analyzer.testing.parameters import BadParameter, TapeParameter, parameters_for
from tests.fixture_files import FIXTURES, HOSTILE, WITH_CALLS

TAPES = [*HOSTILE, *sorted((FIXTURES / "v1").glob("*.tape"))]


def anything(*args: Any, **kwargs: Any) -> Any:
    return None


def test_there_are_some() -> None:
    assert len(HOSTILE) > 10
    assert len(TAPES) > 30


@pytest.mark.parametrize("path", TAPES, ids=lambda path: path.stem)
def test_a_test_gets_calls_or_a_reason(path: Path) -> None:
    found = parameters_for([((path.name,), {})], [path.parent], None)
    assert found
    for one in found:
        if isinstance(one, BadParameter):
            assert one.text.isprintable()
        else:
            assert isinstance(one, TapeParameter)


@pytest.mark.parametrize("path", TAPES, ids=lambda path: path.stem)
def test_a_replay_is_a_failure_in_words(path: Path) -> None:
    for expect in ("recorded", "success"):
        said = failure(path, expect)
        assert all(line.isprintable() for line in said.splitlines())


def failure(path: Path, expect: Any) -> str:
    """What the assertion says; empty if it holds."""
    try:
        assert_replays(path, anything, expect=expect)
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("path", [*HOSTILE, *WITH_CALLS], ids=lambda path: path.stem)
def test_arguments_are_made_or_refused(path: Path) -> None:
    try:
        tape = open_tape(path)
    except TapeError:
        return
    with tape:
        for call in tape.calls:
            try:
                complete_inputs(call)
            except TapeError:
                continue
        try:
            report = replay(tape, anything, expect="success", slower_than=60.0)
        except TapeError:
            return
        assert repr(report).isprintable()
