"""Nested tensors are recorded as objects with their parts, and nothing else pays for them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nested._internal.nested_tensor import NestedTensor

from calltape_recorder import Rate, record
from calltape_schema.objects import NESTED_TENSOR
from tests.recorder.calls import taped
from tests.recorder.models import Identity
from tests.recorder.modes import WatchingFunctions, WatchingOperators
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
    call = taped(tmp_path, value)
    found = parts(call, call.args[0])
    assert list(found) == ["values", "offsets", "jagged_dim"]
    assert torch.equal(found["values"], value.values())
    assert torch.equal(found["offsets"], torch.tensor([0, 2, 2, 5]))
    assert call.scalar(found["jagged_dim"]) == 1


def test_nested_tensors_keep_lengths_ragged_dimension_and_gradients(tmp_path: Path) -> None:
    starts, lengths = torch.tensor([0, 1, 2]), torch.tensor([2, 3, 2])
    narrowed = torch.nested.narrow(torch.randn(3, 5, 4), 1, starts, lengths, layout=torch.jagged)
    call = taped(tmp_path, narrowed, nested(2, 3).transpose(1, 2), nested(1, requires_grad=True))
    first, turned, leaf = (parts(call, node) for node in call.args)
    assert torch.equal(first["lengths"], lengths)
    assert torch.equal(first["offsets"], narrowed.offsets())
    assert (turned["values"].shape, call.scalar(turned["jagged_dim"])) == ((4, 5), 2)
    assert leaf["requires_grad"].value is True
    assert "requires_grad" not in first


@pytest.mark.parametrize("options", [{}, {"values": "none"}, {"keep": Rate(0.5)}])
def test_of_a_strided_one_there_is_the_dtype(tmp_path: Path, options: Any) -> None:
    """It has no shape. Calls with plain tensors come between."""
    value, x = nested(2, 3, layout=torch.strided), torch.ones(2)
    model = Identity()
    with record(model, tmp_path / "t.tape", **options) as recorder:
        for _ in range(8):
            model(x)
            assert model([x, value, x]) == [x, value, x]
            assert model(value) is value
    stats = recorder.stats()
    assert (stats.seen, stats.lost) == (24, {})
    tape = read(tmp_path / "t.tape")
    facts = [call.record.inputs.facts() for call in tape.calls]
    found = [each[-1] for each in facts if each[-1].layout != "strided"]
    assert found
    for leaf in found:
        assert (leaf.layout, leaf.dtype, leaf.shape) == ("nested", "float32", ())
        assert leaf.missing is not None
        assert leaf.missing.startswith("layout nested")
    assert not tape.damage
    assert tape.table.totals().seen == 24


def test_two_with_one_ragged_dimension_share_their_offsets(tmp_path: Path) -> None:
    value = nested(2, 3)
    call = taped(tmp_path, value, [value * 2], value.values())
    first, second = call.args[0], call.args[1].children[0]
    assert first.children[1].leaf == second.children[1].leaf
    facts = call.record.inputs.facts()
    assert facts[call.args[2].leaf].key == facts[first.children[0].leaf].key


def test_nested_tensors_between_plain_ones_are_all_recorded(tmp_path: Path) -> None:
    """Calls with plain tensors come between, so that each meets what was learned of the others."""
    model = Identity()
    values = [nested(*n) for n in ((2, 3), (2, 3), (2, 3), (4, 1, 5), (1,))]
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
    assert tape.table.totals().seen == len(tape.calls)


@pytest.mark.parametrize("values", ["none", {"args.0": "none"}, {"value": "none"}])
def test_nested_tensors_without_values_keep_their_shapes(tmp_path: Path, values: Any) -> None:
    model = Identity()
    with record(model, tmp_path / "t.tape", values=values) as recorder:
        for _ in range(4):
            model(nested(2, 3))
    assert recorder.stats().dropped == {}
    for call in read(tmp_path / "t.tape").calls:
        facts = call.record.inputs.facts()
        assert [leaf.missing for leaf in facts] == ["policy"] * len(facts)
        assert facts[0].shape == (5, 4)
        # Without the ragged dimension nothing could be made of the shapes.
        assert call.record.inputs.scalars == (1,)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", [WatchingFunctions, WatchingOperators])
def test_the_host_sees_nothing_of_it(
    tmp_path: Path, layout: torch.layout, mode: Callable[[], Any]
) -> None:
    value = nested(2, 3, layout=layout, requires_grad=True)
    before = dict(vars(value))
    model = Identity()
    with record(model, tmp_path / "t.tape"), mode() as seen:
        for _ in range(3):
            assert model(value) is value
    assert seen.seen == []
    assert vars(value) == before
    assert value.grad_fn is None
    assert len(read(tmp_path / "t.tape").calls) == 3


@pytest.mark.parametrize("missing", ["_values", "_offsets", "_ragged_idx"])
def test_a_nested_tensor_of_an_unknown_form_is_a_tensor_without_values(
    tmp_path: Path, missing: str
) -> None:
    value = nested(2, 3)
    del vars(value)[missing]
    call = taped(tmp_path, value)
    assert call.args[0].kind == "tensor"
    assert call.record.inputs.facts()[0].missing


def test_nested_tensors_of_a_compiled_host_are_recorded(tmp_path: Path) -> None:
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
