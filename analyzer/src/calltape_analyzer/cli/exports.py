"""``calltape export``: programs from a tape and a model.

In come a tape and the name of a model. Out go programs, what was tried, and a report.
"""

from __future__ import annotations

import json as jsonlib
import re
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from calltape_analyzer.cli.models import ClassNames, ModelName, Train, classes_of, model_of
from calltape_analyzer.cli.output import (
    FAILURE,
    Json,
    command,
    complain,
    forced,
    line,
    lines,
    print_json,
    table,
    wrong_words,
)
from calltape_analyzer.cli.output_log import OutputLog
from calltape_analyzer.cli.tapes import Calls, Ignore, OfTarget, Part, Paths, Variants, opened
from calltape_analyzer.text import printable, some_of

if TYPE_CHECKING:
    from calltape_analyzer.comparison.reports import Report
    from calltape_analyzer.programs.programs import Programs
    from calltape_analyzer.tape import Tape

__all__ = ["To", "export", "size_of"]

To = Annotated[
    Literal["torch", "onnx"],
    typer.Option("--to", help="torch.export programs (.pt2), or ONNX models, run in ONNX Runtime."),
]


_MAX_SUMMARY = 400
"""Characters of what came of an attempt, in a row of a table: a cause, its place and a way out."""

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?(?:([kmgt])(i?)b)?", re.IGNORECASE | re.ASCII)


