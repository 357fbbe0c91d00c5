"""A result of a plain class is compared, exported and handed back; what of it cannot be compared is
said, wherever something is verified."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import (
    InputObserver,
    Programs,
    Tape,
    check,
    export,
    load_programs,
    open_tape,
    replay,
)
from calltape_analyzer.comparison.reports import Report
from calltape_analyzer.errors import ExportError, InferenceError
from calltape_analyzer.pytree.placeholder import Placeholder
from tests.analyzer.exported import call, taped
from tests.analyzer.exporting.models import t

CALLS = [call(t(n, 3)) for n in (4, 6)]


class Dist:
    """No dataclass, not registered: AutoencoderKL's latent_dist."""

    def __init__(self, mean: torch.Tensor, **more: Any) -> None:
        self.mean = mean
        self.size = mean.shape
        self._kept = mean * 2
        vars(self).update(more)

    @property
    def mode(self) -> torch.Tensor:
        return self.mean


class Encoder(torch.nn.Module):
    """``off`` makes another model of it, ``more`` gives its results further attributes."""

    def __init__(self, off: float = 0.0, **more: Any) -> None:
        super().__init__()
        self.off, self.more = off, more

    def forward(self, x):
        return {"latent_dist": Dist(x + self.off, **self.more)}


class Opaque(torch.nn.Module):
    """All that it returns is something that nobody can describe."""

    def forward(self, x):
        return {"latent_dist": torch.relu}


OPAQUE = "outputs.latent_dist (builtins:builtin_function_or_method) cannot be described"


def assert_says_no(report: Report, words: str) -> None:
    assert len(report) == len(CALLS)
    assert not report.ok
    assert report.reproduced == 0
    assert "largest difference" not in report.summary
    assert all(words in str(row.error) for row in report), report.table()


def test_another_result_of_a_plain_class_is_not_reproduced(tmp_path: Path) -> None:
    tape = taped(tmp_path, Encoder(), CALLS)
    assert replay(tape, Encoder()).ok
    report = replay(tape, Encoder(1.0))
    assert_says_no(report, "latent_dist.mean: ")


@pytest.mark.parametrize("to", ["torch", pytest.param("onnx", marks=pytest.mark.integration)])
def test_an_object_comes_out_of_programs(to: Any, tmp_path: Path) -> None:
    programs = export(taped(tmp_path, Encoder(), CALLS), Encoder().eval(), to=to)
    report = programs.verify()
    assert report.ok, report.table()
    assert all(row.compared for row in report)
    x = t(9, 3)
    found = programs(x)["latent_dist"]
    assert type(found) is Dist
    torch.testing.assert_close(found.mode, x)
    assert found.size == (9, 3)
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    placeholder = loaded(x)["latent_dist"]
    assert isinstance(placeholder, Placeholder)
    torch.testing.assert_close(placeholder["mean"], x)
    told = loaded.verify(open_tape(tmp_path / "calls.tape"))
    assert told.ok
    assert f"main: returns placeholders for {__name__}:Dist, not known here" in map(str, told.notes)
    knowing = load_programs(tmp_path / "saved", classes=[Dist], trusted=True)
    assert type(knowing(x)["latent_dist"]) is Dist


def test_a_part_that_cannot_be_described_is_named_everywhere(tmp_path: Path) -> None:
    words = "outputs.latent_dist.sampler (builtins:builtin_function_or_method) cannot be described"
    model = Encoder(sampler=torch.relu)
    tape = taped(tmp_path, model, CALLS)
    assert_says_no(replay(tape, model), f"not verified: {words}")
    programs = export(tape, model.eval())
    report = programs.verify()
    assert_says_no(report, f"not verified: {words}")
    assert any(words in note for note in map(str, report.notes))
    assert all(words in " ".join(map(str, program.notes)) for program in programs.values())
    checked = check(tape, programs)
    assert checked.ok
    assert words in str(checked.notes[0])
    assert words in checked.table()


@dataclasses.dataclass
class Hidden:
    hidden: torch.Tensor


class Beside(torch.nn.Module):
    """Sets on its result what is none of its fields."""

    def __init__(self, off: float = 0.0) -> None:
        super().__init__()
        self.off = off

    def forward(self, x):
        found = Hidden(x * 2)
        found.logits = x + self.off
        return found


