"""``calltape export``: programs from a tape and a model.

In come a tape and the name of a model. Out go programs, what was tried, and a report.
"""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from calltape_analyzer.cli.models import classes_of, model_of
from calltape_analyzer.cli.options import (
    Calls,
    ClassNames,
    Force,
    Ignore,
    Json,
    MaxSeconds,
    ModelName,
    OfTarget,
    OptionalOut,
    Paths,
    To,
    Train,
    Variants,
)
from calltape_analyzer.cli.output import (
    FAILURE,
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
from calltape_analyzer.cli.tapes import Part, opened
from calltape_analyzer.text import printable, some_of

if TYPE_CHECKING:
    from calltape_analyzer.comparison.reports import Report
    from calltape_analyzer.programs.programs import Programs
    from calltape_analyzer.tape import Tape

__all__ = ["export"]

_MAX_SUMMARY = 400
"""Characters of what came of an attempt, in a row of a table: a cause, its place and a way out."""

Probe = Annotated[
    Literal["near", "far", "none"],
    typer.Option("--probe", help="Sizes beside the recorded ones that the model is run at."),
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
    out: OptionalOut = None,
    force: Force = False,
    probe: Probe = "near",
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
    and saves them in the directory OUT; --force replaces only what an earlier export saved there.
    torch: torch.export programs (.pt2). onnx: ONNX models, run in ONNX Runtime. Ends with 0 only if
    every call gives what was recorded.

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
        options |= {"to": to, "probe": probe, "max_seconds": max_seconds}
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
