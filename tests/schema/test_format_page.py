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
    bounds,
    end,
    groups,
    inputs_document,
    records,
    tree,
)
from calltape_schema.fields import Record
from calltape_schema.neutral_nodes import WORDS
from calltape_schema.packing import pack, seal_envelope
from calltape_schema.tar import member_header

PAGE = (Path(__file__).parents[2] / "schema" / "FORMAT.md").read_text()
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
CODE_SPANS = set(re.findall(r"`\"?([^`\"\n]+)\"?`", PROSE))
MODELS = {
    value: None
    for module in (tree, records, groups, end, inputs_document)
    for value in vars(module).values()
    if isinstance(value, type(BaseModel))
    if value not in (BaseModel, Record)
}
IN_THE_TABLE = {("CallRecord", "call")}
"""It is no field of the document: it stands in the table of a group."""


def literals(annotation: Any) -> set[str]:
    if typing.get_origin(annotation) is typing.Literal:
        return {str(value) for value in typing.get_args(annotation)}
    return set().union(*map(literals, typing.get_args(annotation)))


def test_models_are_found() -> None:
    names = {model.__name__ for model in MODELS}
    assert {
        "Manifest",
        "CallRecord",
        "End",
        "_TableForm",
        "Leaf",
        "CustomNode",
        "Range",
    } <= names


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_the_page_lists_every_field_and_named_value(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        if (model.__name__, name) not in IN_THE_TABLE:
            assert name in CODE_SPANS, f"{model.__name__}.{name}"
        if name != "kind":  # Python's words, which are hints on the page
            assert literals(field.annotation) <= CODE_SPANS


def test_every_node_kind_and_hint_stands_in_the_table() -> None:
    table = section("## 6. Structure", "`children` is an array")
    rows = [row.split("|")[1:-1] for row in table.splitlines() if row.startswith("| `")][1:]
    listed = {re.findall(r"`(\w+)`", row[0])[0]: row[3] for row in rows}
    assert listed.keys() == {*WORDS, "scalar"}
    for kind, (_, hints) in WORDS.items():
        assert hints <= set(re.findall(r"`(\w+)`", listed[kind])), kind


def section(begin: str, after: str) -> str:
    return PAGE[PAGE.index(begin) : PAGE.index(after, PAGE.index(begin))]


def test_the_page_lists_every_limit() -> None:
    listed = {
        int(number.replace(",", ""))
        for row in section("## 10. Kinds and limits", "## 11").splitlines()
        if row.startswith("|")
        for number in re.findall(r"[\d,]*\d", row.rsplit("|", 2)[1])
    }
    for name, value in vars(bounds).items():
        if name.startswith("MAX_") and isinstance(value, int):
            assert value in listed, name
    # The bounds that stand in annotations.
    for schema in (tree.Structure, *MODELS):
        for bound in re.findall(r"max_length=(\d+)|le=(\d+)", repr(schema.model_fields)):
            number = int(bound[0] or bound[1])
            assert number in listed | {16, 2**64 - 1}, f"{schema.__name__}: {number}"


def test_the_page_lists_every_dtype_of_a_leaf() -> None:
    rows: dict[str, tuple[str, tuple[int, ...]]] = {}
    for row in section("| leaf `dtype` |", "Every other dtype").splitlines()[2:]:
        if row.startswith("|"):
            names, entries, trailing, _ = (cell.strip() for cell in row.strip("|").split("|"))
            dtypes, stored = re.findall(r"`(\w+)`", names), re.findall(r"`(\w+)`", entries)
            stored = stored * len(dtypes) if len(stored) == 1 else stored
            sizes = tuple(int(size) for size in trailing.split(",") if size)
            rows |= {name: (entry, sizes) for name, entry in zip(dtypes, stored, strict=True)}
    assert rows == blob.STORED_DTYPES


def test_the_page_lists_every_dtype_of_a_blob() -> None:
    text = section("by bits per element:", "### From a leaf")
    listed: dict[str, int] = {}
    for names, bits in re.findall(r"((?:`\w+`,?\s*)+)(\d+)", text):
        listed |= dict.fromkeys(re.findall(r"`(\w+)`", names), int(bits))
    assert listed == blob.DTYPE_BITS


def test_the_examples_of_the_page_are_what_the_code_writes() -> None:
    example = re.search(r'document `\{"a": 1\}`:\n\n```hex\n([0-9a-f ]+)\n', PAGE)
    assert example is not None
    assert bytes.fromhex(example[1]) == seal_envelope(pack({"a": 1}))
    assert PAGE.count(member_header("x", 8 * 2**30)[124:136].hex(" ")) == 1
    assert pack(2**64).hex(" ") in PAGE
    assert pack("\ud800x").hex(" ") in PAGE


def test_the_page_is_short() -> None:
    assert len(re.findall(r"\w+", PAGE)) <= 7_200
