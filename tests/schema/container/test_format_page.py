"""FORMAT-next.md and the code say the same: fields, limits, dtypes, and the example bytes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from calltape_schema import (
    blob,
    bounds,
    end,
    endings,
    groups,
    inputs_table,
    interning,
    leaves,
    packing,
    records,
    tree,
)
from calltape_schema.fields import Record
from calltape_schema.packing import pack, seal_envelope

PAGE = (Path(__file__).parents[3] / "schema" / "FORMAT-next.md").read_text()
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
CODE_SPANS = set(re.findall(r"`\"?([^`\"\n]+)\"?`", PROSE))
MODELS = {
    value: None
    for module in (tree, leaves, records, endings, groups, end, inputs_table)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, BaseModel)
    if value.__name__ not in ("BaseModel", "Record", "Part", "Described")
    if value.__name__ not in ("Trailer", "Ending", "Traffic", "CallRecord", "BlobFacts")
    and value is not Record
}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field(model: type[BaseModel]) -> None:
    for name in model.model_fields:
        if (model.__name__, name) != ("GroupedRecord", "call"):  # it stands in the table
            assert name in CODE_SPANS, f"{model.__name__}.{name}"


def section(begin: str, after: str) -> str:
    return PAGE[PAGE.index(begin) : PAGE.index(after, PAGE.index(begin))]


def test_every_limit() -> None:
    listed = {
        int(number.replace(",", ""))
        for row in section("## 10. Limits", "## 11").splitlines()
        if row.startswith("|")
        for number in re.findall(r"[\d,]*\d", row.rsplit("|", 2)[1])
    }
    for module in (bounds, interning, records, packing, blob, tree):
        for name, value in vars(module).items():
            if name.startswith("MAX_") and isinstance(value, int):
                assert value in listed, f"{module.__name__}.{name}"


def test_every_dtype() -> None:
    rows: dict[str, tuple[str, tuple[int, ...]]] = {}
    for row in section("| leaf `dtype` |", "Every other dtype").splitlines()[2:]:
        if row.startswith("|"):
            names, entries, trailing, _ = (cell.strip() for cell in row.strip("|").split("|"))
            dtypes, stored = re.findall(r"`(\w+)`", names), re.findall(r"`(\w+)`", entries)
            stored = stored * len(dtypes) if len(stored) == 1 else stored
            sizes = tuple(int(size) for size in trailing.split(",") if size)
            rows |= {name: (entry, sizes) for name, entry in zip(dtypes, stored, strict=True)}
    assert rows == blob._STORED


def test_the_envelope_of_the_page() -> None:
    example = re.search(r'document `\{"a": 1\}`:\n\n```hex\n([0-9a-f ]+)\n', PAGE)
    assert example is not None
    assert bytes.fromhex(example[1]) == seal_envelope(pack({"a": 1}))


def test_the_page_is_short() -> None:
    assert len(PAGE.splitlines()) <= 480
