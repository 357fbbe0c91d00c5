"""A dict whose keys are modules of the recorded model stands on a tape by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from calltape_analyzer import NoVariant, export, load_programs, open_tape, replay
from calltape_analyzer.pytree.classes import ModuleKey
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.tape import Tape
from calltape_recorder import record


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any, cache: Any) -> Any:
        if cache is not None and self.key in cache:
            k, v = cache[self.key], cache[self.value]
        else:
            k, v = self.key(x), self.value(x)
        return x + k.sum(1, keepdim=True) + v.mean(1, keepdim=True)


class Model(nn.Module):
    """A model with a cache as Whisper has one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: Any, cache: Any = None) -> Any:
        for layer in self.layers:
            x = layer(x, cache)
        return x

    def filled(self, batch: int, length: int) -> dict[Any, Any]:
        parts = [part for layer in self.layers for part in (layer.key, layer.value)]
        return {part: torch.randn(batch, length, 4) for part in parts}


NAMES = ["layers.0.key", "layers.0.value", "layers.1.key", "layers.1.value"]


def recorded(path: Path) -> Tape:
    model = Model()
    with record(model, path), torch.no_grad():
        for batch, length in ((2, 3), (4, 5), (3, 6)):
            model(torch.randn(batch, 1, 4), model.filled(batch, length))
    return open_tape(path)


def test_keys_are_names_until_a_model_is_given(tmp_path: Path) -> None:
    tape = recorded(tmp_path / "a.tape")
    (_, cache) = tape.calls[0].inputs.args
    assert list(cache) == [ModuleKey(name) for name in NAMES]
    assert replay(tape, Model()).ok
    (variant,) = tape.variants()
    assert variant.accepts(*tape.calls[0].inputs)
    assert variant.accepts(*variant.infer_arguments())
    assert {place.path.removeprefix(".") for place in variant.facts.group.layout.tensors[1:]} == {
        *NAMES
    }


def test_a_module_of_another_model_is_no_key(tmp_path: Path) -> None:
    model, other = Model(), Model()
    with record(model, tmp_path / "a.tape"), torch.no_grad():
        model(torch.randn(2, 1, 4), other.filled(2, 3))
    (_, cache) = open_tape(tmp_path / "a.tape").calls[0].inputs.args
    assert isinstance(cache, Placeholder)
    assert cache.reason == "a key of type Linear"


def test_keys_that_are_modules_stand_beside_other_keys(tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Linear(2, 2)

        def forward(self, given: Any) -> Any:
            return given[self.part] + given["part.x"] + given[self] + given[3]

    def given(model: Named, scale: float = 1.0) -> dict[Any, Any]:
        keys: list[Any] = [model.part, "part.x", model, 3]
        return {key: torch.full((2,), scale * i) for i, key in enumerate(keys)}

    model = Named()
    with record(model, tmp_path / "a.tape"):
        model(given(model))
        model({**given(model), "part": 1})  # a text that is the name of a module as well
    tape = open_tape(tmp_path / "a.tape")
    assert list(tape.calls[0].inputs.args[0]) == [ModuleKey("part"), "part.x", ModuleKey(""), 3]
    assert isinstance(tape.calls[1].inputs.args[0], Placeholder)
    assert replay(tape.only(calls="0"), Named()).ok


@pytest.mark.integration
def test_programs_take_the_modules_of_the_model(tmp_path: Path) -> None:
    tape, model = recorded(tmp_path / "a.tape"), Model()
    programs = export(tape, model)
    assert programs.verify().ok
    x, cache = torch.randn(5, 1, 4), model.filled(5, 7)
    torch.testing.assert_close(programs(x, cache), model(x, cache))
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    assert replay(tape, loaded).ok
    with pytest.raises(NoVariant, match="modules of it"):
        loaded(x, cache)
    want = model(x, cache)
    with loaded.installed(model):
        torch.testing.assert_close(model(x, cache), want)
