"""Nested tensors are rebuilt of checked parts; of parts that do not fit nothing is built."""

from __future__ import annotations

from operator import is_
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import InferenceError, Placeholder, Tape, open_tape, render, replay
from calltape_analyzer.arguments.value_rules import fit_offsets
from calltape_analyzer.pytree.description import describe_as_recorded, describe_result
from calltape_analyzer.pytree.nodes import nested_places
from calltape_analyzer.pytree.tensors import check_offsets, nested_parts, nested_tensor
from calltape_analyzer.testing import call, write_tape
from calltape_recorder import record
from tests.analyzer.nested import Scales, nested


class Keeps(torch.nn.Module):
    def forward(self, *args: Any) -> Any:
        return args[0]


def recorded(folder: Path, *args: Any, **options: Any) -> Tape:
    model = Keeps()
    with record(model, folder / "a.tape", **options) as recorder:
        model(*args)
    assert recorder.stats().dropped == {}
    return open_tape(folder / "a.tape")


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    assert one.is_nested
    assert one.layout is other.layout
    pairs = list(zip(one.unbind(), other.unbind(), strict=True))
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("turned", [False, True])
def test_what_was_recorded_is_rebuilt(tmp_path: Path, turned: bool) -> None:
    value = nested(2, 0, 3)
    value = value.transpose(1, 2) if turned else value
    with recorded(tmp_path, value, 3) as tape:
        (found, number), _ = tape.calls[0].inputs
        assert number == 3
        assert same(found, value)
        assert same(tape.calls[0].outputs, value)


def test_lengths_and_gradients_are_rebuilt(tmp_path: Path) -> None:
    starts, lengths = torch.tensor([0, 1, 2]), torch.tensor([2, 3, 2])
    narrowed = torch.nested.narrow(torch.randn(3, 5, 4), 1, starts, lengths, layout=torch.jagged)
    leaf = nested(1, 2).requires_grad_()
    with recorded(tmp_path, narrowed, leaf, nested(3)) as tape:
        (first, second, third), _ = tape.calls[0].inputs
    assert same(first, narrowed)
    assert torch.equal(first.lengths(), lengths)
    assert [part.requires_grad for part in (first, second, third)] == [False, True, False]


def test_one_ragged_dimension_stays_one(tmp_path: Path) -> None:
    value = nested(2, 3)
    with recorded(tmp_path, value, [value * 2], nested(2, 3)) as tape:
        (first, (second,), third), _ = tape.calls[0].inputs
    assert same(first + second, value * 3)
    with pytest.raises(RuntimeError):
        first + third  # as in the recorded process


def test_a_spec_and_an_object_are_shown_alike(tmp_path: Path) -> None:
    with recorded(tmp_path, nested(2, 3)) as tape:
        (one,) = tape.calls
        shown = render(one.record.inputs)
        assert render(one.inputs) == shown
        assert render(one.outputs) == render(one.record.outputs)
    assert shown == "(NestedTensor(values=float32[5,8], offsets=int64[3]))"


def test_live_ones_are_described_as_recorded(tmp_path: Path) -> None:
    value = nested(2, 3).requires_grad_()
    value.note = "set by somebody"  # type: ignore[attr-defined]
    with recorded(tmp_path, value) as tape:
        record_ = tape.calls[0].record
        assert record_.outputs is not None
        passed = record_.inputs.spec().root.children[0].children[0]  # type: ignore[union-attr]
        returned = record_.outputs.spec().root
    assert describe_as_recorded(value).node == passed
    assert describe_result(value).node == returned


def test_meta_parts_make_a_meta_tensor(tmp_path: Path) -> None:
    with recorded(tmp_path, nested(2, 3), values="none") as tape:
        found = tape.calls[0].inputs.args[0]
    assert found.is_nested
    assert found.is_meta


def test_of_a_strided_one_there_is_a_placeholder(tmp_path: Path) -> None:
    """It has no shape. A model that returns one replays, and nothing is verified of it."""
    value = nested(2, 3, layout=torch.strided)
    with recorded(tmp_path, value, 3) as tape:
        found, number = tape.calls[0].inputs.args
        assert number == 3
        assert isinstance(found, Placeholder)
        assert "layout nested" in found.reason
        assert isinstance(tape.calls[0].outputs, Placeholder)
        assert render(value) == render(tape.calls[0].record.outputs) == "float32[]"
        assert replay(tape, Keeps()).reproduced == 0
        with pytest.raises(InferenceError, match="layout nested"):
            tape.variants()[0].infer_arguments()
    with recorded(tmp_path / "b", torch.ones(2)) as tape:
        report = replay(tape, lambda x: value)
        assert report.reproduced == 0
        assert "nested" in str(report.rows[0].error)


def test_tapes_that_are_written_by_hand(tmp_path: Path) -> None:
    value = nested(2, 3)
    path = write_tape(tmp_path / "a.tape", [call(value).returns([value])], Keeps())
    with open_tape(path) as tape:
        assert same(tape.calls[0].inputs.args[0], value)
        assert same(tape.calls[0].outputs[0], value)


