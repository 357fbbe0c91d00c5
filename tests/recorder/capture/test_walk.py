"""Scalars, constants and containers of a call are on the tape, and read back as they were."""

from __future__ import annotations

import collections
import dataclasses
import enum
import itertools
import tracemalloc
import types
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils import _pytree as pytree

from calltape_recorder import record
from calltape_recorder.capture import walk
from calltape_recorder.capture.structures import spell_out
from calltape_recorder.capture.walk import capture_inputs, capture_output
from tests.pytree_nodes import deregister
from tests.recorder.calls import taped
from tests.recorder.models import Echo
from tests.recorder.reading import read

# --- scalars and constants ---------------------------------------------------------------------


class Color(enum.Enum):
    RED = "r"
    DEEP = ("not", "a", "scalar")


class Level(enum.IntEnum):
    HIGH = 3


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Mode(enum.Enum):
    ON = True
    ONE = "1"


class Text(str):
    """Overrides what the recorder must not call."""

    def __str__(self) -> str:
        raise AssertionError

    def __len__(self) -> int:
        raise AssertionError


def test_scalars_keep_value_and_type(tmp_path: Path) -> None:
    values = [
        0, -1, 2**70, -(2**63) - 1, 10**2000, 1.5, float("inf"), -0.0, 1 + 2j, "text", "", "\ud800",
        "x" * 5000, b"bytes", bytearray(b"more"), Text("sub"),
    ]  # fmt: skip
    call = taped(tmp_path, *values)
    read_back = [call.scalar(node) for node in call.args]
    assert read_back[:-1] == values[:-1]
    assert read_back[-1] == "sub"
    assert call.args[-1].type == "tests.recorder.capture.test_walk:Text"
    assert call.args[-2].type == "builtins:bytearray"


def test_too_much_of_a_scalar_is_a_placeholder(tmp_path: Path) -> None:
    call = taped(tmp_path, 10**5000, "x" * (2 << 20), b"x" * (2 << 20), 1)
    assert [node.kind for node in call.args] == ["opaque"] * 3 + ["int"]


def test_constants_keep_their_names(tmp_path: Path) -> None:
    call = taped(
        tmp_path, None, True, False, ..., torch.float16, torch.device("cuda", 1), torch.sparse_coo,
        torch.channels_last, Color.RED, Color.DEEP, Level.HIGH, int, torch.nn.Linear,
    )  # fmt: skip
    kinds = [node.kind for node in call.args]
    assert kinds == [
        "none", "bool", "bool", "ellipsis", "dtype", "device", "layout", "memory_format",
        "enum", "enum", "enum", "class", "class",
    ]  # fmt: skip
    assert [node.name for node in call.args[4:8]] == [
        "float16", "cuda:1", "sparse_coo", "channels_last",
    ]  # fmt: skip
    assert [(node.name, node.value) for node in call.args[8:11]] == [
        ("RED", "r"), ("DEEP", None), ("HIGH", 3),
    ]  # fmt: skip
    assert call.args[11].type == "builtins:int"


def test_flags_and_values_that_compare_equal_keep_their_value(tmp_path: Path) -> None:
    call = taped(tmp_path, Access.READ, Access.READ | Access.WRITE, Access(0), Mode.ON, Mode.ONE)
    assert [node.kind for node in call.args] == ["enum"] * 5
    values = [node.value for node in call.args]
    assert values == [1, 3, 0, True, "1"]
    assert type(values[3]) is bool


# --- containers --------------------------------------------------------------------------------


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Batch:
    ids: Any
    mask: Any = None
    unset: Any = dataclasses.field(init=False)


@dataclasses.dataclass
class Slotted:
    __slots__ = ("x",)
    x: Any


class MyCache:
    def __init__(self) -> None:
        self.keys = [torch.ones(2)]
        self.length = 3
        self.sealed = False


class Registered:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts


@pytest.fixture
def _registered() -> Any:
    pytree.register_pytree_node(
        Registered,
        lambda r: (list(r.parts[1:]), {"tag": r.parts[0], "t": torch.ones(1)}),
        lambda children, context: Registered(context["tag"], *children),
    )
    yield
    deregister(Registered)


def test_containers_keep_kind_fields_and_children(tmp_path: Path) -> None:
    t = torch.ones(2)
    call = taped(
        tmp_path, [t, (1, [])], Pair(t, 2), Batch(t), Slotted(5), torch.Size([2, 3]),
        slice(1, None, 2), range(3), {1, 2}, frozenset("a"), types.SimpleNamespace(x=t),
        MyCache(), collections.deque([t], maxlen=4), torch.ones(2, 2).max(0),
    )  # fmt: skip
    kinds = [node.kind for node in call.args]
    assert kinds == [
        "list", "namedtuple", "dataclass", "dataclass", "size", "slice", "range", "set",
        "frozenset", "object", "object", "custom", "tuple",
    ]  # fmt: skip
    assert call.args[1].fields == ("left", "right")
    assert call.args[2].fields == ("ids", "mask")
    assert call.args[3].fields == ("x",)
    assert call.args[10].fields == ("keys", "length", "sealed")
    assert call.args[11].type == "collections:deque"
    assert call.args[12].type == "torch.return_types:max"
    assert call.args[0].children[0].leaf == call.args[1].children[0].leaf


