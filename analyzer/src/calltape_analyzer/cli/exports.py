"""``calltape export`` and ``calltape script``: programs from a tape and a model, here or in a file
for others."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calltape_analyzer.cli.models import ModelName, OptionalModelName, Train, model_of
from calltape_analyzer.cli.output import (
    FAILURE,
    Json,
    Paths,
    command,
    line,
    opened,
    print_json,
    table,
    write_new,
)

if TYPE_CHECKING:
    from calltape_analyzer.exporting.attempts import Attempt
    from calltape_analyzer.exporting.programs import Programs
    from calltape_analyzer.reports import Report

__all__ = ["export", "script"]

To = Annotated[
    Literal["torch", "onnx"],
    typer.Option("--to", help="torch.export programs (.pt2), or ONNX models, run in ONNX Runtime."),
]


_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?(?:([kmgt])(i?)b)?", re.IGNORECASE | re.ASCII)


def _bytes(text: str) -> int:
    """``4096``, ``800MiB`` (of 2**20 bytes each), ``1.5GB`` (of 10**9)."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r:.100} is no size; write it like 4096, 800MiB or 1.5GiB")
    number, unit, is_binary = found.groups()
    power = "kmgt".index(unit.lower()) + 1 if unit else 0
    return int(float(number) * (1024 if is_binary else 1000) ** power)


@command
def export(
    paths: Paths,
    model: ModelName,
    to: To = "torch",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Save the programs here."),
    ] = None,
    merge: Annotated[
        Literal["auto", "never"],
        typer.Option("--merge", help="One program for prefill and decode, where that is right."),
    ] = "auto",
    isolate: Annotated[bool, typer.Option("--isolate", help="Export in a fresh process.")] = False,
    probe: Annotated[
        Literal["near", "far", "none"],
        typer.Option("--probe", help="Sizes beside the recorded ones that the model is run at."),
    ] = "near",
    max_memory: Annotated[
        int | None,
        typer.Option(
            "--max-memory",
            metavar="SIZE",
            parser=_bytes,
            help="That such a run may take (800MiB, 4GiB); half of what is free by default.",
        ),
    ] = None,
    opset: Annotated[
        int | None, typer.Option("--opset", min=1, metavar="N", help="ONNX opset version.")
    ] = None,
    train: Train = False,
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
    options: dict[str, Any] = {} if opset is None else {"opset_version": opset}
    with opened(paths, runs=True) as tape:
        module = model_of(model, train=train)
        from calltape_analyzer.exporting.procedure import export as export_programs

        options |= {"to": to, "merge": merge, "isolate": isolate}
        options |= {"probe": probe, "max_memory": max_memory}
        programs = export_programs(tape, module, **options)
        report = programs.verify(progress=sys.stderr.isatty())
        if out is not None:
            programs.save(out)
        if json:
            print_json(_document(programs, report, out))
        else:
            _print(programs, report, out)
    if not report.ok:
        raise typer.Exit(FAILURE)


def _document(programs: Programs, report: Report, out: Path | None) -> dict[str, Any]:
    return {
        "programs": list(programs),
        "missing": programs.missing,
        "attempts": [_attempt(attempt) for attempt in programs.attempts],
        "report": report.as_dict(),
        "saved": str(out) if out is not None else None,
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    """Plain data; what its repr leaves out is only of use to the exporter."""
    found = {field.name: getattr(attempt, field.name) for field in fields(attempt) if field.repr}
    return {**found, "wrong": attempt.wrong}


def _print(programs: Programs, report: Report, out: Path | None) -> None:
    table(
        ("variant", "tried", "reproduced", "unseen sizes", "seconds", "error"),
        [
            (
                attempt.variant,
                attempt.what,
                f"{attempt.reproduced}/{attempt.tried}",
                f"{attempt.held}/{attempt.probed}",
                f"{attempt.seconds:.1f}",
                " ".join((attempt.error or "").split())[:200],
            )
            for attempt in programs.attempts
        ],
    )
    for name, reason in programs.missing.items():
        line(f"no program for {name}:", " ".join(reason.split()))
    print()
    for text in report.table().splitlines():
        line(text)
    if out is not None:
        line("saved in", str(out))


@command
def script(
    paths: Paths,
    model: OptionalModelName = None,
    to: To = "torch",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write it here.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file, where it is there.")
    ] = False,
    json: Json = False,
) -> None:
    """A Python file that exports and verifies.

    What to attach to a bug report, beside the tape: it loads the tape, builds the model, exports
    it, and prints what came of it. Without --model there is a marked function to fill in.

    \b
    calltape script runs/llm.tape --model my.models:llama -o report.py
    calltape script runs/llm.tape --to onnx
    """
    from calltape_analyzer.scripting import is_factory
    from calltape_analyzer.scripting import script as source_of

    if model is not None and not is_factory(model):
        raise typer.BadParameter(f"{model!r} is not of the form package.module:factory")
    with opened(paths) as tape:
        source = source_of(tape, model=model, to=to)
        if out is not None:
            write_new(out, source, force=force)
        if json:
            saved = str(out) if out is not None else None
            print_json({"source": source, "saved": saved}, whole=True)
        elif out is None:
            print(source, end="")
        else:
            line("wrote", str(out))
