"""The pytree spec: the containers, types and keys of the arguments or outputs of one call, and the
facts of its tensors.

Takes plain data or bytes; returns bytes, a :class:`Structure` of nodes, :class:`Leaf` models. The
tree of a call has three parts, because they change at different rates from call to call:

- the *structure* (containers, types, keys, flags) repeats. It is encoded once, and equal bytes are
  decoded once,
- the *leaves* (dtype, shape, device, ... of each tensor) change with the shapes,
- the *scalars* (ints, floats, text) may change with every call, and are in the call record.

A node refers to leaves and scalars by position: ``{"kind": "tensor", "leaf": 3}``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, TypeAdapter, model_validator
from typing_extensions import Self

from calltape_schema.bounds import (
    MAX_ALIKE,
    MAX_AUTOCASTS,
    MAX_ELEMENTS,
    MAX_KEY_CHARACTERS,
    MAX_KEY_PARTS,
    MAX_LEAVES,
    MAX_NODES,
    MAX_PATHS_CHARACTERS,
    MAX_RANK,
)
from calltape_schema.fields import (
    Count,
    Dtype,
    Index,
    Many,
    Maybe,
    Name,
    Record,
    Size,
    TypeName,
    decoder,
    validated,
)
from calltape_schema.neutral_nodes import neutral, pythonic
from calltape_schema.packing import is_array, pack, unpack
from calltape_schema.recent import Interner


def _scalar(value: Any) -> Any:
    if value is not None and type(value) not in (str, int, float, bool, bytes):
        raise ValueError(f"Input should be a scalar, not {type(value).__name__}")
    return value


def _key(value: Any) -> Any:
    if is_array(value):
        if len(value) > MAX_KEY_PARTS:
            raise ValueError(f"a key of {len(value)} parts (at most {MAX_KEY_PARTS})")
        return tuple(_key_part(part) for part in value)
    return _key_part(value)


def _key_part(value: Any) -> Any:
    if not fits_as_key(_scalar(value)):
        raise ValueError(f"a key with a {type(value).__name__} that is too long")
    return value


def fits_as_key(part: Any) -> bool:
    """Whether a scalar may be a key of a dict, or a part of one. A long text may not, because keys
    become parts of paths. An int of more than 64 bits may not, because many such ints can have one
    hash."""
    if type(part) in (str, bytes):
        return len(part) <= MAX_KEY_CHARACTERS
    return type(part) is not int or -(2**63) <= part < 2**64


def are_distinct(values: Sequence[Any]) -> bool:
    """Whether a hash table of these values can be made in linear time: at most :data:`MAX_ALIKE` of
    them have one hash.

    The hashes of text are salted. Those of numbers, and of tuples of numbers, are not: 2**k tuples
    of -1 and -2 have one hash. The hashes are sorted to find this out, because a hash table is what
    must not be made.
    """
    if len(values) <= MAX_ALIKE:
        return True
    hashes = sorted(map(hash, values))
    return all(low != high for low, high in zip(hashes, hashes[MAX_ALIKE:], strict=False))


Scalar = Annotated[str | int | float | bool | bytes | None, PlainValidator(_scalar)]
Key = Annotated[Scalar | tuple[Scalar, ...], PlainValidator(_key)]
"""A dict key: a scalar, or a tuple of scalars."""


class Described(Record):
    """A value whose elements or fields are described. ``beside`` has the names of other attributes
    that were set on it and are not described; None if there are none."""

    beside: Maybe[Annotated[Many[Name], Field(max_length=MAX_KEY_PARTS)]] = None


class TensorNode(Described):
    """A tensor, or (``ndarray``) a NumPy array. Its facts are ``leaves[leaf]``. If one tensor
    object is passed twice, two nodes have the same ``leaf``."""

    kind: Literal["tensor", "ndarray"]
    leaf: Index


class ScalarNode(Described):
    """A scalar, whose value is in the ``scalars`` of the call record. ``type`` is set for a
    subclass."""

    kind: Literal["int", "float", "complex", "str", "bytes"]
    scalar: Index
    type: Maybe[TypeName] = None


class NoneNode(Record):
    """``None`` or ``...``."""

    kind: Literal["none", "ellipsis"]


class BoolNode(Record):
    """``True`` or ``False``."""

    kind: Literal["bool"]
    value: bool


class ConstantNode(Record):
    """A torch constant by name: ``float32``, ``cuda:0``, ``strided``, ``channels_last``."""

    kind: Literal["dtype", "device", "layout", "memory_format"]
    name: Name


class EnumNode(Record):
    """A member of an enum, with its ``value`` if that is a scalar."""

    kind: Literal["enum"]
    type: TypeName
    name: Name
    value: Maybe[Scalar] = None


class ClassNode(Record):
    """A class that was passed as a value."""

    kind: Literal["class"]
    type: TypeName


class OpaqueNode(Record):
    """A value that is not on the tape: its type, and the reason. The reason is ``policy`` if values
    were omitted. Then ``of`` is the kind of the scalar, and ``length`` refers to the scalar that
    has the length of a text (in characters) or of bytes."""

    kind: Literal["opaque"]
    type: TypeName
    reason: Name
    of: Maybe[Literal["int", "float", "complex", "str", "bytes"]] = None
    length: Maybe[Index] = None


class SequenceNode(Described):
    """Children by position. ``type`` is set only for a subclass. ``size`` is torch.Size; ``slice``
    and ``range`` have the children start, stop and step."""

    kind: Literal["list", "tuple", "size", "slice", "range", "set", "frozenset"]
    children: Many[Node]
    type: Maybe[TypeName] = None

    @model_validator(mode="after")
    def _children_fit(self) -> Self:
        if self.kind in ("slice", "range") and len(self.children) != 3:
            raise ValueError(f"a {self.kind} of {len(self.children)} parts")
        return self


class DictNode(Described):
    """Children by key, in insertion order. ``type`` is set only if the class is not dict itself.
    ``modules`` has the positions of keys that are modules of the recorded model, which are stored
    by name; None if there are none."""

    kind: Literal["dict"]
    keys: Many[Key]
    children: Many[Node]
    type: Maybe[TypeName] = None
    modules: Maybe[Many[Index]] = None

    @model_validator(mode="after")
    def _keys_fit(self) -> Self:
        _check_pairs(self.keys, self.children)
        for at in self.modules or ():
            if at >= len(self.keys) or type(self.keys[at]) is not str:
                raise ValueError(f"key {at} is not the name of a module")
        return self


class FieldsNode(Described):
    """Children by name: the fields of a named tuple or dataclass (for transformers'
    ``ModelOutput``, only those that are set), or the attributes of an object such as a cache."""

    kind: Literal["namedtuple", "dataclass", "object"]
    type: TypeName
    fields: Many[Name]
    children: Many[Node]

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        _check_pairs(self.fields, self.children)
        return self


class CustomNode(Record):
    """An object whose class was registered with ``torch.utils._pytree`` in the recorded process:
    the children and the context that its flatten function returned. The context contains no
    tensors."""

    kind: Literal["custom"]
    type: TypeName
    context: Node
    children: Many[Node]


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
    if len(set(map(_identity, names))) != len(names):
        raise ValueError("the same name twice")


def _identity(key: Key) -> Any:
    """Equal for equal keys, and for no others. It is text or bytes, whose hashes are salted: a
    stranger may choose numbers, and tuples of numbers, that have one hash."""
    if type(key) is str:
        return key
    if type(key) is tuple:
        return b"tuple", *map(_identity, key)
    if type(key) is float:
        if math.isnan(key):
            return id(key)  # equals nothing
        key = int(key) if key.is_integer() and abs(key) < 2**64 else key
    return b"scalar" + pack(int(key) if type(key) is bool else key)


class Autocast(Record):
    """Autocast for one type of device, and the dtype that it casts to, by torch's names."""

    device: Annotated[str, Field(max_length=64, pattern=r"^[a-z][a-z0-9_]*$")]
    dtype: Annotated[str, Field(max_length=64, pattern=r"^[a-z][a-z0-9_]*$")]