def test_what_is_set_beside_fields_is_never_reproduced(tmp_path: Path) -> None:
    words = f"outputs.logits is an attribute of a {__name__}:Hidden beside what is recorded of it"
    tape = taped(tmp_path, Beside(), CALLS)
    assert_says_no(replay(tape, Beside(1.0)), f"not verified: {words}")
    programs = export(tape, Beside().eval())
    assert_says_no(programs.verify(), f"not verified: {words}")
    assert words in check(tape, programs).table()
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", classes=[Hidden], trusted=True)
    assert_says_no(loaded.verify(tape), f"not verified: {words}")
    row = observed(Beside(), tmp_path).check_discrepancies(
        b"", initializer=lambda _: Session([lambda x: x * 2])
    )[0]
    assert not row["SUCCESS"]


def test_nothing_compared_with_nothing_is_a_failure(tmp_path: Path) -> None:
    tape = taped(tmp_path, Opaque(), CALLS)
    assert_says_no(replay(tape, Opaque()), f"nothing was compared: {OPAQUE}")
    with pytest.raises(ExportError, match="nothing was compared"):
        export(tape, Opaque().eval())


class Empty(torch.nn.Module):
    """Returns tensors without an element, or without a number."""

    def __init__(self, value: float | None) -> None:
        super().__init__()
        self.value = value

    def forward(self, x):
        return x[:0] if self.value is None else torch.full_like(x, self.value)


@pytest.mark.parametrize("value", [None, float("nan")])
def test_a_report_in_which_no_value_was_compared_is_not_ok(value: Any, tmp_path: Path) -> None:
    tape = taped(tmp_path, Empty(value), CALLS)
    report = replay(tape, Empty(value))
    assert not report.ok
    assert report.reproduced == 0
    assert "no value was compared" in report.summary
    assert "largest difference" not in report.summary
    with pytest.raises(ExportError, match="no recorded output has an element that is a number"):
        export(tape, Empty(value).eval())


class Slotted:
    __slots__ = ("mean",)

    def __init__(self, mean: torch.Tensor) -> None:
        self.mean = mean


class Slots(torch.nn.Module):
    def forward(self, x):
        return Slotted(x * 2)


def test_slots_are_set_in_what_a_program_returns(tmp_path: Path) -> None:
    programs = export(taped(tmp_path, Slots(), CALLS), Slots().eval())
    assert programs.verify().ok
    x = t(9, 3)
    outputs = programs(x)
    assert type(outputs) is Slotted
    torch.testing.assert_close(outputs.mean, x * 2)


class Listed(list):
    pass


class Refusing:
    """Cannot be made without a call of its constructor."""

    def __new__(cls, *given: Any) -> Any:
        if not given:
            raise TypeError("needs an argument")
        return object.__new__(cls)

    def __init__(self, mean: torch.Tensor) -> None:
        self.mean = mean


class Returning(torch.nn.Module):
    def __init__(self, made: Any) -> None:
        super().__init__()
        self.made = made

    def forward(self, x):
        return self.made(x * 2)


def test_a_list_of_a_subclass_is_one_in_what_a_program_returns(tmp_path: Path) -> None:
    model = Returning(lambda x: Listed([x]))
    programs = export(taped(tmp_path, model, CALLS), model.eval())
    assert programs.verify().ok
    assert type(programs(t(9, 3))) is Listed
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    notes = loaded.verify(open_tape(tmp_path / "calls.tape")).notes
    assert f"main: returns placeholders for {__name__}:Listed, not known here" in map(str, notes)


def test_what_a_program_can_only_give_a_placeholder_for_is_not_reproduced(tmp_path: Path) -> None:
    model = Returning(Refusing)
    programs = export(taped(tmp_path, model, CALLS), model.eval())
    assert isinstance(programs(t(9, 3)), Placeholder)
    words = f"a {__name__}:Refusing comes as a placeholder: cannot be rebuilt: TypeError"
    assert_says_no(programs.verify(), f"not verified: {words}")


class Writing(torch.nn.Module):
    def forward(self, x, total):
        total.add_(1)
        return x * 2


@pytest.mark.integration
def test_what_an_onnx_program_does_not_write_is_not_reproduced(tmp_path: Path) -> None:
    tape = taped(tmp_path, Writing(), [call(t(n, 3), torch.zeros(2)) for n in (4, 6)])
    assert export(tape, Writing().eval()).verify().ok  # a torch program writes to it
    programs = export(tape, Writing().eval(), to="onnx")
    words = "leaves total as it was, which the model changes in place"
    assert_says_no(programs.verify(), f"not verified: {words}")
    assert all(words in map(str, program.notes) for program in programs.values())
    programs.save(tmp_path / "saved")
    assert_says_no(load_programs(tmp_path / "saved", trusted=True).verify(tape), words)


