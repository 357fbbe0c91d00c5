"""Small seeded failures, and checks that attack the search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import (
    InferenceError,
    TapeError,
    UsageError,
    minimise,
    open_tape,
    redact,
)
from calltape_analyzer.testing import call, write_tape
from calltape_schema.end import Coverage
from tests.analyzer.minimising.summed import recorded
from tests.unpacked import readable

from . import checked
from .checked import Worded

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("tapes") / "whole.tape")


def minimised(whole: Path, out: Path, check: Any, **options: Any) -> Any:
    with open_tape(whole) as tape:
        return minimise(tape, out, check, **options)


def test_one_call_of_the_smallest_size_is_left_of_many(whole: Path, tmp_path: Path) -> None:
    said: list[str] = []
    out = tmp_path / "small.tape"
    report = minimised(whole, out, checked.is_long, progress=said.append)
    with open_tape(out) as tape:
        assert tape.verify() == []
        assert tape.sealed
        (only,) = tape.calls
        assert only.number == 23
        (x,), kwargs = only.inputs
        assert x.shape == (1, 41)
        assert kwargs == {}
        assert x.dtype == torch.float32
        assert not x.any()
        step = (tape.manifest.history or ())[-1]
        assert step.verb == "minimise"
        assert dict(step.options) == {"check": "is_long"}
        # the calls after the last one that is kept were seen too
        assert tape.coverage == Coverage(seen=40, kept=1, dropped={"not extracted": 39})
    assert (report.calls_before, report.calls) == (40, 1)
    assert report.reason == "the check returned true"
    assert said
    assert out.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [out]


def test_a_reason_stays_the_same(whole: Path, tmp_path: Path) -> None:
    """Dropping x altogether raises as well, but another exception."""
    out = tmp_path / "small.tape"
    report = minimised(whole, out, checked.raises)
    assert report.reason.startswith("ValueError: # rows have a value of #")
    with open_tape(out) as tape:
        (only,) = tape.calls
        (x,), kwargs = only.inputs
        assert x.flatten().tolist() == [99.0]
        assert kwargs == {}


def test_two_calls_are_needed(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.tape"
    minimised(whole, out, checked.two_needed)
    with open_tape(out) as tape:
        assert sorted(c.inputs.args[0].shape[-1] for c in tape.calls) == [1, 41]


def test_recorded_outputs_are_never_those_of_other_arguments(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.tape"
    report = minimised(whole, out, checked.differs_from_recorded)
    with open_tape(out) as tape, open_tape(whole) as before:
        (only,) = tape.calls
        kept = before.find(only.number)
        assert torch.equal(only.inputs.args[0], kept.inputs.args[0])
        assert torch.equal(only.outputs, kept.outputs)
    assert "a correct model in the check" in report.notes[0]


def test_a_tape_is_minimised_against_a_correct_model(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.tape"
    minimised(whole, out, checked.differs_from_a_correct_model)
    with open_tape(out) as tape:
        (only,) = tape.calls
        assert only.inputs.args[0].shape == (1, 41)


def test_a_run_that_is_out_of_time_goes_on_later(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.tape"
    report = minimised(whole, out, checked.raises, max_seconds=0.01)
    assert "time was up" in report.notes[0]
    assert report.calls == 40
    more = minimised(out, tmp_path / "smaller.tape", checked.raises)
    assert (more.calls, more.reason) == (1, report.reason)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("exits", "ended by exit code 7"),
        ("crashes", "ended by SIGSEGV"),
        ("says_exit", "SystemExit: #"),
    ],
)
def test_the_end_of_a_process_is_an_answer(
    whole: Path, tmp_path: Path, name: str, reason: str
) -> None:
    report = minimised(whole, tmp_path / "small.tape", getattr(checked, name))
    assert report.reason == reason
    assert report.calls == 1


def test_a_failure_that_comes_and_goes(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLIPS", str(tmp_path / "flips"))
    out = tmp_path / "small.tape"
    with pytest.raises(InferenceError, match=r"not each time|nothing fails"):
        minimised(whole, out, checked.flips)
    assert not out.exists()


def test_a_check_with_false_alarms_gives_a_tape_that_failed_twice(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    monkeypatch.setenv("SEEN", str(seen))
    out = tmp_path / "small.tape"
    report = minimised(whole, out, checked.alarms_once)
    assert any("failed at first and not again" in note for note in report.notes)
    with open_tape(out) as tape:
        assert tape.verify() == []
        assert checked.alarms_once(tape)
        assert checked.alarms_once(tape)


def test_nothing_to_do(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.tape"
    with pytest.raises(InferenceError, match="nothing fails"):
        minimised(whole, out, checked.never)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("check", "options", "words"),
    [
        (3, {}, "3 is no check"),
        (checked.raises, {"max_seconds": -1}, "not a limit"),
        (lambda tape: True, {}, "the check also fails with no calls: the check returned true"),
    ],
)
def test_impossible_requests_are_rejected_and_write_nothing(
    whole: Path, tmp_path: Path, check: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        minimised(whole, tmp_path / "small.tape", check, **options)
    assert not list(tmp_path.iterdir())


def test_a_tape_is_never_minimised_in_place(whole: Path) -> None:
    before = whole.read_bytes()
    with pytest.raises(UsageError, match="in place"):
        minimised(whole, whole, checked.raises, overwrite=True)
    with pytest.raises(TapeError, match="there already"):
        minimised(whole, whole, checked.raises)
    assert whole.read_bytes() == before


PRIVATE = "a SECRET-WORD of Jane Doe, 1 Main Street"
TITLE = "the private title of the document"


@pytest.fixture(scope="module")
def worded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of ten calls is wide, has a large y, and a long prompt."""
    model, made = Worded(), []
    for i in range(10):
        is_bad = i == 6
        x = torch.rand(2, 50 if is_bad else 4 + i)
        y = torch.full((3,), 97.0) if is_bad else torch.rand(3)
        kwargs = {"y": y, "prompt": PRIVATE if is_bad else "short", "title": TITLE}
        made.append(call(x, **kwargs).returns(model(x, **kwargs)))
    return write_tape(tmp_path_factory.mktemp("tapes") / "worded.tape", made, model)


@pytest.mark.parametrize(
    ("name", "keep"), [("is_wide", ()), ("has_value_in_y", ("y",)), ("needs_the_word", ("prompt",))]
)
def test_a_redacted_tape_is_minimised_if_it_keeps_what_the_failure_needs(
    worded: Path, tmp_path: Path, name: str, keep: tuple[str, ...]
) -> None:
    given, out = tmp_path / "given.tape", tmp_path / "small.tape"
    with open_tape(worded) as tape:
        redact(tape, given, keep=keep)
    assert minimised(given, out, getattr(checked, name)).calls == 1
    content = readable(out.read_bytes())
    assert TITLE.encode() not in content
    assert (PRIVATE.encode() in content) is ("prompt" in keep)
    with open_tape(out) as tape:
        assert tape.redacted == "all"
        assert [step.verb for step in tape.manifest.history or ()] == ["redact", "minimise"]
