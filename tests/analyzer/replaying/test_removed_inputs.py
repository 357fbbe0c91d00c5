"""Arguments that were taken out are out wherever calls are laid out."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

import calltape_analyzer
from calltape_analyzer import Tape, check, export, load_programs, replay
from calltape_analyzer.errors import ExportError, NoVariant, UsageError
from tests.analyzer.exported import call, taped
from tests.analyzer.exporting.models import t


class Optional(torch.nn.Module):
    """``extra`` changes nothing, and no exported model takes it."""

    def forward(self, x, extra=None, *, scale=None):
        return x * 2 if scale is None else x * scale


class Plain(torch.nn.Module):
    def forward(self, x, *, scale):
        return x * scale


CALLS = [call(t(n, 3), t(2), scale=t(n, 3)) for n in (4, 6)]


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    made = taped(tmp_path, Optional(), CALLS)
    made.remove_inputs(["extra"])
    return made


def exported() -> Any:
    auto = {0: torch.export.Dim.AUTO}
    return torch.export.export(
        Plain(), (t(4, 3),), {"scale": t(4, 3)}, dynamic_shapes={"x": auto, "scale": auto}
    )


def test_removed_inputs_are_in_no_answers(tape: Tape) -> None:
    (group,) = tape.observations().groups.values()
    (variant,) = tape.variants()
    assert group.layout.arguments == variant.facts.group.layout.arguments == ("x", "scale")
    assert set(tape.infer_dynamic_shapes()) <= {"x", "scale"}


def test_exported_and_saved_programs_lack_the_removed_inputs(tape: Tape, tmp_path: Path) -> None:
    programs = export(tape, Optional().eval())
    assert all("extra" not in program.plan.forms for program in programs.values())
    programs.save(tmp_path / "saved")
    fresh = taped(tmp_path, Optional(), CALLS, name="again.tape")
    for target in (programs, load_programs(tmp_path / "saved", trusted=True)):
        assert check(tape, target).ok, check(tape, target).table()
        assert replay(tape, target).ok
        # The calls pass what the programs were made without: the model would do something with it.
        words = "extra is passed, which Tape.remove_inputs left out"
        assert words in check(fresh, target).table()
        assert words in replay(fresh, target).table()
        with pytest.raises(NoVariant, match=words):
            target(t(4, 3), t(2), scale=t(4, 3))
        for left_out in ((), (None,)):
            assert target(t(4, 3), *left_out, scale=t(4, 3)).shape == (4, 3)
    with pytest.raises(UsageError, match="extra was left out with remove_inputs"):
        tape.explain("extra")


class Needing(torch.nn.Module):
    def forward(self, x, extra):
        return x * extra


def test_an_export_that_misses_what_was_left_out_says_so(tmp_path: Path) -> None:
    tape = taped(tmp_path, Needing(), [call(t(4, 3), t(3))])
    tape.remove_inputs(["extra"])
    with pytest.raises(ExportError, match=r"without extra, which Tape\.remove_inputs left out"):
        export(tape, Needing())


def test_a_program_without_the_removed_inputs_passes_the_check(tape: Tape) -> None:
    report = check(tape, exported())
    assert report.ok, report.table()


@pytest.mark.parametrize(
    "target",
    [exported, lambda: exported().module(), Optional, lambda: lambda x, *, scale: x * scale],
    ids=["exported", "its module", "model", "function"],
)
def test_any_target_reproduces_calls_without_the_removed_inputs(target: Any, tape: Tape) -> None:
    report = replay(tape, target())
    assert report.ok, report.table()


@pytest.mark.integration
def test_an_onnx_model_reproduces_calls_without_the_removed_inputs(
    tape: Tape, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    program = torch.onnx.export(exported(), (), None, dynamo=True, verbose=False)
    assert program is not None
    program.save(str(path))
    assert replay(tape, path).ok
    assert check(tape, path).ok


def test_calls_of_a_tape_are_laid_out_in_one_way() -> None:
    """A place that makes a sorter of its own would forget what was taken out."""
    folder = Path(calltape_analyzer.__file__).parent
    makers = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "CallSorter"
    }
    # Saved programs have a signature of their own, with what was taken out.
    assert makers <= {"programs/saving.py", "programs/loading.py"}
