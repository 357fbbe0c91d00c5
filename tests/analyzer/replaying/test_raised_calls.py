"""Calls that raised are replayed: the same exception is a pass, another or none a failure."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_analyzer import Tape, UsageError, export, open_tape, replay
from tests.analyzer.exported import call, taped
from tests.analyzer.exporting.models import t
from tests.analyzer.tapes import Recorded, write_tape


class UnluckyError(ValueError):
    """A class of the recorded program."""


class Picky(torch.nn.Module):
    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.error = error

    def forward(self, x):
        if x.shape[0] == 13 and self.error is not None:
            raise self.error
        return x * 2


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    return taped(tmp_path, Picky(UnluckyError("13 at 0x7f3a")), [call(t(n, 3)) for n in (4, 13)])


def test_the_same_exception_is_a_pass(tape: Tape) -> None:
    report = replay(
        tape, Picky(UnluckyError("13 at 0x1b"))
    )  # an address is another in each process
    assert report.ok, report.table()
    assert [row.against for row in report] == ["tape", "exception"]
    assert report.reproduced == 2
    assert "1 call raised what was recorded" in report.summary
    assert report.notes == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (None, f"returned, instead of raising {__name__}:UnluckyError"),
        (KeyError("x"), f"KeyError: 'x', instead of {__name__}:UnluckyError"),
        (
            ValueError("13 at 0x7f3a"),
            f"ValueError: 13 at 0x7f3a, instead of {__name__}:UnluckyError",
        ),
        (UnluckyError("14"), "the message of UnluckyError is '14' instead of '13 at 0x'"),
        (SystemExit(0), f"SystemExit: 0, instead of {__name__}:UnluckyError"),
    ],
)
def test_another_exception_or_none_is_a_failure(
    error: BaseException | None, words: str, tape: Tape
) -> None:
    report = replay(tape, Picky(error))
    assert not report.ok
    assert [row.ok for row in report] == [True, False]
    assert str(report.rows[1].error) == words


@pytest.mark.parametrize(("length", "is_cut"), [(500, True), (600, False), (65_536, True)])
def test_a_message_that_goes_on_is_the_same_only_where_a_recorder_cuts(
    length: int, is_cut: bool, tmp_path: Path
) -> None:
    calls = [Recorded((t(13, 3),), error=("builtins:ValueError", "x" * length))]
    with open_tape(write_tape(tmp_path / "a.tape", calls)) as tape:
        assert replay(tape, Picky(ValueError("x" * length))).ok
        assert replay(tape, Picky(ValueError("x" * length + "other"))).ok is is_cut
        assert not replay(tape, Picky(ValueError("x" * (length - 1)))).ok


def test_what_is_to_succeed_is_to_return(tape: Tape) -> None:
    fixed = replay(tape, Picky(None), expect="success")
    assert fixed.ok, fixed.table()
    assert [row.against for row in fixed] == ["tape", "success"]
    assert fixed.reproduced == 1  # nobody knows what call 1 should give
    still = replay(tape, Picky(UnluckyError("13")), expect="success")
    assert [row.ok for row in still] == [True, False]
    assert str(still.rows[1].error) == "UnluckyError: 13"
    # Calls that returned are compared as ever.
    assert not replay(tape, lambda x: x * 3, expect="success").rows[0].ok


def test_a_model_that_raises_in_replay_only_fails(tape: Tape) -> None:
    def fails(x):
        raise SystemExit(0)  # would end the process with 0

    report = replay(tape.only(calls="0"), fails)
    assert str(report.rows[0].error) == "SystemExit: 0"
    assert not report.ok


def test_ctrl_c_ends_the_replay(tape: Tape) -> None:
    with pytest.raises(KeyboardInterrupt):
        replay(tape, Picky(KeyboardInterrupt()))


def test_a_class_that_is_not_here_is_compared_by_its_name(tmp_path: Path) -> None:
    raised = Recorded(args=(t(13, 3),), error=("their.house:UnluckyError", "13"))
    tape = open_tape(write_tape(tmp_path / "a.tape", [raised], target=Picky(None)))
    assert [str(row.error) for row in replay(tape, Picky(UnluckyError("13")))] == [
        "UnluckyError: 13, instead of their.house:UnluckyError, a class that is not loaded here"
    ]
    theirs = type("UnluckyError", (ValueError,), {"__module__": "their.house"})
    assert replay(tape, Picky(theirs("13"))).ok
    assert not replay(tape, Picky(theirs("14"))).ok


def test_a_class_of_a_script_has_another_module(tmp_path: Path) -> None:
    raised = Recorded(args=(t(13, 3),), error=("__main__:UnluckyError", "13"))
    tape = open_tape(write_tape(tmp_path / "a.tape", [raised], target=Picky(None)))
    assert replay(tape, Picky(UnluckyError("13"))).ok


def test_a_message_that_is_not_on_the_tape_is_not_compared(tmp_path: Path) -> None:
    calls = [call(t(n, 3)) for n in (4, 13)]
    tape = taped(tmp_path, Picky(UnluckyError("a secret")), calls, values="none")
    report = replay(tape, Picky(UnluckyError("something else")))
    assert report.ok, report.table()
    assert any("only the class was compared" in note for note in map(str, report.notes))
    assert not replay(tape, Picky(KeyError("a secret"))).ok


def test_what_somebody_interrupted_is_left_out(tmp_path: Path) -> None:
    calls = [
        Recorded(args=(t(2, 3),), error=("builtins:KeyboardInterrupt", "")),
        Recorded(args=(t(2, 3),), error=("builtins:ValueError", "x")),
    ]
    tape = open_tape(write_tape(tmp_path / "a.tape", calls, target=Picky(None)))

    def fails(x):
        raise ValueError("x")

    report = replay(tape, fails)
    assert report.ok
    assert [row.call for row in report] == [1]
    assert [*map(str, report.notes)] == ["1 call ended because of an interruption: left out"]


def test_programs_leave_out_what_raised(tape: Tape) -> None:
    programs = export(tape, Picky(UnluckyError("13")).eval())
    report = replay(tape, programs)
    assert report.ok
    assert str(report.notes[0]) == "1 call raised and is left out"
    assert [row.call for row in replay(tape, programs, expect="success")] == [0, 1]


def test_a_tape_without_outputs_replays_if_that_is_asked(tmp_path: Path) -> None:
    tape = taped(tmp_path, Picky(None), [call(t(4, 3))], outputs=False)
    report = replay(tape, Picky(None), expect="success")
    assert report.ok
    assert report.reproduced == 0
    assert "1 call returned, which is all that was asked" in report.summary


def test_another_expectation_is_refused(tape: Tape) -> None:
    with pytest.raises(UsageError, match="expect='failure'"):
        replay(tape, Picky(None), expect="failure")  # type: ignore[arg-type]


def test_an_exception_without_a_text_is_a_row(tape: Tape) -> None:
    class BrokenError(ValueError):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    report = replay(tape.only(calls="0"), _raiser(BrokenError()))
    assert str(report.rows[0].error) == "BrokenError: (its text raised RuntimeError)"


def _raiser(error: BaseException):
    def fails(x):
        raise error

    return fails
