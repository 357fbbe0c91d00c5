"""``calltape filter``, ``merge``, ``recover``, ``minimise``, ``redact``, ``bundle``, ``convert``
and ``table``: files that are made of tapes.

Takes tapes and what is wanted of them; writes a new tape, a file for a bug report, a folder of
safetensors or a table, and prints what came of it. The tapes that are read are never changed.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer

from calltape_analyzer.cli.options import (
    Calls,
    Force,
    Json,
    MaxSeconds,
    OfTarget,
    OptionalModelName,
    OptionalTo,
    Out,
    Part,
    Paths,
    Variants,
    address,
    expect_factory,
    opened_tape,
)
from calltape_analyzer.cli.output import (
    DAMAGED,
    command,
    complain,
    line,
    lines,
    print_json,
    wrong_words,
)
from calltape_analyzer.editing.rewriting import EditReport
from calltape_analyzer.limits import REDACTION_EFFORT, reading
from calltape_analyzer.progress import reporter_of
from calltape_analyzer.reading.compressed import SUFFIXES
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted
from calltape_schema.errors import TapeError

__all__ = ["bundle", "convert", "filter_", "merge", "minimise", "recover", "redact", "table"]


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
    with opened_tape(paths, part, reports_damage=False) as tape, wrong_words():
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

    with opened_tape(paths, Part(target=target), reports_damage=False) as tape, wrong_words():
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
    with remainders_taken(), opened_tape(paths, part, reports_damage=False) as tape, wrong_words():
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
    with opened_tape(paths, Part(target=target), runs=True) as tape:
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
    with (
        opened_tape(paths, part, reports_damage=False, effort=REDACTION_EFFORT) as tape,
        wrong_words(),
    ):
        report = redacted(
            tape, out, keep=keep or (), shapes_only=shapes_only or (), overwrite=force
        )
        _print(report, json)


def _print(report: EditReport, json: bool) -> None:
    """Prints the report on a tape that was written, and ends with 3 if something was lost."""
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


@command
def bundle(
    paths: Paths,
    out: Out,
    model_code: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.py",
            help="A file of the model's code to include. Repeatable.",
        ),
    ] = None,
    model: OptionalModelName = None,
    call: Annotated[
        str | None,
        typer.Option(
            "--call",
            parser=address,
            metavar="CALL",
            help="The call that the script reproduces. Default: the first that raised.",
        ),
    ] = None,
    to: OptionalTo = None,
    target: OfTarget = None,
    calls: Calls = None,
    variant: Variants = None,
    force: Force = False,
) -> None:
    """Pack a redacted tape, a script and versions into a zip file.

    The file, of at most 10 MiB, is made to be attached to a bug report: bug.tape is the redacted
    tape, reproduce.py shows the failure, report.md is a text to paste, and versions.json lists
    versions. Pass the model's code with --model-code; its function build_model(), or --model,
    returns the model. bundle does not redact a redacted tape again, so you can choose which values
    to keep with `calltape redact --keep` first.

    The script loads the tape, builds the model, and runs the call that raised. If no call raised,
    it exports the model (--to torch or onnx) and verifies the programs. For a tape from minimise,
    it runs all calls. If OUT ends with .py, bundle writes only the script, for the tape as it is.

    \b
    calltape bundle runs/llm.tape --model-code model.py -o bug.zip
    calltape bundle runs/llm.tape --calls 0..9 -o ten.zip
    calltape bundle runs/llm.tape --model my.models:llama -o reproduce.py
    """
    if model is not None:
        expect_factory(model)
    part = Part(calls, variant, target=target)
    is_script = out.suffix == ".py"
    if is_script and model_code:
        raise typer.BadParameter("--model-code needs a zip file as OUT, not a script")
    with opened_tape(paths, part, effort=1 if is_script else REDACTION_EFFORT) as tape:
        if is_script:
            from calltape_analyzer.scripting import script
            from calltape_analyzer.writing.output_file import write_file

            source = script(tape, model=model, to=to, call=call)
            write_file(out, source.encode("ascii"), overwrite=force)
            line("wrote", str(out))
            return
        from calltape_analyzer.bundling import bundle as bundled

        bundled_tape = bundled(
            tape, out, model_code=model_code or (), model=model, call=call, to=to, overwrite=force
        )
        lines(str(bundled_tape))


@command
def convert(
    paths: Annotated[
        list[str], typer.Argument(metavar="IN...", help="Tapes; or, if OUT is a tape, one folder.")
    ],
    out: Out,
    target: OfTarget = None,
    calls: Calls = None,
    variant: Variants = None,
    force: Force = False,
) -> None:
    """Convert a tape to a folder of safetensors files, or back.

    OUT is a new folder with a .safetensors and a .json file for each call. If OUT ends with .tape,
    convert makes a tape of the .safetensors files in the folder IN: each file is a call, and the
    .json files are optional.

    \b
    calltape convert runs/llm.tape -o folder
    calltape convert folder -o calls.tape
    """
    is_tape = out.name.endswith(SUFFIXES)
    options = {"target": target, "calls": calls, "variant": variant, "force": force}
    for name, value in options.items():
        if value and is_tape != (name == "force"):
            kind = "tape" if is_tape else "folder"
            raise typer.BadParameter(f"--{name} has no effect on a new {kind}; leave it out")
    from calltape_analyzer.converting import read_safetensors_folder, write_safetensors_folder

    if is_tape:
        if len(paths) != 1:
            raise typer.BadParameter("a tape is made of one folder; pass a single IN")
        # No link is followed.
        files = (os.path.join(f, name) for f, _, names in os.walk(paths[0]) for name in names)
        with reading(files):
            count = read_safetensors_folder(paths[0], out, overwrite=force)
    else:
        with opened_tape(paths, Part(calls, variant, target=target), runs=True) as tape:
            try:
                count = write_safetensors_folder(tape, out)
            except TapeError as error:
                if error.kind == "exists":
                    error.advice = "name another place"
                raise
    line(f"{out}: {counted(count, 'call')}")


@command
def table(
    paths: Paths,
    out: Out,
    leaves: Annotated[
        bool, typer.Option("--leaves", help="Write a row per tensor instead of a row per call.")
    ] = False,
    target: OfTarget = None,
    force: Force = False,
) -> None:
    """Write the calls to a Parquet, Arrow or CSV file.

    OUT is a .parquet, .arrow or .csv file with a row per call: file, folder, target, time,
    duration, thread, variant, class of the exception, bytes, and the size of every symbol and
    dynamic axis; or, with --leaves, a row per tensor. The table has no values, texts or messages.
    docs/tables.md lists the columns, with queries for DuckDB and pandas.

    \b
    calltape table runs/ -o calls.parquet
    calltape table runs/llm.tape -o leaves.parquet --leaves
    """
    from calltape_analyzer.tables.table_file import check_suffix, require_pyarrow, write_batches

    check_suffix(out)
    require_pyarrow()
    with opened_tape(paths, Part(target=target), runs=True) as tape:
        if not leaves:
            with reading(tape.paths):  # what a strange tape could make dear; rows cost time alike
                tape.variants()
        batches = tape.to_arrow(leaves=leaves)
        rows = write_batches(batches, out, overwrite=force, inputs=tape.whole.paths)
        facts = batches.schema.metadata or {}
        left_out = int(facts.get(b"calltape.size_columns_left_out", b"0"))
        if left_out:
            complain(
                f"{out}: {left_out} symbols and axes have no column; pass --leaves to see them"
            )
        line(f"{out}: {counted(rows, 'row')}, {counted(len(batches.schema), 'column')}")