class CallContext(Record):
    """The state that a call began in: ``torch.autocast``, grad mode, inference mode, torch's
    default dtype (by name), and whether the model was in training mode, which is unknown for a
    function. The defaults are those of torch, and evaluation mode."""

    autocast: Annotated[Many[Autocast], Field(max_length=MAX_AUTOCASTS)] = ()
    grad: bool = True
    inference: bool = False
    default_dtype: Annotated[str, Field(max_length=64, pattern=r"^[a-z][a-z0-9_]*$")] = "float32"
    training: bool = False

    @model_validator(mode="after")
    def _devices_are_distinct(self) -> Self:
        if len({one.device for one in self.autocast}) != len(self.autocast):
            raise ValueError("autocast for the same type of device twice")
        return self


class Structure(Record):
    """One spec: its ``root``, and how many leaves and scalars its nodes refer to.

    The root of inputs is a tuple of the args tuple and the kwargs dict. Only inputs have a
    ``context``; None means torch's defaults.
    """

    root: Node
    leaves: Annotated[int, Field(ge=0, le=MAX_LEAVES)]
    scalars: Annotated[int, Field(ge=0, le=MAX_NODES)]
    context: Maybe[CallContext] = None

    @model_validator(mode="after")
    def _references_fit(self) -> Self:
        problems: list[str] = []
        characters = 0
        scalars: dict[int, type] = {}
        for node, path, is_context in _places(self.root):
            characters += path
            if isinstance(node, TensorNode):
                if node.leaf >= self.leaves:
                    problems.append(f"leaf {node.leaf} of {self.leaves}")
                if is_context:
                    problems.append("a tensor in the context of a custom node")
            if isinstance(node, DictNode) and not are_distinct(node.keys):
                vars(self)["collides"] = True  # see decode_structure
            if isinstance(node, Described) and node.beside:
                characters += sum(path + 1 + len(name) for name in node.beside)
            for scalar, expected in _scalars_of(node):
                if scalar >= self.scalars:
                    problems.append(f"scalar {scalar} of {self.scalars}")
                elif scalars.setdefault(scalar, expected) is not expected:
                    problems.append(f"scalar {scalar} with two types")
        if characters > MAX_PATHS_CHARACTERS:
            problems.append(f"paths of more than {MAX_PATHS_CHARACTERS} characters together")
        if problems:
            raise ValueError("; ".join(problems[:20]))
        return self

    # A cached_property, because pydantic needs a microsecond to find a private attribute.
    @cached_property
    def scalar_types(self) -> tuple[tuple[int, type], ...]:
        """Pairs of a scalar's position and the Python type that it must have. A complex number is a
        tuple."""
        pairs = [pair for node in walk(self.root) for pair in _scalars_of(node)]
        return tuple(dict(pairs).items())

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The positions of scalars that are lengths of texts or bytes that are not on the tape."""
        nodes = [node for node in walk(self.root) if isinstance(node, OpaqueNode)]
        return tuple(node.length for node in nodes if node.length is not None)


_SCALAR_TYPES: dict[str, type] = {
    "int": int, "float": float, "complex": tuple, "str": str, "bytes": bytes
}  # fmt: skip


_CONTAINERS = frozenset({SequenceNode, DictNode, FieldsNode, CustomNode})


def children_of(node: Any) -> tuple[Any, ...]:
    """The children of a node; empty for leaves, scalars and constants."""
    # Not getattr: pydantic needs microseconds to find that an attribute is missing.
    return node.children if type(node) in _CONTAINERS else ()


def walk(root: Any) -> Iterator[Any]:
    """All nodes in document order. It does not recurse, because a tree may be deep."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(children_of(node)))
        if isinstance(node, CustomNode):
            stack.append(node.context)


