"""The committed rows of the zoo, which its tests hold the exporter to, and their table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.zoo import CASES, FAMILIES
from tests.zoo.reasons import REASONS, Reason

__all__ = ["ROWS", "committed", "read", "whole", "write"]

Row = dict[str, Any]
Results = Mapping[str, Mapping[str, Row]]
"""By target, then by case."""

TARGETS = "torch", "onnx"
ROWS = "results.{}.json"
"""Where a run leaves its rows, per target."""
_COMMITTED = Path(__file__).with_name("rows.json")
_COUNTS = "calls", "reproduced", "unseen", "unseen_reproduced", "silent_wrong", "variants"

_HEAD = """\
# The zoo

Small models that people export, each recorded as its users call it, exported from the tape, and
judged by a comparison of the zoo's own (`tests/zoo/comparing.py`): every recorded call, and calls
at sizes that were never recorded. Programs may refuse a call; a wrong value that nothing reports
counts as *silently wrong*. In ONNX Runtime, which adds in another order, a difference of no more
than 16 times what the last digit of the inputs changes in the model's own results is rounding
([decision 0054](decisions/0054-rounding-of-another-runtime.md)). Where an ONNX model of ours is not
right, `torch.onnx.export` alone is tried with the same arguments and dynamic shapes: a call that it
gets right is a fault of ours.

