"""``calltape bundle``, ``convert`` and ``table``: what a tape is for somebody else.

Takes tapes; returns a file for a bug report, a folder of safetensors, or a table.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from calltape_analyzer.cli.options import (
    Calls,
    Force,
    OfTarget,
    OptionalModelName,
    OptionalTo,
    Out,
    Part,
    Paths,
    Variants,
    address,
    expect_factory,
    opened,
)
from calltape_analyzer.cli.output import command, complain, line, lines
from calltape_analyzer.limits import REDACTION_EFFORT, reading
from calltape_analyzer.reading.compressed import SUFFIXES
from calltape_analyzer.text import counted
from calltape_schema.errors import TapeError

__all__ = ["bundle", "convert", "table"]


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
    with opened(paths, part, effort=1 if is_script else REDACTION_EFFORT) as tape:
        if is_script:
            from calltape_analyzer.scripting import script
            from calltape_analyzer.writing.output_file import write_file

            source = script(tape, model=model, to=to, call=call)
            write_file(out, source.encode("ascii"), overwrite=force)
            line("wrote", str(out))
            return
        from calltape_analyzer.bundling import bundle as bundled

        found = bundled(
            tape, out, model_code=model_code or (), model=model, call=call, to=to, overwrite=force
        )
        lines(str(found))


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
    given = {"target": target, "calls": calls, "variant": variant, "force": force}
    for name, value in given.items():
        if value and is_tape != (name == "force"):
            what = "tape" if is_tape else "folder"
            raise typer.BadParameter(f"--{name} has no effect on a new {what}; leave it out")
    from calltape_analyzer.converting import read_safetensors_folder, write_safetensors_folder

    if is_tape:
        if len(paths) != 1:
            raise typer.BadParameter("a tape is made of one folder; pass a single IN")
        # No link is followed.
        files = (os.path.join(at, name) for at, _, names in os.walk(paths[0]) for name in names)
        with reading(files):
            count = read_safetensors_folder(paths[0], out, overwrite=force)
    else:
        with opened(paths, Part(calls, variant, target=target), runs=True) as tape:
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
    with opened(paths, Part(target=target), runs=True) as tape:
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
