"""Each fact of the format is of a kind in the table of privacy, docs/privacy.md has that table, and
a redacted tape has of each kind what the table says."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import calltape_schema
from calltape_analyzer import open_tape, redact
from calltape_recorder import record
from calltape_schema.fields import Record
from tests.recorder.privacy_table import PAGE, Kind, Left, updated
from tests.recorder.secrets import SECRET, Model, S, use
from tests.unpacked import readable


def classes(base: type) -> Iterator[type]:
    for one in base.__subclasses__():
        yield one
        yield from classes(one)


def facts_of_the_format() -> set[str]:
    """The fields of all models of the schema, each by the class that declares it."""
    for module in pkgutil.iter_modules(calltape_schema.__path__):
        importlib.import_module(f"calltape_schema.{module.name}")
    return {
        f"{model.__name__}.{field}"
        for model in classes(Record)
        if model.__module__.startswith("calltape_schema.")
        for field in vars(model).get("__annotations__", ())
    }


def test_each_fact_is_of_a_kind() -> None:
    assert {fact for kind in Kind for fact in kind.row.facts.split()} == facts_of_the_format()


def test_the_page_has_the_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == updated(page)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("redacted")
    model = Model(folder / "none")
    with record(model, folder / "t.tape"):
        use(model)
        model(SECRET["quantized"])
    return folder / "t.tape"


def redacted(source: Path, name: str, **options: Any) -> tuple[bytes, bytes]:
    """What can be read before and after."""
    with open_tape(source) as tape:
        redact(tape, source.with_name(name), **options)
    return readable(source.read_bytes()), readable(source.with_name(name).read_bytes())


def test_a_redacted_tape_has_what_the_table_says(source: Path) -> None:
    before, after = redacted(source, "redacted.tape")
    wrong: list[str] = []
    for kind, named in S.traces.items():
        for name, traces in named.items():
            is_told = any(trace in after for trace in traces)
            if kind.row.left in (Left.NO, Left.ORDINAL, Left.LENGTH) and is_told:
                wrong.append(f"on the redacted tape: {kind} ({name})")
            was_told = any(trace in before for trace in traces)
            if kind.row.left is Left.YES and was_told and not is_told:
                wrong.append(f"not on the redacted tape: {kind} ({name})")
    assert not wrong, "\n".join(wrong)
    returned = ("next id", "attribute of ids")
    ranges = [trace for name in returned for trace in S.traces[Kind.FEW_RANGE][name]]
    assert not any(trace in after for trace in ranges)


def test_shapes_only_leaves_no_values(source: Path) -> None:
    _, after = redacted(source, "shapes.tape", shapes_only="*")
    left = {
        kind
        for kind, named in S.traces.items()
        if any(trace in after for traces in named.values() for trace in traces)
    }
    assert left == {Kind.STRUCTURE, Kind.NAMES, Kind.OUTCOME, Kind.TARGET, Kind.DEFAULTS}
