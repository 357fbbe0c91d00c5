"""What torch and hosts do to a model while it is recorded: hooks that are moved, methods that are
replaced, functions that are pickled, calls that are made once more."""

from __future__ import annotations

import asyncio
import copy
import io
import pickle
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from calltape_recorder import First, FlightRecorder, record
from tests.raising import raises
from tests.recorder.calls import Via, both
from tests.recorder.models import Add, Identity, Two
from tests.recorder.reading import read


def test_hooks_that_are_registered_anew_without_keywords_go_on(tmp_path: Path) -> None:
    """As torch.ao does in fuse_modules(), quantize_dynamic() and convert()."""
    model, moved = Add(), Add()
    with record(model, tmp_path / "t.tape") as recorder:
        for before in model._forward_pre_hooks.values():
            moved.register_forward_pre_hook(before)
        for after in model._forward_hooks.values():
            moved.register_forward_hook(after)
        assert moved(torch.ones(2), y=torch.ones(2)).tolist() == [2, 2]
        assert moved(torch.ones(3), torch.ones(3)).tolist() == [2, 2, 2]
    assert recorder.stats().kept == 2
    calls = read(tmp_path / "t.tape").calls
    assert [len(call.args) for call in calls] == [1, 2]
    assert [call.output(0).tolist() for call in calls] == [[2, 2], [2, 2, 2]]


class Tripled(Add):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 3 * (x + y)


