"""The host does not notice: results, signatures, copies, state of torch."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import record
from tests.recorder.calls import Via, both
from tests.recorder.models import Add, Identity, Two
from tests.recorder.modes import WatchingFunctions, WatchingOperators
from tests.recorder.reading import read


@both
def test_signature_and_names(tmp_path: Path, via: Via) -> None:
    model = Add()
    before = inspect.signature(model.forward)
    with record(model, tmp_path / "t.tape", via=via):
        assert inspect.signature(model.forward) == before
        assert inspect.signature(model) == inspect.signature(Add())
        assert model.forward.__name__ == "forward"
        assert model.forward.__self__ is model
        assert model.forward.__func__ is Add.forward
        assert inspect.getsource(model.forward) == inspect.getsource(Add.forward)
    assert "forward" not in vars(model)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@both
@pytest.mark.parametrize("how", ["deepcopy", "copy", "pickle", "torch.save"])
def test_copies_work_and_are_not_recorded(tmp_path: Path, via: Via, how: str) -> None:
    model, path, x = Two(), tmp_path / "t.tape", torch.ones(2, 4)
    expected = model(x)
    with record(model, path, via=via) as recorder:
        clone = _copied(model, how)
        assert torch.equal(clone(x), expected)
        assert torch.equal(clone.forward(x), expected)
        assert torch.equal(_copied(clone, how)(x), expected)
        if how != "copy":  # a shallow copy shares the hooks: it is the same model
            assert recorder.stats().seen == 0
        model(x)
        del model.before  # the copy has its own parts
        if how != "copy":
            assert torch.equal(clone(x), expected)


def _copied(model: torch.nn.Module, how: str) -> torch.nn.Module:
    if how == "deepcopy":
        return copy.deepcopy(model)
    if how == "copy":
        return copy.copy(model)
    if how == "pickle":
        return pickle.loads(pickle.dumps(model))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: torch.nn.Module = torch.load(file, weights_only=False)
    return loaded


@both
def test_a_saved_model_loads_without_calltape(tmp_path: Path, via: Via) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with record(model, tmp_path / "t.tape", via=via):
        data = pickle.dumps(model)
    assert b"calltape" not in data


@both
def test_inputs_are_recorded_as_they_were_before_the_call(tmp_path: Path, via: Via) -> None:
    class InPlace(torch.nn.Module):
        def forward(self, x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
            cache.append(x.clone())
            return x.mul_(2)

    model, path, x = InPlace(), tmp_path / "t.tape", torch.ones(3)
    big = torch.ones(50_000)
    cache: list[torch.Tensor] = []
    with record(model, path, via=via):
        for _ in range(3):
            model(x, cache)
            x.add_(1)
            model(big, [])
            big.zero_()
    calls = read(path).calls
    assert [call.input(0)[0].item() for call in calls[::2]] == [1, 3, 7]
    assert [call.output(0)[0].item() for call in calls[::2]] == [2, 6, 14]
    assert [len(call.args[1].children) for call in calls[::2]] == [0, 1, 2]
    assert [call.input(0).sum().item() for call in calls[1::2]] == [50_000, 0, 0]
    assert [call.output(0).sum().item() for call in calls[1::2]] == [100_000, 0, 0]


@both
def test_nothing_of_torch_s_state_changes(tmp_path: Path, via: Via) -> None:
    model = Identity()
    x = torch.randn(4, 4, requires_grad=True)
    y = (x * 2).t()
    generator = torch.get_rng_state()
    versions = (x._version, y._version)
    with record(model, tmp_path / "t.tape", via=via):
        out = model([x, y, y.expand(3, 4, 4)])
        with torch.inference_mode():
            model(torch.ones(2))
            assert torch.is_inference_mode_enabled()
        with torch.no_grad():
            model(x)
            assert not torch.is_grad_enabled()
    assert (x._version, y._version) == versions
    assert torch.equal(generator, torch.get_rng_state())
    assert out[1].grad_fn is y.grad_fn
    out[1].sum().backward()
    assert torch.equal(x.grad, torch.full((4, 4), 2.0))  # type: ignore[arg-type]


def test_backward_through_a_recorded_model_is_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = Two()
    recorded = copy.deepcopy(plain)
    x = torch.randn(3, 4)
    plain(x).sum().backward()
    with record(recorded, tmp_path / "t.tape"), record(recorded.middle, tmp_path / "u.tape"):
        recorded(x).sum().backward()
    for p, q in zip(plain.parameters(), recorded.parameters(), strict=False):
        assert torch.equal(p.grad, q.grad)  # type: ignore[arg-type]


@both
@pytest.mark.parametrize("mode", [WatchingOperators, WatchingFunctions])
def test_modes_see_the_host_only(tmp_path: Path, via: Via, mode: type[Any]) -> None:
    model, path = Identity(), tmp_path / "t.tape"
    x = torch.randn(3, 4).t()
    z = torch.randn(2, dtype=torch.complex64).conj()
    with record(model, path, via=via), mode() as watching:
        model([x, z, x.expand(2, 4, 3)])
        seen = list(watching.seen)
    with mode() as plain:
        Identity()([x, z, x.expand(2, 4, 3)])
    assert seen == plain.seen
    call = read(path).calls[0]
    assert torch.equal(call.input(0), x)
    assert torch.equal(call.input(1), z)


def test_stand_ins_for_tensors_are_counted_and_not_recorded(tmp_path: Path) -> None:
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    model, x = Add(), torch.ones(2)
    code = make_fx(model)(x, x).code
    with record(model, tmp_path / "t.tape") as recorder:
        with FakeTensorMode() as mode:
            model(mode.from_tensor(x), mode.from_tensor(x))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            torch.jit.trace(model, (x, x), check_trace=False)
        assert make_fx(model)(x, x).code == code
        torch.func.vmap(model)(x, x)
        torch.func.grad(lambda a: model(a, a).sum())(x)
        traced = recorder.stats()
        assert traced.dropped == {"tracing": traced.seen}
        assert traced.seen >= 5
        model(x, x)
    assert recorder.stats().kept == 1


@both
@pytest.mark.parametrize("strict", [False, True])
def test_the_export_of_a_recorded_model_is_that_of_the_plain_one(
    tmp_path: Path, via: Via, strict: bool
) -> None:
    if strict and torch.__version__ < (2, 12):
        pytest.skip("an older torch runs the hooks of a model around a strict trace, not in it")
    model, x = Two(), torch.ones(2, 4)
    expected = torch.export.export(model, (x,), strict=strict).graph_module.code
    with record(model, tmp_path / "t.tape", via=via) as recorder:
        code = torch.export.export(model, (x,), strict=strict).graph_module.code
        assert code == expected
        assert recorder.stats().kept == 0
        assert set(recorder.stats().dropped) <= {"tracing"}


@pytest.mark.integration
def test_importing_the_recorder_imports_no_compiler_and_no_library_of_the_host() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import calltape_recorder;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "assert 'torch._dynamo' not in sys.modules or 'torch._dynamo' in before;"
        "print(sorted(new & {'transformers', 'onnx', 'numpy', 'pandas', 'sympy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
