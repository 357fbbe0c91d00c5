"""Writes tapes for tests straight from Python values, without the recorder.

One plain way to do what the recorder does with care: everything is copied on the spot and the
file is written at once. Both sides of a test agree only through ``calltape_schema``.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from calltape_schema import __version__
from calltape_schema.blob import Stored, build_header, stored_as
from calltape_schema.end import Coverage
from calltape_schema.groups import NewCall
from calltape_schema.inputs_table import signature_of
from calltape_schema.packing import pack, pack_int, pack_text
from calltape_schema.reader import TapeReader
from calltape_schema.records import (
    Manifest,
    Parameter,
    Policy,
    Producer,
    Segment,
    Target,
)
from calltape_schema.sections import checksums_of
from calltape_schema.storage import BytesSink, BytesSource
from calltape_schema.tree import Leaf, encode_leaves, encode_structure
from calltape_schema.writer import TapeWriter
from tests.schema.container.tapes import tensor

__all__ = [
    "TAPE_ID",
    "Recorded",
    "facts_of",
    "new_call",
    "reader_of",
    "refer",
    "target_of",
    "type_name",
    "write_tape",
]

TAPE_ID = bytes(range(16))
START_NS = 1_700_000_000_000_000_000

_ABSENT = object()

_SCALARS = {int: "int", float: "float", complex: "complex", str: "str", bytes: "bytes"}
_SEQUENCES: dict[type, str] = {
    list: "list", tuple: "tuple", torch.Size: "size", set: "set", frozenset: "frozenset"
}  # fmt: skip
_CONSTANTS: dict[type, str] = {
    torch.dtype: "dtype", torch.device: "device", torch.layout: "layout",
    torch.memory_format: "memory_format",
}  # fmt: skip


@dataclasses.dataclass
class Recorded:
    """One call to write; ``outputs`` left out means that none were kept."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    outputs: Any = _ABSENT
    outputs_missing: str | None = None
    error: tuple[str, str] | None = None
    number: int | None = None
    duration_ns: int | None = 1_500_000
    thread: int = 7


def facts_of(call: Any) -> Any:
    """The record of a call, without where its tensors are: that depends on the calls beside it."""
    blob = call.blob_facts()
    facts = None if blob is None else (blob.size, blob.checksum)
    return call.record.model_copy(update={"blob": facts, "at": ()})


def type_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def target_of(call: Any, method: str = "forward") -> Target:
    """The target that a recorder of this module (or function) would state."""
    function = getattr(call, method) if isinstance(call, torch.nn.Module) else call
    cls = type(call) if isinstance(call, torch.nn.Module) else type(function)
    parameters = tuple(
        Parameter(
            name=name,
            kind=given.kind.name,
            has_default=given.default is not given.empty,
            default=given.default
            if isinstance(given.default, (str, int, float, bool, bytes))
            else None,
        )
        for name, given in inspect.signature(function).parameters.items()
    )
    return Target(type=type_name(cls), method=method, via="hook", signature=parameters)


