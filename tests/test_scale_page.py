"""docs/scale.md has the tables that its command prints, and these follow from what they state."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.scale import COSTS, FLEET, costs_table, policies, policies_table

from calltape_schema.bounds import MAX_ROWS, MAX_SOURCES

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "scale.md").read_text()


def test_the_page_has_the_tables_of_the_command() -> None:
    tables = re.findall(r"^\|.*?(?=\n\n)", PAGE, re.DOTALL | re.MULTILINE)
    assert tables == [costs_table(), policies_table(policies())]


def test_the_tables_follow_from_their_inputs() -> None:
    whole, shapes, sampled, novelty = policies()
    calls = 10_000 * 28 * 24 * 3600 * 20
    assert FLEET.calls == whole.kept == shapes.kept == calls == 100 * sampled.kept
    assert novelty.kept == 10_000 * 1000
    assert shapes.tapes == sampled.tapes == novelty.tapes == 10_000 * 28
    end = COSTS.end_bytes + 1000 * COSTS.row_bytes
    assert shapes.nbytes == pytest.approx(calls * COSTS.call_bytes + 280_000 * end)
    assert whole.nbytes > calls * 8192
    assert whole.tapes == pytest.approx(whole.nbytes / FLEET.tape_bytes, rel=0.01)
    assert shapes.month == pytest.approx(shapes.nbytes / 2**30 * COSTS.month_per_gib)
    assert shapes.worker_hours * 3600 == pytest.approx(
        280_000 * (COSTS.tape_seconds + 1000 * COSTS.row_seconds)
    )
    double = policies(FLEET._replace(servers=20_000))[1]
    assert double.nbytes == pytest.approx(2 * shapes.nbytes)


def test_its_limits_are_those_of_the_code() -> None:
    assert f"{MAX_ROWS:,} distinct inputs" in PAGE
    assert f"{MAX_SOURCES:,} recordings" in PAGE
    assert policies()[0].read / policies()[0].nbytes < 1e-5