# --- parts from a hostile tape ------------------------------------------------------------------

_BIG = 2**62
_values, _offsets = torch.arange(10.0).reshape(5, 2), torch.tensor([0, 2, 5])


def of(**parts: Any) -> dict[str, Any]:
    return {"values": _values, "offsets": _offsets, "jagged_dim": 1, **parts}


JAGGED: dict[str, dict[str, Any]] = {
    "not sorted": of(offsets=torch.tensor([0, 4, 2])),
    "beyond": of(offsets=torch.tensor([0, 2, 6])),
    "far beyond": of(offsets=torch.tensor([0, 2, _BIG])),
    "negative": of(offsets=torch.tensor([-1, 2, 5])),
    "wraps around": of(offsets=torch.tensor([-(2**63), 2**63 - 1, 2**63 - 1])),
    "floats": of(offsets=torch.tensor([0.0, 2.0, 5.0])),
    "bytes": of(offsets=torch.tensor([0, 2, 5], dtype=torch.uint8)),
    "a table": of(offsets=torch.tensor([[0, 2, 5]])),
    "no offsets": of(offsets=torch.tensor([], dtype=torch.int64)),
    "a number": of(offsets=5),
    "a scalar": of(values=torch.tensor(1.0)),
    "dimension 0": of(jagged_dim=0),
    "dimension 3": of(jagged_dim=3),
    "dimension -1": of(jagged_dim=-1),
    "dimension true": of(jagged_dim=True),
    "large dimension": of(jagged_dim=2**300),
    "other axis": of(jagged_dim=2),
    "too many lengths": of(lengths=torch.tensor([1, 1, 1])),
    "negative length": of(lengths=torch.tensor([-1, 1])),
    "long length": of(lengths=torch.tensor([1, 4])),
    "vast length": of(lengths=torch.tensor([1, 2**63 - 1])),
    "quantized": of(values=torch.quantize_per_tensor(_values, 0.1, 0, torch.qint8)),
    "sparse": of(values=_values.to_sparse()),
    "nested": of(values=nested(2, 3)),
    "lost": of(values=Placeholder("torch:Tensor", "it has no memory")),
    "offsets that claim gigabytes": of(offsets=torch.zeros(1).long().expand(2**34)),
    "unknown part": of(more=_values),
    "no values": {"offsets": _offsets, "jagged_dim": 1},
    "nothing": {},
}


@pytest.mark.parametrize("name", JAGGED)
def test_parts_that_make_no_jagged_tensor_are_rejected(name: str) -> None:
    assert nested_tensor(of()).is_nested
    with pytest.raises(ValueError, match=r"\w"):
        nested_tensor(JAGGED[name])


def test_a_tape_with_such_parts_gives_a_placeholder(tmp_path: Path) -> None:
    value = nested(2, 3)
    vars(value)["_offsets"] = torch.tensor([0, 2, 2**40])
    with recorded(tmp_path, value, 1) as tape:
        found, one = tape.calls[0].inputs.args
    assert one == 1
    assert isinstance(found, Placeholder)
    assert "beyond its values" in found.reason
    assert torch.equal(found["offsets"], torch.tensor([0, 2, 2**40]))


def test_what_is_no_nested_tensor_has_no_parts() -> None:
    for value in (None, 3, torch.ones(2), torch.eye(2).to_sparse(), Scales(), [nested(2)]):
        assert nested_parts(value) is None
    foreign = nested(2)
    del vars(foreign)["_ragged_idx"]
    assert nested_parts(foreign) is None


@pytest.mark.parametrize("lengths", [[1], [1, 1, 1], []])
def test_lengths_of_another_number_of_components_are_refused(lengths: list[int]) -> None:
    offsets, given = torch.tensor([0, 2, 4]), torch.tensor(lengths, dtype=torch.long)
    with pytest.raises(ValueError, match="one integer per component"):
        check_offsets(offsets, given, 4)


@pytest.mark.parametrize("which", ["offsets", "lengths"])
def test_what_is_no_row_of_indices_is_left_as_it_is(tmp_path: Path, which: str) -> None:
    """Torch cannot convert each dtype that a tape may have."""
    starts, lengths = torch.tensor([0, 1, 2]), torch.tensor([2, 3, 2])
    narrowed = torch.nested.narrow(torch.randn(3, 5, 4), 1, starts, lengths, layout=torch.jagged)
    with recorded(tmp_path, narrowed) as tape:
        tree = tape.calls[0].record.inputs
        [(node, _)] = nested_places(tree.spec().root)
        parts = dict(zip(node.fields, node.children, strict=True))
        tensors = [tape.calls[0].tensor("inputs", leaf) for leaf in range(len(tree.facts()))]
    leaf = parts[which].leaf  # type: ignore[union-attr]
    tensors[leaf] = torch.ones(len(tensors[leaf]), dtype=torch.uint8).view(torch.uint1)
    given = list(tensors)
    fit_offsets([node], tensors, tree.scalars)
    assert all(map(is_, tensors, given))
