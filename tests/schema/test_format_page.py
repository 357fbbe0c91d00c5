"""FORMAT.md and the code say the same: every kind, field, limit and dtype stands on the page."""

from __future__ import annotations

import re
import typing
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from calltape_schema import (
    blob,
    endings,
    interning,
    leaves,
    packing,
    records,
    summary,
    traffic,
    tree,
)
from calltape_schema.fields import Record
from calltape_schema.framing import member_header
from calltape_schema.packing import pack, seal_envelope, unpack

PAGE = (Path(__file__).parents[2] / "schema" / "FORMAT.md").read_text()
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
CODE_SPANS = set(re.findall(r"`\"?([^`\"\n]+)\"?`", PROSE))
MODELS = {
    value: None
    for module in (tree, leaves, records, endings, summary, traffic)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, BaseModel) and value.__name__[0] != "_"
    if value not in (BaseModel, Record)
}


def literals(annotation: Any) -> set[str]:
    if typing.get_origin(annotation) is typing.Literal:
        return {str(value) for value in typing.get_args(annotation)}
    return set().union(*map(literals, typing.get_args(annotation)))


def test_models_are_found() -> None:
    names = {model.__name__ for model in MODELS}
    assert {"Manifest", "CallRecord", "Trailer", "Summary", "Leaf", "CustomNode", "Range"} <= names


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_and_every_named_value(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        assert name in CODE_SPANS, f"{model.__name__}.{name}"
        assert literals(field.annotation) <= CODE_SPANS


def test_every_node_kind_stands_in_the_table() -> None:
    table = section("## 6. Structure", "`children` is an array")
    listed = {
        kind
        for row in table.splitlines()
        if row.startswith("| `") and "`kind`" not in row
        for kind in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    nodes = [
        model
        for model in MODELS
        if "kind" in model.model_fields and model.__module__ == tree.__name__
    ]
    kinds = set().union(*(literals(node.model_fields["kind"].annotation) for node in nodes))
    assert listed == kinds


def section(begin: str, end: str) -> str:
    return PAGE[PAGE.index(begin) : PAGE.index(end, PAGE.index(begin))]


def limits_in_code() -> dict[str, int]:
    return {
        f"{module.__name__}.{name}": value
        for module in (interning, records, packing, blob, summary, traffic, tree)
        for name, value in vars(module).items()
        if name.startswith("MAX_") and isinstance(value, int)
    }


def test_every_limit() -> None:
    listed = {
        int(number.replace(",", ""))
        for row in section("## 10. Limits", "## 11").splitlines()
        if row.startswith("|")
        for number in re.findall(r"[\d,]*\d", row.rsplit("|", 2)[1])
    }
    limits = limits_in_code()
    assert len(limits) >= 12
    for name, value in limits.items():
        assert value in listed, name
    # The bounds that stand in annotations.
    for schema in (tree.Structure, *MODELS):
        for bound in re.findall(r"max_length=(\d+)|le=(\d+)", repr(schema.model_fields)):
            number = int(bound[0] or bound[1])
            assert number in listed | {16, 2**63 - 1}, f"{schema.__name__}: {number}"


def test_every_dtype_row() -> None:
    rows: dict[str, tuple[str, tuple[int, ...]]] = {}
    for row in section("| leaf `dtype` |", "Every other dtype").splitlines()[2:]:
        if row.startswith("|"):
            names, entry, trailing, _ = (cell.strip() for cell in row.strip("|").split("|"))
            sizes = tuple(int(size) for size in trailing.split(",") if size)
            rows |= dict.fromkeys(re.findall(r"`(\w+)`", names), (entry.strip("`"), sizes))
    assert rows == blob._STORED


def test_every_dtype_of_a_blob() -> None:
    text = section("Its dtypes, by bits", "### From a leaf")
    listed: dict[str, int] = {}
    for names, bits in re.findall(r"((?:`\w+`,?\s*)+)(\d+)", text):
        listed |= dict.fromkeys(re.findall(r"`(\w+)`", names), int(bits))
    assert listed == blob._DTYPE_BITS


def hex_blocks() -> list[bytes]:
    blocks = []
    for block in re.findall(r"```hex\n(.*?)```", PAGE, flags=re.DOTALL):
        data = bytearray()
        for line in block.splitlines():
            upto = re.search(r"\((zero bytes|spaces) up to ([0-9a-f]+)\)", line)
            if upto:
                end = int(upto[2], 16) + (1 if int(upto[2], 16) % 16 == 15 else 0)
                data += (b" " if upto[1] == "spaces" else b"\0") * (end - len(data))
                data = data[: end - end % 16]
            else:
                found = re.match(
                    r"(?:[0-9a-f]{4}  )?((?:[0-9a-f]{2} ?){1,16})(?:  |$)", line + "  "
                )
                assert found, line
                data += bytes.fromhex(found[1])
        blocks.append(bytes(data))
    return blocks


def test_examples() -> None:
    header, envelope, structure, file = hex_blocks()
    assert header == member_header("calls/00000042.msgpack", 299)
    assert envelope == seal_envelope(pack({"a": 1}))
    decoded = tree.decode_structure(structure)
    assert pack(unpack(structure)) == structure
    assert (decoded.leaves, decoded.scalars) == (1, 1)
    assert blob.parse_header(file, len(file)) == {"args.0": ("F32", (2,), 0, 8)}
    stored = blob.Stored("F32", (2,), 8)
    assert file == blob.build_header({"args.0": stored}) + bytes.fromhex("0000803f00000040")
    assert PAGE.count(member_header("x", 8 * 2**30)[124:136].hex(" ")) == 1
    assert pack(2**64).hex(" ") in PAGE
    assert pack("\ud800x").hex(" ") in PAGE
