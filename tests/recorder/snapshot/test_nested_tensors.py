"""Nested tensors are recorded as objects with their parts, and nothing else pays for them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nested._internal.nested_tensor import NestedTensor

from calltape_recorder import record
from calltape_recorder.sides import unfolded
from calltape_schema.nested_tensors import NESTED_TENSOR
from tests.recorder.calls import one
from tests.recorder.models import Echo, Identity
from tests.recorder.reading import ReadCall, read

LAYOUTS = [torch.jagged, torch.strided]


def nested(*lengths: int, layout: torch.layout = torch.jagged, **kwargs: Any) -> torch.Tensor:
    components = [torch.randn(length, 4) for length in lengths]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the strided layout is no longer developed
        return torch.nested.nested_tensor(components, layout=layout, **kwargs)


def parts(call: ReadCall, node: Any) -> dict[str, Any]:
    """The parts of a nested tensor among the inputs."""
    assert (node.kind, node.type) == ("object", NESTED_TENSOR)
    named = dict(zip(node.fields, node.children, strict=True))
    return {
        name: call.input(child.leaf) if child.kind == "tensor" else child
        for name, child in named.items()
    }


def test_a_jagged_one_is_its_values_and_offsets(tmp_path: Path) -> None:
    value = nested(2, 0, 3)
    call = one(tmp_path, value)
    found = parts(call, call.args[0])
    assert list(found) == ["values", "offsets", "jagged_dim"]
    assert torch.equal(found["values"], value.values())
    assert torch.equal(found["offsets"], torch.tensor([0, 2, 2, 5]))
    assert call.scalar(found["jagged_dim"]) == 1


def test_lengths_the_ragged_dimension_and_gradients(tmp_path: Path) -> None:
    starts, lengths = torch.tensor([0, 1, 2]), torch.tensor([2, 3, 2])
    narrowed = torch.nested.narrow(torch.randn(3, 5, 4), 1, starts, lengths, layout=torch.jagged)
    call = one(tmp_path, narrowed, nested(2, 3).transpose(1, 2), nested(1, requires_grad=True))
    first, turned, leaf = (parts(call, node) for node in call.args)
    assert torch.equal(first["lengths"], lengths)
    assert torch.equal(first["offsets"], narrowed.offsets())
    assert (turned["values"].shape, call.scalar(turned["jagged_dim"])) == ((4, 5), 2)
    assert leaf["requires_grad"].value is True
    assert "requires_grad" not in first


def test_a_strided_one_is_its_memory_and_sizes(tmp_path: Path) -> None:
    value = nested(2, 3, layout=torch.strided)
    call = one(tmp_path, value, 7, same=value.transpose(1, 2), after=torch.ones(2))
    found, turned = parts(call, call.args[0]), parts(call, call.kwargs["same"])
    assert list(found) == ["buffer", "sizes", "strides", "storage_offsets"]
    assert torch.equal(found["buffer"], torch.cat([part.flatten() for part in value.unbind()]))
    assert found["sizes"].tolist() == [[2, 4], [3, 4]]
    assert found["storage_offsets"].tolist() == [0, 8]
    assert turned["sizes"].tolist() == [[4, 2], [4, 3]]
    assert turned["strides"].tolist() == [[1, 4], [1, 4]]
    facts = call.record.inputs.facts()
    first, second = (node.children[0].leaf for node in (call.args[0], call.kwargs["same"]))
    assert facts[first].key == facts[second].key  # the memory that both have is stored once
    assert torch.equal(call.input(call.kwargs["after"].leaf), torch.ones(2))


def test_two_with_one_ragged_dimension_share_their_offsets(tmp_path: Path) -> None:
    value = nested(2, 3)
    call = one(tmp_path, value, [value * 2], value.values())
    first, second = call.args[0], call.args[1].children[0]
    assert first.children[1].leaf == second.children[1].leaf
    facts = call.record.inputs.facts()
    assert facts[call.args[2].leaf].key == facts[first.children[0].leaf].key


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_call_of_a_stream_of_them(tmp_path: Path, layout: torch.layout) -> None:
    """Calls with plain tensors come between, so that each meets what was learned of the others."""
    model = Identity()
    values = [nested(*n, layout=layout) for n in ((2, 3), (2, 3), (2, 3), (4, 1, 5), (1,))]
    with record(model, tmp_path / "t.tape") as recorder:
        for value in values:
            for plain in (torch.ones(2, 4), torch.ones(2, 4)):
                model(plain)
            for _ in range(3):
                assert model(value) is value
    assert recorder.stats().dropped == {}
    tape = read(tmp_path / "t.tape")
    calls = [call for call in tape.calls if call.args[0].kind == "object"]
    assert len(calls) == 3 * len(values) == len(tape.calls) - 10
    for number, call in enumerate(calls):
        value = values[number // 3]
        found = parts(call, call.args[0])
        flat = torch.cat([part.flatten() for part in value.unbind()])
        assert torch.equal(next(iter(found.values())).flatten(), flat)
        assert torch.equal(call.output(call.outputs.children[0].leaf).flatten(), flat)
        assert call.outputs.type == NESTED_TENSOR
    assert tape.trailer is not None
    assert tape.trailer.traffic is not None
    assert sum(group.calls for group in tape.trailer.traffic.groups) == len(tape.calls)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_generator_of_them(tmp_path: Path, layout: torch.layout) -> None:
    chunks = [nested(2, 3, layout=layout), torch.ones(3), nested(1, layout=layout)]

    class Streams(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
            yield from chunks

    model = Streams()
    with record(model, tmp_path / "t.tape", via="method"):
        list(model(torch.ones(1)))
    (call,) = read(tmp_path / "t.tape").calls
    kinds = [child.kind for child in call.outputs.children]
    assert kinds == ["object", "tensor", "object"]
    for child, chunk in zip(call.outputs.children, chunks, strict=True):
        node = child if child.kind == "tensor" else child.children[0]
        parts_of = chunk.unbind() if chunk.is_nested else [chunk]
        flat = torch.cat([part.flatten() for part in parts_of])
        assert torch.equal(call.output(node.leaf).flatten(), flat)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("values", ["none", {"args.0": "none"}, {"value": "none"}])
def test_values_that_are_not_wanted(tmp_path: Path, layout: torch.layout, values: Any) -> None:
    model = Identity()
    with record(model, tmp_path / "t.tape", values=values) as recorder:
        for _ in range(4):
            model(nested(2, 3, layout=layout))
    assert recorder.stats().dropped == {}
    for call in read(tmp_path / "t.tape").calls:
        facts = call.record.inputs.facts()
        assert [leaf.missing for leaf in facts] == ["policy"] * len(facts)
        assert facts[0].shape == ((5, 4) if layout is torch.jagged else (20,))
        # Without the ragged dimension nothing could be made of the shapes.
        assert call.record.inputs.scalars == ((1,) if layout is torch.jagged else ())


class _Seen(torch.overrides.TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **kwargs or {})


class _Dispatched(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", [_Seen, _Dispatched])
def test_the_host_sees_nothing_of_it(
    tmp_path: Path, layout: torch.layout, mode: Callable[[], Any]
) -> None:
    value = nested(2, 3, layout=layout, requires_grad=True)
    before = dict(vars(value))
    model = Identity()
    with record(model, tmp_path / "t.tape"), mode() as seen:
        for _ in range(3):
            assert model(value) is value
    assert seen.names == []
    assert vars(value) == before
    assert value.grad_fn is None
    assert len(read(tmp_path / "t.tape").calls) == 3


@pytest.mark.parametrize("missing", ["_values", "_offsets", "_ragged_idx"])
def test_a_torch_that_has_it_otherwise(tmp_path: Path, missing: str) -> None:
    value = nested(2, 3)
    del vars(value)[missing]
    call = one(tmp_path, value)
    assert call.args[0].kind == "tensor"
    assert call.record.inputs.facts()[0].missing


def test_a_strided_one_whose_parts_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(value: Any) -> Any:
        raise RuntimeError("another torch")

    monkeypatch.setattr("calltape_recorder.snapshot.nested_parts.strided_parts", refuse)
    value = nested(2, layout=torch.strided)
    value.note = "seen"  # type: ignore[attr-defined]
    x = torch.ones(2)
    call = one(tmp_path, [x, value, x, torch.zeros(1)], value)
    assert [child.kind for child in call.args[0].children] == [
        "tensor", "opaque", "tensor", "tensor",
    ]  # fmt: skip
    assert [child.leaf for child in call.args[0].children if child.kind == "tensor"] == [0, 0, 1]
    assert call.args[1].reason == "a nested tensor"
    model = Echo(value)
    with record(model, tmp_path / "b.tape") as recorder:
        model(x)
    assert recorder.stats().dropped == {}
    (call,) = read(tmp_path / "b.tape").calls
    assert call.outputs.kind == "opaque"


def test_a_compiled_host(tmp_path: Path) -> None:
    linear = torch.nn.Linear(4, 4)
    model = torch.compile(linear, backend="eager")
    value = nested(2, 3)
    expected = linear(value)
    with record(model, tmp_path / "t.tape") as recorder:
        for _ in range(3):
            result = model(value)
    assert isinstance(result, NestedTensor)
    assert torch.equal(result.values(), expected.values())
    assert recorder.stats().dropped == {}
    calls = read(tmp_path / "t.tape").calls
    assert [call.args[0].type for call in calls] == [NESTED_TENSOR] * 3
    assert torch.equal(calls[2].output(calls[2].outputs.children[0].leaf), expected.values())


def test_plain_tensors_are_never_unfolded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[Any] = []
    monkeypatch.setattr(
        "calltape_recorder.sides.unfolded", lambda found: met.append(found) or unfolded(found)
    )
    model = Identity()
    with record(model, tmp_path / "t.tape"):
        for value in (torch.ones(2), torch.ones(2).t(), torch.nn.Parameter(torch.ones(1))):
            model(value)
        model(torch.eye(2).to_sparse())
        assert met == []
        model(nested(2, layout=torch.strided))
    assert len(met) == 2  # arguments and result
