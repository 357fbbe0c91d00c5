"""The facts of a tensor: what is recorded besides its bytes, and whether these can be kept.

Facts are hashable, and equal for tensors that look the same. So what follows from them (the leaf
record, the blob header) is made once. Shapes are not among them: a cache grows in each call, and
all other facts of its tensors stay the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import torch

from calltape_recorder.bounds import MAX_SHAPES
from calltape_recorder.capture.names import type_name
from calltape_recorder.threads import is_interrupt
from calltape_schema.blob import INTEGER_FORMATS, STORED_DTYPES
from calltape_schema.bounds import MAX_RANK
from calltape_schema.objects import class_attribute, name_of

# The class of a tensor may have a property named ``shape``, and any tensor an attribute named
# ``data_ptr``. Their code must not run in a call of the application. What is not a method
# (``leaf.dtype``) cannot be replaced on a tensor of the plain class, so there it is read as usual.

_Base: Any = torch._C.TensorBase

as_subclass: Callable[[Any, type], Any] = _Base.as_subclass
clone: Callable[..., Any] = _Base.clone
data_ptr: Callable[[Any], int] = _Base.data_ptr
detach: Callable[[Any], Any] = _Base.detach
int_repr: Callable[[Any], Any] = _Base.int_repr
is_conj: Callable[[Any], bool] = _Base.is_conj
is_contiguous: Callable[[Any], bool] = _Base.is_contiguous
is_inference: Callable[[Any], bool] = _Base.is_inference
is_neg: Callable[[Any], bool] = _Base.is_neg
narrow: Callable[[Any, int, int, int], Any] = _Base.narrow
numel: Callable[[Any], int] = _Base.numel
q_scale: Callable[[Any], float] = _Base.q_scale
q_zero_point: Callable[[Any], int] = _Base.q_zero_point
qscheme: Callable[[Any], Any] = _Base.qscheme
resolve_conj: Callable[[Any], Any] = _Base.resolve_conj
resolve_neg: Callable[[Any], Any] = _Base.resolve_neg
storage_offset: Callable[[Any], int] = _Base.storage_offset
stride: Callable[[Any], tuple[int, ...]] = _Base.stride
to: Callable[..., Any] = _Base.to
untyped_storage: Callable[[Any], torch.UntypedStorage] = _Base.untyped_storage
view: Callable[..., Any] = _Base.view

device_of: Callable[[Any], torch.device] = _Base.device.__get__
dtype_of: Callable[[Any], torch.dtype] = _Base.dtype.__get__
is_nested: Callable[[Any], bool] = _Base.is_nested.__get__
layout_of: Callable[[Any], torch.layout] = _Base.layout.__get__
requires_grad: Callable[[Any], bool] = _Base.requires_grad.__get__
shape_of: Callable[[Any], torch.Size] = _Base.shape.__get__


# This is no public interface of torch. Without it, each tensor is asked.
dispatch_keys: Any = getattr(torch._C, "_dispatch_keys", None)
_raw_keys: Any = getattr(getattr(torch._C, "DispatchKeySet", None), "raw_repr", None)
if _raw_keys is None:
    dispatch_keys = None


def keys_of(t: Any) -> Hashable:
    """A key that is equal for tensors of the plain class whose bytes are read in the same way: of
    one type of device, one layout, one inference mode and one negative bit.

    ``is_neg`` and ``is_inference`` release the interpreter lock, which takes longer beside a busy
    writer than everything else. The dispatch keys contain both answers, and reading them does not.
    """
    if dispatch_keys is None:
        return layout_of(t), device_of(t).type, is_inference(t), is_neg(t)
    return _raw_keys(dispatch_keys(t))  # type: ignore[no-any-return]


def keys_of_all(tensors: Iterable[Any]) -> tuple[Hashable, ...]:
    """:func:`keys_of` each."""
    if dispatch_keys is None:
        return tuple(map(keys_of, tensors))
    return tuple(map(_raw_keys, map(dispatch_keys, tensors)))


class LeafFacts(NamedTuple):
    """See :class:`calltape_schema.tree.Leaf`. ``strides`` is None if the leaf is contiguous.
    ``direct`` is the type of the device whose memory is copied as it lies, ``cpu`` or ``cuda``;
    it is empty for all other leaves."""

    dtype: Any
    device: Any
    flags: int
    strides: tuple[int, ...] | None
    direct: str
    missing: str | None = None
    expanded: tuple[int, ...] = ()
    layout: str | None = None
    subclass: type | None = None
    quantizer: tuple[str, float, int] | None = None


Shape = tuple[int, ...]


class _Shapes(dict[Shape, Shape]):
    """Plain tuples by equal shapes. Unlike a ``torch.Size``, Python's garbage collector does not
    visit them, and equal shapes are one object. So a waiting call adds none."""

    def __missing__(self, shape: Shape) -> Shape:
        if len(self) >= MAX_SHAPES:
            self.clear()
        plain = tuple(shape)
        self[plain] = plain
        return plain


shape_like: Callable[[Shape], Shape] = _Shapes().__getitem__
"""The shape as a plain tuple that equal shapes share."""


class Alias(NamedTuple):
    """Where a leaf lies in memory that it shares with another leaf of its call.

    Attributes:
        storage: the number of the memory, within one side of a call.
        offset: in bytes, from the first byte of the leaves in that memory. It is counted from there
            and not from where the memory begins, so that leaves in a pool whose place changes from
            call to call have equal facts.
    """

    storage: int
    offset: int


REQUIRES_GRAD, INFERENCE, CONJ, NEG = 1, 2, 4, 8

_QUANTIZED = frozenset({"qint8", "quint8", "qint32"})

DTYPES = {
    dtype: name
    for dtype in {value for value in vars(torch).values() if type(value) is torch.dtype}
    if (name := str(dtype).removeprefix("torch.")) in STORED_DTYPES
}
"""Every dtype of this torch that the format can store, with its name there."""
INTEGERS = frozenset(dtype for dtype, name in DTYPES.items() if name in INTEGER_FORMATS)
"""Those whose leaves have a range."""

_ordinary_dtypes = frozenset(dtype for dtype, name in DTYPES.items() if name not in _QUANTIZED)
_complex_dtypes = frozenset(dtype for dtype in DTYPES if dtype.is_complex)
SIMPLE = _ordinary_dtypes - _complex_dtypes
"""The dtypes that are neither quantized nor complex."""

_DIRECT = frozenset(("cpu", "cuda"))

_Tensor = torch.Tensor
_Parameter = torch.nn.Parameter
_strided = torch.strided
_no_dispatch = torch._C._disabled_torch_dispatch_impl


def facts_of(leaf: Any) -> tuple[LeafFacts, Shape]:
    """Facts and shape of one tensor or array. It never raises for a tensor of any kind."""
    cls = type(leaf)
    if cls is _Tensor or cls is _Parameter:
        try:
            return _plain_facts(leaf, _Parameter if cls is _Parameter else None)
        except Exception as error:
            if is_interrupt(error):
                raise
            return _unreadable(leaf, _why_unreadable(leaf, error), None)
    if issubclass(cls, _Tensor):
        return _subclass_facts(leaf, cls)
    name = leaf.dtype.name
    is_kept = name in STORED_DTYPES and leaf.dtype.isnative and not leaf.dtype.hasobject
    missing = None if is_kept else f"dtype {name}"[:200]
    return LeafFacts(name[:64], "cpu", 0, None, "", missing), tuple(leaf.shape)


def _plain_facts(t: Any, subclass: type | None) -> tuple[LeafFacts, Shape]:
    dtype = dtype_of(t)
    if layout_of(t) is not _strided or dtype not in _ordinary_dtypes:
        return _unusual_facts(t, subclass)
    device = device_of(t)
    flags = (1 if requires_grad(t) else 0) | (2 if is_inference(t) else 0)
    if dtype in _complex_dtypes and is_conj(t):
        flags |= CONJ
    if is_neg(t):
        flags |= NEG
    shape = tuple(shape_of(t))
    if device.type == "meta":
        return LeafFacts(dtype, device, flags, None, "", "a meta tensor has no values"), shape
    if is_contiguous(t):
        direct = device.type if flags < CONJ and device.type in _DIRECT else ""
        return LeafFacts(dtype, device, flags, None, direct, None, (), None, subclass), shape
    strides = stride(t)
    expanded = tuple(axis for axis, stride in enumerate(strides) if stride == 0 and shape[axis] > 1)
    return LeafFacts(dtype, device, flags, strides, "", None, expanded, None, subclass), shape


def _unusual_facts(t: Any, subclass: type | None) -> tuple[LeafFacts, Shape]:
    if layout_of(t) is not _strided:
        layout = str(layout_of(t)).removeprefix("torch.")
        return _unreadable(t, f"layout {layout}", subclass)
    name = str(dtype_of(t)).removeprefix("torch.")
    if name not in _QUANTIZED:
        return _unreadable(t, f"dtype {name}", subclass)
    scheme = str(qscheme(t)).removeprefix("torch.")
    if not scheme.startswith("per_tensor"):
        return _unreadable(t, f"quantized {scheme}", subclass)
    quantizer = (scheme, float(q_scale(t)), int(q_zero_point(t)))
    strides = None if is_contiguous(t) else stride(t)
    facts = LeafFacts(
        dtype_of(t), device_of(t), 0, strides, "", None, (), None, subclass, quantizer
    )  # fmt: skip
    return facts, tuple(shape_of(t))


def _subclass_facts(t: Any, cls: type) -> tuple[LeafFacts, Shape]:
    """Reads a subclass as a plain tensor if it has bytes of its own, else only its shape."""
    with torch._C.DisableTorchFunctionSubclass():
        if class_attribute(cls, "__torch_dispatch__", _no_dispatch) is not _no_dispatch:
            return _unreadable(t, "a tensor subclass without bytes of its own", cls)
        try:
            # It is not direct, because the subclass would intercept the reads of the copy too.
            facts, shape = _plain_facts(t, cls)
            return facts._replace(direct=""), shape
        except Exception as error:
            if is_interrupt(error):
                raise
            return _unreadable(t, _why_unreadable(t, error), cls)


def _why_unreadable(t: Any, error: Exception) -> str:
    return "layout nested" if is_nested(t) else f"not readable: {name_of(type(error))}"


def _unreadable(t: Any, reason: str, subclass: type | None) -> tuple[LeafFacts, Shape]:
    """The facts that can be read of a tensor whose bytes cannot be read."""
    shape: Shape = ()
    try:
        sizes = tuple(shape_of(t))
        if all(type(size) is int for size in sizes) and len(sizes) <= MAX_RANK:
            shape = sizes
        else:
            reason = f"{reason}, symbolic shape"
    except Exception as error:
        if is_interrupt(error):
            raise
        reason = f"{reason}, shape unknown"
    layout = None if layout_of(t) is _strided else str(layout_of(t)).removeprefix("torch.")
    if layout is None and is_nested(t):
        layout = "nested"
    flags = 1 if requires_grad(t) else 0
    facts = LeafFacts(dtype_of(t), device_of(t), flags, None, "", reason, (), layout, subclass)
    return facts, shape


def stored_bytes(facts: LeafFacts, shape: Shape) -> int:
    """How many bytes this leaf takes in a blob."""
    if facts.missing is not None:
        return 0
    is_array = type(facts.dtype) is str
    size: int = (sys.modules["numpy"].dtype(facts.dtype) if is_array else facts.dtype).itemsize
    for axis, length in enumerate(shape):
        if axis not in facts.expanded:
            size *= length
    return size


def is_plain(facts: LeafFacts) -> bool:
    """Whether these are the facts of a plain contiguous tensor, as most leaves are."""
    return facts.direct != "" and facts.missing is None and facts.subclass is None


_FLAGS = (
    (REQUIRES_GRAD, "requires_grad"), (INFERENCE, "inference"), (CONJ, "conj"), (NEG, "neg"),
)  # fmt: skip


def leaf_document(
    facts: LeafFacts, shape: Shape, key: str | None, alias: Alias | None
) -> dict[str, Any]:
    """The leaf as the format writes it, in the form of :class:`calltape_schema.tree.Leaf`."""
    name = DTYPES.get(facts.dtype) or str(facts.dtype).removeprefix("torch.")
    document: dict[str, Any] = {"dtype": name, "shape": list(shape)}
    if facts.missing is None and key is not None:
        document["key"] = key
    else:
        document["missing"] = facts.missing or "policy"
    if facts.strides is not None:
        document["strides"] = list(facts.strides)
    if facts.expanded:
        document["expanded"] = list(facts.expanded)
    if facts.direct != "cpu" and str(facts.device) != "cpu":
        document["device"] = str(facts.device)
    if facts.layout is not None:
        document["layout"] = facts.layout
    for bit, flag in _FLAGS:
        if facts.flags & bit:
            document[flag] = True
    if facts.subclass is not None:
        document["subclass"] = type_name(facts.subclass)
    if facts.quantizer is not None and "key" in document:
        # Scale and zero point follow from the elements, so they are only on the tape with them.
        scheme, scale, zero_point = facts.quantizer
        document["quantizer"] = {"scheme": scheme, "scale": scale, "zero_point": zero_point}
    if alias is not None:
        document["storage"] = alias.storage
        if alias.offset:
            document["offset"] = alias.offset
    return document
