"""A model is left as it was found, whatever its forward keeps and whatever the export comes to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensor
from torch.utils import _pytree as pytree

from calltape_analyzer import ExportError, export
from tests.analyzer.exported import assert_same, call, taped
from tests.analyzer.exporting.models import Model, t


class Storing(Model):
    """Keeps its activations, sizes, and a cache of them, and counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.last: Any = None
        self.history: list[Any] = []
        self.by_name: dict[str, Any] = {}
        self.nested: Any = {"a": [None]}
        self.notes = SimpleNamespace(kept=None)

    def forward(self, x):
        y = self.linear(x)
        self.last = y
        self.size = x.shape[0]
        self.nested = {"a": [y, x.shape[0]]}
        self.count = self.count + 1
        return y * 2


class Collecting(Storing):
    """The same in containers that were there before."""

    def forward(self, x):
        y = self.linear(x)
        self.history.append(y)
        self.notes.kept = y
        self.by_name["y"] = y
        self.by_name["size"] = x.shape[0]
        self.nested["a"][0] = y
        return y * 2


class StoringAndRaising(Storing):
    def forward(self, x):
        y = super().forward(x)
        if torch.compiler.is_exporting():
            raise RuntimeError("no")
        return y


def leftovers(module: torch.nn.Module) -> list[str]:
    """Attributes that hold something of a trace."""
    kinds = (FakeTensor, torch.SymInt, torch.SymFloat, torch.SymBool)
    found = []
    for name, part in module.named_modules():
        for attribute, value in vars(part).items():
            value = vars(value) if isinstance(value, SimpleNamespace) else value
            if any(isinstance(leaf, kinds) for leaf in pytree.tree_leaves(value)):
                found.append(f"{name}.{attribute}")
    return found


@pytest.mark.integration
@pytest.mark.parametrize("cls", [Storing, Collecting, StoringAndRaising])
def test_nothing_of_a_trace_stays_in_the_model(cls: type[Storing], tmp_path: Path) -> None:
    module = cls()
    tape = taped(tmp_path, module, [call(t(n, 3)) for n in (4, 6)])
    try:
        export(tape, module)
    except ExportError:
        assert cls is StoringAndRaising
    assert leftovers(module) == []
    x = t(5, 3)
    assert_same(module.linear(x) * 2, module(x))


@pytest.mark.integration
@pytest.mark.parametrize("training", [False, True])
def test_model_is_left_as_it_was(training: bool, tmp_path: Path) -> None:
    class Deep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
            self.register_buffer("shift", torch.ones(3), persistent=False)
            self.tied = self.body[0].weight

        def forward(self, x):
            return self.body(x) @ self.tied + self.shift

    module = Deep().train(training)
    module.body[1].eval()
    seen: list[int] = []
    module.body[0].register_forward_hook(lambda *_: seen.append(1))
    tape = taped(tmp_path, module, [call(t(n, 3)) for n in (4, 6)])

    def state() -> Any:
        return [
            (name, type(part), part.training, {k: id(v) for k, v in vars(part).items()},
             [id(p) for p in (*part._parameters.values(), *part._buffers.values())],
             list(part._forward_hooks), list(part._forward_pre_hooks))
            for name, part in module.named_modules()
        ]  # fmt: skip

    before, values = state(), {k: v.clone() for k, v in module.state_dict().items()}
    grads = [p.requires_grad for p in module.parameters()]
    export(tape, module)
    assert state() == before
    assert [p.requires_grad for p in module.parameters()] == grads
    assert module.state_dict().keys() == values.keys()
    assert_same(values, dict(module.state_dict()))
    assert "forward" not in vars(module)


@pytest.mark.integration
def test_buffers_that_the_model_writes_to_keep_their_values(tmp_path: Path) -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(3)

        def forward(self, x):
            return self.norm(x)

    module = Counting().train()
    tape = taped(tmp_path, module, [call(t(n, 3)) for n in (4, 6)])
    before = {k: v.clone() for k, v in module.state_dict().items()}
    export(tape, module)
    assert_same(before, dict(module.state_dict()))


def test_counter_in_a_buffer_does_not_make_its_program_wrong(tmp_path: Path) -> None:
    class Counts(Model):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            y = self.linear(x) + self.count
            self.count.add_(1)
            return y

    module = Counts()
    tape = taped(tmp_path, module, [call(t(n, 3)) for n in (4, 6)], values="none")
    programs = export(tape, module)
    assert module.count == 2
    assert [program.only_rows for program in programs.values()] == [None]
