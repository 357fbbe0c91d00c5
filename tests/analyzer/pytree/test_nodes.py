"""Nodes that no recorder of ours would write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Placeholder, TapeError
from calltape_analyzer.pytree.classes import ClassIndex, name_of
from calltape_analyzer.pytree.rebuilding import rebuild
from calltape_schema.tree import (
    ClassNode,
    ConstantNode,
    CustomNode,
    DictNode,
    EnumNode,
    FieldsNode,
    NoneNode,
    OpaqueNode,
    ScalarNode,
    SequenceNode,
    TensorNode,
)
from tests.analyzer.pytree.test_rebuilding import (
    ALLOWED,
    Batch,
    Color,
    Frozen,
    Pair,
    Slotted,
    Stateful,
)

NOTHING = ClassIndex()
EVERYTHING = ClassIndex(ALLOWED)


def built(node: Any, scalars: Any = (), classes: ClassIndex = EVERYTHING) -> Any:
    return rebuild(node, lambda leaf: torch.zeros(leaf), scalars, classes)


NONE = NoneNode(kind="none")
LIST = SequenceNode(kind="list", children=())


@pytest.mark.parametrize(
    "node",
    [
        SequenceNode(kind="range", children=(NONE,) * 3),
        SequenceNode(kind="size", children=(NONE,)),
        SequenceNode(kind="set", children=(LIST,)),
        SequenceNode(kind="list", children=(), type=name_of(Batch)),
        SequenceNode(kind="list", children=(), type="builtins:int"),
        DictNode(kind="dict", keys=("a",), children=(NONE,), type="builtins:list"),
        DictNode(kind="dict", keys=("a",), children=(NONE,), type=name_of(Pair)),
        FieldsNode(kind="namedtuple", type=name_of(Pair), fields=("left",), children=(NONE,)),
        FieldsNode(kind="namedtuple", type="builtins:int", fields=(), children=()),
        FieldsNode(kind="dataclass", type=name_of(Batch), fields=("z",), children=(NONE,)),
        FieldsNode(kind="dataclass", type=name_of(Batch), fields=(), children=()),
        FieldsNode(kind="dataclass", type="builtins:dict", fields=(), children=()),
        FieldsNode(kind="object", type="builtins:int", fields=("a",), children=(NONE,)),
        FieldsNode(kind="object", type="builtins:dict", fields=("a",), children=(NONE,)),
        FieldsNode(kind="object", type=name_of(Frozen), fields=("__class__",), children=(NONE,)),
        FieldsNode(kind="object", type=name_of(Frozen), fields=("other",), children=(NONE,)),
        FieldsNode(
            kind="object", type="collections:OrderedDict", fields=("values",), children=(NONE,)
        ),
        FieldsNode(kind="object", type=name_of(Stateful), fields=("run",), children=(NONE,)),
        FieldsNode(kind="object", type=name_of(Stateful), fields=("ready",), children=(NONE,)),
        FieldsNode(kind="object", type=name_of(Stateful), fields=("a b",), children=(NONE,)),
        FieldsNode(kind="namedtuple", type="builtins:tuple", fields=("a",), children=(NONE,)),
        SequenceNode(kind="tuple", children=(NONE,) * 3, type=name_of(Pair)),
        CustomNode(kind="custom", type=name_of(Batch), context=NONE, children=()),
        CustomNode(kind="custom", type="collections:deque", context=LIST, children=()),
        EnumNode(kind="enum", type=name_of(Color), name="GREEN", value="green"),
        EnumNode(kind="enum", type=name_of(Batch), name="GREEN"),
        EnumNode(kind="enum", type="builtins:int", name="from_bytes"),
        ClassNode(kind="class", type="os:system"),
        ConstantNode(kind="dtype", name="float1024"),
        ConstantNode(kind="dtype", name="strided"),
        ConstantNode(kind="dtype", name="_dynamo"),
        ConstantNode(kind="dtype", name="_inductor"),
        ConstantNode(kind="layout", name="float32"),
        ConstantNode(kind="device", name="no such device"),
        ConstantNode(kind="device", name="abc"),
        OpaqueNode(kind="opaque", type="a:B", reason="because"),
    ],
    ids=lambda node: f"{node.kind}-{getattr(node, 'type', None) or getattr(node, 'name', '')}",
)
def test_nonsense_is_a_placeholder(node: Any) -> None:
    got = built(node)
    assert isinstance(got, Placeholder)
    assert repr(got).isprintable()


@pytest.mark.parametrize(
    ("kind", "value"),
    [("int", "1"), ("str", b"x"), ("float", 1), ("complex", 1.0), ("bytes", "x"), ("int", 1.0)],
)
def test_a_scalar_of_another_type_is_invalid(kind: Any, value: Any) -> None:
    with pytest.raises(TapeError) as caught:
        built(ScalarNode(kind=kind, scalar=0), (value,))
    assert caught.value.kind == "invalid"


def test_arrays(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    got = built(TensorNode(kind="ndarray", leaf=3))
    assert isinstance(got, numpy.ndarray)
    assert got.shape == (3,)


def test_an_array_that_numpy_does_not_have_is_a_tensor() -> None:
    pytest.importorskip("numpy")
    node = TensorNode(kind="ndarray", leaf=3)
    got = rebuild(node, lambda _: torch.empty(0, 2**62), (), EVERYTHING)
    assert isinstance(got, torch.Tensor)
    assert got.shape == (0, 2**62)


def test_missing_dataclass_fields_have_their_defaults() -> None:
    node = FieldsNode(kind="dataclass", type=name_of(Slotted), fields=("x",), children=(NONE,))
    assert built(node) == Slotted(None, [])