class _Capture:
    """The leaves, scalars and nodes of one call."""

    def __init__(self, values: str) -> None:
        self.values = values
        self.blob: dict[str, tuple[Stored, bytes]] = {}

    def tree(self, value: Any, path: str, children: dict[str, Any] | None = None) -> dict[str, Any]:
        self.leaves: list[dict[str, Any]] = []
        self.ranges: list[dict[str, int]] = []
        self.scalars: list[Any] = []
        self.seen: dict[int, int] = {}
        if children is None:
            root = self.node(value, path)
        else:  # the root of inputs, whose two children are named
            nodes = [self.node(child, name) for name, child in children.items()]
            root = {"kind": "tuple", "children": nodes}
        structure = {"root": root, "leaves": len(self.leaves), "scalars": len(self.scalars)}
        tree: dict[str, Any] = {
            "structure": encode_structure(structure), "leaves": encode_leaves(self.leaves)
        }  # fmt: skip
        if self.scalars:
            tree["scalars"] = self.scalars
        if self.ranges:
            tree["ranges"] = self.ranges
        return tree

    def node(self, value: Any, path: str) -> dict[str, Any]:
        cls = type(value)
        if value is None or value is ...:
            return {"kind": "none" if value is None else "ellipsis"}
        if isinstance(value, torch.Tensor):
            return {"kind": "tensor", "leaf": self.leaf(value, path)}
        if cls is bool:
            return {"kind": "bool", "value": value}
        if cls in _CONSTANTS:
            name = str(value) if cls is torch.device else str(value).removeprefix("torch.")
            return {"kind": _CONSTANTS[cls], "name": name}
        if isinstance(value, enum.Enum):
            return {
                "kind": "enum", "type": type_name(cls), "name": value.name or str(value.value),
                "value": value.value,
            }  # fmt: skip
        if isinstance(value, type):
            return {"kind": "class", "type": type_name(value)}
        for base, kind in _SCALARS.items():
            if isinstance(value, base):
                return self.scalar(value, base, kind)
        return self.container(value, path)

    def scalar(self, value: Any, base: type, kind: str) -> dict[str, Any]:
        plain = base(value) if type(value) is not base else value
        if base is complex:
            plain = [plain.real, plain.imag]
        elif base is int:
            plain = pack_int(plain)
        elif base is str:
            plain = pack_text(plain)
        self.scalars.append(plain)
        node = {"kind": kind, "scalar": len(self.scalars) - 1}
        return node if type(value) is base else {**node, "type": type_name(type(value))}

    def container(self, value: Any, path: str) -> dict[str, Any]:
        cls = type(value)
        name = type_name(cls)
        if isinstance(value, (slice, range)):
            parts = [self.node(part, path) for part in (value.start, value.stop, value.step)]
            return {"kind": cls.__name__, "children": parts}
        if cls.__name__.endswith(("Cache", "Layer")):
            return self.fields("object", name, vars(value), path)
        if isinstance(value, tuple) and hasattr(cls, "_fields"):
            return self.fields("namedtuple", name, value._asdict(), path)
        if dataclasses.is_dataclass(cls) and isinstance(value, dict):
            return self.fields("dataclass", name, dict(value.items()), path)
        if dataclasses.is_dataclass(cls):
            own = {field.name: getattr(value, field.name) for field in dataclasses.fields(cls)}
            return self.fields("dataclass", name, own, path)
        if isinstance(value, dict):
            children = [self.node(child, f"{path}.{key}") for key, child in value.items()]
            node: dict[str, Any] = {"kind": "dict", "keys": list(value), "children": children}
            return node if cls is dict else {**node, "type": name}
        for base, kind in _SEQUENCES.items():
            if isinstance(value, base) and (base is not tuple or cls is not torch.Size):
                children = [self.node(child, f"{path}.{i}") for i, child in enumerate(value)]
                node = {"kind": kind, "children": children}
                return node if cls is base else {**node, "type": name}
        registered = torch.utils._pytree.SUPPORTED_NODES.get(cls)
        if registered is not None:
            children, context = registered.flatten_fn(value)
            return {
                "kind": "custom",
                "type": name,
                "context": self.node(context, path),
                "children": [self.node(child, f"{path}.{i}") for i, child in enumerate(children)],
            }
        return {"kind": "opaque", "type": name, "reason": "unknown class"}

    def fields(self, kind: str, name: str, own: dict[str, Any], path: str) -> dict[str, Any]:
        return {
            "kind": kind,
            "type": name,
            "fields": list(own),
            "children": [self.node(child, f"{path}.{field}") for field, child in own.items()],
        }

    def leaf(self, value: torch.Tensor, path: str) -> int:
        if id(value) in self.seen:
            return self.seen[id(value)]
        self.seen[id(value)] = index = len(self.leaves)
        facts = _facts(value)
        if self.values == "none" or value.is_meta or value.layout is not torch.strided:
            facts["missing"] = "policy"
            facts.pop("quantizer", None)  # it follows from the elements
        else:
            facts["key"] = path
            stored = stored_as(Leaf.model_validate({**facts, "key": path}, strict=False))
            assert stored is not None, facts
            self.blob[path] = (stored, _bytes(value, facts.get("expanded", ())))
            assert len(self.blob[path][1]) == stored.nbytes, facts
        if value.dtype in (torch.int32, torch.int64, torch.uint8) and value.numel():
            low, high = (0, 0) if value.is_meta else (int(value.min()), int(value.max()))
            self.ranges.append({"leaf": index, "min": low, "max": high})
        self.leaves.append(facts)
        return index