def size_of(text: str) -> int:
    """``4096``, ``800MiB`` (of 2**20 bytes each), ``1.5GB`` (of 10**9)."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r:.100} is no size; write it like 4096, 800MiB or 1.5GiB")
    number, unit, is_binary = found.groups()
    power = "kmgt".index(unit.lower()) + 1 if unit else 0
    return int(float(number) * (1024 if is_binary else 1000) ** power)


Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="DIR", help="Save the programs here.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace programs that an earlier export saved in DIR.")
]
Merge = Annotated[
    Literal["auto", "never"],
    typer.Option("--merge", help="One program for prefill and decode, if that is right."),
]
Isolate = Annotated[bool, typer.Option("--isolate", help="Export in a fresh process.")]
Probe = Annotated[
    Literal["near", "far", "none"],
    typer.Option("--probe", help="Sizes beside the recorded ones that the model is run at."),
]
MaxMemory = Annotated[
    int | None,
    typer.Option(
        "--max-memory",
        metavar="SIZE",
        parser=size_of,
        help="What such a run may take (800MiB, 4GiB); by default as much as a recorded call.",
    ),
]
MaxSeconds = Annotated[
    float | None,
    typer.Option(
        "--max-seconds",
        metavar="SECONDS",
        min=0.001,
        help="How long the export may take. Programs found until then are kept.",
    ),
]
AllowConstants = Annotated[
    bool,
    typer.Option(
        "--allow-constants",
        help="End with 0 also if each program is for one recorded size or value only.",
    ),
]
Opset = Annotated[
    int | None, typer.Option("--opset", min=1, metavar="N", help="ONNX opset version.")
]


@command
def export(
    paths: Paths,
    model: ModelName,
    to: To = "torch",
    out: Out = None,
    force: Force = False,
    merge: Merge = "auto",
    isolate: Isolate = False,
    probe: Probe = "near",
    max_memory: MaxMemory = None,
    max_seconds: MaxSeconds = None,
    allow_constants: AllowConstants = False,
    opset: Opset = None,
    train: Train = False,
    classes: ClassNames = None,
    target: OfTarget = None,
    calls: Calls = None,
    variant: Variants = None,
    ignore: Ignore = None,
    json: Json = False,
) -> None:
    """Programs for the calls on a tape, verified.

    Exports the model for each variant of the calls, runs every recorded call through the programs,
    and saves them. Ends with 0 only if every call gives what was recorded.

    \b
    calltape export runs/llm.tape --model my.models:llama --out exported/
    calltape export runs/llm.tape --model my.models:llama --to onnx --opset 20
    """
    if opset is not None and to != "onnx":
        raise typer.BadParameter("--opset is for --to onnx")
    if out is not None:
        _expect_place(out, force)
    options: dict[str, Any] = {} if opset is None else {"opset_version": opset}
    with wrong_words():
        known = classes_of(classes)
    part = Part(calls, variant, ignore, target)
    with opened(paths, part, runs=True, classes=known) as tape:
        module = model_of(model, train=train)
        options |= {"to": to, "merge": merge, "isolate": isolate}
        options |= {"probe": probe, "max_memory": max_memory, "max_seconds": max_seconds}
        programs = _exported(tape, module, options, json)
        report = programs.verify(progress=sys.stderr.isatty())
        if out is not None:
            programs.save(out)
        if json:
            print_json(_document(programs, report, out), whole=True)
        else:
            _print(programs, report, out)
        if report.has_failed:
            raise typer.Exit(FAILURE)
    if not report.ok:
        raise typer.Exit(FAILURE)
    if not programs.generalises and not allow_constants:
        complain(
            f"no program generalises: each of the {len(programs)} serves one recorded size or "
            "value only. If that is what you want, pass --allow-constants"
        )
        raise typer.Exit(FAILURE)


def _expect_place(out: Path, force: bool) -> None:
    from calltape_analyzer.programs.saving import expect_place

    with forced():
        expect_place(out, overwrite=force)


def _exported(tape: Tape, module: Any, options: dict[str, Any], json: bool) -> Programs:
    """The programs. If there are none, says what was tried, and ends the command."""
    from calltape_analyzer.errors import ExportError
    from calltape_analyzer.exporting.export import export as export_programs

    terminal = sys.stderr
    progress = partial(_say, terminal) if terminal.isatty() else None
    log = OutputLog()
    try:
        with log:
            return export_programs(tape, module, progress=progress, **options)
    except ExportError as error:
        if json:
            print_json({"programs": [], "error": str(error), "attempts": _attempts(error.attempts)})
        else:
            _print_attempts(error.attempts)
        complain(str(error))
        raise typer.Exit(FAILURE) from None
    finally:
        if log.path is not None:
            print(f"calltape: torch and the model printed to {log.path}", file=terminal)


def _say(terminal: TextIO, text: str) -> None:
    """Progress, for somebody who looks."""
    print(printable(text)[:200], file=terminal, flush=True)


def _document(programs: Programs, report: Report, out: Path | None) -> dict[str, Any]:
    return {
        "programs": list(programs),
        "missing": programs.missing,
        "attempts": _attempts(programs.attempts),
        "report": jsonlib.loads(report.model_dump_json()),
        "saved": str(out) if out is not None else None,
    }


def _attempts(attempts: Iterable[Any]) -> list[Any]:
    return [jsonlib.loads(one.model_dump_json()) for one in attempts]


def _print(programs: Programs, report: Report, out: Path | None) -> None:
    _print_attempts(programs.attempts)
    for name, reason in programs.missing.items():
        line(f"no program for {name}:", " ".join(reason.split()))
    print()
    lines(report.table())
    if out is not None:
        line("saved in", str(out))


def _print_attempts(attempts: Iterable[Any]) -> None:
    """What was tried. Attempts of one variant that came to the same are one row."""
    seconds: dict[tuple[str, ...], float] = {}
    tried: dict[tuple[str, ...], list[str]] = {}
    for attempt in attempts:
        came_to = (
            attempt.variant,
            f"{attempt.reproduced}/{attempt.tried}",
            f"{attempt.agreed}/{attempt.probed}" if attempt.probed else "none",
            shorten(attempt.summary or "", _MAX_SUMMARY, placeholder=" ..."),
        )
        seconds[came_to] = seconds.get(came_to, 0.0) + attempt.seconds
        tried.setdefault(came_to, []).append(attempt.what)
    if not tried:
        return
    table(
        ("variant", "tried", "recorded sizes", "unseen sizes", "seconds", "what came of it"),
        [
            (came_to[0], some_of(list(dict.fromkeys(what)), 1), *came_to[1:3],
             f"{seconds[came_to]:.1f}", came_to[3])
            for came_to, what in tried.items()
        ],
    )  # fmt: skip
