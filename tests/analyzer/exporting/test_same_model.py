"""Whether the model that is exported is the one that was recorded is asked first, and a difference
is told of the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_analyzer import ExportError, export, open_tape
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


@pytest.mark.parametrize(("scale", "is_same"), [(2.0, True), (3.0, False)])
def test_what_is_drawn_is_not_compared(tmp_path: Path, scale: float, is_same: bool) -> None:
    tape = taped(tmp_path, Noisy(2.0), SIZES)
    if is_same:
        assert len(export(tape, Noisy(scale))) == 1
    else:
        with pytest.raises(ExportError, match="does not return what was recorded"):
            export(tape, Noisy(scale))


def test_a_variant_that_is_another_one_costs_itself_only(tmp_path: Path) -> None:
    x = torch.ones(3, 6)
    tape = taped(tmp_path, TwoHeads(2.0), [call(x), call(x, is_other=True)])
    programs = export(tape, TwoHeads(3.0))
    assert len(programs) == 1
    ((name, why),) = programs.missing.items()
    assert "is_other" in name
    assert "does not return what was recorded for call 1 (" in why


def test_weights_that_were_others_for_a_while_are_told_of_the_model(tmp_path: Path) -> None:
    model = linear(0)
    with record(model, tmp_path / "calls.tape"):
        for number, size in enumerate((3, 5, 4, 7, 8, 9)):
            model.load_state_dict(linear(1 if number in (2, 3) else 0).state_dict())
            model(torch.ones(size, 6))
    programs = export(open_tape(tmp_path / "calls.tape"), model)
    (note,) = programs.notes
    assert note.startswith("the model does not return what was recorded for calls 2, 3 (")
    assert not any("size" in told for one in programs.values() for told in one.notes)
    assert torch.equal(programs(torch.ones(4, 6)), model(torch.ones(4, 6)))
    assert [row.call for row in programs.verify() if not row.ok] == [2, 3]
