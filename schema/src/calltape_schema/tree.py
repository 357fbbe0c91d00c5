"""The pytree spec: what the arguments or outputs of one call look like, without tensor bytes.

A tree is split by how often its parts change from call to call:

- the *structure* (containers, types, keys, flags) repeats; it is encoded once per distinct
  structure and decoded once per distinct bytes,
- the *leaves* (dtype, shape, device, ... of each tensor) repeat as often as shapes do,
- the *scalars* (ints, floats, text) may change with every call and stay in the call record.

A node refers to the latter two by position: ``{"kind": "tensor", "leaf": 3}``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from typing_extensions import Self

from calltape_schema.errors import Problem, TapeError
from calltape_schema.packing import MAX_STRING_BYTES, is_array, is_map, pack, unpack

__all__ = [
    "MAX_DEPTH",
    "MAX_LEAVES",
    "MAX_NESTING",
    "MAX_NODES",
    "MAX_RANK",
    "BoolNode",
    "ClassNode",
    "ConstantNode",
    "CustomNode",
    "DictNode",
    "EnumNode",
    "FieldsNode",
    "Leaf",
    "Node",
    "NoneNode",
    "OpaqueNode",
    "Quantizer",
    "ScalarNode",
    "SequenceNode",
    "Structure",
    "TensorNode",
    "children_of",
    "decode_leaves",
    "decode_structure",
    "encode_leaves",
    "encode_structure",
    "problems_of",
]

MAX_DEPTH = 64
MAX_NESTING = 2 * MAX_DEPTH + 2
"""Of maps and arrays: a node is a map, and its children stand in an array in it."""
MAX_NODES = 50_000
MAX_LEAVES = 50_000
MAX_RANK = 64
MAX_ELEMENTS = 2**63 - 1

_MAX_INTERNED_BYTES = 4 * 1024 * 1024

TypeName = Annotated[str, Field(max_length=512, pattern=r"^[^:\s]+:[^:\s]+$")]
"""A class as ``module:qualified.name``: a key into the reader's allow-list, never imported."""


def _text_of(limit: int) -> Callable[[Any], str]:
    # pydantic's own str refuses lone surrogates, which Python programs do pass around.
    def text(value: Any) -> str:
        if type(value) is not str:
            raise ValueError(f"Input should be text, not {type(value).__name__}")
        if len(value) > limit:
            raise ValueError(f"Text should have at most {limit} characters")
        return value

    return text


def _scalar(value: Any) -> Any:
    if value is not None and type(value) not in (str, int, float, bool, bytes):
        raise ValueError(f"Input should be a scalar, not {type(value).__name__}")
    return value


def _key(value: Any) -> Any:
    return tuple(_scalar(part) for part in value) if is_array(value) else _scalar(value)


Name = Annotated[str, PlainValidator(_text_of(1024))]
Text = Annotated[str, PlainValidator(_text_of(MAX_STRING_BYTES))]
Index = Annotated[int, Field(ge=0, lt=MAX_NODES)]
Size = Annotated[int, Field(ge=0, le=MAX_ELEMENTS)]


Scalar = Annotated[str | int | float | bool | bytes | None, PlainValidator(_scalar)]
Key = Annotated[Scalar | tuple[Scalar, ...], PlainValidator(_key)]
"""A dict key: a scalar, or a tuple of scalars."""


class _Part(BaseModel):
    # strict: a hostile "1" is not an int. Unknown fields are skipped, so that a minor version
    # of the format can add some.
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class TensorNode(_Part):
    """A tensor, or (``ndarray``) a NumPy array, whose facts are ``leaves[leaf]``. One tensor
    object passed twice is two nodes with the same ``leaf``."""

    kind: Literal["tensor", "ndarray"]
    leaf: Index


class ScalarNode(_Part):
    """A value that stands in the call record's ``scalars``; ``type`` where it was a subclass."""

    kind: Literal["int", "float", "complex", "str", "bytes"]
    scalar: Index
    type: TypeName | None = None


class NoneNode(_Part):
    kind: Literal["none", "ellipsis"]


class BoolNode(_Part):
    kind: Literal["bool"]
    value: bool


class ConstantNode(_Part):
    """A torch constant by name: ``float32``, ``cuda:0``, ``strided``, ``channels_last``."""

    kind: Literal["dtype", "device", "layout", "memory_format"]
    name: Name


class EnumNode(_Part):
    """A member of an enum; ``value`` where it is a scalar."""

    kind: Literal["enum"]
    type: TypeName
    name: Name
    value: Scalar = None


class ClassNode(_Part):
    """A class passed as a value."""

    kind: Literal["class"]
    type: TypeName


class OpaqueNode(_Part):
    """A value that could not be stored: its type and why."""

    kind: Literal["opaque"]
    type: TypeName
    reason: Name


