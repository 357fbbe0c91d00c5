"""Which lines and branches of the reading packages the inputs of a run reach."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.fuzz.guidance import NOT_READING, PACKAGES

__all__ = ["lines"]


def lines(paths: list[Path], seconds: float) -> list[str]:
    """A table for people: per wing the statements and branches that reading these files reached.

    Args:
        paths: tapes, such as the corpus of a run: it has an input for each branch that was reached.
        seconds: how long may be read; the table says how many files that were.
    """
    import coverage

    tracing = coverage.Coverage(
        branch=True, data_file=None, source_pkgs=list(PACKAGES), messages=False
    )  # fmt: skip
    tracing.start()
    count = _read(paths, seconds)
    tracing.stop()
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        tracing.json_report(outfile=report.name)
        files = json.load(report)["files"]
    return [f"coverage of {count} of {len(paths)} inputs:", *_table(files)]


def _read(paths: list[Path], seconds: float) -> int:
    from tests.fuzz.guidance import import_all
    from tests.fuzz.questions import chosen_for, read, read_a_copy
    from tests.fuzz.target import OTHER

    import_all()
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        read_a_copy(OTHER, OTHER, Path(folder))
    # Small inputs first: most are read if the time is short.
    for count, path in enumerate(sorted(paths, key=lambda path: path.stat().st_size)):
        if time.monotonic() > until:
            return count
        read(path, OTHER, chosen_for(path.read_bytes()))
    return len(paths)


def _table(files: dict[str, Any]) -> list[str]:
    wings: dict[str, list[int]] = {}
    for name, found in files.items():
        wing = _wing(name)
        if wing is None:
            continue
        summary = found["summary"]
        numbers = [
            summary["covered_lines"], summary["num_statements"],
            summary["covered_branches"], summary["num_branches"],
        ]  # fmt: skip
        wings[wing] = [a + b for a, b in zip(wings.get(wing, [0] * 4), numbers, strict=True)]
    total = [sum(column) for column in zip(*wings.values(), strict=True)]
    rows = [*sorted(wings.items()), ("all", total)]
    return [
        f"  {wing:<24} lines {a:5} of {b:5} {_percent(a, b)}"
        f"   branches {c:5} of {d:5} {_percent(c, d)}"
        for wing, (a, b, c, d) in rows
    ]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:5.1f}%" if whole else "     -"


def _wing(name: str) -> str | None:
    """``schema``, or the folder of the analyzer that a file is in; None if it reads no tapes."""
    parts = Path(name).parts
    if "calltape_schema" in parts:
        return "schema"
    rest = parts[parts.index("calltape_analyzer") + 1 :]
    wing = rest[0] if len(rest) > 1 else "(files of the analyzer)"
    return None if wing in NOT_READING else wing
