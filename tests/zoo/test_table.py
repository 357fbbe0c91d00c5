"""A table tells rows of the last run from earlier ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.zoo import table

pytest.importorskip("transformers")
pytestmark = pytest.mark.integration

GOOD = {"calls": 3, "reproduced": 3, "unseen": 2, "unseen_reproduced": 2, "variants": 1}


def test_rows_that_were_not_run_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, page = tmp_path / "rows.json", tmp_path / "zoo.md"
    old = {"bert": {"torch": GOOD, "onnx": GOOD}, "vit": {"torch": GOOD, "onnx": GOOD}}
    rows.write_text(json.dumps(old))
    monkeypatch.setattr(table, "_COMMITTED", rows)

    table.write(page, {"torch": {}, "onnx": {"vit": {"case": "vit", **GOOD, "reproduced": 1}}})

    kept = json.loads(rows.read_text())
    assert kept["bert"]["onnx"]["earlier"]
    assert "earlier" not in kept["vit"]["onnx"]
    assert kept["bert"]["torch"]["earlier"], "the page names the libraries of the last run only"
    text = page.read_text()
    assert "| `bert` | 3/3° | 2/2° | 3/3° | 2/2° | 1 / 1 |" in text
    assert "| `vit` | 3/3° | 2/2° | **1/3** | 2/2 | 1 / 1 |" in text
    assert "| onnx | 2 | 1/2 | 1/2 | 0 | - |" in text
    assert "| onnx, the last run | 1 | 0/1 | 0/1 | 0 | - |" in text
    assert "torch, the last run" not in text, "no row of torch is new"


def test_calls_of_the_bare_exporter_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, page = tmp_path / "rows.json", tmp_path / "zoo.md"
    rows.write_text(json.dumps({"bert": {"torch": GOOD, "onnx": GOOD}}))
    monkeypatch.setattr(table, "_COMMITTED", rows)
    lost = {"case": "vit", **GOOD, "reproduced": 1, "bare_right": 2, "details": ["call 1: refused"]}
    table.write(page, {"torch": {}, "onnx": {"vit": lost}})
    text = page.read_text()
    assert "| onnx | 2 | 1/2 | 1/2 | 0 | 2 calls of 1 cases |" in text
    assert "call 1: refused (the bare exporter: 2 calls) | not tried |" in text
