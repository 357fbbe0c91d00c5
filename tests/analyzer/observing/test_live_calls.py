"""A live call has the layout that it has as a recorded call."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from calltape_analyzer.arguments.samples import LiveCall
from tests.analyzer.observed import Anything, Given, Optional, given, sorter_of, tape_of, zeros
from tests.analyzer.observing.classes import (
    OD,
    Bag,
    Batch,
    Bits,
    Box,
    BoxList,
    Color,
    DictCache,
    FormerBoxList,
    Level,
    MyBytes,
    MyComplex,
    MyDict,
    MyFloat,
    MyInt,
    MyList,
    MySet,
    MyStr,
    MyTuple,
    MyUserDict,
    NestedCache,
    OddEnum,
    Old,
    OwnLayer,
    Pair,
    PairCache,
    TaggedTensor,
    Unknown,
    Word,
)
from tests.analyzer.observing.placed import placed

np = pytest.importorskip("numpy")


@pytest.fixture
def registered() -> Iterator[None]:
    functions: dict[type, tuple[Any, Any]] = {
        Box: (
            lambda box: ([box.content], {"label": box.label}),
            lambda children, context: Box(children[0], context["label"]),
        ),
        BoxList: (lambda box: (list(box), len(box)), lambda children, _: BoxList(children)),
        Batch: (lambda batch: ([batch.x, batch.weight], None), lambda parts, _: Batch(*parts)),
    }
    for cls, (flatten, unflatten) in functions.items():
        name = f"{cls.__module__}.{cls.__qualname__}"
        pytree.register_pytree_node(cls, flatten, unflatten, serialized_type_name=name)
    try:
        yield
    finally:
        for cls in functions:
            pytree._deregister_pytree_node(cls)


def shared() -> Given:
    one = zeros(2, 3)
    return given(one, [one, {"again": one}], last=one)


def sparse() -> torch.Tensor:
    return torch.eye(3).to_sparse()


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.rand(3), 0.1, 0, torch.quint8)


# Each makes the arguments of one call anew.
CALLS: dict[str, Callable[[], Given]] = {
    "tensors": lambda: given(zeros(2, 3), mask=zeros(4, dtype=torch.int64)),
    "scalar tensor": lambda: given(torch.tensor(3)),
    "parameter": lambda: given(torch.nn.Parameter(zeros(2))),
    "buffer": lambda: given(torch.nn.Buffer(zeros(2))),
    "tensor subclass": lambda: given(zeros(2).as_subclass(TaggedTensor)),
    "transposed": lambda: given(zeros(2, 3).t()),
    "expanded": lambda: given(zeros(1, 3).expand(4, 3)),
    "conjugate": lambda: given(torch.ones(2, dtype=torch.complex64).conj()),
    "requires grad": lambda: given(zeros(2).requires_grad_()),
    "empty": lambda: given(zeros(0, 4)),
    "meta": lambda: given(torch.zeros(2, 2, device="meta")),
    "sparse": lambda: given(sparse()),
    "sparse csr": lambda: given(torch.eye(3).to_sparse_csr()),
    "quantized": lambda: given(quantized()),
    "float8": lambda: given(zeros(2).to(torch.float8_e4m3fn)),
    "bfloat16": lambda: given(zeros(2).to(torch.bfloat16)),
    "shared tensor": shared,
    "list": lambda: given([zeros(1), zeros(2), [zeros(3)]]),
    "empty containers": lambda: given([], mask=(), last={}, other=set()),
    "tuple with None": lambda: given((zeros(1), None, (None,))),
    "dict": lambda: given({"b": zeros(1), "a": zeros(2), 3: zeros(3), (1, "x"): 1, None: 2}),
    "dict of mixed keys": lambda: given({1: 1, "1": 2, b"1": 3, 2.5: 4, False: 5}),
    "dict of enum keys": lambda: given({Color.RED: zeros(1)}),
    "dict of class keys": lambda: given({int: zeros(1)}),
    "ordered dict": lambda: given(OD(b=zeros(1), a=zeros(2))),
    "default dict": lambda: given(collections.defaultdict(list, {"a": [zeros(1)]})),
    "counter": lambda: given(collections.Counter("aab")),
    "dict subclass": lambda: given(MyDict(a=zeros(1))),
    "user dict": lambda: given(MyUserDict({"a": zeros(1)})),
    "plain user dict": lambda: given(collections.UserDict({"a": zeros(1)})),
    "list subclass": lambda: given(MyList([zeros(1), 2])),
    "tuple subclass": lambda: given(MyTuple([zeros(1), 2])),
    "set subclass": lambda: given(MySet([2])),
    "deque": lambda: given(collections.deque([zeros(1), 2], maxlen=4)),
    "set": lambda: given({3}),
    "frozenset": lambda: given(frozenset({"a"})),
    "dataclass": lambda: given(Batch(zeros(2), 3)),
    "dataclass that is a dict": lambda: given(Bag(x=zeros(2), n=3)),
    "named tuple": lambda: given(Pair(zeros(2), None), last=Old(1, zeros(1))),
    "return type": lambda: given(torch.max(zeros(2, 3), dim=0)),
    "namespace": lambda: given(SimpleNamespace(x=zeros(2), n=3, _private="text")),
    "cache": lambda: given(PairCache(zeros(2), n=3, _flag=True)),
    "cache of caches": lambda: given(NestedCache(zeros(2), layers=[PairCache(zeros(3))])),
    "cache that is a dict": lambda: given(DictCache(a=zeros(1))),
    "own layer": lambda: given(OwnLayer()),
    "module": lambda: given(torch.nn.Linear(2, 2)),
    "module called layer": lambda: given(torch.nn.TransformerEncoderLayer(4, 2, 4)),
    "registered class": lambda: given(Box(zeros(2), "label")),
    "registered class with int": lambda: given(Box([zeros(2), 3], 7)),
    "registered class with a tensor in its context": lambda: given(Box(zeros(2), zeros(3))),
    "registered list": lambda: given(BoxList([zeros(2), 1])),
    "unknown object": lambda: given(Unknown()),
    "function": lambda: given(len, last=lambda: None),
    "partial": lambda: given(functools.partial(int, base=2)),
    "enum": lambda: given(Color.RED, last=Color.MANY),
    "int enum": lambda: given(Level.LOW),
    "text enum": lambda: given(Word.YES),
    "flags": lambda: given(Bits.A | Bits.B, last=Bits(0)),
    "dataclass enum": lambda: given(OddEnum.ONE),
    "class": lambda: given(torch.nn.Linear, last=int),
    "dtype": lambda: given(torch.float16),
    "device": lambda: given(torch.device("cpu"), last=torch.device("cuda", 1)),
    "layout": lambda: given(torch.strided),
    "memory format": lambda: given(torch.channels_last),
    "slice": lambda: given(slice(1, None, 2)),
    "range": lambda: given(range(1, 5)),
    "slice of tensors": lambda: given(slice(zeros(1), None, None)),
    "size": lambda: given(torch.Size([2, 3]), last=zeros(4, 5).shape),
    "ellipsis": lambda: given(...),
    "scalars": lambda: given(1, 2.5, 3.5, 4, False, "text", last=b"bytes", z=1 + 2j),
    "special floats": lambda: given(float("nan"), float("inf"), -0.0),
    "big int": lambda: given(2**70, last=-(2**64)),
    "int subclass": lambda: given(MyInt(3)),
    "float subclass": lambda: given(MyFloat(2.5)),
    "complex subclass": lambda: given(MyComplex(2.5)),
    "text subclass": lambda: given(MyStr("text")),
    "bytes subclass": lambda: given(MyBytes(b"text")),
    "bytearray": lambda: given(bytearray(b"text")),
    "memoryview": lambda: given(memoryview(b"text")),
    "default by position": lambda: given(zeros(1), None, 1.0, 1, True, "mean"),
    "default of a subclass": lambda: given(zeros(1), mode=MyStr("mean"), steps=Level.LOW),
    "args and kwargs": lambda: given(zeros(1), None, 2.0, 2, False, "sum", zeros(2), 5, a=1, b=[2]),
    "numpy arrays": lambda: given(np.zeros((2, 3), np.float32), last=np.arange(4)),
    "numpy array of another byte order": lambda: given(np.zeros(3, ">f4")[::-1]),
    "numpy bool": lambda: given(np.bool_(True), last=np.bool_(False)),
    "numpy ints": lambda: given(np.int64(3), last=np.uint8(4)),
    "numpy floats": lambda: given(np.float64(2.5), np.float32(0.5), np.float16(2)),
    "numpy complex": lambda: given(np.complex64(1j), last=np.complex128(2j)),
    "numpy text": lambda: given(np.str_("a"), last=np.bytes_(b"a")),
    "numpy time": lambda: given(np.datetime64("2020-01-01T00:00:00.000000001"),
                                last=np.timedelta64(3, "ns")),
    "numpy long double": lambda: given(np.longdouble(2)),
    "numpy dtype": lambda: given(np.dtype("float32")),
}  # fmt: skip


def assert_live_is_recorded(
    directory: Path, call: Callable[[], Given], module: torch.nn.Module, **options: Any
) -> None:
    tape = tape_of(directory, [call()], module, **options)
    sorter = sorter_of(tape)
    recorded = sorter.sorted(tape.calls[0].record.inputs)
    args, kwargs = call()
    live = LiveCall(args, kwargs, sorter)
    assert live.placed.layout.keys == recorded.layout.keys
    assert live.placed.key == recorded.key
    assert live.placed.row == recorded.row
    assert live.placed.key.facts == recorded.key.facts
    assert repr(live.placed.constants) == repr(recorded.constants)
    assert live.placed.layout.tensors == tuple(
        place._replace(number=own.number)
        for place, own in zip(recorded.layout.tensors, live.placed.layout.tensors, strict=True)
    )
    assert live.placed.layout.scalars == recorded.layout.scalars
    # And what a program would be run with is what was recorded, kind by kind.
    assert all(isinstance(tensor, torch.Tensor) for tensor in live.sample.tensors)
    own = [tape.calls[0].record.inputs.scalars[p.number] for p in recorded.layout.scalars]
    assert repr(live.sample.scalars) == repr(own)


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:torch.quantize")
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", CALLS)
def test_a_live_call_sorts_as_it_was_recorded(tmp_path: Path, name: str) -> None:
    assert_live_is_recorded(tmp_path, CALLS[name], Optional())


@pytest.mark.parametrize("name", ["registered class", "dataclass"])
def test_live_and_recorded_calls_agree_without_a_registration(tmp_path: Path, name: str) -> None:
    assert_live_is_recorded(tmp_path, CALLS[name], Optional())


def test_a_list_is_the_same_after_its_registration_is_taken_back(tmp_path: Path) -> None:
    """No other test has its class: once the recorder met it as a list, it stays one."""

    def call() -> Given:
        return given(FormerBoxList([zeros(2), 1]))

    pytree.register_pytree_node(
        FormerBoxList,
        lambda one: (list(one), len(one)),
        lambda parts, _: FormerBoxList(parts),
    )
    try:
        assert_live_is_recorded(tmp_path / "before", call, Optional())
    finally:
        pytree._deregister_pytree_node(FormerBoxList)
    assert_live_is_recorded(tmp_path / "after", call, Optional())


class PositionalOnly(torch.nn.Module):
    def forward(self, x: Any, y: Any = 2, /, *, z: Any = None, **rest: Any) -> torch.Tensor:
        return torch.zeros(())


@pytest.mark.parametrize(
    "call",
    [
        lambda: given(zeros(1)),
        lambda: given(zeros(1), 2),
        lambda: given(zeros(1), 3, z=zeros(2)),
        lambda: given(zeros(1), zeros(2), z=None, x=zeros(3)),
    ],
)
def test_live_and_recorded_calls_agree_on_positional_only_arguments(
    tmp_path: Path, call: Callable[[], Given]
) -> None:
    assert_live_is_recorded(tmp_path, call, PositionalOnly())


@pytest.mark.xfail(reason="both are called x, and the keyword wins", strict=True)
def test_a_keyword_of_the_name_of_a_positional_only_argument_is_another_one(
    tmp_path: Path,
) -> None:
    (found,) = placed(tmp_path, given(zeros(1), x=zeros(3)), module=PositionalOnly())
    assert found.row.shapes == ((1,), (3,))


def test_no_arguments_at_all_are_a_layout_too(tmp_path: Path) -> None:
    assert_live_is_recorded(tmp_path, lambda: given(), Anything())


@pytest.mark.parametrize("content", [object(), "text"])
def test_arrays_that_no_tensor_can_be_are_not_taken_for_one(tmp_path: Path, content: Any) -> None:
    tape = tape_of(tmp_path, [given(zeros(2))])
    live = LiveCall((np.array([content]),), {}, sorter_of(tape))
    assert live.sample.tensors == []
    assert live.placed.key != sorter_of(tape).sorted(tape.calls[0].record.inputs).key


def test_a_container_that_holds_itself_is_no_endless_walk(tmp_path: Path) -> None:
    def call() -> Given:
        loop: list[Any] = [zeros(2)]
        loop.append(loop)
        return given(loop)

    assert_live_is_recorded(tmp_path, call, Optional())


@pytest.mark.integration
@pytest.mark.parametrize("which", ["none", "ours", "executorch", "exporters"])
@pytest.mark.parametrize("name", ["dynamic", "static", "sliding", "encoder-decoder", "output"])
def test_caches_of_transformers_too(
    tmp_path: Path, registrations: Callable[[str], Any], which: str, name: str
) -> None:
    from transformers import DynamicCache, EncoderDecoderCache, LlamaConfig, StaticCache
    from transformers.modeling_outputs import BaseModelOutput

    config = LlamaConfig(
        hidden_size=8, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=2
    )

    def filled(cache: Any) -> Any:
        for layer in range(2):
            cache.update(zeros(1, 2, 3, 4), zeros(1, 2, 3, 4), layer)
        return cache

    def sliding() -> Any:
        windowed = LlamaConfig(
            hidden_size=8, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=2
        )
        windowed.layer_types = ["sliding_attention", "full_attention"]
        windowed.sliding_window = 4
        return filled(DynamicCache(config=windowed))

    make: dict[str, Callable[[], Any]] = {
        "dynamic": lambda: filled(DynamicCache()),
        "static": lambda: filled(StaticCache(config=config, max_cache_len=8)),
        "sliding": sliding,
        "encoder-decoder": lambda: EncoderDecoderCache(
            filled(DynamicCache()), filled(DynamicCache())
        ),
        "output": lambda: BaseModelOutput(
            last_hidden_state=zeros(1, 2), hidden_states=(zeros(1), zeros(2))
        ),
    }
    with registrations(which):
        call = lambda: given(zeros(1, 1, dtype=torch.int64), past_key_values=make[name]())  # noqa: E731
        assert_live_is_recorded(tmp_path, call, Optional())
    # The same key whatever is registered where a live call is made.
    tape = tape_of(tmp_path, [call()], Optional())
    sorter = sorter_of(tape)
    with registrations(which):
        live = LiveCall(*call(), sorter)
    assert live.placed.key == sorter.sorted(tape.calls[0].record.inputs).key