@both
def test_a_model_that_gets_another_method_or_class_is_recorded_on(
    tmp_path: Path, via: Via, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = Add(), torch.ones(1)
    with record(model, tmp_path / "t.tape", via=via) as recorder:
        assert model(x, x).item() == 2
        monkeypatch.setattr(Add, "forward", lambda self, x, y: x - y)
        assert model(x, x).item() == 0
        monkeypatch.undo()
        assert model(x, x).item() == 2
        model.__class__ = Tripled
        assert model(x, x).item() == 6
        assert recorder.stats().seen == 4
    assert model(x, x).item() == 6
    assert "forward" not in vars(model)


def test_a_graph_module_is_compiled_anew(tmp_path: Path) -> None:
    model = torch.fx.symbolic_trace(Add())
    with record(model, tmp_path / "t.tape", via="method"):
        (added,) = (node for node in model.graph.nodes if node.op == "call_function")
        added.target = torch.sub
        model.recompile()
        assert model(torch.ones(1), torch.ones(1)).item() == 0


@pytest.fixture
def module() -> Iterator[Any]:
    """A module with functions."""
    made = types.ModuleType("calltape_made")
    source = "import torch\ndef twice(x): return 2 * x\ndef me(self): return self + 1\n"
    exec(source, vars(made))
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def test_a_function_of_a_module_is_a_function(tmp_path: Path, module: Any) -> None:
    plain = module.twice
    with record(plain, tmp_path / "twice.tape"), record(module.me, tmp_path / "me.tape"):
        twice = module.twice
        assert twice is not plain
        assert copy.deepcopy(twice) is twice
        assert pickle.loads(pickle.dumps(twice)) is twice
        twice.calls = 1
        plain.calls += 1
        assert (twice.calls, hasattr(twice, "other")) == (2, False)
        twice.other = 1
        del twice.other
        assert not hasattr(twice, "other")
        assert not hasattr(plain, "other")
        assert type("Owner", (int,), {"run": twice})(4).run() == 8
        assert module.me(self=1) == 2
    assert module.twice is plain
    assert plain.calls == 2


@both
def test_what_a_checkpoint_runs_once_more_is_no_failure(tmp_path: Path, via: Via) -> None:
    """Torch ends such a call by an exception as soon as it has what the gradient needs."""
    part = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    flight = FlightRecorder()
    path = tmp_path / "t.tape"
    with record(part, path, via=via, keep=First(1), flight_recorder=flight) as recorder:
        for _ in range(3):
            checkpoint(part, torch.ones(2, 4), use_reentrant=False).sum().backward()
    stats = recorder.stats()
    assert stats.kept == 1
    assert stats.dropped == {"tracing": 3, "flight_recorder": 2}
    assert read(path).calls[0].record.error is None


@both
def test_a_call_that_fx_traces_is_none_of_the_model(tmp_path: Path, via: Via) -> None:
    model, x = Two(), torch.ones(1, 4)
    with record(model.middle, tmp_path / "t.tape", via=via) as recorder:
        model(x)
        traced = torch.fx.symbolic_trace(model)
        assert torch.equal(traced(x), model(x))
    assert recorder.stats().dropped == {"tracing": 1}


class Deep(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return self(x)


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="the call of a hook itself is too deep there"
)
def test_a_call_at_the_limit_of_recursion_raises_nothing_else(tmp_path: Path) -> None:
    model = Deep()

    def raised(more: int) -> str:
        if more:
            return raised(more - 1)
        with pytest.raises(RecursionError) as caught:
            model(torch.ones(1))
        return str(caught.value)

    with record(model, tmp_path / "t.tape"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all("recursion depth" in raised(more) for more in range(16))


def test_methods_of_tensors_that_the_host_replaced_do_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    for name in ("clone", "narrow", "resolve_conj", "resolve_neg", "data_ptr", "to", "view"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_, name=name: ran.append(name))
    model, x = Identity(), torch.ones(2, 3)
    with record(model, tmp_path / "t.tape") as recorder:
        model([x.t(), x[:1].expand(2, 3), torch.complex(x, x).conj()])
    monkeypatch.undo()
    assert recorder.stats().kept == 1
    assert not ran
    assert torch.equal(read(tmp_path / "t.tape").calls[0].input(0), x.t())


class Property:
    @property
    def run(self) -> Any:
        return print


def test_a_property_cannot_be_replaced(tmp_path: Path) -> None:
    with raises("usage", "run of a Property is a property"):
        record(Property(), tmp_path / "t.tape", method="run")


def test_hooks_of_an_encoder_layer_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    record(layer, tmp_path / "hook.tape").close()
    assert "on another path while it has hooks" in caplog.text
    caplog.clear()
    record(layer, tmp_path / "method.tape", via="method").close()
    assert "on another path" not in caplog.text


class Delegates:
    """As adapters do: what it does not have, another object has."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Counted:
    """A descriptor of the host."""

    def __init__(self) -> None:
        self.asked = 0

    def __get__(self, instance: Any, owner: Any) -> Any:
        self.asked += 1
        if instance is None:
            raise TypeError("only of an object")
        return lambda x: x + self.asked


class Inner:
    counted = Counted()

    def run(self, x: int) -> int:
        return x

    async def later(self, x: int) -> int:
        return x


def test_what_the_class_has_is_followed_only_where_it_is_what_runs(tmp_path: Path) -> None:
    inner = Inner()
    inner.run = types.MethodType(lambda self, x: 100 * x, inner)  # type: ignore[method-assign]
    outer = Delegates(inner)
    with record(outer, tmp_path / "outer.tape", method="run"):
        assert outer.run(1) == 100
    with record(inner, tmp_path / "counted.tape", method="counted"):
        asked = Inner.__dict__["counted"].asked
        assert inner.counted(1) == inner.counted(1) == 1 + asked
        assert Inner.__dict__["counted"].asked == asked


def test_a_method_replaced_by_another_kind_of_function_works_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def other(self: Inner, x: int) -> int:
        return -x

    inner = Inner()
    with record(inner, tmp_path / "later.tape", method="later"):
        monkeypatch.setattr(Inner, "later", other)
        assert asyncio.run(inner.later(1)) == -1
        monkeypatch.setattr(Inner, "later", lambda self, x: 2 * x)
        assert inner.later(1) == 2  # type: ignore[comparison-overlap]
        monkeypatch.setattr(Inner, "later", other)
        assert asyncio.run(inner.later(1)) == -1
    with record(inner, tmp_path / "run.tape", method="run"):
        monkeypatch.setattr(Inner, "run", staticmethod(lambda x: "static"))
        assert inner.run(1) == 1  # it goes on with what it was


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_what_differs_while_a_model_is_recorded(tmp_path: Path) -> None:
    """As the page of recording says."""
    model, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    with record(model, tmp_path / "hook.tape"):
        copied, file = copy.deepcopy(model), io.BytesIO()
        torch.save(model, file)
    for one in (copied, torch.load(io.BytesIO(file.getvalue()), weights_only=False)):
        assert torch.equal(one(x), model(x))
        with pytest.raises(torch.jit.frontend.NotSupportedError):
            torch.jit.script(one)
    allowed = [torch.nn.Linear, set]
    with torch.serialization.safe_globals(allowed), pytest.raises(pickle.UnpicklingError):
        torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    with record(model, tmp_path / "method.tape", via="method"):
        shallow = copy.copy(model)
    shallow.weight = torch.nn.Parameter(torch.zeros(2, 2))
    assert torch.equal(shallow(x), model(x))
    graph = torch.fx.symbolic_trace(model)
    with record(graph, tmp_path / "graph.tape", via="method"), pytest.raises(RecursionError):
        pickle.dumps(graph)
    assert pickle.loads(pickle.dumps(graph))(x).shape == (1, 2)
