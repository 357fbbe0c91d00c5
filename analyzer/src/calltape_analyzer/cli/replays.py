"""``calltape replay``: recorded calls against a model or a program.

Takes a tape and what was exported; prints a report, which decides the exit code. With ``--bisect``,
the code tells ``git bisect run`` whether a commit is good, bad, or cannot be tested. git takes 1 to
124 for bad, and so would take a model that cannot be imported, a tape that is damaged or a mistyped
option for the bug. So a replay ends with

- 0: every call does what it is to do (good);
- 1: a call fails (bad): another value, another exception, too slow;
- 125: this commit cannot be tested, which skips it: its model cannot be imported or made, or the
  tape has nothing to test it with;
- 128: no commit can be tested, which ends the bisection: a wrong command line, a tape that cannot
  be opened.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from calltape_analyzer.cli.options import (
    FILES,
    Calls,
    ClassNames,
    Ignore,
    Json,
    OfTarget,
    OptionalModelName,
    Part,
    Variants,
    classes_of,
    model_of,
    opened_tape,
)
from calltape_analyzer.cli.output import (
    FAILURE,
    WrongWordError,
    command,
    complain,
    lines,
    print_json,
)
from calltape_analyzer.errors import UsageError
from calltape_analyzer.limits import reading
from calltape_analyzer.programs.manifest import MANIFEST
from calltape_schema.errors import TapeError

if TYPE_CHECKING:
    from calltape_analyzer.comparison.reports import Report

__all__ = ["replay"]

GOOD, BAD, CANNOT_TEST, GIVE_UP = 0, 1, 125, 128

Bisect = Annotated[
    bool,
    typer.Option(
        "--bisect",
        help="Use the exit codes of `git bisect run`: 0 good, 1 bad, 125 skip this commit, 128 "
        "stop.",
    ),
]


class Judged:
    """The result of a replay, as far as it came.

    Attributes:
        is_open: whether the tape was opened.
        report: of the replay.
    """

    is_open = False
    report: Report | None = None


def verdict(report: Report) -> int:
    """The code for a report. One call that fails is enough; calls that could not be tried say
    nothing. If that is because the tape is damaged there, the others decide: no commit could try
    these calls."""
    if any(row.is_tested for row in report.failing):
        return BAD
    are_fine = report.has_compared and all(row.is_unreadable for row in report.failing)
    return GOOD if are_fine else CANNOT_TEST


@contextmanager
def judged(bisect: bool) -> Iterator[Judged]:
    """Ends a command as git wants it, if ``bisect``. The block sets what is found."""
    judgement = Judged()
    if not bisect:
        yield judgement
        return
    try:
        yield judgement
    except typer.BadParameter as error:
        complain(error.message)
        raise typer.Exit(GIVE_UP) from None
    except typer.Exit:  # of a damaged tape: what is whole was tested
        pass
    except (Exception, SystemExit) as error:
        complain(str(getattr(error, "error", error)) or type(error).__name__)
        # A tape that cannot be opened, and a call that is not there, are the same for every commit.
        is_of_tape = (
            isinstance(error, TapeError) and error.kind != "usage" and not judgement.is_open
        )
        is_of_all = is_of_tape or isinstance(error, WrongWordError)
        complain("no commit can be tested" if is_of_all else "this commit cannot be tested")
        raise typer.Exit(GIVE_UP if is_of_all else CANNOT_TEST) from None
    raise typer.Exit(CANNOT_TEST if judgement.report is None else verdict(judgement.report))


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
        paths, model_words = _tapes_and_model(words, None)
        assert model_words is not None
        _check(paths, model_words, part, trust=trust, classes=classes, json=json)
        return
    with judged(bisect) as judgement:
        paths, model_words = _tapes_and_model(words, model)
        if slower_than is not None:
            from calltape_analyzer.comparison.judging import TimeBound

            try:
                TimeBound.of(slower_than)
            except UsageError as error:
                raise typer.BadParameter(f"--slower-than: {error}") from None
        class_objects = classes_of(classes, are_words=not bisect)
        with opened_tape(paths, part, runs=True, classes=class_objects) as tape:
            judgement.is_open = True
            from calltape_analyzer.comparison.comparing import Tolerances
            from calltape_analyzer.replaying.replaying import replay as replay_calls

            through = _existing(model_words) if model_words is not None else model_of(str(model))
            is_bounded = rtol is not None or atol is not None
            given_bounds = Tolerances(rtol=rtol, atol=atol) if is_bounded else None
            report = judgement.report = replay_calls(
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
    program_path: Path,
    part: Part,
    *,
    trust: bool,
    classes: Sequence[str] | None,
    json: bool,
) -> None:
    """Whether an exported model would accept the calls."""
    # Code that is trusted may take what it takes.
    read = program_path / MANIFEST if program_path.is_dir() else program_path
    bounded = nullcontext() if trust else reading([str(read)])
    class_objects = classes_of(classes)
    with opened_tape(paths, part, runs=trust, classes=class_objects) as tape, bounded:
        from calltape_analyzer.replaying.checking import check

        report = check(tape, _existing(program_path), trusted=trust)
        _print(report, json)
        if not report.ok:
            raise typer.Exit(FAILURE)


def _tapes_and_model(words: Sequence[str], model: str | None) -> tuple[list[str], Path | None]:
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
