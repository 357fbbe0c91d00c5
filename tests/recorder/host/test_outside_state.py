"""What a model reads beside its arguments is named on the tape: the state that engines keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import record
from calltape_recorder.host.target import outside_state
from tests.recorder.host import engine
from tests.recorder.reading import read

HOME = engine.__name__


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (engine.OfGlobal, ["_context"]),
        (engine.OfLayer, ["_context"]),
        (engine.OfContextVariable, ["_variable"]),
        (engine.OfThread, ["_of_thread"]),
        (engine.OfDict, ["_caches"]),
        (engine.OfObject, ["_state"]),
        (engine.OfTables, []),
    ],
)
def test_state_outside_of_the_model_is_named(cls: type[torch.nn.Module], names: list[str]) -> None:
    assert outside_state(cls(), "forward") == tuple(f"{HOME}.{name}" for name in names)


def test_methods_of_other_objects_are_looked_at() -> None:
    assert outside_state(engine.Runner(), "execute") == (f"{HOME}._context",)


@pytest.mark.parametrize(
    "model",
    [torch.nn.Linear(2, 2), torch.nn.Transformer(8, 2, 1, 1, batch_first=True), object(), None],
    ids=lambda model: type(model).__name__,
)
def test_layers_of_torch_have_none(model: Any) -> None:
    assert outside_state(model, "forward") == ()


def test_the_tape_has_the_names(tmp_path: Path) -> None:
    for cls in (engine.OfLayer, engine.OfTables):
        with record(cls(), tmp_path / f"{cls.__name__}.tape"):
            pass
    first, second = (read(tmp_path / f"{name}.tape") for name in ("OfLayer", "OfTables"))
    assert first.target.outside == (f"{HOME}._context",)
    assert second.target.outside is None


def test_no_code_of_the_host_runs() -> None:
    class Strange(type):
        def __getattribute__(cls, name: str) -> Any:
            raise KeyboardInterrupt

        def mro(cls) -> Any:
            return super().mro()

    class Odd(metaclass=Strange):
        def __getattribute__(self, name: str) -> Any:
            raise KeyboardInterrupt

    assert outside_state(Odd(), "forward") == ()
