"""What is said of a call that no program takes: the reason of each program, and what helps."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from calltape_analyzer import ExportOptions, NoVariant, Programs, export, open_tape
from calltape_analyzer.observing.groups import SortedCall
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs.dispatch import CallOrigin, no_variant
from calltape_analyzer.programs.exported_model import TorchModel
from calltape_analyzer.programs.notes import WhyNotOthers, WhyOnly
from calltape_analyzer.programs.reasons import OtherCall
from tests.analyzer.exported import call, taped
from tests.analyzer.tapes import target_of, write_tape

AGAIN = "Record calls like this one as well, and export again"
TRIED = "the programs' attempts and missing tell what was tried"


def exported(x: Any, mode: str = "") -> None: ...


def with_others(x: Any, **others: Any) -> None: ...


def placed(tmp_path: Path, function: Any, *removed: str, **sizes: int) -> SortedCall:
    """A call as the programs of a function see it, without the arguments that were removed."""
    given = {name: torch.ones(size) for name, size in sizes.items()}
    with open_tape(write_tape(tmp_path / "a.tape", [given])) as tape:
        sorter = CallSorter(Signature.of(target_of(function)).without(frozenset(removed)))
        return sorter.sorted(tape.calls[0].record.inputs)


def advice(found: SortedCall, missing: dict[str, str], origin: CallOrigin = "caller") -> str:
    error = no_variant("no program accepts these", {}, found, {}, missing, origin=origin)
    return error.advice or ""


@pytest.mark.parametrize(
    ("function", "passed", "told"),
    [
        (exported, {"x": 1}, "record calls like this one as well"),
        (exported, {"x": 1, "prompt": 2, "cache": 3}, "the exported one takes no cache and prompt"),
        (with_others, {"x": 1, "prompt": 2}, "record calls like this one as well"),
    ],
)
def test_the_advice_is_true(
    function: Any, passed: dict[str, int], told: str, tmp_path: Path
) -> None:
    """Calls of another model can be recorded as often as one likes."""
    assert told in advice(placed(tmp_path, function, **passed), {})


def test_a_recorded_call_need_not_be_recorded(tmp_path: Path) -> None:
    found = placed(tmp_path, exported, x=3)
    for origin, told in (("exported", "the export had this call"), ("tape", "export this tape")):
        said = advice(found, {}, origin)  # type: ignore[arg-type]
        assert told in said
        assert TRIED in said
        assert "record calls" not in said
    assert advice(found, {"decode": "why"}).startswith("if it is a call of 'decode', the programs'")


def test_a_call_with_what_was_removed_need_not_be_recorded(tmp_path: Path) -> None:
    said = advice(placed(tmp_path, exported, "mode", x=3, mode=2), {})
    assert said == "call it without mode, or export with what Tape.remove_inputs left out"


class Plus(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x + 1


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    calls = [call(torch.ones(size, 4)) for size in (2, 3, 5)]
    return export(taped(tmp_path, Plus(), calls), Plus().eval())


def refusal(programs: Programs, given: torch.Tensor) -> str:
    with pytest.raises(NoVariant) as caught:
        programs(given)
    return str(caught.value)


def test_what_differs_is_named(programs: Programs) -> None:
    x = torch.ones(3, 4)
    assert "main: x is of layout sparse_coo, not strided" in refusal(programs, x.to_sparse())
    assert "main: x is int64, not float32)" in refusal(programs, x.long())
    assert "main: x is int64, not float32, and of rank 1, not 2" in refusal(programs, x[0].long())
    wide = refusal(programs, torch.ones(3, 5))
    assert "main: x[1] is 5; it was 4 in every recorded call of this variant" in wide
    assert AGAIN in wide


def test_sizes_that_a_program_does_not_serve_are_not_called_wrong(programs: Programs) -> None:
    """It serves the sizes at which it was verified. Nobody knows what it does at others."""
    main = programs["main"]
    rows = list(main.variant.rows)
    main.serve_only(rows[:2], WhyOnly(WhyNotOthers.WRONG_UNSEEN, 1, 4))
    why = "it serves 2 recorded sizes only: it returned wrong values at 1 of 4 sizes"
    known, new = (refusal(programs, torch.ones(size, 4)) for size in (5, 7))
    said = "calls of these sizes were recorded, and it was not verified with them"
    assert f"main: {said}; {why}" in known
    assert "Calls of these sizes were recorded, and none of the programs takes them" in known
    assert "ecord calls like" not in known
    assert f"main: it was not verified at these sizes; {why}" in new
    assert AGAIN in new
    torch.testing.assert_close(programs(torch.ones(2, 4)), torch.ones(2, 4) + 1)


def test_a_report_does_not_advise_to_record_what_was_recorded(programs: Programs) -> None:
    programs["main"].serve_only([], WhyOnly(WhyNotOthers.CONDITIONS))
    errors = {str(row.error) for row in programs.verify().rows}
    assert len(errors) == 1
    (error,) = errors
    assert "The export had this call, and made no program that takes it" in error


def test_a_condition_says_that_it_is_of_the_trace(tmp_path: Path) -> None:
    class Short(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1 if x.shape[0] < 9 else x - 1

    calls = [call(torch.ones(size, 4)) for size in (2, 3)]
    programs = export(
        taped(tmp_path, Short(), calls), Short().eval(), options=ExportOptions(probe="none")
    )
    said = refusal(programs, torch.ones(20, 4))
    assert "x[0] is 20; the program takes at most 8 (a condition of its trace)" in said


class _Failing(TorchModel):
    """Writes to its input, and fails."""

    error: Exception

    def run(self, inputs: Any) -> list[Any]:
        inputs["x"].zero_()
        raise self.error


@pytest.mark.parametrize(
    ("error", "is_of_inputs"),
    [(AssertionError("x"), True), (torch.OutOfMemoryError("CUDA out of memory"), False)],
)
def test_a_program_that_fails_spoils_nothing_for_the_next(
    programs: Programs, error: Exception, is_of_inputs: bool
) -> None:
    failing = _Failing(programs["main"].model.exported)
    failing.error = error
    several = with_first(programs, failing)
    x = torch.ones(3, 4)
    if is_of_inputs:
        torch.testing.assert_close(several(x), torch.ones(3, 4) + 1)
        torch.testing.assert_close(x, torch.ones(3, 4))
    else:
        with pytest.raises(torch.OutOfMemoryError):
            several(x)


def with_first(programs: Programs, model: TorchModel) -> Programs:
    """The same programs, and before them one for the same calls that this model runs."""
    first = copy(programs["main"])
    first.variant = copy(first.variant)
    first.variant.name = "first"
    first.model = model
    return Programs([first, programs["main"]], programs.sorter)


class _Copies(TorchDispatchMode):
    """Counts new tensors of as many floats as the argument has."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype is torch.float32:
            old = [arg.untyped_storage().data_ptr() for arg in args if torch.is_tensor(arg)]
            is_new = result.untyped_storage().data_ptr() not in old
            self.count += is_new and result.numel() == 12
        return result


