"""Each fact of the format has a row in docs/privacy.md, and a redacted tape has no more of it than
the page says."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import calltape_schema
from calltape_analyzer import open_tape, redact
from calltape_recorder import record
from calltape_schema.fields import Record
from tests.recorder.secrets import PAGE, SECRET, TABLE, Model, S, use
from tests.unpacked import readable

_HEAD = "| what | facts | redacted |"


def rows() -> Iterator[tuple[str, set[str], str]]:
    """Of each row what it is, its facts, and what a redacted tape has of it."""
    _, _, below = PAGE.partition(f"{_HEAD}\n| --- | --- | --- |\n")
    for line in below.partition("\n\n")[0].splitlines():
        what, facts, redacted = line.strip("| ").split(" | ")
        yield what, set(re.findall(r"`(\w+\.\w+)`", facts)), redacted


ROWS = list(rows())


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


def test_each_fact_has_a_row_and_each_row_facts() -> None:
    told = {fact for _, facts, _ in ROWS for fact in facts}
    assert told == facts_of_the_format()
    assert all(facts for _, facts, _ in ROWS)
    assert {what for what, _, _ in ROWS} <= TABLE.keys()


def test_a_redacted_tape_has_no_more_than_the_page_says(tmp_path: Path) -> None:
    model = Model(tmp_path / "none")
    with record(model, tmp_path / "t.tape"):
        use(model)
        model(SECRET["quantized"])
    with open_tape(tmp_path / "t.tape") as tape:
        redact(tape, tmp_path / "redacted.tape")
    before = readable((tmp_path / "t.tape").read_bytes())
    after = readable((tmp_path / "redacted.tape").read_bytes())
    wrong: list[str] = []
    for what, _, redacted in ROWS:
        for name, traces in S.traces.get(what, {}).items():
            is_told = any(trace in after for trace in traces)
            if redacted in ("no", "others", "length") and is_told:
                wrong.append(f"on the redacted tape: {what} ({name})")
            if redacted == "yes" and any(trace in before for trace in traces) and not is_told:
                wrong.append(f"not on the redacted tape: {what} ({name})")
    assert not wrong, "\n".join(wrong)