def _scalars_of(node: Any) -> Iterator[tuple[int, type]]:
    """The scalar that a node refers to, if it does, and the type that it must have."""
    if isinstance(node, ScalarNode):
        yield node.scalar, _SCALAR_TYPES[node.kind]
    elif isinstance(node, OpaqueNode) and node.length is not None:
        yield node.length, int


def _places(root: Any) -> Iterator[tuple[Any, int, bool]]:
    """All nodes, each with the number of characters of its path, and whether it is in the context
    of a custom node. A long key is on the tape once, but it is a part of the path of each node
    below it."""
    stack = [(root, 0, False)]
    while stack:
        node, path, is_context = stack.pop()
        yield node, path, is_context
        children = children_of(node)
        names: Sequence[Any] = range(len(children))
        if isinstance(node, (DictNode, FieldsNode)):
            names = node.keys if isinstance(node, DictNode) else node.fields
        stack.extend(
            (child, path + 1 + _characters(name, node), is_context)
            for name, child in zip(reversed(names), reversed(children), strict=True)
        )
        if isinstance(node, CustomNode):
            stack.append((node.context, path + len(".context"), True))


def _characters(name: Any, node: Any) -> int:
    """What a key, field or position of a node adds to a path."""
    if type(name) is str:
        return len(name)
    return len(pack(name)) if isinstance(node, DictNode) else len(str(name))