class _Watched(TorchModel):
    """Notes at each run how many copies there are by then, and whether it gets the caller's."""

    copies: _Copies
    x: torch.Tensor
    runs: list[tuple[int, bool]]
    fails: bool

    def run(self, inputs: Any) -> list[Any]:
        self.runs.append((self.copies.count, inputs["x"].data_ptr() == self.x.data_ptr()))
        if self.fails:
            raise AssertionError("x")
        return super().run(inputs)


@pytest.mark.parametrize(
    ("fails", "runs"), [([True, False], [(1, True)] * 2), ([False], [(0, True)])]
)
def test_the_last_program_runs_on_the_caller_s_arguments_and_nothing_is_copied_for_it(
    programs: Programs, fails: list[bool], runs: list[tuple[int, bool]]
) -> None:
    """A copy of a cache would be as large as the cache. Before others there is one to go back
    to."""
    x, copies, seen = torch.ones(3, 4), _Copies(), list[tuple[int, bool]]()

    def watched(fails: bool) -> TorchModel:
        model = _Watched(programs["main"].model.exported)
        model.copies, model.x, model.runs, model.fails = copies, x, seen, fails
        return model

    models = list(map(watched, fails))
    programs["main"].model = models[-1]
    several = with_first(programs, models[0]) if len(models) > 1 else programs
    with copies:
        result = several(x)
    assert seen == runs
    torch.testing.assert_close(result, torch.ones(3, 4) + 1)


def test_of_many_reasons_the_nearest_is_told() -> None:
    error = NoVariant("no program", {f"v{n}": OtherCall(f"why {n}") for n in range(7)})
    assert str(error).startswith("no program (v0: why 0; and 6 more reasons in .reasons)")
    assert len(error.reasons) == 7
    few = NoVariant("no program", {f"v{n}": OtherCall(f"why {n}") for n in range(3)})
    assert "v0: why 0; v1: why 1; v2: why 2" in str(few)
