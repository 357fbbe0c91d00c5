"""Whether the model that is exported is the one that was recorded is asked first, and a difference
is told of the model."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from calltape_analyzer import ExportError, NoVariant, export, open_tape
from calltape_recorder import record
from tests.analyzer.exported import call, taped


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


def test_other_weights(tmp_path: Path) -> None:
    tape = taped(tmp_path, linear(0), SIZES)
    with pytest.raises(
        ExportError, match=r"does not return what was recorded for calls 0, \d \("
    ) as at:
        export(tape, linear(1))
    assert not at.value.attempts
    assert "size" not in str(at.value)


def test_the_weights_that_were_recorded(tmp_path: Path) -> None:
    assert len(export(taped(tmp_path, linear(0), SIZES), linear(0))) == 1


@pytest.mark.parametrize("scale", [2.0, 3.0])
def test_what_is_random_is_not_judged(tmp_path: Path, scale: float) -> None:
    programs = export(taped(tmp_path, Noisy(2.0), SIZES), Noisy(scale))
    assert any(
        "random: the model draws" in str(text) for one in programs.values() for text in one.notes
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
    told = [str(text) for one in programs.values() for text in one.notes]
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
    assert [one.rejected for one in programs.verdicts] == [3]
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