def _facts(value: torch.Tensor) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
    }
    if value.layout is not torch.strided:
        return {**facts, "layout": str(value.layout).removeprefix("torch.")}
    if not value.is_contiguous():
        facts["strides"] = list(value.stride())
        axes = enumerate(zip(value.shape, value.stride(), strict=True))
        facts["expanded"] = [axis for axis, (size, step) in axes if step == 0 and size > 1]
    flags = {
        "requires_grad": value.requires_grad,
        "inference": value.is_inference(),
        "conj": value.is_conj(),
        "neg": value.is_neg(),
    }
    facts |= {name: True for name, is_set in flags.items() if is_set}
    if str(value.device) != "cpu":
        facts["device"] = str(value.device)
    if value.is_quantized:
        facts["quantizer"] = {
            "scheme": "per_tensor_affine",
            "scale": value.q_scale(),
            "zero_point": value.q_zero_point(),
        }
    return facts


def _bytes(value: torch.Tensor, expanded: Sequence[int]) -> bytes:
    plain = value.detach().resolve_conj().resolve_neg()
    for axis in expanded:
        plain = plain.narrow(axis, 0, 1)
    if plain.is_quantized:
        plain = plain.int_repr()
    else:  # some dtypes torch cannot copy; integers of their width it can
        widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        plain = plain.view(widths.get(plain.element_size(), plain.dtype))
    # clone(), because contiguous() returns a tensor that shares its neighbours' storage
    plain = plain.clone(memory_format=torch.contiguous_format)
    return bytes(plain.untyped_storage()[: plain.numel() * plain.element_size()].tolist())


def new_call(number: int, document: dict[str, Any], blob: bytes = b"") -> NewCall:
    """A call as the container takes it, with a hash and a checksum that hold.

    Args:
        number: of the call.
        document: its record, without tape, call and blob.
        blob: the bytes of its safetensors member.
    """
    inputs = document["inputs"]
    scalars = pack(inputs.get("scalars", ()))
    key = signature_of(inputs["structure"], inputs["leaves"], scalars)
    return NewCall(number, document, key, (blob,) if blob else (), checksums_of((blob,)), scalars)


def _blob(parts: dict[str, tuple[Stored, bytes]]) -> bytes:
    if not parts:
        return b""
    header = build_header({name: stored for name, (stored, _) in parts.items()})
    return header + b"".join(data for _, data in parts.values())


def _call(number: int, given: Recorded, values: str) -> NewCall:
    capture = _Capture(values)
    document: dict[str, Any] = {
        "time_ns": START_NS + min(number, 2**32) * 1_000_000_000,
        "duration_ns": given.duration_ns,
        "thread": given.thread,
        "inputs": capture.tree(None, "", {"args": given.args, "kwargs": given.kwargs}),
    }
    if given.duration_ns is None:
        del document["duration_ns"]
    if given.outputs is not _ABSENT:
        document["outputs"] = capture.tree(given.outputs, "outputs")
    if given.outputs_missing is not None:
        document["outputs_missing"] = given.outputs_missing
    if given.error is not None:
        document["error"] = {"type": given.error[0], "message": given.error[1]}
    return new_call(number, document, _blob(capture.blob))


def _recorded(given: Any) -> Recorded:
    if isinstance(given, Recorded):
        return given
    if isinstance(given, dict):
        return Recorded(kwargs=given)
    args, kwargs = given
    return Recorded(args=tuple(args), kwargs=dict(kwargs))


