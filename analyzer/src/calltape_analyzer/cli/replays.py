"""``calltape replay``: recorded calls against a model or a program.

Takes a tape and what was exported; prints a report, which decides the exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from calltape_analyzer.cli.bisection import Bisect, judged
from calltape_analyzer.cli.options import (
    FILES,
    Calls,
    ClassNames,
    Ignore,
    Json,
    OfTarget,
    OptionalModelName,
    Variants,
    classes_of,
    model_of,
)
from calltape_analyzer.cli.output import FAILURE, command, lines, print_json
from calltape_analyzer.cli.tapes import Part, opened
from calltape_analyzer.errors import UsageError
from calltape_analyzer.limits import reading
from calltape_analyzer.programs.manifest import MANIFEST
from calltape_schema.errors import TapeError

if TYPE_CHECKING:
    from calltape_analyzer.comparison.reports import Report

__all__ = ["replay"]


@command
def replay(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="TAPE... [TARGET]",
            help=f"{FILES}; then, unless you pass --model, an .onnx or .pt2 file, or a directory "
            "from `calltape export`.",
        ),
    ],
    model: OptionalModelName = None,
    rtol: Annotated[
        float | None, typer.Option(min=0.0, help="Relative tolerance for all dtypes.")
    ] = None,
    atol: Annotated[
        float | None, typer.Option(min=0.0, help="Absolute tolerance for all dtypes.")
    ] = None,
    expect: Annotated[
        Literal["recorded", "success"],
        typer.Option(
            help="recorded: a call that raised must raise the same exception. success: every call "
            "must return.",
        ),
    ] = "recorded",
    slower_than: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="A call fails if the fastest of 5 runs takes longer than this: 50ms, 0.05 "
            "(seconds), or 3x (the recorded duration).",
        ),
    ] = None,
    bisect: Bisect = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Run nothing; check whether the exported model would accept the calls.",
        ),
    ] = False,
    classes: ClassNames = None,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Load .pt2 files, which can run code of whoever made them."),
    ] = False,
    target: OfTarget = None,
    calls: Calls = None,
    variant: Variants = None,
    ignore: Ignore = None,
    json: Json = False,
) -> None:
    """Run the recorded calls through a model or program, and compare.

    replay runs an exported program or, with --model, the model itself. A call passes if it gives
    what was recorded: the values, or the exception that it raised. If the tape has no values,
    replay compares structure, dtypes and shapes.

    --dry-run runs nothing. It compares what an exported program declares (inputs, dtypes,
    dimensions and their limits) with the calls; of a directory, it reads only the manifest.

    \b
    calltape replay runs/llm.tape exported/ --trust
    calltape replay runs/llm.tape model.onnx --rtol 1e-3
    calltape replay runs/today.tape exported/ --dry-run
    calltape replay runs/llm.tape --model my.models:llama --calls 0..99
    git bisect run calltape replay bug.tape --model my.models:llama --bisect
    """
    part = Part(calls, variant, ignore, target)
    if dry_run:
        unused = {
            "--model": model, "--rtol": rtol, "--atol": atol, "--slower-than": slower_than,
            "--bisect": bisect, "--expect": expect != "recorded",
        }  # fmt: skip
        for name, value in unused.items():
            if value is not None and value is not False:
                raise typer.BadParameter(f"{name} has no effect with --dry-run, which runs nothing")
        paths, given = _asked(words, None)
        assert given is not None
        _check(paths, given, part, trust=trust, classes=classes, json=json)
        return
    with judged(bisect) as found:
        paths, given = _asked(words, model)
        if slower_than is not None:
            from calltape_analyzer.comparison.judging import TimeBound

            try:
                TimeBound.of(slower_than)
            except UsageError as error:
                raise typer.BadParameter(f"--slower-than: {error}") from None
        known = classes_of(classes, are_words=not bisect)
        with opened(paths, part, runs=True, classes=known) as tape:
            found.is_open = True
            from calltape_analyzer.comparison.comparing import Tolerances
            from calltape_analyzer.replaying.replaying import replay as replay_calls

            through = _existing(given) if given is not None else model_of(str(model))
            is_bounded = rtol is not None or atol is not None
            given_bounds = Tolerances(rtol=rtol, atol=atol) if is_bounded else None
            report = found.report = replay_calls(
                tape,
                through,
                tolerances=given_bounds,
                expect=expect,
                slower_than=slower_than,
                progress=sys.stderr.isatty(),
                trusted=trust,
            )
            _print(report, json)
            if report.has_failed:
                raise typer.Exit(FAILURE)
        if not report.ok:
            raise typer.Exit(FAILURE)


def _check(
    paths: Sequence[str],
    given: Path,
    part: Part,
    *,
    trust: bool,
    classes: Sequence[str] | None,
    json: bool,
) -> None:
    """Whether an exported model would accept the calls."""
    # Code that is trusted may take what it takes.
    read = given / MANIFEST if given.is_dir() else given
    bounded = nullcontext() if trust else reading([str(read)])
    known = classes_of(classes)
    with opened(paths, part, runs=trust, classes=known) as tape, bounded:
        from calltape_analyzer.replaying.checking import check

        report = check(tape, _existing(given), trusted=trust)
        _print(report, json)
        if not report.ok:
            raise typer.Exit(FAILURE)


def _asked(words: Sequence[str], model: str | None) -> tuple[list[str], Path | None]:
    """The tapes, and what their calls are run through; None for the model.

    Raises:
        BadParameter: it is named twice, or not at all.
    """
    paths, last = list(words), Path(words[-1])
    is_program = last.suffix in (".onnx", ".pt2") or (last / MANIFEST).exists()
    if model is None and len(paths) > 1:
        paths.pop()
        return paths, last
    if model is None or is_program:
        raise typer.BadParameter("pass either a TARGET or --model")
    return paths, None


def _existing(path: Path) -> Path:
    # Runtimes have words of their own for it, each another.
    if not path.exists():
        raise TapeError("not_found", "no such file", path=str(path))
    return path


def _print(report: Report, json: bool) -> None:
    if json:
        print_json(report)
    else:
        lines(report.table())
