"""The reader that is frozen: it prints what is on tapes, in the protocol of the conformance suite.

It uses the schema and the forms of the suite alone, which are in the same archive: so what it reads
does not change with the code of the repository. ``python reader-1.zip TAPE...`` prints a line of
JSON for each tape.
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import Any

from plain_form import target_form, text, tree_form

from calltape_schema.blob import interleaved
from calltape_schema.errors import TapeError
from calltape_schema.neutral_nodes import neutral
from calltape_schema.packing import u32s
from calltape_schema.reader import TapeReader
from calltape_schema.records import CallRecord, Tree
from calltape_schema.storage import BytesSource
from calltape_schema.tree import Leaf

_STEP = 2**20
_NOT_TOLD = [
    "elements", "table", "counts", "deleted", "history", "ranges", "coverage", "elsewhere"
]  # fmt: skip


def document(data: bytes) -> dict[str, Any]:
    """What is on a tape, or how it is refused."""
    try:
        reader = TapeReader(BytesSource(data))
    except TapeError as error:
        return {"refused": error.kind}
    scan, kinds, calls = reader.scan(), set[str](), []
    for at in scan.order:
        try:
            record = reader.record_at(at)
            for tree in _trees(record).values():
                tree.spec()
        except TapeError as error:
            kinds.add(error.kind)
        else:
            calls.append(_call(data, reader, record, kinds))
    target = reader.manifest.target
    return {
        "version": str(reader.manifest.version),
        "tape": reader.manifest.tape.hex(),
        **({} if target is None else {"target": target_form(target.model_dump())}),
        "sealed": reader.end is not None,
        "calls": calls,
        "damage": sorted(kinds | {error.kind for error in scan.damage}),
        "leaves_out": _NOT_TOLD,
    }


def _trees(record: CallRecord) -> dict[str, Tree]:
    found = {"inputs": record.inputs, "outputs": record.outputs}
    return {side: tree for side, tree in found.items() if tree is not None}


def _call(data: bytes, reader: TapeReader, record: CallRecord, kinds: set[str]) -> dict[str, Any]:
    made: dict[str, Any] = {"number": str(record.call), "values": "ok"}
    for name in ("time_ns", "duration_ns", "thread"):
        if getattr(record, name) is not None:
            made[name] = str(getattr(record, name))
    if record.error is not None:
        made["error"] = {"type": record.error.type, "message": text(record.error.message)}
    if record.outputs_missing is not None:
        made["outputs_missing"] = text(record.outputs_missing)
    values: dict[str, list[dict[str, Any]]] = {}
    try:
        try:
            _check(data, reader, record)
        except TapeError as error:
            if error.kind != "unsupported":
                raise
        for side, tree in _trees(record).items():
            values[side] = []
            for leaf in tree.facts():
                values[side].append(_value(data, reader, record, leaf))
                kinds |= values[side][-1].keys() & {"unsupported"}
    except TapeError as error:
        kinds.add(error.kind)
        made["values"] = error.kind
        values = {side: [{} for _ in tree.facts()] for side, tree in _trees(record).items()}
    for side, tree in _trees(record).items():
        spec = tree.spec()
        plain = {
            "structure": {
                "root": neutral(spec.model_dump(exclude_none=True))["root"],
                "context": spec.context and spec.context.model_dump(),
            },
            "leaves": [leaf.model_dump() for leaf in tree.facts()],
            "scalars": tree.scalars,
        }
        made[side] = tree_form(plain, values[side])
    return made


def _check(data: bytes, reader: TapeReader, record: CallRecord) -> None:
    """Compares the blob of a call with its checksums."""
    if record.blob is None:
        return
    blob = reader.blob_member(record)
    content = data[blob.start : blob.start + blob.size]
    ends = range(_STEP, len(content), _STEP)
    told = [*u32s(record.blob.steps or b""), record.blob.checksum]
    made = [zlib.crc32(content[:end]) for end in ends] if record.blob.steps else []
    if told != [*made, zlib.crc32(content)]:
        raise TapeError("damaged", "a checksum does not hold")


def _value(data: bytes, reader: TapeReader, record: CallRecord, leaf: Leaf) -> dict[str, Any]:
    if leaf.key is None:
        return {}
    try:
        place = reader.place(record, leaf)
    except TapeError as error:
        if error.kind != "unsupported":
            raise
        return {"unsupported": True}
    parts = [
        data[offset : offset + size] if known is None else known
        for offset, size, known in place.parts
    ]
    return {"bytes": (parts[0] if len(parts) == 1 else interleaved(parts, place.strips)).hex()}


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(json.dumps(document(Path(path).read_bytes())))
