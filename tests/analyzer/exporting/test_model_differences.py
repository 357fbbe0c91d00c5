"""Other weights than the recorded ones, and differences that prove nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from calltape_analyzer import ExportError, NoVariant, export, open_tape
from calltape_recorder import record
from tests.analyzer.exported import call, made, taped
from tests.analyzer.exporting.models import Model, t


def linear(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Linear(6, 6).eval()


class Noisy(torch.nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * self.scale, torch.rand(len(x))


class Idle(Noisy):
    """Draws, and returns nothing of it."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x)[0]


class TwoHeads(torch.nn.Module):
    def __init__(self, second: float) -> None:
        super().__init__()
        self.second = second

    def forward(self, x: torch.Tensor, is_other: bool = False) -> torch.Tensor:
        return x * self.second if is_other else x + 1


SIZES = [call(torch.ones(n, 6)) for n in (3, 5, 4)]


def test_other_weights_are_an_error_that_says_what_differs(tmp_path: Path) -> None:
    tape = taped(tmp_path, linear(0), SIZES)
    with pytest.raises(
        ExportError, match=r"does not return what was recorded for calls 0, \d \("
    ) as at:
        export(tape, linear(1))
    assert not at.value.attempts
    assert "size" not in str(at.value)


def test_the_recorded_weights_are_exported(tmp_path: Path) -> None:
    assert len(export(taped(tmp_path, linear(0), SIZES), linear(0))) == 1


@pytest.mark.parametrize("scale", [2.0, 3.0])
def test_what_is_random_is_not_judged(tmp_path: Path, scale: float) -> None:
    programs = export(taped(tmp_path, Noisy(2.0), SIZES), Noisy(scale))
    assert any(
        "random: the model draws" in str(text)
        for program in programs.values()
        for text in program.notes
    )


def test_a_number_that_shows_nowhere_is_no_excuse(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="does not return what was recorded"):
        export(taped(tmp_path, Idle(2.0), SIZES), Idle(3.0))


def test_a_variant_that_is_another_one_costs_itself_only(tmp_path: Path) -> None:
    x = torch.ones(3, 6)
    tape = taped(tmp_path, TwoHeads(2.0), [call(x), call(x, is_other=True)])
    programs = export(tape, TwoHeads(3.0))
    assert len(programs) == 1
    ((name, why),) = programs.missing.items()
    assert "is_other" in name
    assert "does not return what was recorded for call 1 (" in str(why)


def test_weights_that_were_others_for_a_while_are_told_of_the_model(tmp_path: Path) -> None:
    model = linear(0)
    with record(model, tmp_path / "calls.tape"):
        for number, size in enumerate((3, 5, 4, 7, 8, 9)):
            model.load_state_dict(linear(1 if number in (2, 3) else 0).state_dict())
            model(torch.ones(size, 6))
    programs = export(open_tape(tmp_path / "calls.tape"), model)
    (note,) = programs.notes
    assert str(note).startswith("the model does not return what was recorded for calls 2, 3 (")
    told = [str(text) for program in programs.values() for text in program.notes]
    assert any("what was recorded is not what the model returns now" in text for text in told)
    assert not any("the model does something else" in text for text in told)
    (verdict,) = programs.verdicts
    assert verdict.rejected == 2
    assert "the model does not return what was recorded for call 2" in str(verdict.reason)
    assert torch.equal(programs(torch.ones(6, 6)), model(torch.ones(6, 6)))
    with pytest.raises(NoVariant):  # what else was another model then, nobody knows
        programs(torch.ones(4, 6))


class Stepped(torch.nn.Module):
    """Has state that nobody sees, which the application sets before each call."""

    step: ClassVar = [0.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.step[0]


def test_state_that_nobody_sees_is_no_other_model(tmp_path: Path) -> None:
    """A program has one state in it. It serves the calls that began in that."""
    model = Stepped()
    with record(model, tmp_path / "calls.tape"):
        for step, size in enumerate((2, 3, 4, 5, 6)):
            model.step[0] = float(step % 4)
            model(torch.ones(size))
    model.step[0] = 0.0
    programs = export(open_tape(tmp_path / "calls.tape"), model)
    assert [verdict.rejected for verdict in programs.verdicts] == [3]
    model.step[0] = 2.0
    with pytest.raises(NoVariant):
        programs(torch.ones(4))


class Hidden(torch.nn.Module):
    """Draws for one size, from a generator that is out of reach."""

    def __init__(self) -> None:
        super().__init__()
        self.held = [random.Random(1)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (self.held[0].random() if x.shape[0] == 4 else 0)


def test_chance_is_no_other_model(tmp_path: Path) -> None:
    tape = taped(tmp_path, Hidden(), [call(torch.ones(n)) for n in (2, 3, 4, 5, 6)])
    programs = export(tape, Hidden())
    assert not any("other weights" in str(note) for note in programs.notes)


class NoisyIfLarge(Model):
    """Draws numbers, but not at sizes that users call it with; a program of it does not."""

    def forward(self, x):
        if torch.compiler.is_exporting():
            return x + 0
        return x + torch.rand_like(x) * (x.shape[0] > 6)


class Random(Model):
    """Draws numbers that show at sizes only that users do not call it with."""

    def forward(self, x):
        return x + torch.rand_like(x) * (x.shape[0] > 6)


class Unanswered(Model):
    """Divides nothing by nothing from some size on."""

    def forward(self, x):
        late = (torch.arange(x.shape[0]) > 6)[:, None]
        return torch.where(late, x.new_full((), float("nan")) * x.sum(), x)


class Rounding(Model):
    """The difference of two large sums: what is left is rounding alone."""

    def forward(self, x):
        big = x.sum(0) * 1e6
        if not torch.compiler.is_exporting():
            big = x.flip(0).sum(0) * 1e6
        return big - big.round()


def notes(programs) -> str:
    return "\n".join(str(note) for p in programs.values() for note in p.all_notes)


@pytest.mark.integration
def test_a_model_that_draws_is_no_evidence(tmp_path: Path) -> None:
    programs = made(tmp_path, NoisyIfLarge(), [call(t(n, 3)) for n in (2, 3, 5)], [])
    assert "returns something else each time" in notes(programs)
    assert "wrong values" not in notes(programs)


@pytest.mark.integration
def test_numbers_that_both_draw_are_the_same(tmp_path: Path) -> None:
    programs = made(tmp_path, Random(), [call(t(n, 3)) for n in (2, 3, 5)], [])
    assert "the same as the model" in notes(programs)


def test_rounding_is_no_wrong_value(tmp_path: Path) -> None:
    sizes = (2, 3, 5)
    programs = made(tmp_path, Rounding(), [call(torch.ones(n, 3)) for n in sizes], [])
    assert "wrong values" not in notes(programs)


class Wrong(Model):
    """Does something else from some size on, and torch does not see it."""

    def forward(self, x):
        is_large = not torch.compiler.is_exporting() and x.shape[0] > 6
        return x * 3 if is_large else x * 2


def test_a_wrong_value_is_one(tmp_path: Path) -> None:
    programs = made(tmp_path, Wrong(), [call(t(n, 3)) for n in (2, 3, 5)], [])
    assert "wrong values" in notes(programs)
