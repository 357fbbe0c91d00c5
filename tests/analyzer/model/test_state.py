"""A model that changes with each call is called and left as it was, and that it does is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_analyzer import ExportError, export, load_programs, open_tape, replay
from calltape_analyzer.programs.notes import ServesOnly, StateKept, StateLost
from calltape_recorder import record
from tests.analyzer.exported import taped
from tests.analyzer.exporting.models import t
from tests.analyzer.model.counting import CALLS, Counting, assert_same_state, state


@pytest.mark.integration
@pytest.mark.parametrize("returned", [False, True])
def test_the_model_is_left_as_it_was(returned: bool, tmp_path: Path) -> None:
    model = Counting(returned).train()
    tape = taped(tmp_path, model, CALLS)
    before = state(model)
    buffers = dict(model.named_buffers())
    programs = export(tape, model)
    assert_same_state(before, state(model))
    programs.verify()
    assert_same_state(before, state(model))
    assert all(value is buffers[name] for name, value in model.named_buffers())


def test_a_state_is_said(tmp_path: Path) -> None:
    model = Counting(False).train()
    programs = export(taped(tmp_path, model, CALLS), model)
    report = programs.verify()
    assert report.ok, report.table()  # what is returned does not depend on it
    for program in programs.values():
        assert {"n", "replaced", "norm.running_mean", "norm.num_batches_tracked"} <= {
            *program.state
        }
        assert program.has(StateKept) or program.has(StateLost)
    assert "has state that its calls change" in report.table()
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    assert [p.state for p in loaded.values()] == [p.state for p in programs.values()]
    assert [p.notes for p in loaded.values()] == [p.notes for p in programs.values()]


@pytest.mark.integration
def test_what_depends_on_state_is_not_reproduced_for_that_reason(tmp_path: Path) -> None:
    model = Counting(True).train()
    tape = taped(tmp_path, model, CALLS)
    programs = export(tape, model)
    report = programs.verify()
    assert not report.ok
    for row in report:
        assert "its calls change its state" in str(row.error), row
    for program in programs.values():
        assert program.only_rows is None
        assert not program.has(ServesOnly)
    # Each call begins where the one before ended, as with the model.
    x = t(4, 3)
    for _ in range(3):
        now = int(model.n)
        assert int(programs(x)[1]) == now + 1


class Streaming(torch.nn.Module):
    """Adds what it was called with so far; returns something else each time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("past", torch.zeros(3))

    def forward(self, x):
        self.past += x.sum(0)
        return x + self.past


def test_calls_of_a_stream_are_reproduced_in_order(tmp_path: Path) -> None:
    tape = taped(tmp_path, Streaming(), CALLS)
    model = Streaming()
    programs = export(tape, model)
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    for one in (programs, loaded):
        for _ in range(2):
            report = one.verify(tape)
            assert report.ok, report.table()
            assert "2 calls reproduced in order" in report.table()
    assert not model.past.any()


def test_a_stream_that_is_exported_in_another_state_is_told_apart(tmp_path: Path) -> None:
    model = Streaming()
    tape = taped(tmp_path, model, CALLS)  # exported as the recording left it
    report = export(tape, model).verify()
    assert not report.ok
    assert all("its calls change its state" in str(row.error) for row in report)
    assert "in the state in which the recording began" in report.table()


def test_each_recording_of_a_stream_begins_anew(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        (tmp_path / "tapes" / folder).mkdir(parents=True)
        taped(tmp_path / "tapes" / folder, Streaming(), CALLS)
    tape = open_tape(sorted((tmp_path / "tapes").glob("*/*.tape")))
    report = export(tape, Streaming()).verify()
    assert report.ok, report.table()


@pytest.mark.integration
def test_a_program_that_is_wrong_beside_its_state_is_called_wrong(tmp_path: Path) -> None:
    model = Counting(False).train()
    tape = taped(tmp_path, model, CALLS)
    programs = export(tape, model)
    other = Counting(False).train()
    torch.nn.init.constant_(other.norm.weight, 3.0)  # type: ignore[arg-type]
    (tmp_path / "other").mkdir()
    report = programs.verify(taped(tmp_path / "other", other, CALLS))
    assert not report.ok
    model.norm.weight.data.fill_(1.0)  # type: ignore[union-attr]


def test_verifying_loaded_programs_leaves_their_state(tmp_path: Path) -> None:
    model = Counting(True, norm=False)
    tape = taped(tmp_path, model, CALLS)
    export(tape, model).save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    first = loaded.verify(tape).rows
    assert loaded.verify(tape).rows == first
    assert all("maybe because the model has state" in str(row.error) for row in first)
    assert int(loaded(t(4, 3))[1]) == len(CALLS) + 1


def test_a_replay_goes_in_order_and_leaves_the_model(tmp_path: Path) -> None:
    tape = taped(tmp_path, Counting(True), CALLS)
    fresh = Counting(True)
    before = state(fresh)
    for _ in range(2):
        report = replay(tape, fresh)
        assert report.ok, report.table()
        assert_same_state(before, state(fresh))


@pytest.mark.integration
def test_an_onnx_program_has_no_state_and_the_second_call_would_be_wrong(tmp_path: Path) -> None:
    tape = taped(tmp_path, Counting(True, norm=False), CALLS[:1])
    with pytest.raises(ExportError, match=r"what the call before left in it \(.*\bn\b") as caught:
        export(tape, Counting(True, norm=False), to="onnx")
    assert "let the model take it as an argument" in str(caught.value)


@pytest.mark.integration
def test_an_onnx_program_of_a_model_that_the_server_puts_back_says_so(tmp_path: Path) -> None:
    model = Counting(True, norm=False)
    with record(model, tmp_path / "a.tape"):
        for args, kwargs in CALLS:
            model(*args, **kwargs)
            model.n.zero_()
            model.replaced, model.lazy, model.calls = torch.zeros(2), None, 0
    with open_tape(tmp_path / "a.tape") as tape:
        programs = export(tape, Counting(True, norm=False), to="onnx")
    for program in programs.values():
        assert "n" in program.state
        assert any("the program has none" in str(note) for note in program.notes)
        assert any("only calls that begin in that state are right" in str(n) for n in program.notes)


def test_a_model_without_state_has_no_note(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).eval()
    programs = export(taped(tmp_path, model, CALLS), model)
    for program in programs.values():
        assert not program.state
        assert program.notes == []
        assert program.remarks