def write_tape(
    path: str | Path,
    calls: Iterable[Any],
    *,
    target: Target | torch.nn.Module | Callable[..., Any] | None = None,
    sealed: bool = True,
    outputs: Sequence[Any] | None = None,
    values: str = "all",
    tape_id: bytes = TAPE_ID,
    dropped: dict[str, int] | None = None,
    producer: dict[str, str] | None = None,
    segment: Segment | None = None,
    table: bool = True,
    groups: Sequence[int] | None = None,
    start_ns: int = START_NS,
) -> Path:
    """Writes a tape and returns its path.

    Args:
        calls: one of ``(args, kwargs)``, a dict of keyword arguments, or :class:`Recorded` each.
        target: a ``Target``, or the module or function whose signature it gets.
        sealed: whether the end is written, as a closed recorder does.
        outputs: one per call.
        values: "none" leaves the tensor bytes out.
        dropped: what the end says was dropped, by reason.
        segment: which file of a recording it is.
        table: whether the end has the table of inputs; without one a file is scanned when it is
            opened.
        groups: how many calls each group has, one after another; by default each call has its own.
        start_ns: when the recording began, by its manifest.
    """
    if target is not None and not isinstance(target, Target):
        target = target_of(target)
    manifest = Manifest(
        format="calltape",
        version=1,
        tape=tape_id,
        created_ns=start_ns,
        producer=Producer(calltape=__version__, **(producer or {})),
        target=target,
        policy=Policy(values="none" if values == "none" else "all"),
        segment=segment,
    )
    given = [_recorded(call) for call in calls]
    if outputs is not None:
        given = [
            dataclasses.replace(call, outputs=output)
            for call, output in zip(given, outputs, strict=True)
        ]
    made = [
        _call(position if call.number is None else call.number, call, values)
        for position, call in enumerate(given)
    ]
    sink = BytesSink()
    writer = TapeWriter(sink, manifest)
    if not table:
        writer.table = None
    done = 0
    for size in [1] * len(made) if groups is None else groups:
        writer.append(made[done : done + size])
        done += size
    assert done == len(made)
    if sealed:
        lost = sum((dropped or {}).values())
        coverage = Coverage(seen=len(given) + lost, kept=len(given), dropped=dropped or {})
        writer.seal(coverage, closed_ns=START_NS + 10**12)
    path = Path(path)
    path.write_bytes(sink.data)
    return path


def reader_of(path: Path) -> TapeReader:
    """The tape as the container reads it."""
    return TapeReader(BytesSource(path.read_bytes()))


def refer(path: Path, order: Sequence[int] | None = None) -> Path:
    """Writes a sealed tape anew: the bytes of each tensor stand once, and later calls refer to
    them.

    Args:
        path: of a tape whose calls are 0, 1, 2, ...
        order: in which the calls stand on the new tape.
    """
    reader, sink = reader_of(path), BytesSink()
    writer = TapeWriter(sink, reader.manifest)
    known: dict[tuple[Any, bytes], tuple[int, str]] = {}
    made: list[NewCall] = []
    for number in range(len(reader.scan())):
        record, document = reader.record(number), reader.document(number)
        own: dict[str, tuple[Stored, bytes]] = {}
        at: dict[str, tuple[str, int, str]] = {}
        for tree in filter(None, (record.inputs, record.outputs)):
            for leaf in tree.facts():
                stored = stored_as(leaf)
                if leaf.key is None or stored is None or leaf.key in own:
                    continue
                data = tensor(reader, record, leaf)
                there = known.setdefault((stored, data), (number, leaf.key))
                if there[0] == number:
                    own[leaf.key] = stored, data
                else:
                    at[leaf.key] = leaf.key, *there
        document.pop("blob", None)
        document |= {"at": list(at.values())} if at else {}
        made.append(new_call(number, document, _blob(own)))
    for number in range(len(made)) if order is None else order:
        writer.append([made[number]])
    writer.seal(Coverage(seen=len(made), kept=len(made)), closed_ns=START_NS + 10**12)
    path.write_bytes(sink.data)
    return path
