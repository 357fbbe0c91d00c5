"""Models to which it matters that an argument is a buffer of their own, or a part of one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import ExportError, NoVariant, Tape, export, open_tape
from calltape_analyzer.programs.notes import OwnTensor
from calltape_recorder import record


def as_they_are(folder: Path, model: Any, given: Iterable[Any]) -> Tape:
    """A tape of calls with these tensors, and not with copies of them."""
    with record(model, folder / "calls.tape"), torch.no_grad():
        for x in given:
            model(x)
    return open_tape(folder / "calls.tape")


class Owning(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("store", torch.randn(4, 4))


class Compares(Owning):
    def forward(self, x: Any) -> Any:
        return x * 2 if x is self.store else x * 3


class Fills(Owning):
    def forward(self, x: Any) -> Any:
        self.store.add_(1)
        return x * 2


class Multiplies(Owning):
    def forward(self, x: Any) -> Any:
        return x @ self.store


@pytest.mark.parametrize(
    ("model", "made"),
    [
        (Compares(), lambda model: [torch.randn(3, 4), model.store]),
        (Fills(), lambda model: [model.store[:2], model.store[:3]]),
    ],
    ids=["compares", "fills"],
)
def test_a_recorded_call_with_a_tensor_of_the_model(model: Any, made: Any, tmp_path: Path) -> None:
    tape = as_they_are(tmp_path, model, made(model))
    with pytest.raises(ExportError, match=r"x of call \d is the model's own store, or a part of"):
        export(tape, model)


@pytest.mark.integration
@pytest.mark.parametrize("model", [Compares(), Fills()], ids=["compares", "fills"])
def test_a_call_with_a_tensor_of_the_model_is_refused(model: Any, tmp_path: Path) -> None:
    tape = as_they_are(tmp_path, model, [torch.randn(3, 4), torch.randn(2, 4)])
    programs = export(tape, model)
    assert OwnTensor("x", "store") in programs.notes
    for own in (model.store, model.store[:2], model.store[1:].view(3, 4)):
        with pytest.raises(
            NoVariant, match=r"x has memory of the model, by its store.*Pass a copy"
        ):
            programs(own)
    x = model.store.clone()
    assert torch.equal(programs(x.clone()), x * 3 if isinstance(model, Compares) else x * 2)


@pytest.mark.integration
def test_a_tensor_of_the_model_is_an_argument_like_any_other(tmp_path: Path) -> None:
    model = Multiplies()
    tape = as_they_are(tmp_path, model, [model.store[:2], model.store[:3]])
    programs = export(tape, model)
    assert programs.verify().ok
    assert torch.equal(programs(model.store), model(model.store))
