"""FORMAT.md suffices to write a reader; that reader, ours and the fixtures agree."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from calltape_schema.blob import header_size, parse_header, stored_as
from calltape_schema.endings import decode_trailer
from calltape_schema.framing import call_number
from calltape_schema.gathered import is_group, payload_of, places
from calltape_schema.packing import seal_envelope
from calltape_schema.records import decode_call, decode_manifest
from tests.fixture_files import FIXTURES
from tests.schema import independent_reader

from plain_form import leaf_form, node_form  # isort: skip

V1 = FIXTURES / "v1"
TAPES = sorted(V1.glob("*.tape"))
assert TAPES


def test_it_is_small_and_imports_nothing_of_ours() -> None:
    source = Path(independent_reader.__file__).read_text()
    assert len(source.splitlines()) <= 110
    imported = {
        name.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import)
        for name in node.names
    }  # fmt: skip
    assert imported == {"re", "zlib", "msgpack", "safetensors"}
    assert "from " not in {line[:5] for line in source.splitlines()}


def records_in(members: dict[str, bytes]) -> dict[int, bytes]:
    """The encoded records, by the numbers of their calls."""
    found = {n: members[name] for name in members if (n := call_number(name)) is not None}
    for name in filter(is_group, members):
        content = members[name]
        entries = {start - 4: content[start : start + size] for start, size in places(content)}
        for at, one in entries.items():
            record = seal_envelope(payload_of(one, at, entries.__getitem__))
            found[decode_call(record).call] = record
    return found


@pytest.mark.parametrize("path", TAPES, ids=lambda path: path.stem)
def test_it_agrees_with_our_decoding(path: Path) -> None:
    data = path.read_bytes()
    manifest, calls, trailer = independent_reader.read_tape(data)
    members = dict(independent_reader.members(data))
    ours = decode_manifest(members["tape.msgpack"])
    assert (ours.tape, ours.version) == (manifest["tape"], manifest["version"])
    if trailer is not None:
        theirs = {k: v for k, v in trailer["coverage"].items() if k != "future"}
        assert (
            decode_trailer(members["trailer.msgpack"]).coverage.model_dump(exclude_none=True)
            == theirs
        )
    for call in calls:
        record = decode_call(records_in(members)[call["call"]])
        for tree, plain in ((record.inputs, call["inputs"]), (record.outputs, call.get("outputs"))):
            if tree is None:
                assert plain is None
                continue
            root = tree.spec().root.model_dump(exclude_none=True)
            leaves = [leaf.model_dump() for leaf in tree.facts()]
            assert node_form(root, list(tree.scalars)) == node_form(
                plain["structure"]["root"], plain["scalars"]
            )
            assert list(map(leaf_form, leaves)) == list(map(leaf_form, plain["leaves"]))
        if call["tensors"]:
            check_blob(members[f"calls/{call['call']:08d}.safetensors"], record, call["tensors"])


def check_blob(blob: bytes, record: Any, tensors: dict[str, Any]) -> None:
    start = header_size(blob, len(blob))
    assert start % 64 == 0
    entries = parse_header(blob, len(blob))
    assert {name: (e.dtype, list(e.shape)) for name, e in entries.items()} == {
        name: (tensor["dtype"], tensor["shape"]) for name, tensor in tensors.items()
    }
    for name, entry in entries.items():
        assert blob[start + entry.begin : start + entry.end] == tensors[name]["data"]
    trees = [tree for tree in (record.inputs, record.outputs) if tree is not None]
    for leaf in (leaf for tree in trees for leaf in tree.facts() if leaf.key is not None):
        stored = stored_as(leaf)
        assert stored is not None
        assert stored[:2] == entries[leaf.key][:2]
