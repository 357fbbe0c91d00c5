"""Records and exports the zoo, each step in a process of its own (:mod:`tests.answers.running`).

``python -m tests.zoo.run all DIR --to torch --jobs 2 [--core | --only a,b] [--reuse]`` does it for
every case and prints a table (*bare*: calls that ours does not reproduce and ``torch.onnx.export``
does, with the same arguments and shapes); the rows are in ``DIR/results.torch.json`` as well,
beside those of earlier runs. ``--reuse`` does not record again what is recorded;
``python -m tests.zoo.run table DIR...`` puts such results into ``tests/zoo/results.csv``, which the
tests hold the exporter to, and the totals of all rows into ``docs/zoo.md``. A later DIR replaces
the rows of an earlier one; cases that were not run keep the rows that they have. Without a DIR, it
writes both again.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tests.answers.running import step
from tests.zoo import CASES, CORE
from tests.zoo.page import written
from tests.zoo.results import ROWS, TARGETS, Result, merge, read, save

__all__ = ["PAGE", "main"]

PAGE = Path(__file__).parents[2] / "docs" / "zoo.md"

_COLUMNS = (
    "case", "recorded", "unseen", "wrong", "needless", "bare", "mutations", "variants", "seconds",
)  # fmt: skip
_WIDTHS = 28, 10, 8, 6, 9, 5, 10, 9, 8


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    return int(_COMMANDS[options.command](options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.run")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("all")
    command.add_argument("folder", type=Path, metavar="DIR")
    command.add_argument("--to", choices=TARGETS, default="torch")
    command.add_argument("--jobs", type=int, default=2)
    some = command.add_mutually_exclusive_group()
    some.add_argument("--only", type=_names, default=list(CASES), metavar="A,B")
    some.add_argument("--core", action="store_const", dest="only", const=list(CORE))
    command.add_argument("--reuse", action="store_true", help="tapes that are there")
    command = commands.add_parser("table")
    command.add_argument("folders", type=Path, nargs="*", metavar="DIR")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in CASES]:
        raise argparse.ArgumentTypeError(f"no such case: {', '.join(unknown)}")
    return names


def _all(options: argparse.Namespace) -> int:
    results = options.folder / ROWS.format(options.to)
    options.folder.mkdir(parents=True, exist_ok=True)
    before = json.loads(results.read_text()) if results.exists() else []
    rows: dict[str, dict[str, Any]] = {row["case"]: row for row in before}
    print(_line(_COLUMNS))
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(_row, name, options) for name in options.only]
        for future in as_completed(futures):
            row = future.result()
            rows[row["case"]] = row
            print(_line(_cells(row)), _reason(row), flush=True)
            results.write_text(json.dumps([rows[n] for n in CASES if n in rows], indent=1))
    print(_summary([rows[name] for name in options.only], options.to))
    return 0


def _table(options: argparse.Namespace) -> int:
    rows = merge({target: read(options.folders, target) for target in TARGETS})
    save(rows)
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    return 0


def _row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Record and export in two processes, so that what one leaves behind cannot help the other."""
    folder, subject = options.folder.resolve(), f"zoo/{name}"
    steps = [("record", [subject]), ("judge", [subject, options.to])]
    if options.reuse and (folder / f"{subject}.tape").exists():
        del steps[0]
    row: dict[str, Any] = {"case": name}
    for what, words in steps:
        found = step(folder, what, words)
        if "error" in found:
            return row | {"error": f"{what}: {found['error']}"[:600]}
        row |= found["answers"].get(subject, {})
    return row


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    def share(some: str, every: str) -> str:
        return f"{row.get(some, 0)}/{row.get(every, '?')}"

    return (
        row["case"], share("reproduced", "calls"), share("unseen_reproduced", "unseen"),
        str(row.get("silent_wrong", "")),
        f"{row.get('needless', '')}+{row.get('needless_guards', '')}",
        str(row.get("bare_right", "")),
        str(row.get("mutations_lost", "")),
        str(row.get("variants", "")), str(row.get("seconds", "")),
    )  # fmt: skip


def _line(cells: tuple[str, ...]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True))


def _reason(row: dict[str, Any]) -> str:
    reason = row.get("error") or "; ".join(row.get("details", ())[:1])
    return " ".join(reason.split())[:140]


def _summary(rows: list[dict[str, Any]], target: str) -> str:
    results = [Result.of(row, target) for row in rows]
    recorded = [result for result in results if result.has_recorded]
    both = [result for result in results if result.is_whole]
    wrong = sum(row.get("silent_wrong", 0) for row in rows)
    bare = sum(row.get("bare_right", 0) for row in rows)
    return (
        f"reproduced every recorded call: {len(recorded)}/{len(rows)}; "
        f"and every unseen call: {len(both)}/{len(rows)}\n"
        f"calls with wrong values that nothing reported: {wrong}\n"
        f"needless refusals of unseen calls: {_sum(rows, 'needless')} by calltape, "
        f"{_sum(rows, 'needless_guards')} by guards of torch; of {_sum(rows, 'unseen')} calls\n"
        f"calls that the bare exporter reproduces and ours does not: {bare}"
    )


def _sum(rows: list[dict[str, Any]], count: str) -> int:
    return sum(row.get(count, 0) for row in rows)


_COMMANDS = {"all": _all, "table": _table}

if __name__ == "__main__":
    sys.exit(main())
