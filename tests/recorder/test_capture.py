"""What a call can hold is on the tape, and reads back as it was."""

from __future__ import annotations

import collections
import dataclasses
import enum
import itertools
import tarfile
import types
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors
import torch
from torch.utils import _pytree as pytree

from calltape_recorder import record
from calltape_recorder.facts import DTYPES
from tests.recorder.models import Add, Echo, Identity
from tests.recorder.reading import ReadCall, ReadTape, read


def one(tmp_path: Path, *args: Any, **kwargs: Any) -> ReadCall:
    """The tape's only call, of a model that takes anything."""
    path = tmp_path / "one.tape"
    model = Echo()
    with record(model, path, overwrite=True) as recorder:
        model(*args, **kwargs)
    tape = read(path)
    assert recorder.stats().dropped == {}
    assert not tape.damage
    return tape.calls[0]


def through(tmp_path: Path, value: Any) -> ReadCall:
    """A call that takes and returns ``value``."""
    path = tmp_path / "through.tape"
    model = Identity()
    with record(model, path, overwrite=True):
        model(value)
    return read(path).calls[0]


def bits(tensor: torch.Tensor) -> bytes:
    """Every bit of the logical elements, NaNs included."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.numel() == 0:
        return b""
    if plain.element_size() == 1 and plain.dtype not in (torch.bool,):
        plain = plain.view(torch.uint8)
    plain = plain.clone(memory_format=torch.contiguous_format)
    return bytes(plain.reshape(-1).view(torch.uint8).untyped_storage())[: plain.nbytes]


# --- tensors -----------------------------------------------------------------------------------

ORDINARY = sorted((d for d in DTYPES if not str(d).startswith("torch.q")), key=str)


@pytest.mark.parametrize("dtype", ORDINARY, ids=str)
@pytest.mark.parametrize("strided", [False, True])
def test_every_dtype_reads_back_bit_identical(
    tmp_path: Path, dtype: torch.dtype, strided: bool
) -> None:
    source = torch.randint(0, 256, (4, 6 * dtype.itemsize), dtype=torch.uint8)
    if dtype is torch.bool:
        source = source % 2
    tensor = source.view(dtype)
    tensor = tensor.t() if strided else tensor
    call = through(tmp_path, tensor)
    facts = call.record.inputs.facts()[0]
    assert getattr(torch, facts.dtype) is dtype
    assert facts.shape == tuple(tensor.shape)
    assert facts.strides == (tuple(tensor.stride()) if strided else None)
    assert bits(call.input(0)) == bits(tensor)
    assert bits(call.output(0)) == bits(tensor)


def test_every_dtype_of_this_torch_is_recorded_or_says_why(tmp_path: Path) -> None:
    model = Identity()
    with warnings.catch_warnings(), record(model, tmp_path / "t.tape") as recorder:
        warnings.simplefilter("ignore")
        dtypes = sorted({d for d in vars(torch).values() if type(d) is torch.dtype}, key=str)
        for dtype in dtypes:
            if str(dtype).startswith("torch.q"):
                model(torch._empty_affine_quantized((2, 4), scale=0.5, zero_point=0, dtype=dtype))
            else:
                model(torch.empty(2, 4, dtype=dtype))
    assert recorder.stats().kept == len(dtypes)
    for call in read(tmp_path / "t.tape").calls:
        facts = call.record.inputs.facts()[0]
        assert facts.missing is None or facts.dtype in ("quint4x2", "quint2x4")


@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32], ids=str)
def test_quantized_per_tensor(tmp_path: Path, dtype: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.quantize_per_tensor(torch.randn(3, 5), 0.1, 0, dtype)
    call = through(tmp_path, tensor)
    quantizer = call.record.inputs.facts()[0].quantizer
    assert quantizer is not None
    assert (quantizer.scale, quantizer.zero_point) == (tensor.q_scale(), tensor.q_zero_point())
    assert torch.equal(call.input(0), tensor.int_repr())


def test_large_tensors_and_their_pooled_memory(tmp_path: Path) -> None:
    model = Identity()
    values = [torch.randn(100_003 + i) for i in range(6)]
    with record(model, tmp_path / "t.tape") as recorder:
        for value in values:
            model(value.clone())
            recorder.flush()  # so that buffers come back and are used again
    for value, call in zip(values, read(tmp_path / "t.tape").calls, strict=False):
        assert torch.equal(call.input(0), value)
        assert torch.equal(call.output(0), value)


def test_layouts_of_memory(tmp_path: Path) -> None:
    base = torch.arange(48, dtype=torch.float32).reshape(2, 3, 2, 4)
    views = {
        "channels_last": base.contiguous(memory_format=torch.channels_last),
        "sliced": base[:, 1:, :, ::2],
        "expanded": torch.arange(3.0).reshape(1, 3, 1).expand(4, 3, 5),
        "overlapping": torch.arange(10.0).unfold(0, 4, 2),
        "scalar": torch.tensor(7.0),
        "empty": torch.empty(0, 5),
        "empty_strided": torch.empty(4, 0).t(),
        "offset": base.reshape(-1)[5:9],
    }
    call = one(tmp_path, **views)
    for (name, view), facts in zip(views.items(), call.record.inputs.facts(), strict=False):
        leaf = call.kwargs[name].leaf
        assert torch.equal(call.input(leaf), view), name
        assert facts.strides == (None if view.is_contiguous() else tuple(view.stride())), name
    assert call.record.inputs.facts()[call.kwargs["expanded"].leaf].expanded == (0, 2)
    assert call.stored(call.record.inputs, call.kwargs["expanded"].leaf).shape == (1, 3, 1)


def test_conjugate_and_negative_views(tmp_path: Path) -> None:
    z = torch.randn(3, 4, dtype=torch.complex64)
    call = one(tmp_path, z.conj(), z.conj().imag, z.mH)
    facts = call.record.inputs.facts()
    assert [(f.conj, f.neg) for f in facts] == [(True, False), (False, True), (True, False)]
    for leaf, value in enumerate([z.conj(), z.conj().imag, z.mH]):
        assert torch.equal(call.input(leaf), value)


def test_flags(tmp_path: Path) -> None:
    with torch.inference_mode():
        inference = torch.ones(2)
    weight = torch.nn.Parameter(torch.randn(2))
    call = one(tmp_path, torch.ones(2, requires_grad=True), inference, weight)
    facts = call.record.inputs.facts()
    assert [f.requires_grad for f in facts] == [True, False, True]
    assert [f.inference for f in facts] == [False, True, False]
    assert facts[2].subclass == "torch.nn.parameter:Parameter"


class Tagged(torch.Tensor):
    """Intercepts everything, and fails."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"the recorder called {func}")


