"""Recorded calls through anything that can be called."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Tape, TapeError, Tolerances, export, open_tape, replay
from calltape_analyzer.errors import InferenceError, UsageError
from calltape_analyzer.model.randomness import Generators
from tests.analyzer.exported import call, taped
from tests.analyzer.exporting.attending import STEPS, Attending, ToyCache
from tests.analyzer.exporting.models import CLASSES, Batch, Model, OfBatch, t


class Masked(Model):
    def forward(self, x, mask=None, *, scale=1.0):
        y = self.linear(x) * scale
        return {"y": y if mask is None else y * mask, "x": x + 1}


CALLS = [call(t(n, 3), mask=t(n, 3)) for n in (4, 6, 7)]


@pytest.fixture
def model() -> Masked:
    return Masked()


@pytest.fixture
def tape(tmp_path: Path, model: Masked) -> Tape:
    return taped(tmp_path, model, CALLS)


def natural(model: torch.nn.Module) -> Any:
    """Exported by hand, in the signature that the model has."""
    auto = {0: torch.export.Dim.AUTO}
    return torch.export.export(
        model, (t(4, 3),), {"mask": t(4, 3)}, dynamic_shapes={"x": auto, "mask": auto}
    )


def nothing(model: torch.nn.Module, tape: Tape, folder: Path) -> Any:
    return model


def function(model: torch.nn.Module, tape: Tape, folder: Path) -> Any:
    return lambda x, mask: model(x, mask=mask)


def by_hand(model: torch.nn.Module, tape: Tape, folder: Path) -> Any:
    return natural(model)


def by_hand_saved(model: torch.nn.Module, tape: Tape, folder: Path) -> Any:
    torch.export.save(natural(model), str(folder / "model.pt2"))
    return folder / "model.pt2"


def programs(model: torch.nn.Module, tape: Tape, folder: Path) -> Any:
    return export(tape, model)


def one_program(model: torch.nn.Module, tape: Tape, folder: Path) -> Any:
    return next(iter(export(tape, model).values())).exported


def directory(model: torch.nn.Module, tape: Tape, folder: Path) -> Any:
    export(tape, model).save(folder / "saved")
    return str(folder / "saved")


def saved_program(model: torch.nn.Module, tape: Tape, folder: Path) -> Any:
    return next(iter(Path(directory(model, tape, folder)).glob("*.pt2")))


def compiled(model: torch.nn.Module, tape: Tape, folder: Path) -> Any:
    return torch.compile(model, backend="eager")


def onnx_program(model: torch.nn.Module, tape: Tape, folder: Path) -> Any:
    return next(iter(export(tape, model, to="onnx").values())).exported


def onnx_proto(model: torch.nn.Module, tape: Tape, folder: Path) -> Any:
    return onnx_program(model, tape, folder).model_proto


def onnx_file(model: torch.nn.Module, tape: Tape, folder: Path) -> Any:
    onnx_program(model, tape, folder).save(str(folder / "model.onnx"))
    return str(folder / "model.onnx")


def session(model: torch.nn.Module, tape: Tape, folder: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(onnx_file(model, tape, folder))


def onnx_directory(model: torch.nn.Module, tape: Tape, folder: Path) -> Any:
    export(tape, model, to="onnx").save(folder / "saved")
    return folder / "saved"


def onnx_by_hand(model: torch.nn.Module, tape: Tape, folder: Path) -> Any:
    auto = {0: torch.export.Dim.DYNAMIC}
    return torch.onnx.export(
        model, (t(4, 3),), kwargs={"mask": t(4, 3)}, dynamic_shapes={"x": auto, "mask": auto},
        dynamo=True, verbose=False,
    )  # fmt: skip


Make = Callable[[torch.nn.Module, Tape, Path], Any]
SLOW = (compiled, onnx_program, onnx_proto, onnx_file, session, onnx_directory, onnx_by_hand)
FAST = (nothing, function, by_hand, by_hand_saved, programs, one_program, directory, saved_program)
TARGETS = [*FAST, *(pytest.param(make, marks=pytest.mark.integration) for make in SLOW)]


@pytest.mark.parametrize("make", TARGETS)
def test_target_that_is_right_reproduces_the_tape(
    make: Make, model: Masked, tape: Tape, tmp_path: Path
) -> None:
    report = replay(tape, make(model, tape, tmp_path), trusted=True)
    assert report.ok, report.table()
    assert [row.call for row in report] == [0, 1, 2]


@pytest.mark.parametrize("make", TARGETS)
def test_target_with_other_weights_is_found_out(
    make: Make, model: Masked, tape: Tape, tmp_path: Path
) -> None:
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.linear.weight[0, 0] += 0.25
    # A tape of the other model, so that making the target takes no offence.
    own = taped(tmp_path, other, CALLS, name="own.tape")
    target = make(other, own, tmp_path)
    generators = Generators()
    report = replay(tape, target, trusted=True)
    assert generators.drawn_from() == []  # a call that failed is asked again with another seed
    assert not report.ok
    assert [row.ok for row in report] == [False] * 3
    assert all("y" in str(row.error) for row in report)
    assert all(0 < row.max_abs < 10 for row in report)


def fails_but_for_4(model: torch.nn.Module) -> Callable[..., Any]:
    def fails(x, mask):
        outputs = model(x, mask=mask)
        return {**outputs, "y": outputs["y"] + (x.shape[0] != 4)}

    return fails


def test_failing_calls_become_a_tape_of_their_own(
    model: Masked, tape: Tape, tmp_path: Path
) -> None:
    fails = fails_but_for_4(model)
    report = replay(tape, fails, failing=tmp_path / "failing.tape")
    assert [row.ok for row in report] == [True, False, False]
    failing = open_tape(tmp_path / "failing.tape")
    assert failing.verify() == []
    assert [call.number for call in failing.calls] == [1, 2]
    args, kwargs = failing.calls[0].inputs
    torch.testing.assert_close(args[0], CALLS[1][0][0])
    torch.testing.assert_close(kwargs["mask"], CALLS[1][1]["mask"])
    assert replay(failing, fails).reproduced == 0
    assert replay(failing, model).ok
    (step,) = failing.calls[0].manifest.history or ()
    assert (step.verb, step.sources[0].left_out) == ("replay", 1)
    with pytest.raises(TapeError):
        replay(tape, fails, failing=tmp_path / "failing.tape")


def test_failing_calls_of_several_recordings_keep_apart(model: Masked, tmp_path: Path) -> None:
    for name in ("a.tape", "b.tape"):
        taped(tmp_path, model, CALLS, name=name)
    both = open_tape([tmp_path / "a.tape", tmp_path / "b.tape"])
    replay(both, fails_but_for_4(model), failing=tmp_path / "failing.tape")
    failing = open_tape(tmp_path / "failing.tape")
    assert [call.number for call in failing.calls] == [1, 2, 4, 5]
    assert replay(failing, model).ok


def test_nothing_is_written_where_nothing_fails(model: Masked, tape: Tape, tmp_path: Path) -> None:
    assert replay(tape, model, failing=tmp_path / "failing.tape").ok
    assert not (tmp_path / "failing.tape").exists()


@pytest.mark.parametrize(
    ("tolerances", "ok"),
    [(None, False), (Tolerances(atol=1e-2), True), (Tolerances(rtol=0.0, atol=1e-4), False),
     (Tolerances(factor=1e3), True), (Tolerances(by_dtype={"float32": (0.0, 0.01)}), True)],
)  # fmt: skip
def test_tolerances_decide(
    tolerances: Tolerances | None, ok: bool, model: Masked, tape: Tape
) -> None:
    def shifted(x, mask):
        return {name: value + 1e-3 for name, value in model(x, mask=mask).items()}

    assert replay(tape, shifted, tolerances=tolerances).ok is ok


def test_what_a_target_raises_is_its_row(tape: Tape) -> None:
    def fails(x, mask):
        raise RuntimeError("out of luck\nand more")

    report = replay(tape, fails)
    assert [str(row.error) for row in report] == ["RuntimeError: out of luck and more"] * 3


@pytest.mark.parametrize(
    "returned", [None, 3, {"y": 1}, [], {"y": torch.ones(1)}, torch.ones(4, 3)]
)
def test_other_structures_are_not_reproduced(returned: Any, tape: Tape) -> None:
    report = replay(tape, lambda x, mask: returned)
    assert report.reproduced == 0
    assert all(row.error for row in report)


@pytest.mark.parametrize("name", ["no.pt2", "no.onnx", "no", "no.tape"])
def test_missing_file_is_not_found(name: str, tape: Tape, tmp_path: Path) -> None:
    with pytest.raises(TapeError) as caught:
        replay(tape, tmp_path / name)
    assert caught.value.kind == "not_found"


@pytest.mark.parametrize("name", ["text.pt2", "text.onnx", "text"])
def test_file_that_is_no_model_is_a_tape_error(name: str, tape: Tape, tmp_path: Path) -> None:
    (tmp_path / name).write_text("no model")
    with pytest.raises(TapeError):
        replay(tape, tmp_path / name, trusted=True)


def test_what_cannot_be_called_is_refused(tape: Tape) -> None:
    with pytest.raises(UsageError, match="int"):
        replay(tape, 3)


def test_tape_without_outputs_has_nothing_to_compare_with(model: Masked, tmp_path: Path) -> None:
    tape = taped(tmp_path, model, CALLS, outputs=False)
    with pytest.raises(InferenceError, match="no outputs"):
        replay(tape, model)


def test_a_call_that_returned_none_is_not_compared_and_not_called_random(tmp_path: Path) -> None:
    from calltape_recorder import record

    class Silent(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> None:
            return None

    model = Silent()
    with record(model, tmp_path / "a.tape"):
        model(torch.ones(2))
    report = replay(open_tape(tmp_path / "a.tape"), Silent())
    assert not report.ok
    (row,) = report.rows
    assert "what the call did beside returning is not on the tape" in str(row.error)
    assert "deterministic" not in str(report)


def test_method_that_was_recorded_is_called(tmp_path: Path) -> None:
    from calltape_recorder import record

    class Encoder(Model):
        def encode(self, x):
            return self.linear(x) + 1

    model = Encoder()
    with record(model, tmp_path / "encode.tape", method="encode"):
        model.encode(t(3, 3))
    tape = open_tape(tmp_path / "encode.tape")
    assert replay(tape, model).ok
    with pytest.raises(UsageError, match="encode"):
        replay(tape, Model())


def test_dataclasses_and_caches_are_passed_as_themselves(tmp_path: Path) -> None:
    model = OfBatch()
    calls = [call(Batch(t(n, 3), t(n, 3))) for n in (4, 6)]
    assert replay(taped(tmp_path, model, calls, classes=CLASSES), model).ok
    attending = Attending()
    tape = taped(tmp_path, attending, STEPS, name="steps.tape", classes=[ToyCache])
    assert replay(tape, attending).ok
