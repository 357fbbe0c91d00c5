"""What programs are kept from: sizes at which they are wrong, and 0 unless they are right there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import ExportOptions, Programs, check, export, load_programs
from calltape_analyzer.errors import NoVariant
from calltape_analyzer.programs.notes import Excluded, FailsAt, TakesZero
from calltape_analyzer.programs.reasons import End
from tests.analyzer.exported import Call, assert_same, call, taped


def hint(size: Any) -> int:
    """A size as a trace has it: no condition is left of an ``if`` on it."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


class Special(torch.nn.Module):
    """Does something else at some sizes, of which no trace keeps a condition."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, x: Any) -> Any:
        return x * (-1 if hint(x.shape[0]) in self.sizes else 2)


class UpTo(Special):
    def forward(self, x: Any) -> Any:
        return x * (-1 if hint(x.shape[0]) <= self.sizes[0] else 2)


class Mean(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.new_full((4,), -1.0) if x.shape[0] == 0 else x.mean(0)


class Multiples(Special):
    def forward(self, x: Any) -> Any:
        return x * (2 if hint(x.shape[0]) % self.sizes[0] else -1)


class TwoSizes(Special):
    """One of two sizes is special."""

    def forward(self, x: Any, y: Any) -> Any:
        return x.sum() * y * (-1 if hint(y.shape[0]) == self.sizes[0] else 2)


class Both(Special):
    """Only two sizes together are special."""

    def forward(self, x: Any, y: Any) -> Any:
        is_special = (hint(x.shape[0]), hint(y.shape[0])) == self.sizes
        return x.sum() * y * (-1 if is_special else 2)


class Times(torch.nn.Module):
    """An int has a special value."""

    def forward(self, x: Any, times: Any) -> Any:
        return x * (100 if hint(times) == 3 else times)


def rows(*sizes: int) -> list[Call]:
    return [call(torch.rand(n, 4) + 0.5) for n in sizes]


def pairs(*sizes: tuple[int, int]) -> list[Call]:
    return [call(torch.rand(m, 3) + 0.5, torch.rand(n) + 0.5) for m, n in sizes]


def outcome(model: torch.nn.Module, programs: Programs, given: Call) -> bool:
    """Whether programs take a call. If they do, they return what the model returns."""
    args, kwargs = given
    try:
        got = programs(*args, **kwargs)
    except NoVariant:
        return False
    assert_same(model(*args, **kwargs), got)
    return True


CASES: list[Any] = [
    pytest.param(Mean(), rows(0, 4, 7), rows(1, 2, 5, 30), [], id="0"),
    pytest.param(Special(0), rows(0, 4, 1, 7), rows(2, 30), [], id="0-beside-1"),
    pytest.param(Special(1), rows(1, 4, 7), rows(2, 3, 9), [], id="1"),
    pytest.param(Special(2), rows(2, 5, 9), rows(3, 4, 6, 20), [], id="2"),
    pytest.param(Special(2, 6), rows(2, 6, 5, 9), rows(3, 4, 7, 20), [], id="two"),
    pytest.param(Special(0, 3), rows(0, 3, 5, 8), rows(2, 4, 9), [], id="0-and-another"),
    pytest.param(TwoSizes(3), pairs((2, 3), (5, 7), (6, 8)), pairs((2, 9), (7, 4)), [], id="one"),
    pytest.param(UpTo(6), rows(5, 9, 14), [], rows(2, 3, 4, 6), id="up-to"),
    pytest.param(Multiples(2), rows(4, 5, 7), [], rows(2, 6, 8), id="even"),
    pytest.param(Multiples(3), rows(6, 5, 7), [], rows(3, 9, 12, 24), id="of-three"),
    pytest.param(Multiples(5), rows(10, 3, 7), [], rows(5, 15, 20, 40), id="of-five"),
    pytest.param(Both(2, 3), pairs((2, 3), (5, 7), (6, 8)), [], [], id="both"),
]


@pytest.mark.integration
@pytest.mark.parametrize(("model", "recorded", "taken", "refused"), CASES)
def test_size_that_explains_what_is_wrong_is_excluded(
    tmp_path: Path,
    model: torch.nn.Module,
    recorded: list[Call],
    taken: list[Call],
    refused: list[Call],
) -> None:
    made = export(taped(tmp_path, model, recorded), model)
    assert made.verify().ok
    made.save(tmp_path / "programs")
    for programs in (made, load_programs(tmp_path / "programs", trusted=True)):
        assert all(outcome(model, programs, given) for given in [*recorded, *taken])
        assert not any(outcome(model, programs, given) for given in refused)
        assert any(program.only_rows is None for program in programs.values()) is bool(taken)


@pytest.mark.integration
def test_a_note_names_the_excluded_size(tmp_path: Path) -> None:
    model = Mean()
    programs = export(taped(tmp_path, model, rows(0, 4, 7)), model)
    first = next(iter(programs.values()))
    assert Excluded(0, ("x[0]",), is_unlike=False) in first.notes
    with pytest.raises(NoVariant, match=r"main: x\[0\] is 0; it is for other sizes"):
        Programs([first], programs.sorter)(torch.rand(0, 4))


@pytest.mark.integration
def test_value_of_an_int_is_excluded(tmp_path: Path) -> None:
    model = Times()
    given = [call(torch.rand(2, 2), times) for times in (3, 5, 9)]
    programs = export(taped(tmp_path, model, given), model)
    unseen = [call(torch.rand(2, 2), times) for times in (2, 4, 6, 18)]
    assert all(outcome(model, programs, one) for one in [*given, *unseen])


def test_size_that_only_an_unseen_size_shows_is_excluded(tmp_path: Path) -> None:
    model = Special(1)
    programs = export(taped(tmp_path, model, rows(4, 7)), model)
    assert all(outcome(model, programs, one) for one in rows(2, 3, 4, 7, 14))
    assert not outcome(model, programs, rows(1)[0])


def test_special_size_of_the_middle_is_no_proof_where_nothing_else_is_run(tmp_path: Path) -> None:
    model = UpTo(5)
    programs = export(
        taped(tmp_path, model, rows(5, 6, 9)), model, options=ExportOptions(probe="none")
    )
    assert not any(outcome(model, programs, one) for one in rows(2, 3, 4))


@pytest.mark.integration
@pytest.mark.parametrize("recorded", [rows(0, 4, 7), rows(0, 4, 1, 7)])
def test_size_is_excluded_from_an_onnx_program(tmp_path: Path, recorded: list[Call]) -> None:
    model = Mean()
    made = export(taped(tmp_path, model, recorded), model, to="onnx")
    made.save(tmp_path / "programs")
    for programs in (made, load_programs(tmp_path / "programs")):
        for given in [*recorded, *rows(1, 2, 5, 30)]:
            torch.testing.assert_close(programs(*given[0]), model(*given[0]), rtol=1e-3, atol=1e-4)


class Squeezed(torch.nn.Module):
    """Of one row of one element no dimension is left, of which ONNX Runtime has no softmax."""

    def forward(self, x: Any) -> Any:
        return torch.softmax(x.squeeze(), -1)


@pytest.mark.integration
def test_a_runtime_that_fails_where_two_sizes_are_1_takes_all_others(tmp_path: Path) -> None:
    model = Squeezed()
    calls = [call(torch.randn(n, m)) for n, m in ((2, 4), (5, 7), (1, 7))]
    programs = export(taped(tmp_path, model, calls), model, to="onnx")
    for shape in ((3, 4), (1, 5), (4, 1)):
        x = torch.randn(shape)
        assert_same(model(x), programs(x), rtol=1e-4)
    (program,) = programs.values()
    assert program.has(FailsAt)
    with pytest.raises(NoVariant, match="ONNXRuntimeError"):
        programs(torch.randn(1, 1))


class Total(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return (x * 2).sum(0)


class Rows(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.softmax(-1)


class PlainMean(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.mean(0)


class Largest(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.max(0).values


class Branching(torch.nn.Module):
    """Does something else without rows, of which its trace keeps no condition."""

    def forward(self, x: Any) -> Any:
        return x if x.shape[0] == 0 else x.sum(0, keepdim=True)


class Product(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x @ y


def with_loaded(programs: Programs, folder: Path) -> list[Programs]:
    """Programs, and the same after they were saved and loaded."""
    programs.save(folder)
    return [programs, load_programs(folder, trusted=True)]


def notes(programs: Programs) -> list[str]:
    return [str(n) for p in programs.values() for n in p.remarks if isinstance(n, TakesZero)]


@pytest.mark.integration
@pytest.mark.parametrize("to", ["torch", "onnx"])
@pytest.mark.parametrize(
    ("model", "seen"),
    [(Total(), "outputs were compared with"), (Rows(), "outputs have no elements there")],
)
def test_zero_is_taken_where_model_and_program_agree(
    tmp_path: Path, to: Any, model: torch.nn.Module, seen: str
) -> None:
    tape = taped(tmp_path, model, [call(torch.rand(n, 4)) for n in (1, 2, 3)])
    empty = torch.rand(0, 4)
    for programs in with_loaded(export(tape, model, to=to), tmp_path / "programs"):
        assert_same(model(empty), programs(empty))
        (note,) = notes(programs)
        assert note.startswith(f"takes a size of 0 for x[0]: {seen}")
        asked = taped(tmp_path, model, [call(empty)], name=f"{id(programs)}.tape")
        assert check(asked, programs).ok


@pytest.mark.integration
@pytest.mark.parametrize("to", ["torch", "onnx"])
@pytest.mark.parametrize(
    ("model", "why"),
    [
        (PlainMean(), "the model itself returned NaN or infinity"),
        (Largest(), "the model itself raised IndexError"),
        (Branching(), "the program returned something else than the model"),
    ],
)
def test_zero_is_refused_with_the_reason_where_they_do_not(
    tmp_path: Path, to: Any, model: torch.nn.Module, why: str
) -> None:
    tape = taped(tmp_path, model, [call(torch.rand(n, 4)) for n in (1, 2, 3)])
    made = export(tape, model, to=to)
    assert made.verify().ok
    assert len(made.attempts) == 1
    for programs in with_loaded(made, tmp_path / "programs"):
        with pytest.raises(NoVariant, match=rf"x\[0\] is 0, which was never recorded; {why}"):
            programs(torch.rand(0, 4))
        assert not notes(programs)


@pytest.mark.integration
def test_runtime_that_dies_at_0_dies_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.GRU(4, 4, batch_first=True)
    tape = taped(tmp_path, model, [call(torch.rand(n, 5, 4)) for n in (2, 3, 4)])
    programs = export(tape, model, to="onnx")
    assert programs.verify().ok
    why = "ONNX Runtime ended its process when that was tried"
    with pytest.raises(NoVariant, match=rf"[^ ]+\[0\] is 0, which was never recorded; {why}"):
        programs(torch.rand(0, 5, 4))
    (program,) = programs.values()
    (name,) = program.model.input_names
    runs = [{name: torch.rand(*shape)} for shape in ((2, 5, 4), (0, 5, 4), (3, 5, 4), (2, 5, 9))]
    assert [program.model.crash(run, 60) for run in runs] == [None, End.DIED, None, None]
    assert program.model.crash(runs[0], 0.001) is End.LATE
    for executable in ("", "/bin/false", "/bin/true"):
        monkeypatch.setattr(sys, "executable", executable)
        assert program.model.crash(runs[0], 60) is End.NOT_TRIED


def test_dimensions_are_taken_at_0_only_as_they_were_tried(tmp_path: Path) -> None:
    model = Product()
    sizes = ((2, 3, 4), (3, 5, 7), (4, 2, 6))
    tape = taped(tmp_path, model, [call(torch.rand(n, k), torch.rand(k, m)) for n, k, m in sizes])
    programs = export(tape, model)
    for n, k, m in ((0, 3, 2), (2, 0, 2), (2, 3, 0)):
        x, y = torch.rand(n, k), torch.rand(k, m)
        assert_same(x @ y, programs(x, y))
    with pytest.raises(NoVariant, match=r"x\[0\], y\[1\] are 0, which was never recorded\)"):
        programs(torch.rand(0, 3), torch.rand(3, 0))


def test_nothing_is_tried_at_0_where_only_recorded_sizes_are_run(tmp_path: Path) -> None:
    model = Total()
    tape = taped(tmp_path, model, [call(torch.rand(n, 4)) for n in (1, 2, 3)])
    programs = export(tape, model, options=ExportOptions(probe="none"))
    with pytest.raises(NoVariant, match=r"x\[0\] is 0, which was never recorded\)"):
        programs(torch.rand(0, 4))


def test_no_message_of_the_model_is_kept_of_a_run_at_0(tmp_path: Path) -> None:
    class Quoting(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            if x.shape[0] == 0:
                raise ValueError("<wombat>")
            return x * 2

    model = Quoting()
    tape = taped(tmp_path, model, [call(torch.rand(n, 4)) for n in (1, 2, 3)])
    export(tape, model).save(tmp_path / "programs")
    saved = (tmp_path / "programs" / "manifest.json").read_text()
    assert "the model itself raised ValueError" in saved
    assert "wombat" not in saved
