"""``results.csv``: one row per model of the zoo, which its tests hold the exporter to."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.zoo import CASES, FAMILIES
from tests.zoo.reasons import NOT_TRIED, Reason, reason_for

__all__ = [
    "COMMITTED",
    "EARLIER",
    "ROWS",
    "TARGETS",
    "Result",
    "Results",
    "committed",
    "merge",
    "read",
    "save",
]

TARGETS = "torch", "onnx"
ROWS = "results.{}.json"
"""Where a run leaves its rows, per target."""
COMMITTED = Path(__file__).with_name("results.csv")
EARLIER = "earlier"
"""In place of the libraries, in rows of earlier runs: the exporter was an earlier one, and the
libraries may have been."""

_LIBRARIES = {"torch": ("torch", "transformers"), "onnx": ("torch", "transformers", "onnxruntime")}
_CELLS = {
    "torch": ("recorded", "unseen", "programs", "wrong", "run", "why"),
    "onnx": ("recorded", "unseen", "programs", "wrong", "rounding", "bare", "run", "why"),
}
_CUT = 160  # characters of an error that nobody has put into words


@dataclass(frozen=True)
class Result:
    """What one model gave with one target.

    Attributes:
        calls: that were recorded.
        reproduced: those of them whose outputs the programs give.
        unseen: calls at sizes that were never recorded.
        unseen_reproduced: those of them whose outputs the programs give.
        programs: how many.
        wrong: calls with wrong values that nothing reported.
        rounding: calls that count as reproduced, with a difference that is rounding.
        bare: calls that only the bare exporter reproduces; None if it was not tried.
        run: the libraries of the last run, or ``EARLIER``.
        why: what the exporter said of a failure; empty if there is none.
    """

    calls: int
    reproduced: int
    unseen: int
    unseen_reproduced: int
    programs: int
    wrong: int = 0
    rounding: int = 0
    bare: int | None = None
    run: str = ""
    why: str = ""

    @classmethod
    def of(cls, row: Mapping[str, Any], target: str, run: str = "") -> Result:
        """From what a run leaves. After an error, no call counts as reproduced."""
        error = row.get("error")
        result = cls(
            calls=row.get("calls", 0),
            reproduced=0 if error else row.get("reproduced", 0),
            unseen=row.get("unseen", 0),
            unseen_reproduced=0 if error else row.get("unseen_reproduced", 0),
            programs=row.get("variants", 0),
            wrong=row.get("silent_wrong", 0),
            rounding=row.get("rounding", 0),
            bare=row.get("bare_right") if target == "onnx" else None,
            run=run,
        )
        said = error or next(iter(row.get("details", ())), "")
        return result if result.is_whole else replace(result, why=" ".join(said.split())[:_CUT])

    @property
    def has_recorded(self) -> bool:
        """Whether every recorded call was reproduced."""
        return 0 < self.calls == self.reproduced

    @property
    def has_unseen(self) -> bool:
        """Whether every unseen call was reproduced."""
        return 0 < self.unseen == self.unseen_reproduced

    @property
    def is_whole(self) -> bool:
        """Whether every call was reproduced."""
        return self.has_recorded and self.has_unseen


Results = dict[str, dict[str, Result]]
"""By target, then by case."""


def read(folders: Sequence[Path], target: str) -> dict[str, dict[str, Any]]:
    """The rows of every run for a target; those of later folders replace earlier ones."""
    rows: dict[str, dict[str, Any]] = {}
    for folder in folders:
        path = folder / ROWS.format(target)
        if path.exists():
            rows |= {row["case"]: row for row in json.loads(path.read_text())}
    return {name: rows[name] for name in CASES if name in rows}


def committed() -> Results:
    """The rows beside this module: what each case promises."""
    with COMMITTED.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {
        target: {
            row["case"]: _from_cells({cell: row[f"{target} {cell}"] for cell in _CELLS[target]})
            for row in rows
            if row["case"] in CASES and row[f"{target} recorded"]
        }
        for target in TARGETS
    }


def _from_cells(cells: Mapping[str, str]) -> Result:
    reproduced, _, calls = cells["recorded"].partition("/")
    unseen_reproduced, _, unseen = cells["unseen"].partition("/")
    return Result(
        int(calls), int(reproduced), int(unseen), int(unseen_reproduced), int(cells["programs"]),
        int(cells["wrong"]), int(cells.get("rounding") or 0),
        int(cells["bare"]) if cells.get("bare") else None, cells["run"], cells["why"],
    )  # fmt: skip


def merge(new: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Results:
    """The committed rows, and those of runs in place of theirs. If a run has some, all others are
    earlier ones."""
    rows = committed()
    if any(new.values()):
        rows = {
            target: {name: replace(result, run=EARLIER) for name, result in of_target.items()}
            for target, of_target in rows.items()
        }
    for target in TARGETS:
        run = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES[target])
        of_run = {name: Result.of(row, target, run) for name, row in new.get(target, {}).items()}
        known = rows[target] | of_run
        rows[target] = {name: known[name] for name in CASES if name in known}
    return rows


def save(rows: Results) -> None:
    """Write ``results.csv``. A failure that somebody has put into words is told in these."""
    columns = [f"{target} {cell}" for target in TARGETS for cell in _CELLS[target]]
    with COMMITTED.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["family", "case", *columns, "by hand"])
        for family, cases in FAMILIES.items():
            own = [case.name for case in cases if CASES[case.name] is case]
            writer.writerows([family, name, *_cells(name, rows)] for name in own)


def _cells(name: str, rows: Results) -> Iterator[str]:
    by_hand = ""
    for target in TARGETS:
        result = rows[target].get(name)
        reason = reason_for(name, target)
        if result is not None and not result.is_whole:
            by_hand = reason.by_hand if reason else NOT_TRIED
        for cell in _CELLS[target]:
            yield "" if result is None else _cell(cell, result, reason)
    yield by_hand


def _cell(cell: str, result: Result, reason: Reason | None) -> str:
    match cell:
        case "recorded":
            return f"{result.reproduced}/{result.calls}"
        case "unseen":
            return f"{result.unseen_reproduced}/{result.unseen}"
        case "why" if reason and reason.why and not result.is_whole:
            return reason.why
        case "rounding":
            return str(result.rounding or "")
        case _:
            value = getattr(result, cell)
            return "" if value is None else str(value)
