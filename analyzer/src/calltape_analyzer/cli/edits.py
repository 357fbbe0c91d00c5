"""``calltape filter``, ``merge``, ``recover``, ``minimise`` and ``redact``: tapes that are made of
other tapes.

Takes tapes and what is wanted of them; writes a new file, and prints what came of it. The tapes
that are read are never changed.
"""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from typing import Annotated

import typer

from calltape_analyzer.cli.options import (
    Calls,
    Force,
    Json,
    MaxSeconds,
    OfTarget,
    Out,
    Part,
    Paths,
    Variants,
    opened,
)
from calltape_analyzer.cli.output import DAMAGED, command, lines, print_json, wrong_words
from calltape_analyzer.editing.rewriting import EditReport
from calltape_analyzer.limits import REDACTION_EFFORT
from calltape_analyzer.progress import reporter_of
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
            help="Only calls that began at this time or later: 2026-01-31T12:00 (UTC), seconds "
            "since 1970, or +SECONDS after the first call.",
        ),
    ] = None,
    end: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only calls that began before this time.")
    ] = None,
    errors: Annotated[
        bool | None,
        typer.Option(
            "--errors/--no-errors", help="Only calls that raised, or only calls that did not."
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="Only calls whose sizes satisfy this condition, such as 'sequence_length > 512' "
            "or 'cache.layers.0.keys[2] > 9'. An int that a call omits has its default value. A "
            "comparison with a size that a call lacks is unknown, as in SQL. Repeatable.",
        ),
    ] = None,
    novel: Annotated[
        bool,
        typer.Option("--novel", help="Only calls that show something new, such as another size."),
    ] = False,
    first: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Only the first N of the remaining calls."),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Omit the values at this path, such as 'cache.*', but keep the shapes. "
            "Repeatable.",
        ),
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write part of a tape to a new tape.

    A call must satisfy all conditions. --novel and then --first choose from the calls that do.

    \b
    calltape filter runs/llm.tape -o small.tape --calls 0..99
    calltape filter runs/ -o long.tape --where 'sequence_length > 512' --first 10
    calltape filter runs/llm.tape -o shapes.tape --novel --drop '*'
    """
    from calltape_analyzer.editing.edits import filter_tape

    part = Part(calls, variant, target=target)
    with opened(paths, part, reports_damage=False) as tape, wrong_words():
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
    """Merge several tapes of one target into one.

    Calls of one recording keep its id and their numbers. Calls of several recordings are
    renumbered under a new id; the history of the new tape lists the old ones.

    \b
    calltape merge monday.tape tuesday.tape -o week.tape
    calltape merge runs/ -o all.tape
    """
    from calltape_analyzer.editing.edits import merge_tapes

    with opened(paths, Part(target=target), reports_damage=False) as tape, wrong_words():
        _print(merge_tapes(tape, out, overwrite=force), json)


@command
def recover(
    paths: Paths, out: Out, target: OfTarget = None, force: Force = False, json: Json = False
) -> None:
    """Recover the intact calls of a corrupted or unsealed tape.

    The new tape is sealed. From a truncated compressed tape, recover takes what it can decompress.

    \b
    calltape recover crashed.tape -o mended.tape
    calltape recover runs/ --target Llama -o llama.tape --json
    """
    from calltape_analyzer.editing.edits import recover_tape
    from calltape_analyzer.reading.compressed import remainders_taken

    part = Part(target=target)
    with remainders_taken(), opened(paths, part, reports_damage=False) as tape, wrong_words():
        _print(recover_tape(tape, out, overwrite=force), json)


@command
def minimise(
    paths: Paths,
    out: Out,
    check: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="A shell command, with {} for the path of a tape. The tape fails if the command "
            "exits with a code other than 0 and 125 to 128.",
        ),
    ],
    max_seconds: MaxSeconds = None,
    target: OfTarget = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Find the smallest tape that fails for the same reason.

    Removes calls and arguments, shrinks sizes and simplifies values. The reason is the last
    exception that the command prints, with # for each number, or else its exit code. Ends with 1,
    and writes nothing, if the command passes, or does not always fail for the same reason. To share
    the result, redact the tape first, and keep the values that the failure needs.

    \b
    calltape minimise bug.tape -o a.tape --check 'python check.py {}'
    calltape minimise bug.tape -o b.tape --check 'calltape replay {} -m my:llama'
    calltape minimise bug.tape -o c.tape --check 'calltape export {} -m my:llama'
    """
    with opened(paths, Part(target=target), runs=True) as tape:
        from calltape_analyzer.minimising.minimising import minimise as minimised

        report = minimised(
            tape, out, check, max_seconds=max_seconds, overwrite=force,
            progress=reporter_of(sys.stderr.isatty()),
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
        typer.Option(
            metavar="PATH", help="Keep the values at this path, such as 'mode'. Repeatable."
        ),
    ] = None,
    shapes_only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH", help="Omit also texts, ranges and sizes at this path. Repeatable."
        ),
    ] = None,
    target: OfTarget = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Remove what may identify a person or a machine.

    Tensors keep only their shapes and ranges. Texts, and keys that look like data, are replaced by
    ordinals such as text1; equal ones stay equal. Numbers that look like data are omitted, unless
    they are sizes of tensors. Exception messages, outputs, dates, thread ids, host and file names
    are removed. Before OUT appears, redact reads all of it, and checks that each byte belongs to a
    fact that may stay. docs/privacy.md has a table.

    PATH is the path of an argument, as in `values=` of the recorder. If several match, the most
    specific one applies.

    \b
    calltape redact runs/llm.tape -o give.tape
    calltape redact runs/llm.tape -o small.tape --keep mode --shapes-only 'past.*'
    """
    from calltape_analyzer.redacting.redaction import redact as redacted

    part = Part(target=target)
    with opened(paths, part, reports_damage=False, effort=REDACTION_EFFORT) as tape, wrong_words():
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
            f"{option}: {text!r:.100} is not a time; write 2026-01-31T12:00, seconds since 1970, "
            "or +SECONDS after the first call"
        ) from None