def parts_of_inputs(root: Node) -> tuple[SequenceNode, DictNode] | None:
    """The nodes of the args tuple and the kwargs dict; None if ``root`` is no root of inputs."""
    if not isinstance(root, SequenceNode) or root.kind != "tuple" or len(root.children) != 2:
        return None
    args, kwargs = root.children
    if not isinstance(args, SequenceNode) or args.kind != "tuple":
        return None
    if not isinstance(kwargs, DictNode) or not {*map(type, kwargs.keys)} <= {str}:
        return None
    plain = root.type is None and args.type is None and kwargs.type is None
    return (args, kwargs) if plain else None


def document_like(spec: Structure, root: Any, leaves: int, scalars: int) -> dict[str, Any]:
    """The document of a structure with another root, for :func:`encode_structure`: the call is in
    the context that it was in."""
    document = {"root": root, "leaves": leaves, "scalars": scalars}
    if spec.context is not None:
        document["context"] = spec.context.model_dump(exclude_unset=True)
    return document


_structures: TypeAdapter[Structure] = TypeAdapter(Structure)


def encode_structure(document: Any) -> bytes:
    """Validates plain data of the form of :class:`Structure`, and encodes it in canonical form. The
    recorder calls this once for each structure, so that it writes only what readers accept.

    Raises:
        TapeError: ``invalid`` or ``limit``.
    """
    data = pack(neutral(document))
    # The decoded structure is not remembered: a recorder does not need it, and it takes much
    # memory.
    _decode(data)
    return data


_decode = decoder(_structures, "structure", pythonic)


def _decode_structure(data: bytes) -> Structure:
    spec = _decode(data)
    if "collides" not in vars(spec):
        return spec
    # A dict of such keys cannot be built in linear time, and much of calltape builds dicts.
    document = pythonic(unpack(data), lambda node: not are_distinct(node["keys"]))
    return validated(_structures, document, "structure")


decode_structure: Callable[[bytes], Structure] = Interner(_decode_structure)
"""The structure from its bytes. Equal bytes give the same object while it is remembered. Raises
``TapeError`` (``invalid``, ``damaged`` or ``limit``)."""


class Quantizer(Record):
    """The quantization of a whole tensor: ``real = scale * (stored - zero_point)``."""

    scheme: Literal["per_tensor_affine", "per_tensor_symmetric"]
    scale: float
    zero_point: Annotated[int, Field(ge=-(2**63), lt=2**63)]


_QUANTIZED = frozenset({"qint8", "quint8", "qint32"})