def test_a_tape_of_shapes_verifies_nothing(tmp_path: Path) -> None:
    model = Encoder()
    tape = taped(tmp_path, model, CALLS, values="none")
    programs = export(tape, model.eval())
    assert {row.against for row in programs.verify()} == {"module"}
    programs.save(tmp_path / "saved")
    loaded: Programs = load_programs(tmp_path / "saved", trusted=True)
    report = loaded.verify(tape)
    assert_says_no(report, "has no value on the tape, only a dtype and a shape")
    assert report.summary.endswith("no value was compared")


class Numbers(torch.nn.Module):
    def __init__(self, only: bool) -> None:
        super().__init__()
        self.only = only

    def forward(self, x):
        return {"n": 3} if self.only else {"y": x * 2, "n": 3, "sure": True}


def test_what_a_flat_program_does_not_return_is_not_taken_from_the_tape(tmp_path: Path) -> None:
    dims = {"x": {0: torch.export.Dim.AUTO}}
    tape = taped(tmp_path, Numbers(False), CALLS)

    class Tensors(torch.nn.Module):
        def forward(self, x):
            return x * 2

    report = replay(tape, torch.export.export(Tensors(), (t(4, 3),), dynamic_shapes=dims))
    assert report.ok, report.table()
    (note,) = report.notes
    assert str(note).startswith("not compared, because the model does not return them: outputs.n")
    (tmp_path / "numbers").mkdir()
    tape = taped(tmp_path / "numbers", Numbers(True), CALLS)

    class Nothing(torch.nn.Module):
        def forward(self, x):
            return ()

    program = torch.export.export(Nothing(), (t(4, 3),), dynamic_shapes=dims)
    assert_says_no(replay(tape, program), "nothing was compared")


def observed(model: torch.nn.Module, tmp_path: Path) -> InputObserver:
    observer = InputObserver(path=tmp_path / "observed.tape")
    with observer(model):
        for args, _ in CALLS:
            model(*args)
    return observer


class Session:
    """Stands for an ONNX Runtime session that returns these arrays."""

    def __init__(self, outputs: Any) -> None:
        self.outputs = outputs

    def get_inputs(self) -> list[Any]:
        return [type("Known", (), {"name": "x"})]

    def get_outputs(self) -> list[Any]:
        return [type("Known", (), {"name": f"output_{i}"}) for i in range(len(self.outputs))]

    def run_with_ort_values(self, _: Any, feeds: Any) -> list[Any]:
        import onnxruntime

        given = feeds["x"].numpy()
        return [
            onnxruntime.OrtValue.ortvalue_from_numpy(output(given), "cpu", 0)
            for output in self.outputs
        ]


@pytest.mark.integration
def test_the_drop_in_verifies_objects_and_never_nothing(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")

    def rows(folder: str, model: torch.nn.Module, *outputs: Any) -> list[dict[str, Any]]:
        (tmp_path / folder).mkdir()
        return observed(model, tmp_path / folder).check_discrepancies(
            b"", initializer=lambda _: Session(outputs)
        )

    def same(x: Any) -> Any:
        return x

    assert all(row["SUCCESS"] for row in rows("same", Encoder(), same))
    assert not any(row["SUCCESS"] for row in rows("off", Encoder(), lambda x: x + 1))
    for row in rows("part", Encoder(sampler=torch.relu), same):
        assert not row["SUCCESS"]
        assert row["error"].startswith("not verified: outputs.latent_dist.sampler")
    for row in rows("opaque", Opaque(), same):
        assert not row["SUCCESS"]
        assert "nothing was compared" in row["error"]
        assert "abs" not in row


def test_the_drop_in_refuses_calls_of_which_none_returned(tmp_path: Path) -> None:
    class Raising(torch.nn.Module):
        def forward(self, x):
            raise ValueError("no")

    observer = InputObserver(path=tmp_path / "raised.tape")
    model = Raising()
    with observer(model), pytest.raises(ValueError, match="no"):
        model(t(4, 3))
    with pytest.raises(InferenceError, match="no call returned"):
        observer.check_discrepancies(b"", initializer=lambda _: Session(()))


def test_a_tape_without_calls_verifies_nothing(tmp_path: Path) -> None:
    empty: Tape = taped(tmp_path, Encoder(), [])
    assert not replay(empty, Encoder()).ok