Written by `python -m tests.zoo.run table`; the last run: {versions}; CPU. Rows of earlier runs have
a `°`: the exporter was an earlier one, and the libraries may have been.
"""
_COLUMNS = "case", "torch: recorded", "unseen", "onnx: recorded", "unseen", "programs"
_CUT = 160  # characters of an error that nobody has put into words


def read(folders: Sequence[Path], target: str) -> dict[str, Row]:
    """The rows of every run for a target; those of later folders replace earlier ones."""
    rows: dict[str, Row] = {}
    for folder in folders:
        path = folder / ROWS.format(target)
        if path.exists():
            rows |= {row["case"]: row for row in json.loads(path.read_text())}
    return {name: rows[name] for name in CASES if name in rows}


def whole(row: Row, some: str, every: str) -> bool:
    """Whether all calls of a kind were reproduced."""
    return row.get("error") is None and bool(row.get(every)) and row.get(some) == row[every]


def _recorded(row: Row) -> bool:
    return whole(row, "reproduced", "calls")


def _unseen(row: Row) -> bool:
    return whole(row, "unseen_reproduced", "unseen")


def committed() -> dict[str, dict[str, Row]]:
    """The rows beside this module, by target: what each case promises."""
    found: dict[str, dict[str, Row]] = json.loads(_COMMITTED.read_text())
    return {
        target: {name: found[name][target] for name in CASES if target in found.get(name, {})}
        for target in TARGETS
    }


def write(path: Path, new: Results) -> None:
    """The table at ``path``, and the rows beside this module. Cases that were not run now keep the
    rows that they have, which are marked as earlier ones if others are new."""
    rows = committed()
    mark = {"earlier": True} if any(new.values()) else {}
    for target in TARGETS:
        changed = {name: _short(name, target, row) for name, row in new.get(target, {}).items()}
        known = {name: row | mark for name, row in rows[target].items()} | changed
        rows[target] = {name: known[name] for name in CASES if name in known}
    path.write_text("\n".join(_lines(rows)) + "\n")
    by_case = {
        name: {target: rows[target][name] for target in TARGETS if name in rows[target]}
        for name in CASES
    }
    lines = [f'  "{name}": {json.dumps(row)}' for name, row in by_case.items() if row]
    _COMMITTED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _short(name: str, target: str, row: Row) -> Row:
    """What is committed of a row: the counts, and what was said if nobody has put it into words."""
    short = {count: row.get(count, 0) for count in _COUNTS}
    if row.get("rounding"):
        short["rounding"] = row["rounding"]
    if target == "onnx" and "bare_right" in row:
        short["bare_right"] = row["bare_right"]
    is_known = (name, target) in REASONS or (name, "") in REASONS
    if row.get("error"):
        short["error"] = "" if is_known else _cut(row["error"])
    elif not is_known and not (_recorded(row) and _unseen(row)):
        short["details"] = [_cut(said) for said in row.get("details", ())[:1]]
    return short


def _cut(text: str) -> str:
    return " ".join(text.split())[:_CUT].replace("|", "/")


def _lines(rows: Results) -> Iterator[str]:
    packages = ("torch", "transformers", "onnxruntime")
    yield _HEAD.format(versions=", ".join(f"{name} {version(name)}" for name in packages))
    yield from _summary(rows)
    for family, cases in FAMILIES.items():
        yield f"\n## {family}\n"
        yield f"| {' | '.join(_COLUMNS)} |"
        yield "| --- " * len(_COLUMNS) + "|"
        for case in cases:
            yield f"| {' | '.join(_cells(case.name, rows))} |"
    yield from _failures(rows)


def _summary(rows: Results) -> Iterator[str]:
    titles = (
        "every recorded call reproduced", "every unseen call too", "silently wrong values",
        "right with the bare exporter only",
    )  # fmt: skip
    yield f"| target | cases | {' | '.join(titles)} |"
    yield "| --- " * 6 + "|"
    for target in TARGETS:
        yield _totals(target, list(rows[target].values()))
        last = [row for row in rows[target].values() if not row.get("earlier")]
        if 0 < len(last) < len(rows[target]):
            yield _totals(f"{target}, the last run", last)
    yield "\nA row shows calls reproduced / calls made; `-` was not run. *programs*: torch / onnx."


def _totals(title: str, ran: Sequence[Row]) -> str:
    recorded = [row for row in ran if _recorded(row)]
    both = sum(_unseen(row) for row in recorded)
    wrong = sum(row.get("silent_wrong", 0) for row in ran)
    every = len(ran)
    counts = f"{every} | {len(recorded)}/{every} | {both}/{every} | {wrong}"
    compared = [row["bare_right"] for row in ran if "bare_right" in row]
    bare = f"{sum(compared)} calls of {len(compared)} cases" if compared else "-"
    return f"| {title} | {counts} | {bare} |"


def _cells(name: str, rows: Results) -> Iterator[str]:
    yield f"`{name}`"
    ran = [rows[target].get(name) for target in TARGETS]
    for row in ran:
        yield "-" if row is None else _share(row, "reproduced", "calls")
        yield "-" if row is None else _share(row, "unseen_reproduced", "unseen")
    counts = ["-" if row is None else str(row.get("variants", 0)) for row in ran]
    yield " / ".join(counts)


def _share(row: Row, some: str, every: str) -> str:
    share = f"{row.get(some, 0)}/{row.get(every, '?')}{'°' if row.get('earlier') else ''}"
    return share if whole(row, some, every) else f"**{share}**"


def _failures(rows: Results) -> Iterator[str]:
    yield "\n## Not reproduced\n"
    yield "By hand: what torch does with arguments and dynamic shapes that a person wrote, without"
    yield "calltape. `python -m tests.zoo.by_hand` runs that, and prints torch's words.\n"
    yield "| case | target | what is missing | why | by hand |"
    yield "| --- " * 5 + "|"
    for name in CASES:
        for target in TARGETS:
            row = rows[target].get(name)
            if row is not None and not (_recorded(row) and _unseen(row)):
                yield f"| `{name}` | {target} | {_missing(row)} | {_why(name, target, row)} |"


def _missing(row: Row) -> str:
    if not row.get("reproduced"):
        return "everything"
    if not _recorded(row):
        return "recorded calls" if _unseen(row) else "recorded and unseen calls"
    return "unseen calls"


def _why(name: str, target: str, row: Row) -> str:
    reason: Reason | None = REASONS.get((name, target)) or REASONS.get((name, ""))
    bare = f" (the bare exporter: {row['bare_right']} calls)" if row.get("bare_right") else ""
    if reason is not None:
        return f"{reason.why}{bare} | {reason.by_hand}"
    said = row.get("error") or "; ".join(row.get("details", ())[:1])
    return f"{_cut(said)}{bare} | not tried"
