"""The zoo is sound, what it promises holds, and what it does not export fails by hand as well."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.zoo import CASES, CORE
from tests.zoo.attempts import ATTEMPTS, Attempt
from tests.zoo.by_hand import outcome
from tests.zoo.check import problems
from tests.zoo.run import main
from tests.zoo.table import EXPECTED, ROWS, read, whole

pytest.importorskip("transformers")
pytestmark = pytest.mark.integration

_SECONDS = 2700  # for the recording and export of every case in CORE
_PROMISED: dict[str, dict[str, dict[str, bool]]] = json.loads(EXPECTED.read_text())


@pytest.mark.parametrize("name", CORE)
def test_case_is_sound(tmp_path: Path, name: str) -> None:
    assert list(problems(CASES[name], tmp_path / "t.tape")) == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first target records what the second one takes as well."""
    return tmp_path_factory.mktemp("zoo")


@pytest.mark.timeout(_SECONDS)
@pytest.mark.parametrize("target", ["torch", "onnx"])
def test_core_keeps_its_promises(folder: Path, target: str) -> None:
    # Those of the core that the committed table has a row for.
    names = [name for name in CORE if target in _PROMISED.get(name, {})]
    only = ["--only", ",".join(names), "--jobs", "2", "--reuse"]
    assert main(["all", str(folder), "--to", target, *only]) == 0
    rows = read([folder], target)
    assert set(rows) == set(names), f"{ROWS.format(target)} lacks cases"
    broken = {name: said for name, row in rows.items() if (said := _broken(row, target))}
    assert broken == {}


def _broken(row: dict[str, Any], target: str) -> str:
    """What a case does not keep of its promise, with the exporter's first reasons."""
    promised = _PROMISED[row["case"]].get(target, {})
    lost = []
    if row.get("silent_wrong"):
        lost.append(f"{row['silent_wrong']} wrong values that nothing reported")
    if promised.get("recorded") and not whole(row, "reproduced", "calls"):
        lost.append("recorded calls")
    if promised.get("unseen") and not whole(row, "unseen_reproduced", "unseen"):
        lost.append("unseen calls")
    reasons = [row.get("error") or "", *row.get("details", ())[:2]]
    return ", ".join(lost) and f"{', '.join(lost)}: {'; '.join(filter(None, reasons))}"


# The others take their time: python -m tests.zoo.by_hand
_BY_HAND = [a for a in ATTEMPTS if a.name.startswith(("encodec", "packs_inside"))]


@pytest.mark.parametrize("attempt", _BY_HAND, ids=lambda attempt: attempt.name)
def test_by_hand(attempt: Attempt) -> None:
    said = outcome(attempt)
    assert said is not None, "this works by hand: the exporter has to learn it"
    assert re.search(attempt.words, said), said
