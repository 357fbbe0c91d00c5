"""What a stranger may write on a tape: changes to the only call of a good one."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calltape_analyzer import TapeError, open_tape, render
from calltape_schema.groups import HAS_BLOB, HAS_RANGES, RAISED
from calltape_schema.packing import pack
from tests.forging.call import NO_KWARGS, TENSOR, Forged, inputs_of

__all__ = ["HARMLESS", "LATER", "LIES", "MEBIBYTE", "read_everything"]

MEBIBYTE = 1024 * 1024


def _nested(levels: int) -> Any:
    node: Any = TENSOR
    for _ in range(levels):
        node = {"kind": "list", "children": [node]}
    return node


def _overlapping(forged: Forged) -> None:
    header = forged.header
    header["other"] = header["args.0"]
    forged.set_header(json.dumps(header))


def _renamed(forged: Forged) -> None:
    forged.set_header(json.dumps({"args.1": forged.header["args.0"]}))


def _with_entry(**facts: Any) -> Callable[[Forged], None]:
    def change(forged: Forged) -> None:
        header = forged.header
        header["args.0"] |= facts
        forged.set_header(json.dumps(header))

    return change


def _twice(forged: Forged) -> None:
    entry = json.dumps(forged.header["args.0"])
    forged.set_header(f'{{"args.0":{entry},"args.0":{entry}}}')


def _bare_record(**facts: Any) -> Callable[[Forged], None]:
    return lambda forged: forged.record.update(facts)


def _root(root: Any, **counts: int) -> Callable[[Forged], None]:
    return lambda forged: forged.set_root(root, **counts)


def _leaf(**facts: Any) -> Callable[[Forged], None]:
    return lambda forged: forged.set_leaf(**facts)


def _entry(**facts: int) -> Callable[[Forged], None]:
    return lambda forged: forged.entry.update(facts)


def _stored(**facts: int) -> Callable[[Forged], None]:
    return lambda forged: forged.stored.update(facts)


def _deflated(change: Callable[[bytes], tuple[bytes, int]]) -> Callable[[Forged], None]:
    return lambda forged: setattr(forged, "deflated", change)


def _raw(name: str, content: bytes) -> Callable[[Forged], None]:
    return lambda forged: forged.inputs.update({name: content})


LIES: dict[str, Callable[[Forged], None]] = {
    "header longer than the blob": lambda f: f.set_header("{}", 2**40),
    "header of 2**63": lambda f: f.set_header("{}", 2**63),
    "header that is no JSON": lambda f: f.set_header("{'a': 1}"),
    "header that is a list": lambda f: f.set_header("[]"),
    "header of nested lists": lambda f: f.set_header("[" * 100_000),
    "header of nested objects": lambda f: f.set_header('{"a":' * 50_000),
    "header of NaN": _with_entry(shape=[float("nan")]),
    "tensor twice": _twice,
    "tensors that overlap": _overlapping,
    "tensor under another name": _renamed,
    "offsets beyond the blob": _with_entry(data_offsets=[0, 2**40]),
    "offsets that are negative": _with_entry(data_offsets=[-24, 0]),
    "offsets that are text": _with_entry(data_offsets=["0", "24"]),
    "shape whose product overflows": _with_entry(shape=[2**33, 2**33]),
    "shape that is negative": _with_entry(shape=[-2, -3]),
    "shape of 1000 axes": _with_entry(shape=[1] * 1000),
    "dtype without a name": _with_entry(dtype=""),
    "another dtype of the same size": _with_entry(dtype="I32"),
    "another shape of the same size": _with_entry(shape=[3, 2]),
    "leaf of another shape": _leaf(shape=[3, 3]),
    "leaf of another dtype": _leaf(dtype="int32"),
    "leaf that is huge": _leaf(shape=[2**31, 2**31]),
    "leaf whose product overflows": _leaf(shape=[2**40, 2**40]),
    "leaf with strides of another rank": _leaf(strides=[1]),
    "leaf with negative strides": _leaf(strides=[-1, 1]),
    "leaf expanded where it is not": _leaf(expanded=[0]),
    "leaf expanded beyond its rank": _leaf(expanded=[7]),
    "leaf quantized without a quantizer": _leaf(dtype="qint8"),
    "leaf without key or reason": _leaf(key=None),
    "leaf with a key that the blob lacks": _leaf(key="args.9"),
    "leaves that are a map": _raw("leaves", pack({})),
    "leaves that are no msgpack": _raw("leaves", b"\xc1"),
    "leaves that claim 2**32 items": _raw("leaves", b"\xdd\xff\xff\xff\xff"),
    "structure that claims 2**32 items": _raw("structure", b"\xdf\xff\xff\xff\xff"),
    "structure of nested arrays": _raw("structure", b"\x91" * 100_000 + b"\xc0"),
    "structure with trailing bytes": lambda f: f.inputs.update(
        structure=f.inputs["structure"] + b"\xc0"
    ),
    "structure with a key twice": _raw("structure", b"\x82\xa4root\xc0\xa4root\xc0"),
    "root that is a tensor": _root(TENSOR),
    "root that is a list": _root({"kind": "list", "children": [inputs_of(TENSOR), NO_KWARGS]}),
    "args that are a list": _root(
        {"kind": "tuple", "children": [{"kind": "list", "children": [TENSOR]}, NO_KWARGS]}
    ),
    "kwargs with a number as name": _root(
        {
            "kind": "tuple",
            "children": [
                {"kind": "tuple", "children": []},
                {"kind": "dict", "keys": [1], "children": [TENSOR]},
            ],
        }
    ),
    "leaf number that is out of range": _root(inputs_of({"kind": "tensor", "leaf": 1})),
    "leaf number that is negative": _root(inputs_of({"kind": "tensor", "leaf": -1})),
    "leaves that are too few": _root(inputs_of(TENSOR), leaves=2),
    "scalars that are too few": _root(inputs_of({"kind": "int", "scalar": 0}), scalars=1),
    "kind without a name": _root(inputs_of({"kind": "", "data": b"cos\nsystem\n"})),
    "flag of a later version": _entry(flags=HAS_BLOB | 2**31),
    "feature of a later version": lambda f: f.record.update(requires=["encrypted"]),
    "tree of 65 levels": _root(inputs_of(_nested(65))),
    "tree of 5000 levels": lambda f: f.inputs.update(structure=_deep(5000)),
    "tree of 60000 nodes": _root(inputs_of(*[{"kind": "none"}] * 60_000)),
    "names that do not fit the children": _root(
        inputs_of({"kind": "dict", "keys": ["a", "a"], "children": [TENSOR, TENSOR]})
    ),
    "scalar of another type": lambda f: (
        f.set_root(inputs_of({"kind": "int", "scalar": 0}, TENSOR), scalars=1),
        f.inputs.update(scalars=["text"]),
    ),
    "type name that is a sentence": _root(inputs_of({"kind": "class", "type": "rm -rf /"})),
    "call number beyond 63 bits": _entry(number=2**63),
    "hash of other inputs": _entry(key=1),
    "error that the record does not have": _entry(flags=HAS_BLOB | RAISED),
    "blob that the table does not have": _entry(flags=0),
    "ranges that the record does not have": _entry(flags=HAS_BLOB | HAS_RANGES),
    "record beyond the documents": _entry(offset=2**32 - 1),
    "record in the shared parts": _entry(offset=1),
    "tape id of another": lambda f: setattr(f, "tape", bytes(16)),
    "tape id that is none": lambda f: setattr(f, "tape", None),
    "shared parts that are a map": lambda f: setattr(f, "shared", {}),
    "shared parts that are text": lambda f: setattr(f, "shared", ["structure", "leaves"]),
    "shared parts that are too few": lambda f: setattr(f, "shared", [b"one"]),
    "documents that are longer than they say": _deflated(lambda data: (zlib.compress(data), 9)),
    "documents that are shorter": _deflated(lambda data: (zlib.compress(data), len(data) + 1)),
    "documents of zeros": _deflated(lambda data: (zlib.compress(bytes(2**26)), 2**26)),
    "documents of 2**62 bytes": _deflated(lambda data: (zlib.compress(data), 2**62)),
    "documents of negative size": _deflated(lambda data: (zlib.compress(data), -1)),
    "documents that are no zlib": _deflated(lambda data: (b"no" + data, len(data))),
    "documents with bytes after them": _deflated(
        lambda data: (zlib.compress(data) + b"more", len(data))
    ),
    "blob that is elsewhere": _stored(back=512),
    "blob before the tape": _stored(back=2**40),
    "blob in the manifest": lambda f: f.stored.update(
        back=512 + len(f.blob) + -len(f.blob) % 512 + 1024
    ),
    "blob of another size": _stored(size=8),
    "blob of 2**62 bytes": _stored(size=2**62),
    "blob of another checksum": _stored(checksum=1),
    "reference to itself": _bare_record(at=[("args.0", 0, "args.0")]),
    "reference to a later call": _bare_record(at=[("args.0", 5, "args.0")]),
    "reference to a negative call": _bare_record(at=[("args.0", -1, "args.0")]),
    "references that are a map": _bare_record(at={}),
    "record without inputs": lambda f: f.inputs.clear(),
    "scalars that are maps": lambda f: f.inputs.update(scalars=[{}]),
    "duration that is text": _bare_record(duration_ns="now"),
}


def _deep(levels: int) -> bytes:
    opened = b"\x82\xa4kind\xa4list\xa8children\x91" * levels
    return b"\x83\xa4root" + opened + b"\x81\xa4kind\xa4none\xa6leaves\x01\xa7scalars\x00"


def read_everything(path: Path) -> tuple[int, list[TapeError]]:
    """Reads all that can be read; everything but a TapeError escapes."""
    whole = 0
    errors: list[TapeError] = []
    with open_tape(path) as tape:
        for call in tape.calls:
            try:
                render(call.inputs)
                render(call.record.inputs)
                render(call.outputs)
                whole += 1
            except TapeError as error:
                errors.append(error)
        tape.verify()
        for error in (*errors, *tape.damage):
            assert error.path == str(path)
            assert error.offset is not None
            assert "\n" not in str(error)
        return whole, tape.damage


LATER: dict[str, tuple[Callable[[Forged], None], list[str]]] = {
    "dtype in the blob": (_with_entry(dtype="F1024"), ["unsupported"]),
    "dtype of a leaf": (_leaf(dtype="quint4x2"), ["unsupported"]),
    "dtype of a leaf that is a name of torch": (_leaf(dtype="_dynamo"), ["unsupported"]),
    "kind": (_root(inputs_of({"kind": "pickle", "data": b"cos\nsystem\n"})), []),
}
"""What a later version may have in the place of the only argument, and what is told of it."""

HARMLESS: dict[str, Callable[[Forged], None]] = {
    "strides that reach far": _leaf(strides=[2**62, 1]),
    "strides that overlap": _leaf(strides=[1, 1]),
    "strides that are 0": _leaf(strides=[0, 0]),
    "a device of another machine": _leaf(device="cuda:9999"),
    "a device that is nonsense": _leaf(device="\x1b[2J"),
    "a subclass that is not here": _leaf(subclass="no_such_module:Tensor"),
    "conj of a real tensor": _leaf(conj=True, neg=True, inference=True),
    "a storage number": _leaf(storage=49_999),
    "a flag that is unknown": _entry(flags=HAS_BLOB | 2**15),
    "unknown fields everywhere": lambda f: (
        f.record.update(pad="x"),
        f.inputs.update(pad=[1, {"a": None}]),
        f.set_leaf(pad={"deep": [1]}),
    ),
    "64 axes": lambda f: (
        f.set_leaf(shape=[1] * 62 + [2, 3]),
        _with_entry(shape=[1] * 62 + [2, 3])(f),
    ),
    "tree of 55 levels": _root(inputs_of(_nested(55))),
    "the tensor 1000 times": _root(inputs_of(*[TENSOR] * 1000)),
}
