"""From specs to objects: equal ones for the classes that are allowed, placeholders for the rest,
and nothing imported or called in between."""

from __future__ import annotations

import collections
import dataclasses
import enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from calltape_analyzer import Placeholder, TapeError, open_tape, render
from calltape_analyzer.pytree.classes import ClassIndex, class_name
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
from tests.analyzer.tapes import type_name, write_tape
from tests.pytree_nodes import deregister


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Batch:
    x: Any
    y: Any = None

    def __post_init__(self) -> None:
        CONSTRUCTED.append(type(self))


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    label: str = "none"


@dataclasses.dataclass(slots=True)
class Slotted:
    x: Any
    parts: list[Any] = dataclasses.field(default_factory=list)


class Stateful:
    steps = 0

    def run(self) -> None: ...

    @property
    def ready(self) -> bool:
        return True


class Color(enum.Enum):
    RED = "red"
    BLUE = 2


class Flags(enum.IntFlag):
    A = 1
    B = 2


class ToyCache:
    def __init__(self) -> None:
        CONSTRUCTED.append(type(self))
        self.keys = torch.ones(2)
        self.length = 3


class Words(list[Any]):
    def __init__(self) -> None:
        raise RuntimeError("constructors do not run")


class Table(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        raise RuntimeError("overrides do not run")


class Level(int):
    pass


CONSTRUCTED: list[type] = []
ALLOWED = (Pair, Batch, Frozen, Slotted, Stateful, Color, Flags, ToyCache, Words, Table, Level)


@pytest.fixture(autouse=True)
def _nothing_constructed() -> None:
    CONSTRUCTED.clear()


def round_trip(tmp_path: Path, value: Any, classes: Any = ALLOWED) -> Any:
    path = write_tape(tmp_path / "a.tape", [((value,), {})])
    CONSTRUCTED.clear()
    with open_tape(path, classes=classes) as tape:
        return tape[0].inputs.args[0]


def words() -> Words:
    made = Words.__new__(Words)
    made.extend([1, "a"])
    return made


def table() -> Table:
    made = Table.__new__(Table)
    dict.__setitem__(made, "a", 1)
    return made


VALUES: list[Any] = [
    None,
    ...,
    True,
    -3,
    2**70,
    -(2**64),
    1.5,
    float("inf"),
    1 + 2j,
    "text",
    "\ud800 lone",
    b"\0\xff",
    Level(4),
    torch.float8_e4m3fn,
    torch.device("cpu"),
    torch.device("cuda:1"),
    torch.strided,
    torch.channels_last,
    Color.RED,
    Color.BLUE,
    Flags.A | Flags.B,
    int,
    collections.OrderedDict,
    Pair,
    [1, [2, (3,)]],
    (),
    (1, (2, "x")),
    {"a": 1, 2: None, (1, "b"): 2.0, b"k": [1], None: 0, True: 1.5},
    collections.OrderedDict([("b", 1), ("a", 2)]),
    collections.Counter("aab"),
    table(),
    words(),
    {1, 2, 3},
    frozenset({"a"}),
    slice(1, None, 2),
    range(0, 10, 3),
    torch.Size([2, 3]),
    Pair(1, Pair("a", None)),
    Frozen(1, "x"),
    Slotted(1, [2]),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_equal_objects_come_back(tmp_path: Path, value: Any) -> None:
    got = round_trip(tmp_path, value)
    assert type(got) is type(value)
    assert got == value
    if isinstance(value, dict):
        assert list(got) == list(value)


def test_nan_comes_back(tmp_path: Path) -> None:
    got = round_trip(tmp_path, float("nan"))
    assert got != got


def test_a_dataclass_is_rebuilt_without_its_constructor(tmp_path: Path) -> None:
    got = round_trip(tmp_path, Batch(torch.ones(2), "y"))
    assert type(got) is Batch
    assert torch.equal(got.x, torch.ones(2))
    assert got.y == "y"
    assert CONSTRUCTED == []


def test_an_object_is_rebuilt_without_its_constructor(tmp_path: Path) -> None:
    got = round_trip(tmp_path, ToyCache())
    assert type(got) is ToyCache
    assert torch.equal(got.keys, torch.ones(2))
    assert got.length == 3
    assert CONSTRUCTED == []


def test_classes_by_their_names_on_the_tape(tmp_path: Path) -> None:
    got = round_trip(tmp_path, Pair(1, 2), {type_name(Pair): Pair})
    assert got == Pair(1, 2)
    renamed = round_trip(tmp_path, Pair(1, 2), {"elsewhere:Pair": Pair})
    assert isinstance(renamed, Placeholder)


@pytest.mark.parametrize(
    "value",
    [
        Pair(1, torch.ones(2)),
        Batch(1, torch.ones(2)),
        ToyCache(),
        table(),
        words(),
        Color.RED,
        Pair,
    ],
)
def test_unknown_classes_are_placeholders(tmp_path: Path, value: Any) -> None:
    got = round_trip(tmp_path, value, ())
    assert isinstance(got, Placeholder)
    assert got.type_name == type_name(value if isinstance(value, type) else type(value))
    assert got.reason


def test_a_placeholder_has_the_children(tmp_path: Path) -> None:
    got = round_trip(tmp_path, Pair(1, [torch.ones(2)]), ())
    assert got.names == ("left", "right")
    assert got["left"] == 1
    assert torch.equal(got["right"][0], torch.ones(2))
    with pytest.raises(KeyError):
        got["middle"]
    assert repr(got).endswith("Pair: class not known here; holds left, right>")
    assert render(got) == "Pair(left=1, right=[float32[2]])"


def test_a_subclass_of_a_scalar_that_is_not_known_is_the_scalar(tmp_path: Path) -> None:
    got = round_trip(tmp_path, Level(4), ())
    assert type(got) is int
    assert got == 4


# Registered classes.


class Holder:
    def __init__(self, parts: list[Any], note: Any) -> None:
        self.parts, self.note = parts, note


@pytest.fixture
def registered() -> Any:
    pytree = torch.utils._pytree
    pytree.register_pytree_node(
        Holder, lambda h: (h.parts, ["note", h.note]), lambda parts, c: Holder(list(parts), c[1])
    )
    yield pytree
    deregister(Holder)


def test_custom_nodes_use_the_registration(tmp_path: Path, registered: Any) -> None:
    path = write_tape(tmp_path / "a.tape", [((Holder([torch.ones(2), 3], {"k": 1.5}),), {})])
    with open_tape(path) as tape:
        # For being registered alone nothing of it is called.
        got = tape[0].inputs.args[0]
        assert isinstance(got, Placeholder)
        assert got.names == (0, 1)
    with open_tape(path, classes=[Holder]) as tape:
        got = tape[0].inputs.args[0]
        assert type(got) is Holder
        assert torch.equal(got.parts[0], torch.ones(2))
        assert (got.parts[1], got.note) == (3, {"k": 1.5})
        deregister(Holder)
        got = tape[0].inputs.args[0]
        assert isinstance(got, Placeholder)
        assert got.names == (0, 1)
        registered.register_pytree_node(Holder, lambda h: (h.parts, None), _failing)
        got = tape[0].inputs.args[0]
        assert isinstance(got, Placeholder)
        assert "RuntimeError: not today" in got.reason


def _failing(parts: Any, context: Any) -> Any:
    raise RuntimeError("not today")


def test_return_types(tmp_path: Path) -> None:
    value = torch.max(torch.tensor([[1.0, 3.0]]), dim=1)
    got = round_trip(tmp_path, value, ())
    assert type(got) is type(value)
    assert torch.equal(got.indices, value.indices)


# transformers, where it is imported already.


@pytest.mark.integration
def test_transformers_caches_and_outputs(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_outputs import CausalLMOutputWithPast

    cache = transformers.DynamicCache()
    for layer in range(2):
        cache.update(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4), layer)
    outputs = CausalLMOutputWithPast(logits=torch.randn(1, 3, 5), past_key_values=cache)
    got = round_trip(tmp_path, outputs, ())
    assert type(got) is CausalLMOutputWithPast
    assert list(got.keys()) == list(outputs.keys())
    assert torch.equal(got.logits, outputs.logits)
    assert got.loss is None
    again = got.past_key_values
    assert type(again) is transformers.DynamicCache
    assert again.get_seq_length() == 3
    assert torch.equal(again.layers[1].values, cache.layers[1].values)
    again.update(torch.randn(1, 2, 1, 4), torch.randn(1, 2, 1, 4), 0)
    assert again.layers[0].keys.shape == (1, 2, 4, 4)
    assert got.to_tuple()[0] is got.logits


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
        SequenceNode(kind="list", children=(), type=class_name(Batch)),
        SequenceNode(kind="list", children=(), type="builtins:int"),
        DictNode(kind="dict", keys=("a",), children=(NONE,), type="builtins:list"),
        DictNode(kind="dict", keys=("a",), children=(NONE,), type=class_name(Pair)),
        FieldsNode(kind="namedtuple", type=class_name(Pair), fields=("left",), children=(NONE,)),
        FieldsNode(kind="namedtuple", type="builtins:int", fields=(), children=()),
        FieldsNode(kind="dataclass", type=class_name(Batch), fields=("z",), children=(NONE,)),
        FieldsNode(kind="dataclass", type=class_name(Batch), fields=(), children=()),
        FieldsNode(kind="dataclass", type="builtins:dict", fields=(), children=()),
        FieldsNode(kind="object", type="builtins:int", fields=("a",), children=(NONE,)),
        FieldsNode(kind="object", type="builtins:dict", fields=("a",), children=(NONE,)),
        FieldsNode(kind="object", type=class_name(Frozen), fields=("__class__",), children=(NONE,)),
        FieldsNode(kind="object", type=class_name(Frozen), fields=("other",), children=(NONE,)),
        FieldsNode(
            kind="object", type="collections:OrderedDict", fields=("values",), children=(NONE,)
        ),
        FieldsNode(kind="object", type=class_name(Stateful), fields=("run",), children=(NONE,)),
        FieldsNode(kind="object", type=class_name(Stateful), fields=("ready",), children=(NONE,)),
        FieldsNode(kind="object", type=class_name(Stateful), fields=("a b",), children=(NONE,)),
        FieldsNode(kind="namedtuple", type="builtins:tuple", fields=("a",), children=(NONE,)),
        SequenceNode(kind="tuple", children=(NONE,) * 3, type=class_name(Pair)),
        CustomNode(kind="custom", type=class_name(Batch), context=NONE, children=()),
        CustomNode(kind="custom", type="collections:deque", context=LIST, children=()),
        EnumNode(kind="enum", type=class_name(Color), name="GREEN", value="green"),
        EnumNode(kind="enum", type=class_name(Batch), name="GREEN"),
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


def test_an_array_is_rebuilt_as_one(tmp_path: Path) -> None:
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
    node = FieldsNode(kind="dataclass", type=class_name(Slotted), fields=("x",), children=(NONE,))
    assert built(node) == Slotted(None, [])


def test_a_loaded_configuration_of_transformers_is_known() -> None:
    transformers = pytest.importorskip("transformers")
    cls = transformers.GPT2Config
    assert ClassIndex().get(f"{cls.__module__}:GPT2Config") is cls
    assert ClassIndex().get(f"{cls.__module__}:GPT2Model") is None
