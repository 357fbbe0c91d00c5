"""``calltape export``: programs from a tape and a model.

Takes a tape and the name of a model; returns programs, what was tried, and a report.
"""

from __future__ import annotations

import json as jsonlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

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
    Part,
    Paths,
    To,
    Variants,
    Verbose,
    classes_of,
    model_of,
    opened_tape,
)
from calltape_analyzer.cli.output import (
    FAILURE,
    command,
    complain,
    line,
    lines,
    print_json,
    table,
)
from calltape_analyzer.errors import ExportError
from calltape_analyzer.facts import as_json
from calltape_analyzer.progress import reporter_of
from calltape_analyzer.text import some_of
from calltape_analyzer.wording.verdicts import last_lines

if TYPE_CHECKING:
    from calltape_analyzer.comparison.reports import Report
    from calltape_analyzer.exporting.export import ExportOptions
    from calltape_analyzer.programs.programs import Programs
    from calltape_analyzer.tape import Tape


__all__ = ["export", "print_attempts"]

_MAX_SUMMARY = 400
"""Characters of the result of an attempt in a table: a cause, its place and advice."""


@command
def export(
    paths: Paths,
    model: ModelName,
    to: To = "torch",
    out: OptionalOut = None,
    force: Force = False,
    probe: Annotated[
        Literal["near", "far", "none"],
        typer.Option(help="Which unseen sizes to verify the programs at."),
    ] = "near",
    max_seconds: MaxSeconds = None,
    allow_constants: Annotated[
        bool,
        typer.Option(
            "--allow-constants",
            help="Succeed even if a variant has programs for recorded sizes only.",
        ),
    ] = False,
    verbose: Verbose = False,
    opset: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="ONNX opset version.")
    ] = None,
    classes: ClassNames = None,
    target: OfTarget = None,
    calls: Calls = None,
    variant: Variants = None,
    ignore: Ignore = None,
    json: Json = False,
) -> None:
    """Export a program for each variant, and verify it.

    Runs every recorded call through the programs, compares the results, and saves the programs in
    the directory OUT. --to torch writes torch.export programs (.pt2); --to onnx writes ONNX models
    and runs them in ONNX Runtime. --force replaces only what an earlier export saved in OUT. The
    last lines say which new calls the programs of each variant will serve: general (all sizes),
    recorded sizes only, results only (an argument is not changed), or rejected (none).

    \b
    calltape export runs/llm.tape --model my.models:llama --out exported/
    calltape export runs/llm.tape --model my.models:llama --to onnx --opset 20
    """
    if opset is not None and to != "onnx":
        raise typer.BadParameter("--opset needs --to onnx")
    if out is not None:
        from calltape_analyzer.programs.saving import check_destination

        check_destination(out, overwrite=force)
    class_objects = classes_of(classes)
    part = Part(calls, variant, ignore, target)
    with opened_tape(paths, part, runs=True, classes=class_objects) as tape:
        module = model_of(model)
        from calltape_analyzer.exporting.export import ExportOptions

        options = ExportOptions(
            probe=probe,
            max_seconds=max_seconds,
            exporter={} if opset is None else {"opset_version": opset},
        )
        programs = _exported(tape, module, to, options, json)
        report = programs.verify(progress=sys.stderr.isatty())
        if out is not None:
            programs.save(out)
        if json:
            print_json(_document(programs, report, out), uncut=True)
        else:
            _print(programs, report, out, verbose=verbose)
        if report.has_failed:
            raise typer.Exit(FAILURE)
    scopes = {verdict.scope for verdict in programs.verdicts}
    if not report.ok or "rejected" in scopes:
        raise typer.Exit(FAILURE)
    if not programs.is_general and not allow_constants:
        if not json:
            line("(exit code 1; if programs for recorded sizes are enough, pass --allow-constants)")
        raise typer.Exit(FAILURE)