class Leaf(Record):
    """The facts of one tensor.

    ``dtype``, ``shape`` and ``strides`` (in elements; None if contiguous) are those of the tensor,
    in torch's terms. ``key`` names its bytes in the blob. A leaf without a key was not kept, and
    ``missing`` says why. :func:`calltape_schema.blob.stored_as` says which entry of the blob
    follows from these facts.
    """

    dtype: Dtype
    shape: Annotated[Many[Size], Field(max_length=MAX_RANK)]
    key: Maybe[Annotated[str, Field(max_length=1024, min_length=1)]] = None
    missing: Maybe[Name] = None
    strides: Maybe[Many[Annotated[int, Field(ge=0, le=MAX_ELEMENTS)]]] = None
    expanded: Annotated[
        Many[Annotated[int, Field(ge=0, lt=MAX_RANK)]], Field(max_length=MAX_RANK)
    ] = ()
    device: Annotated[str, Field(max_length=64)] = "cpu"
    layout: Annotated[str, Field(max_length=64)] = "strided"
    requires_grad: bool = False
    inference: bool = False
    conj: bool = False
    neg: bool = False
    subclass: Maybe[TypeName] = None
    storage: Maybe[Index] = None
    offset: Size = 0
    quantizer: Maybe[Quantizer] = None

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        # A size of 0 must not hide that the product of the other sizes is too large.
        if math.prod(max(size, 1) for size in self.shape) > MAX_ELEMENTS:
            raise ValueError("more elements than fit in 63 bits")
        if self.strides is not None and len(self.strides) != len(self.shape):
            raise ValueError(f"{len(self.strides)} strides for {len(self.shape)} sizes")
        if any(axis >= len(self.shape) for axis in self.expanded):
            raise ValueError(f"expanded axes {self.expanded} of rank {len(self.shape)}")
        if any(after <= axis for axis, after in pairwise(self.expanded)):
            raise ValueError(f"expanded axes {self.expanded} do not ascend")
        if self.offset and self.storage is None:
            raise ValueError("an offset in memory that is shared with no leaf")
        if (self.key is None) == (self.missing is None):
            raise ValueError("not either a key or a reason why the value is missing")
        if self.key is None and self.quantizer is not None:
            raise ValueError("a quantizer without the elements that it follows from")
        if self.key is not None and self.quantizer is None and self.dtype in _QUANTIZED:
            raise ValueError("a quantized tensor without a quantizer")
        if self.layout == "nested" and (self.shape or self.key is not None):
            raise ValueError("a nested tensor with one shape, or with bytes")
        return self


_leaves: TypeAdapter[tuple[Leaf, ...]] = TypeAdapter(
    Annotated[Many[Leaf], Field(max_length=MAX_LEAVES)]
)


_MAX_PATH = 1000  # a key has room for 1,024


def leaf_key(path: str, number: int, taken: Container[str]) -> str:
    """The canonical key of the leaf of this number, whose first node has this path. ``taken`` has
    the keys of the leaves before it."""
    key = path if len(path) <= _MAX_PATH else f"{path[:_MAX_PATH]}~{number}"
    while key in taken:  # as with {"a.b": x, "a": {"b": y}}, and {"a.b~1": z} before them
        key += f"~{number}"
    return key


def encode_leaves(document: list[dict[str, Any]]) -> bytes:
    """Validates and encodes the leaves of one tree.

    Raises:
        TapeError: ``invalid`` or ``limit``: no reader would accept them.
    """
    return checked_leaves(document)[0]


def checked_leaves(document: list[dict[str, Any]]) -> tuple[bytes, tuple[Leaf, ...]]:
    """Like :func:`encode_leaves`, and the decoded leaves too. They are not remembered: a recorder
    does not need them again, and they take many times the memory of the bytes."""
    data = pack(document)
    return data, _decode_leaves(data)


_decode_leaves = decoder(_leaves, "leaves")
decode_leaves: Callable[[bytes], tuple[Leaf, ...]] = Interner(_decode_leaves)
"""The leaves from their bytes. Equal bytes give the same tuple while it is remembered."""


class _Lengths(Record):
    """How many leaves and scalars a structure has."""

    leaves: Count
    scalars: Count


class _SizedLeaf(Record):
    """The part of a leaf that a kind has."""

    dtype: Dtype
    shape: Annotated[Many[Size], Field(max_length=MAX_RANK)]


_decode_lengths = decoder(TypeAdapter(_Lengths), "structure")


def _lengths_of(structure: bytes) -> tuple[int, int]:
    """The fields of :class:`_Lengths` without the model: a recorder remembers them for all of its
    structures as long as it runs."""
    lengths = _decode_lengths(structure)
    return lengths.leaves, lengths.scalars


lengths_in: Callable[[bytes], tuple[int, int]] = Interner(_lengths_of)
"""How many leaves and scalars a structure has. The rest of it is not validated."""
sized_leaves_in = decoder(
    TypeAdapter(Annotated[tuple[_SizedLeaf, ...], Field(max_length=MAX_NODES)]), "leaves"
)
"""The dtypes and shapes of leaves. The rest of them is not validated."""