class SequenceNode(_Part):
    """Children by position. ``type`` only where it is a subclass; ``size`` is torch.Size,
    ``slice`` and ``range`` hold start, stop, step."""

    kind: Literal["list", "tuple", "size", "slice", "range", "set", "frozenset"]
    children: tuple[Node, ...]
    type: TypeName | None = None

    @model_validator(mode="after")
    def _children_fit(self) -> Self:
        if self.kind in ("slice", "range") and len(self.children) != 3:
            raise ValueError(f"a {self.kind} of {len(self.children)} parts")
        return self


class DictNode(_Part):
    """Children by key, in insertion order. ``type`` only where it is a subclass of dict."""

    kind: Literal["dict"]
    keys: tuple[Key, ...]
    children: tuple[Node, ...]
    type: TypeName | None = None

    @model_validator(mode="after")
    def _keys_fit(self) -> Self:
        _check_pairs(self.keys, self.children)
        return self


class FieldsNode(_Part):
    """Children by name: fields of a named tuple or dataclass (transformers' ``ModelOutput``: those
    present), or attributes of an object whose state is known to be plain (caches)."""

    kind: Literal["namedtuple", "dataclass", "object"]
    type: TypeName
    fields: tuple[Name, ...]
    children: tuple[Node, ...]

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        _check_pairs(self.fields, self.children)
        return self


class CustomNode(_Part):
    """A class that was registered with ``torch.utils._pytree`` when it was recorded: the children
    and the context that its own flatten function gave, the context as a tree without tensors."""

    kind: Literal["custom"]
    type: TypeName
    context: Node
    children: tuple[Node, ...]


Node = Annotated[
    TensorNode
    | ScalarNode
    | NoneNode
    | BoolNode
    | ConstantNode
    | EnumNode
    | ClassNode
    | OpaqueNode
    | SequenceNode
    | DictNode
    | FieldsNode
    | CustomNode,
    Field(discriminator="kind"),
]


def _check_pairs(names: tuple[Key, ...], children: tuple[Node, ...]) -> None:
    if len(names) != len(children):
        raise ValueError(f"{len(names)} names for {len(children)} children")
    if len(set(names)) != len(names):
        raise ValueError("the same name twice")


class Structure(_Part):
    """One interned tree: ``root`` and how many leaves and scalars it refers to.

    The root of inputs is a tuple of the args tuple and the kwargs dict.
    """

    root: Node
    leaves: Annotated[int, Field(ge=0, le=MAX_LEAVES)]
    scalars: Annotated[int, Field(ge=0, le=MAX_NODES)]

    _scalar_types: tuple[tuple[int, type], ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _references_fit(self) -> Self:
        problems: list[str] = []
        scalars: dict[int, type] = {}
        for node in walk(self.root):
            if isinstance(node, TensorNode) and node.leaf >= self.leaves:
                problems.append(f"leaf {node.leaf} of {self.leaves}")
            elif isinstance(node, ScalarNode):
                expected = _SCALAR_TYPES[node.kind]
                if node.scalar >= self.scalars:
                    problems.append(f"scalar {node.scalar} of {self.scalars}")
                elif scalars.setdefault(node.scalar, expected) is not expected:
                    problems.append(f"scalar {node.scalar} with two types")
        if _context_holds_tensor(self.root):
            problems.append("a tensor in the context of a custom node")
        if problems:
            raise ValueError("; ".join(problems[:20]))
        self._scalar_types = tuple(scalars.items())
        return self

    def scalar_types(self) -> tuple[tuple[int, type], ...]:
        """Which of the call's scalars must have which Python type; complex numbers are tuples."""
        return self._scalar_types


_SCALAR_TYPES: dict[str, type] = {
    "int": int,
    "float": float,
    "complex": tuple,
    "str": str,
    "bytes": bytes,
}


class Quantizer(_Part):
    """Per-tensor affine quantization: ``real = scale * (stored - zero_point)``."""

    scheme: Literal["per_tensor_affine", "per_tensor_symmetric"]
    scale: float
    zero_point: int


class Leaf(_Part):
    """Facts of one tensor.

    ``dtype``, ``shape`` and ``strides`` (elements; absent when contiguous) are the tensor's own,
    as torch names them. ``key`` names its bytes in the blob; a leaf without one was not kept, and
    ``missing`` says why. How the stored entry follows from these facts is
    :func:`calltape_schema.blob.stored_as`.
    """

    dtype: Annotated[str, Field(max_length=64)]
    shape: Annotated[tuple[Size, ...], Field(max_length=MAX_RANK)]
    key: Annotated[str, Field(max_length=1024, min_length=1)] | None = None
    missing: Name | None = None
    strides: tuple[Annotated[int, Field(ge=0, le=MAX_ELEMENTS)], ...] | None = None
    expanded: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=MAX_RANK)], ...], Field(max_length=MAX_RANK)
    ] = ()
    device: Annotated[str, Field(max_length=64)] = "cpu"
    layout: Annotated[str, Field(max_length=64)] = "strided"
    requires_grad: bool = False
    inference: bool = False
    conj: bool = False
    neg: bool = False
    subclass: TypeName | None = None
    storage: Index | None = None
    quantizer: Quantizer | None = None

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        # Zero-size tensors may not hide an overflowing product behind their 0.
        if math.prod(max(size, 1) for size in self.shape) > MAX_ELEMENTS:
            raise ValueError("more elements than fit in 63 bits")
        if self.strides is not None and len(self.strides) != len(self.shape):
            raise ValueError(f"{len(self.strides)} strides for {len(self.shape)} sizes")
        if any(axis >= len(self.shape) for axis in self.expanded):
            raise ValueError(f"expanded axes {self.expanded} of rank {len(self.shape)}")
        if any(after <= axis for axis, after in pairwise(self.expanded)):
            raise ValueError(f"expanded axes {self.expanded} do not ascend")
        if self.key is None and self.missing is None:
            raise ValueError("neither a key nor a reason why the value is missing")
        return self


