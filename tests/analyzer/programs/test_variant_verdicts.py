"""Of each variant it is said which new calls will be served, and what is said is so."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from calltape_analyzer import NoVariant, Programs, export, load_programs
from calltape_analyzer.programs.attempts import VariantVerdict
from calltape_analyzer.wording.verdicts import last_lines
from tests.analyzer.exported import Call, call, taped


class Scaled(torch.nn.Module):
    """Its result depends on a float and a text."""

    def forward(self, x: Any, by: float = 1.0, mode: str = "sum") -> Any:
        return (x * by).sum(0) if mode == "sum" else (x * by).mean(0)


class EachSize(torch.nn.Module):
    """Each number of rows is a model of its own; columns are free."""

    def forward(self, x: Any) -> Any:
        return x.sum(0) * int(str(int(x.shape[0])))


class EvenLater(torch.nn.Module):
    """Calls of one row cannot be traced."""

    def forward(self, x: Any) -> Any:
        return torch.from_numpy(x.numpy()) if x.dim() == 1 else x * 2


def exported(folder: Path, model: torch.nn.Module, calls: list[Call]) -> Programs:
    return export(taped(folder, model, calls), model)


def rows(*sizes: tuple[int, int]) -> list[Call]:
    return [call(torch.rand(*size)) for size in sizes]


def test_a_program_for_any_size_is_general_also_when_loaded(tmp_path: Path) -> None:
    programs = exported(tmp_path, Scaled(), rows((2, 3), (3, 5), (5, 4)))
    (verdict,) = programs.verdicts
    assert verdict.scope == "general"
    assert programs.is_general
    assert verdict.open == ("x[0]", "x[1]")
    assert verdict.tried == verdict.taken > 2
    assert str(verdict).startswith("general: main: new calls may have any x[0] and x[1] (accepts ")
    programs(torch.rand(17, 23))
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    assert loaded.verdicts == programs.verdicts


def test_a_size_that_never_varied_limits_the_verdict(tmp_path: Path) -> None:
    programs = exported(tmp_path, Scaled(), rows((2, 3), (2, 3)))
    (verdict,) = programs.verdicts
    assert verdict.scope == "recorded sizes only"
    assert str(verdict).endswith(": no size varied in 2 calls, and new calls need the same")
    assert not programs.is_general
    with pytest.raises(NoVariant):
        programs(torch.rand(3, 3))


@pytest.mark.integration
def test_one_dimension_is_free_and_another_is_not(tmp_path: Path) -> None:
    programs = exported(tmp_path, EachSize(), rows((2, 3), (3, 5), (2, 7), (3, 4)))
    (verdict,) = programs.verdicts
    assert verdict.scope == "recorded sizes only"
    assert verdict.open == ("x[1]",)
    assert verdict.closed == ("x[0]",)
    assert "new calls need a recorded x[0], with any x[1]" in str(verdict)
    programs(torch.rand(2, 11))
    with pytest.raises(NoVariant):
        programs(torch.rand(4, 3))


@pytest.mark.integration
def test_a_float_is_one_of_those_that_were_recorded_if_python_reads_it(tmp_path: Path) -> None:
    class Grown(Scaled):
        def forward(self, x: torch.Tensor, by: float = 1.0, mode: str = "sum") -> torch.Tensor:
            return super().forward(x, math.exp(by), mode)

    calls = [call(torch.rand(n, 3), by) for n, by in ((2, 0.5), (3, 0.5), (4, 2.0), (5, 2.0))]
    programs = exported(tmp_path, Grown(), calls)
    for verdict in programs.verdicts:
        assert verdict.scope == "recorded sizes only"
        assert verdict.closed == ("by",)
    with pytest.raises(NoVariant):
        programs(torch.rand(2, 3), 0.7)


@pytest.mark.integration
def test_a_text_is_not_expected_to_be_another(tmp_path: Path) -> None:
    calls = [
        call(torch.rand(n, 3), mode=m)
        for n, m in ((2, "sum"), (3, "mean"), (4, "sum"), (5, "mean"))
    ]
    programs = exported(tmp_path, Scaled(), calls)
    assert len(programs.verdicts) == 2
    assert programs.is_general


@pytest.mark.integration
def test_a_variant_without_a_program_is_rejected_in_the_verdicts(tmp_path: Path) -> None:
    calls = [*rows((2, 3), (3, 3)), call(torch.rand(4)), call(torch.rand(5))]
    programs = exported(tmp_path, EvenLater(), calls)
    scopes = {verdict.scope for verdict in programs.verdicts}
    assert scopes == {"general", "rejected"}
    (rejected,) = [one for one in programs.verdicts if one.scope == "rejected"]
    assert ": no program: " in str(rejected)
    assert last_lines(programs.verdicts)[-1].startswith(f"rejected: {rejected.variant}: ")


class OneMode(torch.nn.Module):
    """Cannot be traced in one of its modes."""

    def forward(self, x: Any, mode: str, n: int = 1) -> Any:
        return x * 2 if mode == "a" else torch.from_numpy(x.numpy())


class Steps(torch.nn.Module):
    """Does something else for each number of steps; any number of rows."""

    def forward(self, x: Any, n: int) -> Any:
        return [x, x * 2, x * 3][n]


@pytest.mark.integration
def test_a_text_without_a_program_is_not_served_by_another_text(tmp_path: Path) -> None:
    calls = [call(torch.rand(n, 3), m) for n, m in ((2, "a"), (3, "b"), (4, "a"), (5, "b"))]
    programs = exported(tmp_path, OneMode(), calls)
    assert not programs.is_general
    assert programs.missing


@pytest.mark.integration
def test_a_program_for_one_number_takes_any_size(tmp_path: Path) -> None:
    calls = [call(torch.rand(r, 3), n) for r, n in ((2, 1), (3, 2), (4, 1), (5, 2), (6, 2))]
    programs = exported(tmp_path, Steps(), calls)
    (verdict,) = programs.verdicts
    assert verdict.scope == "recorded sizes only"
    assert "new calls need a recorded n, with any x[0]" in str(verdict)
    programs(torch.rand(11, 3), 2)


def append(x: Any, state: Any) -> Any:
    state.append(x * 2)
    return x + 1


def count(x: Any, state: Any) -> Any:
    state["n"] += 1
    return x + 1


def nest(x: Any, state: Any) -> Any:
    for _ in range(3000):
        state["n"] = {"n": state["n"]}
    return x + 1


def keep(x: Any, state: Any) -> Any:
    state.last = x
    return x + 1


CHANGED: dict[str, tuple[Any, Any]] = {
    "list": (append, list),
    "number": (count, lambda: {"n": 3}),
    "complex number": (count, lambda: {"n": 3j}),
    "array": (count, lambda: {"n": np.zeros(3)}),
    "too deep to be described": (nest, lambda: {"n": 3}),
    "attribute": (keep, lambda: SimpleNamespace(last=None)),
}


@pytest.mark.parametrize("kind", CHANGED)
def test_an_argument_that_programs_do_not_change_makes_no_general_one(
    kind: str, tmp_path: Path
) -> None:
    function, made = CHANGED[kind]
    model = Function(function)
    programs = exported(tmp_path, model, [call(torch.rand(n, 3), made()) for n in (2, 3, 5)])
    assert not programs.verify().ok
    (verdict,) = programs.verdicts
    assert verdict.scope == "results only"
    assert "new calls may have any x[0] (" in str(verdict)
    assert str(verdict).endswith(
        ", and the program leaves state as it was, which the model changes in place"
    )
    programs.save(tmp_path / "saved")
    assert load_programs(tmp_path / "saved", trusted=True).verdicts == programs.verdicts


def test_a_list_that_is_changed_and_returned_is_the_caller_s(tmp_path: Path) -> None:
    model = Function(lambda x, state: (append(x, state), state))
    programs = exported(tmp_path, model, [call(torch.rand(n, 3), []) for n in (2, 3, 5)])
    assert programs.is_general
    own: list[Any] = []
    assert programs(torch.ones(7, 3), own)[1] is own
    assert torch.equal(own[0], torch.full((7, 3), 2.0))


class Function(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any, state: Any) -> Any:
        return self.function(x, state)


def test_many_variants_have_a_line_for_each_scope() -> None:
    every = [
        VariantVerdict(variant=f"v{n}", scope="rejected" if n == 3 else "general", calls=1, sizes=1)
        for n in range(9)
    ]
    general, rejected = last_lines(every)
    assert general.startswith("general: 8 variants (v0, v1, v2, v4 and 4 more): ")
    assert rejected.startswith("rejected: 1 variant (v3): no program")
