"""``calltape minimise``: the smallest tape that still shows a failure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, TextIO

import typer

from calltape_analyzer.cli.models import classes_of
from calltape_analyzer.cli.options import (
    ClassNames,
    Force,
    Json,
    MaxSeconds,
    OfTarget,
    Out,
    Paths,
    To,
)
from calltape_analyzer.cli.output import (
    USAGE,
    command,
    complain,
    forced,
    print_model,
    wrong_words,
)
from calltape_analyzer.cli.tapes import Part, opened
from calltape_analyzer.cli.terminal import lines
from calltape_analyzer.scripting import is_factory
from calltape_analyzer.text import printable

__all__ = ["minimise"]

_NAME = "PACKAGE.MODULE:FUNCTION"

Fails = Annotated[
    str | None,
    typer.Option(
        "--fails",
        metavar=_NAME,
        help="A function that takes an open tape. The tape fails if it returns something true, or "
        "raises.",
    ),
]
FailsExport = Annotated[
    str | None,
    typer.Option(
        "--fails-export",
        metavar=_NAME,
        help="What makes a model. The tape fails if its export does.",
    ),
]
FailsReplay = Annotated[
    str | None,
    typer.Option(
        "--fails-replay",
        metavar=_NAME,
        help="What makes a model. The tape fails if a replay does.",
    ),
]
Reference = Annotated[
    str | None,
    typer.Option(
        "--reference",
        metavar=_NAME,
        help="What makes a model that is right: it gives the outputs of calls whose arguments are "
        "changed.",
    ),
]
Redact = Annotated[
    bool,
    typer.Option(
        "--redact",
        help="Redact the smallest tape at last. Values that the failure needs stay, as few as "
        "possible, and are named.",
    ),
]


@command
def minimise(
    paths: Paths,
    out: Out,
    fails: Fails = None,
    fails_export: FailsExport = None,
    fails_replay: FailsReplay = None,
    reference: Reference = None,
    to: To = "torch",
    classes: ClassNames = None,
    max_seconds: MaxSeconds = None,
    redact: Redact = False,
    target: OfTarget = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """The smallest tape that fails for the same reason.

    Fewest calls, fewest arguments, smallest sizes, simplest values. Each try runs in a process of
    its own. OUT.tried.jsonl has what was tried, and a second run takes its answers from it. Ends
    with 1 if nothing fails, or not each time, and writes nothing; under --redact also if no
    redacted tape fails for the same reason: then OUT.tried.jsonl stays for the next run.

    \b
    calltape minimise bug.tape -o small.tape --fails my.checks:is_wrong
    calltape minimise bug.tape -o llama.tape --fails-export my.models:llama
    calltape minimise bug.tape -o r.tape --fails-replay my:new --reference my:old
    calltape minimise bug.tape -o give.tape --fails my.checks:is_wrong --redact
    """
    _check_names((fails, fails_export, fails_replay), reference)
    with wrong_words():
        known = classes_of(classes)
    with opened(paths, Part(target=target), runs=True, classes=known) as tape, forced():
        from calltape_analyzer.minimising.minimising import minimise_tape
        from calltape_analyzer.model.factories import UnfitNameError

        try:
            report = minimise_tape(
                tape, out, fails=fails, fails_export=fails_export, fails_replay=fails_replay,
                reference=reference, to=to, max_seconds=max_seconds, overwrite=force,
                redact=redact, progress=_progress(sys.stderr),
            )  # fmt: skip
        except UnfitNameError as error:
            complain(str(error))
            raise typer.Exit(USAGE) from None
        if json:
            print_model(report)
        else:
            lines(str(report))


def _check_names(fails: Sequence[str | None], reference: str | None) -> None:
    """Raises BadParameter unless there is one check, and all names are names of functions."""
    given = [name for name in fails if name is not None]
    if len(given) != 1:
        raise typer.BadParameter("name one of --fails, --fails-export and --fails-replay")
    for name in (*given, *([reference] if reference else [])):
        if not is_factory(name):
            raise typer.BadParameter(f"{name!r} is not of the form package.module:function")


def _progress(terminal: TextIO) -> Callable[[str], None] | None:
    """Tells somebody who looks what is tried."""
    return partial(_say, terminal) if terminal.isatty() else None


def _say(terminal: TextIO, text: str) -> None:
    print(printable(text)[:200], file=terminal, flush=True)
