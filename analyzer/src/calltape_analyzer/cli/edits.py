"""``calltape filter``, ``merge`` and ``recover``: tapes that are made of other tapes.

In come tapes and what is wanted of them. Out goes a new file, and what came of it in words. The
tapes that are read are never changed.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated

import typer

from calltape_analyzer.cli.options import Calls, Force, Json, OfTarget, Out, Paths, Variants
from calltape_analyzer.cli.output import DAMAGED, command, forced, print_model, wrong_words
from calltape_analyzer.cli.tapes import Part, opened
from calltape_analyzer.cli.terminal import lines
from calltape_analyzer.editing.edit_report import EditReport
from calltape_analyzer.tape import Tape

__all__ = ["filter_", "merge", "print_report", "recover"]


@command
def filter_(
    paths: Paths,
    out: Out,
    target: OfTarget = None,
    calls: Calls = None,
    variant: Variants = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Calls that began at this time or later: 2026-01-31T12:00 (UTC), seconds since "
            "1970, or +SECONDS after the first call.",
        ),
    ] = None,
    end: Annotated[
        str | None, typer.Option(metavar="TIME", help="Calls that began before this time.")
    ] = None,
    errors: Annotated[
        bool | None,
        typer.Option("--errors/--no-errors", help="Calls that raised, or those that did not."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="A condition on sizes, such as 'sequence_length > 512' or 'cache.layers.0.keys[2] "
            "> 9'. An int that a call leaves to its default has that value; a comparison of a size "
            "that it has not is unknown, as in SQL.",
        ),
    ] = None,
    novel: Annotated[
        bool, typer.Option("--novel", help="Only calls that add evidence to those before.")
    ] = False,
    first: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="The first N of these calls.")
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Leave out the values at this path, such as 'cache.*'. Shapes stay.",
        ),
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """A part of a tape as a new tape.

    All conditions must hold of a call; then --novel and --first choose among the calls that are
    left, in this order. --variant, --where and --drop may come several times.

    \b
    calltape filter runs/llm.tape -o small.tape --calls 0..99
    calltape filter runs/ -o long.tape --where 'sequence_length > 512' --first 10
    calltape filter runs/llm.tape -o shapes.tape --novel --drop '*'
    """
    from calltape_analyzer.editing.edits import filter_tape

    with (
        opened(paths, Part(calls, variant, target=target), tells=False) as tape,
        forced(),
        wrong_words(),
    ):
        report = filter_tape(
            tape, out, drop=drop or (), overwrite=force, start=_time(tape, "--start", start),
            end=_time(tape, "--end", end), raised=errors, where=tuple(where or ()), novel=novel,
            first=first,
        )  # fmt: skip
        print_report(report, json)


@command
def merge(
    paths: Paths,
    out: Out,
    target: OfTarget = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Several tapes of one target as one tape.

    Files of one recording keep its id and numbers. Several recordings get new ones, of which the
    history of the new tape tells.

    \b
    calltape merge monday.tape tuesday.tape -o week.tape
    calltape merge runs/ -o all.tape
    """
    from calltape_analyzer.editing.edits import merge_tapes

    with opened(paths, Part(target=target), tells=False) as tape, forced(), wrong_words():
        print_report(merge_tapes(tape, out, overwrite=force), json)


@command
def recover(
    paths: Paths, out: Out, target: OfTarget = None, force: Force = False, json: Json = False
) -> None:
    """The sound calls of a damaged or unsealed tape, sealed.

    Ends with 3 if something was lost, and says what. Of a compressed tape that is cut off, it takes
    what can be decompressed.

    \b
    calltape recover crashed.tape -o mended.tape
    calltape recover runs/ --target Llama -o llama.tape --json
    """
    from calltape_analyzer.editing.edits import recover_tape
    from calltape_analyzer.reading.compressed import remainders_taken

    with (
        remainders_taken(),
        opened(paths, Part(target=target), tells=False) as tape,
        forced(),
        wrong_words(),
    ):
        print_report(recover_tape(tape, out, overwrite=force), json)


def print_report(report: EditReport, json: bool) -> None:
    """Prints what came of making a tape, and ends with 3 if something was lost."""
    if json:
        print_model(report)
    else:
        lines(str(report))
    if report.lost:
        raise typer.Exit(DAMAGED)


def _time(tape: Tape, option: str, text: str | None) -> float | None:
    """Seconds since 1970."""
    if text is None:
        return None
    try:
        if text.startswith("+"):
            return (tape.calls[0].time if len(tape.calls) else 0.0) + float(text)
        if text.replace(".", "", 1).isdecimal():
            return float(text)
        moment = datetime.fromisoformat(text.removesuffix("Z"))
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{option}: {text!r:.100} is no time; write 2026-01-31T12:00, seconds since 1970, or "
            "+SECONDS after the first call"
        ) from None