class Hidden(torch.Tensor):
    """Has no bytes of its own."""

    @staticmethod
    def __new__(cls, shape: tuple[int, ...]) -> Hidden:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float16)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"the recorder called {func}")


def test_subclasses(tmp_path: Path) -> None:
    value = torch.randn(3, 4)
    tagged = value.as_subclass(Tagged)
    turned = value.t().as_subclass(Tagged)
    call = one(tmp_path, tagged, turned, Hidden((2, 3)))
    facts = call.record.inputs.facts()
    assert [f.subclass for f in facts[:2]] == ["tests.recorder.test_capture:Tagged"] * 2
    assert torch.equal(call.input(0), value)
    assert torch.equal(call.input(1), value.t())
    assert (facts[2].missing or "").startswith("a tensor subclass")
    assert (facts[2].dtype, facts[2].shape) == ("float16", (2, 3))


def test_what_cannot_be_stored_is_a_leaf_with_a_reason(tmp_path: Path) -> None:
    freed = torch.randn(8)
    freed.untyped_storage().resize_(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = {
            "coo": torch.eye(3).to_sparse(),
            "csr": torch.eye(3).to_sparse_csr(),
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            "jagged": torch.nested.nested_tensor(
                [torch.ones(2), torch.ones(3)], layout=torch.jagged
            ),
            "meta": torch.empty(2, 3, device="meta"),
            "mkldnn": torch.randn(2, 3).to_mkldnn(),
            "freed": freed,
            "per_channel": torch.quantize_per_channel(
                torch.randn(2, 3), torch.ones(2), torch.zeros(2), 0, torch.qint8
            ),
        }
        call = one(tmp_path, **values)
    facts = {name: call.record.inputs.facts()[call.kwargs[name].leaf] for name in values}
    assert all(fact.key is None and fact.missing for fact in facts.values())
    assert facts["coo"].shape == (3, 3)
    assert facts["coo"].layout == "sparse_coo"
    assert facts["meta"].device == "meta"
    assert facts["mkldnn"].layout == "_mkldnn"
    assert facts["freed"].missing == "its storage was freed"


def test_one_tensor_twice_is_one_leaf_and_two_views_share_a_key(tmp_path: Path) -> None:
    x = torch.randn(4, 4)
    call = one(tmp_path, x, [x, x.view(4, 4)], x[0], x.t(), torch.ones(1))
    leaves = [call.args[0].leaf, *(child.leaf for child in call.args[1].children)]
    facts = call.record.inputs.facts()
    assert leaves == [0, 0, 1]
    assert facts[0].key == facts[1].key == "args.0"
    assert [fact.storage for fact in facts] == [0, 0, 0, 0, None]
    assert len({fact.key for fact in facts}) == 4
    assert torch.equal(call.input(3), x.t())


def test_the_same_memory_conjugated_is_stored_for_itself(tmp_path: Path) -> None:
    z = torch.randn(3, dtype=torch.complex64)
    call = one(tmp_path, z, z.conj())
    assert torch.equal(call.input(0), z)
    assert torch.equal(call.input(1), z.conj())


def test_ranges_of_integers(tmp_path: Path) -> None:
    values = [
        torch.tensor([5, -3, 9]),
        torch.tensor([2**64 - 1, 7], dtype=torch.uint64),
        torch.arange(5000, dtype=torch.int32).flip(0),
        torch.cat([torch.arange(20_000), torch.tensor([65_535])]).to(torch.uint16),
        torch.tensor([200, 3], dtype=torch.uint8).expand(2, 2),
        torch.ones(2),
        torch.zeros(0, dtype=torch.int64),
    ]
    found = {r.leaf: (r.min, r.max) for r in one(tmp_path, *values).record.inputs.ranges}
    assert found == {
        0: (-3, 9), 1: (7, 2**64 - 1), 2: (0, 4999), 3: (0, 65_535), 4: (3, 200),
    }  # fmt: skip


def test_numpy_arrays_and_scalars(tmp_path: Path) -> None:
    arrays = [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.asfortranarray(np.random.rand(3, 4)),
        np.array(["a"], dtype=object),
        np.arange(3, dtype=">i4"),
        np.random.rand(40_000),
    ]
    call = one(tmp_path, *arrays, np.float64(1.5), np.int32(7), np.bool_(True))
    facts = call.record.inputs.facts()
    assert [node.kind for node in call.args[:5]] == ["ndarray"] * 5
    for leaf in (0, 1, 4):
        assert np.array_equal(call.input(leaf).numpy(), arrays[leaf])
    assert facts[2].missing == "dtype object"
    assert facts[3].missing is not None
    assert [call.scalar(node) for node in call.args[5:7]] == [1.5, 7]
    assert [node.type for node in call.args[5:7]] == ["numpy:float64", "numpy:int32"]
    assert call.args[7].value is True


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


def test_scalars(tmp_path: Path) -> None:
    values = [
        0, -1, 2**70, -(2**63) - 1, 10**2000, 1.5, float("inf"), -0.0, 1 + 2j, "text", "", "\ud800",
        "x" * 5000, b"bytes", bytearray(b"more"), Text("sub"),
    ]  # fmt: skip
    call = one(tmp_path, *values)
    read_back = [call.scalar(node) for node in call.args]
    assert read_back[:-1] == values[:-1]
    assert read_back[-1] == "sub"
    assert call.args[-1].type == "tests.recorder.test_capture:Text"
    assert call.args[-2].type == "builtins:bytearray"


def test_too_much_of_a_scalar_is_a_placeholder(tmp_path: Path) -> None:
    call = one(tmp_path, 10**5000, "x" * (2 << 20), b"x" * (2 << 20), 1)
    assert [node.kind for node in call.args] == ["opaque"] * 3 + ["int"]


def test_constants(tmp_path: Path) -> None:
    call = one(
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
    call = one(tmp_path, Access.READ, Access.READ | Access.WRITE, Access(0), Mode.ON, Mode.ONE)
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
    pytree._deregister_pytree_node(Registered)


def test_containers(tmp_path: Path) -> None:
    t = torch.ones(2)
    call = one(
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


def test_dicts(tmp_path: Path) -> None:
    keys: dict[Any, Any] = {
        "b": 1, "a": 2, 3: 3, 1.5: 4, None: 5, b"k": 6, ("x", 1): 7, False: 8, "\ud800": 9,
    }  # fmt: skip
    ordered = collections.OrderedDict(z=1, y=2)
    default = collections.defaultdict(list, {"q": torch.ones(1)})
    call = one(tmp_path, keys, ordered, default, {Color.RED: 1}, {2**70: 1}, {1: 0}, {True: 0})
    assert call.args[0].keys == tuple(keys)
    assert (call.args[1].keys, call.args[1].type) == (("z", "y"), "collections:OrderedDict")
    assert call.args[2].type == "collections:defaultdict"
    assert [node.kind for node in call.args[3:5]] == ["opaque"] * 2
    assert type(call.args[5].keys[0]) is int
    assert type(call.args[6].keys[0]) is bool


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (["k" * 1025], "a long key of type str"),
        ([b"k" * 1025], "a long key of type bytes"),
        ([2**64], "a long key of type int"),
        ([("a",) * 17], "a key of type tuple"),
        ([("a", "k" * 1025)], "a key of type tuple"),
        (list(itertools.product((-1, -2), repeat=7)), "more than 64 keys of one hash"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_keys_that_no_reader_takes(tmp_path: Path, keys: list[Any], reason: str) -> None:
    (value,) = one(tmp_path, dict.fromkeys(keys, 1)).args
    assert (value.kind, value.reason) == ("opaque", reason)


def test_long_keys_that_a_reader_takes(tmp_path: Path) -> None:
    keys = ["k" * 1024, b"k" * 1024, 2**64 - 1, -(2**63), ("a",) * 16]
    keys += itertools.product((-1, -2), repeat=6)
    (value,) = one(tmp_path, dict.fromkeys(keys, 1)).args
    assert value.keys == tuple(keys)


def test_keys_are_readable_paths_and_unique(tmp_path: Path) -> None:
    t = [torch.full((1,), float(i)) for i in range(6)]
    call = one(
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
    call = one(tmp_path, Registered(7, t, [t]))
    node = call.args[0]
    assert (node.kind, node.type) == ("custom", "tests.recorder.test_capture:Registered")
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
            pytree._deregister_pytree_node(Registered)
        model(Registered(1, 2))
    assert [call.args[0].kind for call in read(path).calls] == ["opaque", "custom", "opaque"]


class Hostile:
    """Everything the recorder must not touch."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)

    def __repr__(self) -> str:
        raise AssertionError

    def __hash__(self) -> int:
        raise AssertionError


def test_unknown_objects_are_placeholders_and_their_code_is_not_run(tmp_path: Path) -> None:
    call = one(
        tmp_path, Hostile(), torch.nn.Linear(2, 2), print, torch.Generator(), memoryview(b"x")
    )
    assert [node.kind for node in call.args] == ["opaque"] * 5
    assert call.args[0].type == "tests.recorder.test_capture:Hostile"
    assert call.args[1].reason == "a module"


def test_cycles_depth_and_size_end_in_placeholders(tmp_path: Path) -> None:
    cycle: list[Any] = [1]
    cycle += [cycle, cycle]
    own: dict[str, Any] = {}
    own["self"] = own
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    call = one(tmp_path, cycle, own, deep, list(range(100_000)), [1])
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
    call = one(tmp_path, shared, shared, a=shared)
    assert [node.children[0].leaf for node in (*call.args, call.kwargs["a"])] == [0, 0, 0]


# --- the file ----------------------------------------------------------------------------------


def test_structures_and_leaves_are_the_same_bytes_for_the_same_call(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    with record(model, path):
        for _ in range(3):
            model(torch.ones(2), torch.ones(2))
        model(torch.ones(3), torch.ones(3))
    trees = [call.record.inputs for call in read(path).calls]
    assert len({tree.structure for tree in trees}) == 1
    assert len({tree.leaves for tree in trees}) == 2


def test_the_safetensors_library_opens_every_extracted_blob(tmp_path: Path) -> None:
    model, path = Identity(), tmp_path / "t.tape"
    known = [d for d in ORDINARY if str(d).removeprefix("torch.") in _SAFETENSORS]
    sent = [torch.randint(0, 2, (3, 4 * d.itemsize), dtype=torch.uint8).view(d) for d in known]
    with record(model, path):
        model({"many": sent, "plain": torch.arange(3), "é": torch.ones(2, 0)})
    with tarfile.open(path) as tar:
        tar.extractall(tmp_path / "out", filter="data")
        names = tar.getnames()
    assert names == [
        "tape.msgpack", "calls/00000000.safetensors", "calls/00000000.msgpack", "trailer.msgpack",
    ]  # fmt: skip
    with safetensors.safe_open(tmp_path / "out" / names[1], "pt") as blob:
        for index, tensor in enumerate(sent):
            opened = blob.get_tensor(f"args.0.many.{index}")
            assert opened.dtype == tensor.dtype
            assert bits(opened) == bits(tensor)
        assert blob.get_tensor("args.0.é").shape == (2, 0)
    header = (tmp_path / "out" / names[1]).read_bytes()[:8]
    assert (8 + int.from_bytes(header, "little")) % 64 == 0


_SAFETENSORS = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "float8_e4m3fn",
    "float8_e5m2",
]


def test_manifest(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(
            self, x: Any, /, y: int = 3, *rest: Any, z: Any = None, o: Any = None, **more: Any
        ):
            if o is None:
                o = {}
            return x

    with record(Model(), tmp_path / "t.tape", outputs=False, max_calls=7):
        pass
    manifest = read(tmp_path / "t.tape").manifest
    assert manifest.target is not None
    assert manifest.target.signature is not None
    assert (manifest.target.method, manifest.target.via) == ("forward", "hook")
    assert [(p.name, p.kind, p.has_default, p.default) for p in manifest.target.signature] == [
        ("x", "POSITIONAL_ONLY", False, None),
        ("y", "POSITIONAL_OR_KEYWORD", True, 3),
        ("rest", "VAR_POSITIONAL", False, None),
        ("z", "KEYWORD_ONLY", True, None),
        ("o", "KEYWORD_ONLY", True, None),
        ("more", "VAR_KEYWORD", False, None),
    ]
    assert (manifest.policy.outputs, manifest.policy.max_calls) == (False, 7)
    assert manifest.producer.torch == torch.__version__
    assert manifest.producer.host is None


def test_shapes_only(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    with record(model, path, values="none"):
        model(torch.tensor([4, -4]), torch.ones(2))
        model(torch.arange(-9, 1024 - 9), torch.ones(1))
        model(torch.zeros(1 << 20, dtype=torch.int64), torch.ones(1))
    tape: ReadTape = read(path)
    assert [call.blob for call in tape.calls] == [b"", b"", b""]
    first = tape.calls[0].record
    assert [fact.missing for fact in first.inputs.facts()] == ["policy", "policy"]
    assert first.inputs.ranges == ()  # of so few it would be what they are
    (found,) = tape.calls[1].record.inputs.ranges
    assert (found.leaf, found.min, found.max) == (0, -9, 1014)
    assert tape.calls[2].record.inputs.ranges == ()
    assert path.stat().st_size < 20_000


def test_without_outputs(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    with record(model, path, outputs=False):
        model(torch.ones(1), torch.ones(1))
    call = read(path).calls[0].record
    assert (call.outputs, call.outputs_missing) == (None, "policy")
    assert call.duration_ns is not None


def test_classes_met_are_known_to_readers_in_this_process(tmp_path: Path) -> None:
    model = Echo()
    with record(model, tmp_path / "t.tape") as recorder:
        model(Pair(1, 2), MyCache())
    assert recorder.classes == {
        "tests.recorder.test_capture:Pair": Pair,
        "tests.recorder.test_capture:MyCache": MyCache,
    }
