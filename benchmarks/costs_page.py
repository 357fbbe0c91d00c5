"""docs/costs.md and the costs in README.md, made of ``benchmarks/results.json``.

``python -m benchmarks --save`` writes all three. ``python -m benchmarks.costs_page`` writes the
pages again from the stored results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.report import Question, Row, table

__all__ = ["PAGE", "README", "RESULTS", "Measured", "load", "page", "readme", "save", "write"]

RESULTS = Path(__file__).with_name("results.json")
PAGE = RESULTS.parents[1] / "docs" / "costs.md"
README = RESULTS.parents[1] / "README.md"


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

{summary}

The other tables compare calltape with the same work done without it, or with another tool. Figures
are medians; within a run, the alternatives take turns. `make bench` repeats most tables on your
machine. [`benchmarks/results.json`](../benchmarks/results.json) lists all figures, including those
not shown here.
"""

_STEPS = "bytes on the tape of 20 decode steps"
_LONE_CALLS = "a tape of 200,000 calls, 1 in a group, with 300 bytes of tensors a call"
_DEEP_STEP = "decode step, 32 layers, `Novelty()`, nothing new"

_ABOUT = {
    Question.SERVER: """\
The server runs at 80% of its capacity, and clients, server and recorder share two cores. A call
takes about 2 ms with the Llama (4 layers) and about 40 ms with GPT-2. `Novelty()` keeps calls that
show something new; `max_share=0.01` keeps as many calls as fit into 1% of the time. Each ratio is
the median over all rounds.""",
    Question.NOTHING_NEW: """\
The recorder only counts these calls. *Paced* means one call per millisecond, with the alternatives
taking turns.""",
    Question.RECORDED: """\
Time added to the call or, where stated, processor time of all threads, including the write to disk.
`InputObserver` is torch's observer for ONNX exports, which keeps calls in memory. The `fast` extra
was installed.""",
    Question.DISK: """\
The rows for decode steps compare the size of the tape with the size of the tensors. The tape of
1,000,000 calls contains only shapes.""",
    Question.ANALYSIS: """\
Time and peak memory of whole commands. The tapes were recorded without values.""",
    Question.EXPORTS: """\
The models have random weights. *With calltape* is `export()`. *Without* is one bare export per
program, with the same arguments and shapes, plus one run of every recorded call.""",
}


def page(measured: Mapping[str, Measured]) -> str:
    """The whole page."""
    parts = [_HEAD.format(summary=_summary(measured))]
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


def _summary(measured: Mapping[str, Measured]) -> str:
    """The costs in three rows, each with the worst case; a test checks that it is the worst."""

    def row(benchmark: str, what: str) -> Row:
        return next(one for one in measured[benchmark].rows if one.what == what)

    llama = row("serving", "Llama behind HTTP, `Novelty()`: median latency")
    gpt2 = row("serving", "GPT-2 small behind HTTP, every call recorded: median latency")
    busy = row("serving", "Llama behind HTTP, every call recorded: median latency")
    new = row("bytes_per_step", f"{_STEPS}, a cache that stays")
    growing = row("bytes_per_step", f"{_STEPS}, a cache that grows by a token a step")
    lone = row("container", f"{_LONE_CALLS}: bytes per call")
    add = row("call_cost", "add [4,8], paced, not kept")
    step = row("call_cost", "Llama decode step, 2 layers, paced, not kept")
    deep = row("cpu_total", f"{_DEEP_STEP}, via='method': processor time")
    cells = [
        ("cost", "usual", "worst measured"),
        ("---", "---", "---"),
        (
            "a call in a real server: median latency at 80% load",
            f"small Llama, `Novelty()`: {llama.ratio}; GPT-2, every call recorded: {gpt2.ratio}",
            f"small Llama, every call recorded: {busy.ratio} ({busy.without} → {busy.calltape})",
        ),
        (
            "a tape on disk",
            f"{new.ratio} the size of new tensors; decode steps whose cache grows: {growing.ratio} "
            "the size of all tensors",
            f"tiny calls, one at a time: {lone.calltape} bytes for 300 bytes of tensors",
        ),
        (
            "a call when nothing new is seen",
            f"one `add`: {add.calltape}; Llama decode step, 2 layers: {step.calltape}",
            f"decode step, 32 layers: {deep.calltape} of processor time",
        ),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


_START, _END = "<!-- costs: python -m benchmarks.costs_page -->", "<!-- end of costs -->"


def readme(text: str, measured: Mapping[str, Measured]) -> str:
    """The text of README.md, with these costs between the two comments."""
    before, _, rest = text.partition(_START)
    return f"{before}{_START}\n\n{_summary(measured)}\n\n{_END}{rest.partition(_END)[2]}"


def write(measured: Mapping[str, Measured]) -> None:
    """Writes docs/costs.md, and the costs in README.md."""
    PAGE.write_text(page(measured), encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8"), measured), encoding="utf-8")


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
    write(load())
