"""The page about tables is true: its commands and queries run, and give what a loop over the calls
gives."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import duckdb
import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.tables.rows import CALL_FIELDS, LEAF_FIELDS
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import Recorded, write_tape

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
BUCKETS = (8, 16, 32, 64)


class Model(torch.nn.Module):
    def forward(self, input_ids: Any, attention_mask: Any = None, past: Any = None) -> Any:
        return input_ids


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def made(folder: Path) -> None:
    calls = []
    for number in range(60):
        batch, length = number % 3 + 1, number % 11 + 2
        ids = torch.zeros(batch, length, dtype=torch.int64)
        more = {"attention_mask": torch.ones(batch, length)} if number % 4 else {}
        calls.append(
            Recorded(
                (ids,), more, number=number * 400, duration_ns=1000 * batch * length + number,
                error=("builtins:ValueError", "no") if number == 7 else None,
            )
        )  # fmt: skip
    (folder / "runs").mkdir()
    write_tape(folder / "runs" / "llm.tape", calls, target=Model())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made(tmp_path)
    monkeypatch.chdir(tmp_path)
    for line in "".join(blocks("sh")).splitlines():
        command, *words = shlex.split(line)
        assert command == "calltape"
        assert run(*words).code == 0, line
    return tmp_path


def answers() -> dict[str, Any]:
    """What the page asks, by a loop over the calls."""
    found: dict[str, Any] = {"calls": {}, "slowest": {}, "hours": {}, "tokens": {}, "padded": {}}
    with open_tape("runs/") as tape:
        for variant in tape.variants():
            for call in variant.calls:
                found["calls"].setdefault(variant.name, []).append(call.number)
                shape = call.record.inputs.facts()[0].shape
                key = (variant.name, *shape)
                duration = call.duration or 0
                found["slowest"][key] = max(found["slowest"].get(key, 0), duration)
        for call in tape.calls:
            batch, length = call.record.inputs.facts()[0].shape
            hour = call.record.time_ns // (3600 * 10**9)
            found["hours"].setdefault(hour, []).append(length)
            bucket = min(b for b in BUCKETS if b >= length)
            found["tokens"][bucket] = found["tokens"].get(bucket, 0) + batch * length
            found["padded"][bucket] = found["padded"].get(bucket, 0) + batch * bucket
    return found


def test_queries_of_duckdb(folder: Path) -> None:
    slowest, hours, shares, padding, largest = (
        duckdb.sql(query).fetchall() for query in blocks("sql")
    )
    known = answers()
    top = sorted(known["slowest"].values(), reverse=True)[:10]
    assert [row[-1] for row in slowest] == pytest.approx([1000 * d for d in top], abs=2e-3)
    assert [(row[1], row[2], row[4]) for row in hours] == [
        (len(sizes), min(sizes), max(sizes)) for _, sizes in sorted(known["hours"].items())
    ]
    assert sum(row[1] for row in shares) == 60
    assert sum(row[4] for row in shares) == 1
    for name, calls, *_, raised in shares:
        assert calls - raised == len(known["calls"][name])
    assert sum(row[2] for row in shares) == pytest.approx(1, abs=0.01)
    wasted = {b: 1 - known["tokens"][b] / known["padded"][b] for b in known["tokens"]}
    assert {row[0]: row[2] for row in padding} == pytest.approx(wasted, abs=1e-3)
    assert [row[0] for row in largest] == ["input_ids", "attention_mask"]
    assert largest[0][2] == [3, 12]


def test_queries_of_pandas(folder: Path) -> None:
    space: dict[str, Any] = {}
    for block in blocks("python"):
        exec(compile(block, "docs/tables.md", "exec"), space)
    known = answers()
    top = sorted(known["slowest"].values(), reverse=True)[:10]
    assert list(space["slowest"]["max"]) == pytest.approx(top)
    hours = space["over_time"]
    assert list(hours["size"][hours["size"] > 0]) == [
        len(sizes) for _, sizes in sorted(known["hours"].items())
    ]
    assert space["shares"].calls.sum() == 60
    assert space["shares"].share.sum() == pytest.approx(1)
    wasted = {b: 1 - known["tokens"][b] / known["padded"][b] for b in known["tokens"]}
    assert dict(space["padding"]) == pytest.approx(wasted)


def test_duckdb_takes_the_reader_itself(folder: Path) -> None:
    with open_tape("runs/") as tape:
        reader = tape.to_arrow()  # noqa: F841 - the query names it
        assert duckdb.sql("SELECT count(*), max(batch_size) FROM reader").fetchall() == [(60, 3)]


def test_the_page_has_the_columns() -> None:
    documented = {
        name for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }  # fmt: skip
    real = {name for name, _, _ in (*CALL_FIELDS, *LEAF_FIELDS)}
    assert real <= documented
    assert documented - real == {"batch_size"}
