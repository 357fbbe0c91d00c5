"""Replay takes modules of TorchScript, as models and as parts of models; export rejects them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from calltape_analyzer import ExportError, export, open_tape, replay
from calltape_analyzer.tape import Tape
from calltape_recorder import record
from tests.analyzer.exporting.scripted_models import (
    Buffered,
    Parts,
    Picture,
    Summing,
    Weighted,
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

Call = tuple[tuple[Any, ...], dict[str, Any]]


def built(make: Callable[[], nn.Module]) -> Any:
    torch.manual_seed(0)
    return make().eval()


def recorded(model: Any, calls: list[Call], path: Path) -> Tape:
    with record(model, path), torch.no_grad():
        for args, kwargs in calls:
            model(*args, **kwargs)
    return open_tape(path)


def rows(batch: int, length: int, *, weighted: bool = False) -> Call:
    ids = torch.randint(0, 10, (batch, length))
    return (ids,), {"weights": torch.rand(batch, length)} if weighted else {}


def pictures(*shape: int) -> Call:
    return (torch.randn(shape[0], 3, *shape[1:]),), {}


SCRIPTED = {
    "script": (
        lambda: torch.jit.script(Weighted().eval()),
        [rows(2, 3), rows(4, 6), rows(3, 5, weighted=True), rows(2, 8, weighted=True)],
    ),
    "trace": (
        lambda: torch.jit.trace(Picture().eval(), torch.randn(1, 3, 4, 5)),
        [pictures(1, 4, 5), pictures(3, 6, 7)],
    ),
    "frozen": (
        lambda: torch.jit.freeze(torch.jit.script(Picture().eval())),
        [pictures(1, 4, 5), pictures(3, 6, 7)],
    ),
    "parts": (Parts, [pictures(2, 4, 5), pictures(3, 6, 7)]),
}


@pytest.mark.parametrize(("make", "calls"), SCRIPTED.values(), ids=SCRIPTED)
def test_replay_takes_it_and_export_rejects_it(
    tmp_path: Path, make: Any, calls: list[Call]
) -> None:
    tape = recorded(built(make), calls, tmp_path / "a.tape")
    assert replay(tape, built(make)).ok
    named = "inner, a part of the model," if make is Parts else "the model"
    with pytest.raises(ExportError, match=f"^{named} is a TorchScript module") as caught:
        export(tape, built(make))
    assert "export that" in str(caught.value)


def test_the_state_of_a_scripted_module_is_put_back(tmp_path: Path) -> None:
    model = torch.jit.script(Buffered())
    tape = recorded(model, [((torch.ones(2, 3),), {})] * 3, tmp_path / "a.tape")
    fresh = torch.jit.script(Buffered())
    assert replay(tape, fresh).ok
    assert (fresh.calls.item(), fresh.last.item()) == (0, 0)
    assert replay(tape, model).ok
    assert (model.calls.item(), model.last.item()) == (3, 6)


def test_another_scripted_method_is_recorded_and_replayed(tmp_path: Path) -> None:
    model = torch.jit.script(Summing())
    with record(model, tmp_path / "a.tape", method="total"):
        model.total(torch.ones(2, 3))
    assert replay(open_tape(tmp_path / "a.tape"), torch.jit.script(Summing())).ok
