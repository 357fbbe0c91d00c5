"""``calltape minimise``: the smallest tape that still shows a failure."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated, Any, TextIO

import typer

from calltape_analyzer.cli.edits import Force, Out, forced
from calltape_analyzer.cli.exports import To, size_of
from calltape_analyzer.cli.models import Train
from calltape_analyzer.cli.output import Json, command, print_model
from calltape_analyzer.cli.redactions import Hash, Keep, Noise, Permute, ShapesOnly, Special
from calltape_analyzer.cli.tapes import Calls, Part, Paths, Variants, opened
from calltape_analyzer.scripting import is_factory
from calltape_analyzer.text import printable

__all__ = ["minimise"]

_NAME = "PACKAGE.MODULE:FUNCTION"


@command
def minimise(
    paths: Paths,
    out: Out,
    fails: Annotated[
        str | None,
        typer.Option(
            metavar=_NAME,
            help="A function that takes an open tape. The tape fails if it returns something true, "
            "or raises.",
        ),
    ] = None,
    fails_export: Annotated[
        str | None,
        typer.Option(metavar=_NAME, help="What makes a model. The tape fails if its export does."),
    ] = None,
    fails_replay: Annotated[
        str | None,
        typer.Option(metavar=_NAME, help="What makes a model. The tape fails if a replay does."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar=_NAME,
            help="What makes a model that is right: it gives the outputs of calls whose arguments "
            "are changed.",
        ),
    ] = None,
    to: To = "torch",
    train: Train = False,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            "--max-seconds",
            metavar="SECONDS",
            min=0.001,
            help="How long it may take. The smallest tape until then is written.",
        ),
    ] = None,
    step_seconds: Annotated[
        float | None,
        typer.Option(
            "--step-seconds",
            metavar="SECONDS",
            min=0.001,
            help="How long one try may take; by default three times as long as the first one, and "
            "at least 10.",
        ),
    ] = None,
    max_memory: Annotated[
        int | None,
        typer.Option(
            "--max-memory",
            metavar="SIZE",
            parser=size_of,
            help="What one try may take (800MiB, 4GiB); half of what is free by default.",
        ),
    ] = None,
    redact: Annotated[
        bool,
        typer.Option(
            "--redact",
            help="Redact the smallest tape at last. Values that the failure needs stay, as few as "
            "possible, and are named. The options below choose, as those of redact do.",
        ),
    ] = False,
    keep: Keep = None,
    hash: Hash = None,
    permute: Permute = None,
    noise: Noise = None,
    special: Special = False,
    shapes_only: ShapesOnly = None,
    calls: Calls = None,
    variant: Variants = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """The smallest tape that fails for the same reason.

    Fewest calls, fewest arguments, smallest sizes, simplest values. Each try runs in a process of
    its own. OUT.tried.jsonl has what was tried, and a second run takes its answers from it. Ends
    with 1 if nothing fails, or not each time; under --redact also if no redacted tape fails for the
    same reason. Nothing is written then.

    \b
    calltape minimise bug.tape -o small.tape --fails my.checks:is_wrong
    calltape minimise bug.tape -o small.tape --fails-export my.models:llama
    calltape minimise bug.tape -o small.tape --fails-replay my.models:new --reference my.models:old
    calltape minimise bug.tape -o small.tape --fails my.checks:is_wrong --redact --keep mode
    """
    given = [name for name in (fails, fails_export, fails_replay) if name is not None]
    if len(given) != 1:
        raise typer.BadParameter("name one of --fails, --fails-export and --fails-replay")
    for name in (*given, *([reference] if reference else [])):
        if not is_factory(name):
            raise typer.BadParameter(f"{name!r} is not of the form package.module:function")
    choices: dict[str, Any] = {
        "keep": keep, "hash": hash, "permute": permute, "noise": noise, "special": special,
        "shapes_only": shapes_only,
    }  # fmt: skip
    chosen = {name: given for name, given in choices.items() if given}
    if chosen and not redact:
        raise typer.BadParameter(f"--{next(iter(chosen)).replace('_', '-')} goes with --redact")
    with opened(paths, Part(calls, variant), runs=True) as tape, forced():
        from calltape_analyzer.minimising.minimising import minimise_tape

        terminal = sys.stderr
        report = minimise_tape(
            tape, out, fails=fails, fails_export=fails_export, fails_replay=fails_replay,
            reference=reference, to=to, train=train, max_seconds=max_seconds,
            step_seconds=step_seconds, max_memory=max_memory, overwrite=force,
            redact=chosen if redact and chosen else redact,
            progress=partial(_say, terminal) if terminal.isatty() else None,
        )  # fmt: skip
        if json:
            print_model(report)
        else:
            print(report)


def _say(terminal: TextIO, text: str) -> None:
    """Progress, for somebody who looks."""
    print(printable(text)[:200], file=terminal, flush=True)
