"""``calltape filter``, ``merge``, ``recover``, ``minimise`` and ``redact``: tapes that are made of
other tapes.

In come tapes and what is wanted of them. Out goes a new file, and what came of it in words. The
tapes that are read are never changed.
"""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from typing import Annotated

import typer

from calltape_analyzer.cli.options import (
    Calls,
    ClassNames,
    Force,
    Json,
    MaxSeconds,
    OfTarget,
    Out,
    Paths,
    To,
    Variants,
    classes_of,
    expect_factory,
)
from calltape_analyzer.cli.output import DAMAGED, command, lines, print_json, wrong_words
from calltape_analyzer.cli.tapes import Part, opened
from calltape_analyzer.editing.rewriting import EditReport
from calltape_analyzer.limits import REDACTION_EFFORT
from calltape_analyzer.progress import told_by
from calltape_analyzer.tape import Tape

__all__ = ["filter_", "merge", "minimise", "recover", "redact"]


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

    part = Part(calls, variant, target=target)
    with opened(paths, part, tells=False) as tape, wrong_words():
        report = filter_tape(
            tape, out, drop=drop or (), overwrite=force, start=_time(tape, "--start", start),
            end=_time(tape, "--end", end), raised=errors, where=tuple(where or ()), novel=novel,
            first=first,
        )  # fmt: skip
        _print(report, json)


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

    with opened(paths, Part(target=target), tells=False) as tape, wrong_words():
        _print(merge_tapes(tape, out, overwrite=force), json)


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

    part = Part(target=target)
    with remainders_taken(), opened(paths, part, tells=False) as tape, wrong_words():
        _print(recover_tape(tape, out, overwrite=force), json)


_FUNCTION = "PACKAGE.MODULE:FUNCTION"


@command
def minimise(
    paths: Paths,
    out: Out,
    fails: Annotated[
        str | None,
        typer.Option(
            metavar=_FUNCTION,
            help="A function that takes an open tape. The tape fails if it returns something true, "
            "or raises.",
        ),
    ] = None,
    fails_export: Annotated[
        str | None,
        typer.Option(
            metavar=_FUNCTION, help="What makes a model. The tape fails if its export does."
        ),
    ] = None,
    fails_replay: Annotated[
        str | None,
        typer.Option(
            metavar=_FUNCTION, help="What makes a model. The tape fails if a replay does."
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar=_FUNCTION,
            help="What makes a model that is right: it gives the outputs of calls whose arguments "
            "are changed.",
        ),
    ] = None,
    to: To = "torch",
    classes: ClassNames = None,
    max_seconds: MaxSeconds = None,
    target: OfTarget = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """The smallest tape that fails for the same reason.

    Fewest calls, fewest arguments, smallest sizes, simplest values. Each try runs in a process of
    its own. Ends with 1 if nothing fails, or not each time, and writes nothing. To give the result
    away, redact the tape first, and keep the values that the failure needs.

    \b
    calltape minimise bug.tape -o small.tape --fails my.checks:is_wrong
    calltape minimise bug.tape -o llama.tape --fails-export my.models:llama
    calltape minimise bug.tape -o r.tape --fails-replay my:new --reference my:old
    """
    given = [name for name in (fails, fails_export, fails_replay) if name is not None]
    if len(given) != 1:
        raise typer.BadParameter("name one of --fails, --fails-export and --fails-replay")
    for name in (*given, *([reference] if reference else [])):
        expect_factory(name, "function")
    known = classes_of(classes)
    with opened(paths, Part(target=target), runs=True, classes=known) as tape:
        from calltape_analyzer.minimising.minimising import minimise_tape
        from calltape_analyzer.model.factories import UnfitNameError

        with wrong_words(UnfitNameError):
            report = minimise_tape(
                tape, out, fails=fails, fails_export=fails_export, fails_replay=fails_replay,
                reference=reference, to=to, max_seconds=max_seconds, overwrite=force,
                progress=told_by(sys.stderr.isatty()),
            )  # fmt: skip
        if json:
            print_json(report)
        else:
            lines(str(report))


@command
def redact(
    paths: Paths,
    out: Out,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Values that stay as they are, such as 'mode'."),
    ] = None,
    shapes_only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH", help="Values of which no range and no pseudonym stays either."
        ),
    ] = None,
    target: OfTarget = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """A tape without what may tell of a person or a machine.

    Tensors keep their shapes only. Texts become others of the same length, and long numbers others
    of the same size, unless they have to do with sizes of tensors; equal ones stay equal.
    Messages of exceptions, what was returned, the date, thread ids, the host and file names go. The
    result is compared with TAPE before it is there: shapes, variants and explain say the same, and
    nothing that was removed is in its bytes. docs/privacy.md has a table.

    PATH is a path of arguments, as values= of the recorder has it. Several times for several; the
    most specific one decides.

    \b
    calltape redact runs/llm.tape -o give.tape
    calltape redact runs/llm.tape -o small.tape --keep mode --shapes-only 'past.*'
    """
    from calltape_analyzer.redacting.redaction import redact as redacted

    part = Part(target=target)
    with opened(paths, part, tells=False, effort=REDACTION_EFFORT) as tape, wrong_words():
        report = redacted(
            tape, out, keep=keep or (), shapes_only=shapes_only or (), overwrite=force
        )
        _print(report, json)


def _print(report: EditReport, json: bool) -> None:
    """Prints what came of making a tape, and ends with 3 if something was lost."""
    if json:
        print_json(report)
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
