"""The page says what the file of results says, and rows of earlier runs are marked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.zoo import CASES, results
from tests.zoo.page import written
from tests.zoo.reasons import NOT_TRIED, REASONS
from tests.zoo.results import EARLIER, Result, committed, merge, save
from tests.zoo.run import PAGE

pytest.importorskip("transformers")
pytestmark = pytest.mark.integration

GOOD = Result(calls=3, reproduced=3, unseen=2, unseen_reproduced=2, programs=1, run="torch 2")
RAN = {"calls": 3, "reproduced": 1, "unseen": 2, "unseen_reproduced": 2, "variants": 1}
EMPTY = "<!-- written by tests.zoo.run: {} -->\n\n\n<!-- end -->\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results in place of the committed ones: bert and vit, each with both targets."""
    path = tmp_path / "results.csv"
    monkeypatch.setattr(results, "COMMITTED", path)
    save({target: {"bert": GOOD, "vit": GOOD} for target in ("torch", "onnx")})
    return path


def _table(rows: results.Results) -> list[str]:
    return re.findall(r"^\| (?!target|---)(.*) \|$", written(EMPTY.format("totals"), rows), re.M)


def test_the_page_has_the_totals_of_the_file() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page, committed()) == page, "run `python -m tests.zoo.run table`"
    assert page.count("<!-- written by tests.zoo.run: ") == 2
    assert written(page, {"torch": {}, "onnx": {}}) != page


def test_the_file_is_as_the_command_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, rows = results.COMMITTED.read_text(encoding="utf-8"), committed()
    monkeypatch.setattr(results, "COMMITTED", tmp_path / "results.csv")
    save(rows)
    assert results.COMMITTED.read_text(encoding="utf-8") == before
    assert committed() == rows
    assert len(before.splitlines()) == 1 + len(CASES)


def test_each_reason_is_of_a_failure() -> None:
    rows = committed()
    failed = {
        (name, target)
        for target, of_target in rows.items()
        for name, result in of_target.items()
        if not result.is_whole
    }
    for name, target in REASONS:
        assert {(name, target or "torch"), (name, target or "onnx")} & failed, (name, target)


def test_rows_that_were_not_run_are_marked(file: Path) -> None:
    rows = merge({"torch": {}, "onnx": {"vit": RAN}})
    assert rows["onnx"]["bert"].run == rows["torch"]["bert"].run == EARLIER
    assert rows["onnx"]["vit"].run.startswith("torch ")
    assert not rows["onnx"]["vit"].has_recorded
    assert rows["onnx"]["vit"].has_unseen
    assert _table(rows) == [
        "torch | 2 | 2 | 2 | 0 | -",
        "onnx | 2 | 1 | 1 | 0 | -",
        "onnx, the last run | 1 | 0 | 0 | 0 | -",
    ]
    assert merge({"torch": {}, "onnx": {}}) == committed(), "nothing ran"


def test_what_a_run_said_is_in_the_file(file: Path) -> None:
    lost = {**RAN, "bare_right": 2, "rounding": 1, "details": ["call 1: rejected,\nby a guard"]}
    crash = {"error": "export: exit -9", "calls": 3, "reproduced": 3}
    rows = merge({"torch": {"bert": crash}, "onnx": {"vit": lost}})
    save(rows)
    assert committed() == rows
    text = file.read_text(encoding="utf-8")
    assert '"call 1: rejected, by a guard"' in text
    assert f"export: exit -9,3/3,2/2,1,0,,,{EARLIER},,{NOT_TRIED}" in text
    assert "onnx | 2 | 1 | 1 | 0 | 2 calls of 1 models" in _table(rows)
    failures = written(EMPTY.format("failures"), rows)
    assert "| Nobody has found out | `bert` | `vit` |" in failures