def children_of(node: Any) -> tuple[Any, ...]:
    """The children of a node; empty for leaves, scalars and constants."""
    return getattr(node, "children", ())


def walk(root: Any) -> Iterator[Any]:
    """All nodes in document order, without recursion."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(children_of(node)))
        if isinstance(node, CustomNode):
            stack.append(node.context)


def _context_holds_tensor(root: Any) -> bool:
    stack = [(root, False)]
    while stack:
        node, inside = stack.pop()
        if inside and isinstance(node, TensorNode):
            return True
        stack.extend((child, inside) for child in children_of(node))
        if isinstance(node, CustomNode):
            stack.append((node.context, True))
    return False


def problems_of(error: ValidationError) -> list[Problem]:
    """Every finding of a pydantic validation, in document order."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [Problem(tuple(e["loc"]), e["msg"]) for e in found]


T = TypeVar("T")


class _Interner(Generic[T]):
    """Decodes once per distinct bytes, and forgets the oldest past a budget of encoded bytes, so
    that a tape of ever new structures stays cheap."""

    def __init__(self, decode: Callable[[bytes], T]) -> None:
        self._decode = decode
        self._known: dict[bytes, T] = {}
        self._bytes = 0

    def __call__(self, data: bytes) -> T:
        known = self._known.get(data)
        if known is not None:
            return known
        value = self._decode(data)
        self._bytes += len(data)
        self._known[data] = value
        while self._bytes > _MAX_INTERNED_BYTES and len(self._known) > 1:
            # pop with a default: two threads may evict at once
            oldest = next(iter(self._known))
            if self._known.pop(oldest, None) is not None:
                self._bytes -= len(oldest)
        return value


_structures: TypeAdapter[Structure] = TypeAdapter(Structure)
_leaves: TypeAdapter[tuple[Leaf, ...]] = TypeAdapter(
    Annotated[tuple[Leaf, ...], Field(max_length=MAX_LEAVES)]
)


def _check_depth(document: Any) -> None:
    """Bounds depth and count of a decoded document before models are built from it."""
    level: list[Any] = [document]
    nodes = 0
    for _ in range(MAX_NESTING):
        below: list[Any] = []
        for item in level:
            nodes += isinstance(item, dict)
            values: Iterable[Any] = item.values() if is_map(item) else item
            below.extend(value for value in values if is_map(value) or is_array(value))
        if nodes > MAX_NODES:
            raise TapeError("limit", f"a tree of more than {MAX_NODES} nodes")
        if not below:
            return
        level = below
    raise TapeError("limit", f"a tree deeper than {MAX_DEPTH} levels")


def _validated(adapter: TypeAdapter[T], document: Any, what: str) -> T:
    if not (is_map(document) or is_array(document)):
        raise TapeError("invalid", f"{what} is a {type(document).__name__}")
    _check_depth(document)
    try:
        return adapter.validate_python(document)
    except ValidationError as error:
        problems = problems_of(error)
        raise TapeError("invalid", f"{what} breaks the format", problems=problems) from None
    except RecursionError:
        raise TapeError("limit", f"{what} is too deep") from None


def encode_structure(document: Any) -> bytes:
    """Validates and encodes a structure given as plain data (the form of FORMAT.md).

    The recorder calls this once per distinct structure: what it writes, readers accept.
    """
    data = pack(document)
    decode_structure(data)
    return data


def encode_leaves(document: list[dict[str, Any]]) -> bytes:
    """Validates and encodes the leaf facts of one tree."""
    data = pack(document)
    decode_leaves(data)
    return data


decode_structure: Callable[[bytes], Structure] = _Interner(
    lambda data: _validated(_structures, unpack(data), "structure")
)
"""Structure from its bytes (``TapeError`` kind ``invalid``, ``damaged`` or ``limit``); the same
object for the same bytes while it is remembered."""

decode_leaves: Callable[[bytes], tuple[Leaf, ...]] = _Interner(
    lambda data: _validated(_leaves, unpack(data), "leaves")
)
"""Leaf facts from their bytes; the same tuple for the same bytes while it is remembered."""
