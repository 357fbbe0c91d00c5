"""The page about tables is true: it names all columns, and its queries give what a loop over the
calls gives."""

from __future__ import annotations

import re
from typing import Any

import duckdb
import pytest

from calltape_analyzer import open_tape
from calltape_analyzer.tables.rows import CALL_FIELDS, LEAF_FIELDS, MOST_COLUMNS
from tests.docs.page import DOCS, Page

PAGE = Page(DOCS / "tables.md")
TEXT = (DOCS / "tables.md").read_text(encoding="utf-8")
BUCKETS = (8, 16, 32, 64)


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program of the page leaves behind, and the folder that it ran in."""
    folder = tmp_path_factory.mktemp("page")
    space: dict[str, Any] = {"__name__": "page", "folder": folder}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile(PAGE.program, "docs/tables.md", "exec"), space)
        for name in ("slowest", "shares", "padding", "largest"):
            space[name] = space[name].fetchall()
    return space


@pytest.fixture(scope="module")
def known(space: dict[str, Any]) -> dict[str, Any]:
    """What the page asks, by a loop over the calls."""
    found: dict[str, Any] = {"calls": {}, "slowest": {}, "hours": {}, "tokens": {}, "padded": {}}
    with open_tape(space["folder"] / "runs") as tape:
        for variant in tape.variants():
            for call in variant.calls:
                found["calls"].setdefault(variant.name, []).append(call.number)
                shape = call.record.inputs.facts()[0].shape
                key = (variant.name, *shape)
                found["slowest"].setdefault(key, []).append(call.duration or 0)
        for call in tape.calls:
            batch, length = call.record.inputs.facts()[0].shape
            hour = call.record.time_ns // (3600 * 10**9)
            found["hours"].setdefault(hour, []).append(length)
            bucket = min(b for b in BUCKETS if b >= length)
            found["tokens"][bucket] = found["tokens"].get(bucket, 0) + batch * length
            found["padded"][bucket] = found["padded"].get(bucket, 0) + batch * bucket
    return found


def p99_ms(durations: list[float]) -> float:
    ordered = sorted(durations)
    at = 0.99 * (len(ordered) - 1)
    below = ordered[int(at)]
    above = ordered[min(int(at) + 1, len(ordered) - 1)]
    return 1000 * (below + (at - int(at)) * (above - below))


def test_the_slowest_calls_of_the_page_are_exact(
    space: dict[str, Any], known: dict[str, Any]
) -> None:
    for *key, calls, mean, p99 in space["slowest"]:
        durations = known["slowest"][tuple(key)]
        assert calls == len(durations)
        assert mean == pytest.approx(1000 * sum(durations) / calls, abs=2e-3)
        assert p99 == pytest.approx(p99_ms(durations), abs=2e-3)
    top = sorted(map(p99_ms, known["slowest"].values()), reverse=True)[:10]
    assert [row[-1] for row in space["slowest"]] == pytest.approx(top, abs=2e-3)


def test_the_shares_on_the_page_add_up(space: dict[str, Any], known: dict[str, Any]) -> None:
    shares = space["shares"]
    assert sum(row[1] for row in shares) == 61
    assert sum(row[2] for row in shares) == pytest.approx(1, abs=0.01)
    assert sum(row[4] for row in shares) == pytest.approx(1, abs=0.01)
    assert sum(row[3] for row in shares) == 1
    for name, calls, _, raised, _ in shares:
        assert calls - raised == len(known["calls"][name])


def test_the_padding_on_the_page_is_exact(space: dict[str, Any], known: dict[str, Any]) -> None:
    wasted = {b: 1 - known["tokens"][b] / known["padded"][b] for b in known["tokens"]}
    assert {row[0]: row[2] for row in space["padding"]} == pytest.approx(wasted, abs=1e-3)
    assert sum(row[1] for row in space["padding"]) == 61


def test_the_largest_arguments_come_first_on_the_page(space: dict[str, Any]) -> None:
    assert [row[0] for row in space["largest"]] == ["input_ids", "attention_mask"]
    assert space["largest"][0][2] == [3, 12]


def test_the_sizes_by_hour_on_the_page_are_exact(
    space: dict[str, Any], known: dict[str, Any]
) -> None:
    hours = space["over_time"]
    hours = hours[hours["size"] > 0]
    expected = [sizes for _, sizes in sorted(known["hours"].items())]
    assert list(hours["size"]) == [len(sizes) for sizes in expected]
    assert list(hours["min"]) == [min(sizes) for sizes in expected]
    assert list(hours["max"]) == [max(sizes) for sizes in expected]


def test_duckdb_takes_the_reader_itself(space: dict[str, Any]) -> None:
    with open_tape(space["folder"] / "runs") as tape:
        reader = tape.to_arrow()  # noqa: F841 - the query names it
        assert duckdb.sql("SELECT count(*), max(batch_size) FROM reader").fetchall() == [(61, 3)]


def test_the_page_has_the_columns() -> None:
    printed = {line.partition(" | ")[0] for line in PAGE.prints[0].splitlines()}
    assert {name for name, _, _ in CALL_FIELDS} <= printed
    text = " ".join(TEXT.split())
    named = set(re.findall(r"`(\w+)`", text.partition("A table of leaves has")[2]))
    assert {name for name, _, _ in LEAF_FIELDS} <= named
    assert f"at most {MOST_COLUMNS:,}" in text