def test_dicts_keep_keys_and_their_order(tmp_path: Path) -> None:
    keys: dict[Any, Any] = {
        "b": 1, "a": 2, 3: 3, 1.5: 4, None: 5, b"k": 6, ("x", 1): 7, False: 8, "\ud800": 9,
    }  # fmt: skip
    ordered = collections.OrderedDict(z=1, y=2)
    default = collections.defaultdict(list, {"q": torch.ones(1)})
    call = taped(tmp_path, keys, ordered, default, {Color.RED: 1}, {2**70: 1}, {1: 0}, {True: 0})
    assert call.args[0].keys == tuple(keys)
    assert (call.args[1].keys, call.args[1].type) == (("z", "y"), "collections:OrderedDict")
    assert call.args[2].type == "collections:defaultdict"
    assert [node.kind for node in call.args[3:5]] == ["opaque"] * 2
    assert type(call.args[5].keys[0]) is int
    assert type(call.args[6].keys[0]) is bool
    ordered.move_to_end("z")  # of which the dict that it is knows nothing
    call = taped(tmp_path, ordered, types.MappingProxyType(ordered))
    assert [node.keys for node in call.args] == [("y", "z")] * 2
    dict.__delitem__(ordered, "y")  # then its own order leads to nothing
    assert taped(tmp_path, ordered).args[0].keys == ("z",)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (["k" * 1025], "a key of 1025 characters (at most 1024)"),
        ([b"k" * 1025], "a key of 1025 bytes (at most 1024)"),
        ([2**64], "a key of 65 bits (at most 64)"),
        ([("a",) * 17], "a key of type tuple"),
        ([("a", "k" * 1025)], "a key of type tuple"),
        (list(itertools.product((-1, -2), repeat=7)), "more than 64 keys of one hash"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_dict_with_keys_that_no_reader_takes_is_opaque(
    tmp_path: Path, keys: list[Any], reason: str
) -> None:
    (value,) = taped(tmp_path, dict.fromkeys(keys, 1)).args
    assert (value.kind, value.reason) == ("opaque", reason)


def test_long_keys_that_a_reader_takes_are_recorded(tmp_path: Path) -> None:
    keys = ["k" * 1024, b"k" * 1024, 2**64 - 1, -(2**63), ("a",) * 16]
    keys += itertools.product((-1, -2), repeat=6)
    (value,) = taped(tmp_path, dict.fromkeys(keys, 1)).args
    assert value.keys == tuple(keys)


def test_keys_are_readable_paths_and_unique(tmp_path: Path) -> None:
    t = [torch.full((1,), float(i)) for i in range(6)]
    call = taped(
        tmp_path, t[0], {"a.b": t[1], "a": {"b": t[2]}}, past=[Pair(t[3], {"é\ud800": t[4]})]
    )
    keys = [fact.key for fact in call.record.inputs.facts()]
    assert keys[:2] == ["args.0", "args.1.a.b"]
    assert keys[3] == "kwargs.past.0.left"
    assert len(set(keys)) == 5
    for leaf in range(5):
        assert call.input(leaf).item() == leaf


@pytest.mark.usefixtures("_registered")
def test_registered_classes_use_their_own_flatten_function(tmp_path: Path) -> None:
    t = torch.randn(2)
    call = taped(tmp_path, Registered(7, t, [t]))
    node = call.args[0]
    assert (node.kind, node.type) == ("custom", "tests.recorder.capture.test_walk:Registered")
    assert node.context.keys == ("tag", "t")
    assert call.scalar(node.context.children[0]) == 7
    assert node.context.children[1].kind == "opaque"
    assert node.children[0].leaf == node.children[1].children[0].leaf == 0


def test_registration_is_looked_up_at_every_call(tmp_path: Path) -> None:
    model, path = Echo(), tmp_path / "t.tape"
    with record(model, path):
        model(Registered(1, 2))
        pytree.register_pytree_node(
            Registered, lambda r: (list(r.parts), None), lambda c, _: Registered(*c)
        )
        try:
            model(Registered(1, 2))
        finally:
            deregister(Registered)
        model(Registered(1, 2))
    assert [call.args[0].kind for call in read(path).calls] == ["opaque", "custom", "opaque"]


def test_unknown_objects_are_placeholders(tmp_path: Path) -> None:
    call = taped(
        tmp_path, Registered(1), torch.nn.Linear(2, 2), print, torch.Generator(), memoryview(b"x")
    )
    assert [node.kind for node in call.args] == ["opaque"] * 5
    assert call.args[0].type == "tests.recorder.capture.test_walk:Registered"
    assert call.args[1].reason == "a module"


def test_cycles_depth_and_size_end_in_placeholders(tmp_path: Path) -> None:
    cycle: list[Any] = [1]
    cycle += [cycle, cycle]
    own: dict[str, Any] = {}
    own["self"] = own
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    call = taped(tmp_path, cycle, own, deep, list(range(100_000)), [1])
    assert [node.kind for node in call.args[0].children] == ["int", "opaque", "opaque"]
    assert call.args[1].children[0].reason == "contains itself"
    depth, node = 0, call.args[2]
    while node.kind == "list":
        node, depth = node.children[0], depth + 1
    assert 40 < depth < 64
    assert node.kind == "opaque"
    assert call.args[3].kind == "opaque"
    assert call.args[4].kind == "list"


def test_a_list_shared_by_two_arguments_is_no_cycle(tmp_path: Path) -> None:
    shared = [torch.ones(1)]
    call = taped(tmp_path, shared, shared, a=shared)
    assert [node.children[0].leaf for node in (*call.args, call.kwargs["a"])] == [0, 0, 0]


def test_classes_met_are_known_to_readers_in_this_process(tmp_path: Path) -> None:
    model = Echo()
    with record(model, tmp_path / "t.tape") as recorder:
        model(Pair(1, 2), MyCache())
    assert recorder.classes == {
        "tests.recorder.capture.test_walk:Pair": Pair,
        "tests.recorder.capture.test_walk:MyCache": MyCache,
    }


def _layer(**attributes: Any) -> Any:
    return types.SimpleNamespace(**attributes)


def _lists() -> list[Any]:
    """Lists of children that are nearly alike."""
    x = [torch.ones(2) for _ in range(16)]
    noted = torch.ones(2)
    noted.mark = 1  # type: ignore[attr-defined]
    cpu, meta = torch.device("cpu"), torch.device("meta")
    circle: list[Any] = [(x[0],), (x[1],), (x[2],), (x[3],)]
    circle.append((circle,))
    pairs = list(zip(x, x[8:], strict=False))
    layers = [_layer(keys=a, values=b, on=True, at=cpu, none=None) for a, b in pairs]
    return [
        x, x[:3], [*x, x[0]], [*x, None], [*x, torch.nn.Parameter(x[0])], [noted, *x], [*x, noted],
        tuple(x), pairs, list(zip(x, x, strict=True)), [(), (), (), ()], [(x[0], None)] * 5,
        [(a, n) for n, a in enumerate(x)], [(a, a.dtype) for a in x], [(a, [a]) for a in x],
        [(x[0], x[1]), (x[2],), (x[3], x[4]), (x[5], x[6])], circle,
        layers, [*layers, _layer(keys=x[7])], [*layers, x[7]], [layers[0]] * 4, [x[0], layers],
        [_layer(a=x[n], b=n) for n in range(5)], [_layer(a=x[n], b=n > 3) for n in range(5)],
        [_layer(a=x[n], b=meta if n == 4 else cpu) for n in range(5)],
        [_layer(a=None if n == 4 else x[n]) for n in range(5)],
        [_layer(**{"a": x[n], "b": x[n + 8]} if n else {"b": x[8], "a": x[0]}) for n in range(5)],
        [_layer(a=x[n], b=Color.RED) for n in range(5)],
        [_layer(a=cpu if n else "cpu") for n in range(5)],
        [_layer(**{"a" * 2000: x[n]}) for n in range(5)], [x, x], {"one": x, "two": layers},
        # Scalars count for the bound, whether they are noted together or one by one.
        *[_layer(ints=list(range(10, 810)), pairs=[(torch.ones(1), torch.ones(1))] * count)
          for count in (100, 150, 300, 600)],
    ]  # fmt: skip


def _attributed(count: int) -> Any:
    return _layer(**{f"a{index}": None for index in range(count)})


@pytest.mark.parametrize(
    "value",
    [[(None,) * 200_000] * 1000, [_attributed(20_000)] * 1000],
    ids=["tuples", "objects"],
)
def test_like_children_are_not_copied_beyond_the_bound(value: Any) -> None:
    tracemalloc.start()
    capture_inputs((value,), {})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000_000


@pytest.mark.parametrize("side", ["inputs", "output"])
@pytest.mark.parametrize("case", range(len(_lists())))
def test_like_children_are_noted_as_each_by_itself(
    case: int, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = _lists()[case]
    monkeypatch.setattr(walk, "FEWEST_SIMILAR", 4)

    def captured() -> Any:
        found = capture_inputs((value,), {}) if side == "inputs" else capture_output(value)
        tokens, leaves, scalars = found
        return spell_out(tokens), [id(leaf) for leaf in leaves], scalars

    together = captured()
    monkeypatch.setattr(walk, "FEWEST_SIMILAR", 10**9)
    assert together == captured()


def test_like_children_cost_few_tokens_and_fill_the_bound_as_others_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many, others = ([torch.ones(1) for _ in range(50)] for _ in range(2))
    assert len(capture_inputs((many, *many[:2]), {})[0]) < 10
    monkeypatch.setattr(walk, "MAX_TREE_NODES", 60)
    over = capture_inputs((many, others), {})[0]
    monkeypatch.setattr(walk, "FEWEST_SIMILAR", 10**9)
    assert spell_out(over) == capture_inputs((many, others), {})[0]
    assert any(token[0] == "opaque" for token in over if type(token) is tuple)