def _exported(tape: Tape, module: Any, to: To, options: ExportOptions, json: bool) -> Programs:
    """The programs. If there are none, prints what was tried, and ends the command."""
    from calltape_analyzer.exporting.export import export as export_programs

    progress = reporter_of(sys.stderr.isatty())
    try:
        with _output_kept():
            return export_programs(tape, module, to=to, options=options, progress=progress)
    except ExportError as error:
        if json:
            attempts = _attempts(error.attempts)
            missing = as_json(error.missing)
            print_json(
                {"programs": [], "error": str(error), "missing": missing, "attempts": attempts}
            )
        else:
            print_attempts(error.attempts)
        complain(str(error))
        raise typer.Exit(FAILURE) from None


@contextmanager
def _output_kept() -> Iterator[None]:
    """Redirects Python's standard streams and torch's loggers to a file within the block, and
    prints its name: a failed trace of a large model prints thousands of lines of its graph."""
    handle, name = tempfile.mkstemp(prefix="calltape-export-", suffix=".log")
    try:
        with ExitStack() as stack:
            file = os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace")
            stack.enter_context(file)
            for handler in _handlers_of_torch():
                stack.callback(handler.setStream, handler.setStream(file))
            stack.enter_context(redirect_stdout(file))
            stack.enter_context(redirect_stderr(file))
            yield
    finally:
        if os.path.getsize(name):
            print(f"calltape: the output of torch and the model is in {name}", file=sys.stderr)
        else:
            os.unlink(name)


def _handlers_of_torch() -> list[logging.StreamHandler[Any]]:
    """The handlers of torch's loggers that write to a standard stream."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "torch"]
    handlers = [handler for name in names for handler in logging.getLogger(name).handlers]
    return [
        handler
        for handler in dict.fromkeys(handlers)
        if isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stdout, sys.stderr)
    ]


def _document(programs: Programs, report: Report, out: Path | None) -> dict[str, Any]:
    return {
        "programs": list(programs),
        "missing": as_json(programs.missing),
        "notes": as_json(programs.all_notes),
        "verdicts": as_json(programs.verdicts),
        "attempts": _attempts(programs.attempts),
        "report": jsonlib.loads(report.model_dump_json()),
        "saved": str(out) if out is not None else None,
    }


def _attempts(attempts: Iterable[Any]) -> list[Any]:
    return [jsonlib.loads(attempt.model_dump_json()) for attempt in attempts]


def _print(programs: Programs, report: Report, out: Path | None, *, verbose: bool) -> None:
    if verbose or not (report.ok and programs.is_general):
        print_attempts(programs.attempts)
        for name, reason in programs.missing.items():
            line(f"no program for {name}:", " ".join(str(reason).split()))
        print()
    lines(report.table(remarks=verbose))
    if out is not None:
        line("saved in", str(out))
    for text in last_lines(programs.verdicts):
        line(text)


def print_attempts(attempts: Iterable[Any]) -> None:
    """Prints the attempts. Those of one variant with the same result share a row."""
    seconds: dict[tuple[str, ...], float] = {}
    tried: dict[tuple[str, ...], list[str]] = {}
    for attempt in attempts:
        came_to = (
            attempt.variant,
            f"{attempt.reproduced}/{attempt.tried}",
            f"{attempt.agreed}/{attempt.probed}" if attempt.probed else "none",
            shorten(str(attempt.summary or ""), _MAX_SUMMARY, placeholder=" ..."),
        )
        seconds[came_to] = seconds.get(came_to, 0.0) + attempt.seconds
        tried.setdefault(came_to, []).append(attempt.what)
    if not tried:
        return
    table(
        ("variant", "tried", "recorded sizes", "unseen sizes", "seconds", "result"),
        [
            (came_to[0], some_of(list(dict.fromkeys(what)), 1), *came_to[1:3],
             f"{seconds[came_to]:.1f}", came_to[3])
            for came_to, what in tried.items()
        ],
    )  # fmt: skip
