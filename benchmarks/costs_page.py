"""docs/costs.md, made of the results that benchmarks left in ``benchmarks/results.json``.

``python -m benchmarks --save`` writes both. ``python -m benchmarks.costs_page`` writes the page
again, from the results that are there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.report import Question, Row, table

__all__ = ["PAGE", "RESULTS", "Measured", "load", "page", "save"]

RESULTS = Path(__file__).with_name("results.json")
PAGE = RESULTS.parents[1] / "docs" / "costs.md"


@dataclass(frozen=True)
class Measured:
    """What one benchmark found.

    Attributes:
        machine: what it ran with.
        rows: all of them, those that the page does not show as well.
    """

    machine: str
    rows: tuple[Row, ...]


def load(path: Path = RESULTS) -> dict[str, Measured]:
    """The results of each benchmark, by its name."""
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: Measured(
            found["machine"],
            tuple(
                Row(what, calltape, without, ratio, question and Question[question])
                for what, calltape, without, ratio, question in found["rows"]
            ),
        )
        for name, found in stored.items()
    }


def save(measured: Mapping[str, Measured], path: Path = RESULTS) -> None:
    """Stores these results in the place of earlier ones of the same benchmarks."""
    every = {**(load(path) if path.exists() else {}), **measured}
    text = ",\n".join(_stored(name, every[name]) for name in sorted(every))
    path.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


def _stored(name: str, found: Measured) -> str:
    """One row a line, so that a change of the file shows which figures changed."""
    rows = [
        [row.what, row.calltape, row.without, row.ratio, row.question and row.question.name]
        for row in found.rows
    ]
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows)
    head = f' {json.dumps(name)}: {{"machine": {json.dumps(found.machine)}, "rows": [\n'
    return f"{head}{lines}\n ]}}"


_HEAD = """\
# Costs

Each table compares calltape with the same work done without it, or with another tool. Figures are
medians; the alternatives take turns in one run. `make bench` repeats most tables on your machine.
[`benchmarks/results.json`](../benchmarks/results.json) has all figures, including those not shown
here.
"""

_ABOUT = {
    Question.SERVER: """\
The server runs at 80% of its capacity; clients, server and recorder share two cores. A call of the
Llama (4 layers) takes about 2 ms, a call of GPT-2 about 40 ms. `Novelty()` keeps calls that show
something new, and `max_share=0.01` as many calls as fit into 1% of the time. Each ratio is the
median over all rounds.""",
    Question.NOTHING_NEW: """\
The recorder does not keep these calls; it counts them. *Paced* means one call per millisecond, in
turn for each alternative.""",
    Question.RECORDED: """\
Time added to the call or, where stated, processor time of all threads, including the write to disk.
`InputObserver` is torch's observer for ONNX exports; it keeps calls in memory. The extra `fast` is
installed.""",
    Question.DISK: """\
For decode steps, bytes on the tape relative to bytes of tensors. The tape of 1,000,000 calls holds
only shapes.""",
    Question.ANALYSIS: """\
Time and peak memory of whole commands, on tapes of calls recorded without values.""",
    Question.EXPORTS: """\
The models have random weights. *With calltape* is `export()`. *Without* is one bare export per
program, with the same arguments and shapes, plus one run of every recorded call.""",
}


def page(measured: Mapping[str, Measured]) -> str:
    """The whole page."""
    parts = [_HEAD]
    for question in Question:
        shown = {
            name: rows
            for name, found in measured.items()
            if (rows := [row for row in found.rows if row.question is question])
        }
        parts.append(f"## {question.value}\n\n{_ABOUT[question]}\n\n{_command(shown)}\n")
        parts.append(f"{table([row for rows in shown.values() for row in rows])}\n")
    parts.append(f"## Machine\n\n{_machines(measured)}\n")
    return "\n".join(parts)


def _command(names: Iterable[str]) -> str:
    return f"`python -m benchmarks {' '.join(names)}`:"


def _machines(measured: Mapping[str, Measured]) -> str:
    names: dict[str, list[str]] = {}
    for name, found in measured.items():
        if any(row.question for row in found.rows):
            names.setdefault(found.machine, []).append(f"`{name}`")
    return "\n".join(
        fill(
            f"- {', '.join(those)}: {machine}", 100, subsequent_indent="  ", break_on_hyphens=False
        )
        for machine, those in names.items()
    )


if __name__ == "__main__":
    PAGE.write_text(page(load()), encoding="utf-8")
