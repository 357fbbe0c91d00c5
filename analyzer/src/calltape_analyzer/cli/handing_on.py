"""``calltape bundle``, ``convert`` and ``table``: what a tape is for somebody else.

In come tapes. Out go a file for a bug report, a folder of safetensors, or a table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
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
    Paths,
    Variants,
    address,
    expect_factory,
)
from calltape_analyzer.cli.output import command, complain, line, lines
from calltape_analyzer.cli.tapes import Part, opened
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
            help="The model's code, which goes in as it is. Several times for several.",
        ),
    ] = None,
    model: OptionalModelName = None,
    call: Annotated[
        str | None,
        typer.Option(
            "--call",
            parser=address,
            metavar="CALL",
            help="The call that the script is about; by default the first that raised.",
        ),
    ] = None,
    to: OptionalTo = None,
    target: OfTarget = None,
    calls: Calls = None,
    variant: Variants = None,
    force: Force = False,
) -> None:
    """A redacted tape, a script and versions in one zip file.

    What to attach to a bug report, of at most 10 MiB: bug.tape, redacted; reproduce.py, a script
    that shows what is wrong; report.md to paste; versions.json; and the model's code. The model is
    what build_model() in that code returns, or --model. A tape that is redacted already goes in as
    it is, so `calltape redact --keep` decides which values do.

    The script loads the tape, builds the model, and runs the call that raised; if none did, it
    exports the model (--to torch or onnx) and verifies the programs. Of a tape that minimise made
    it does what failed. An OUT that ends with .py is the script alone, for the tape as it is.

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
        raise typer.BadParameter("--model-code goes into a zip file, and not with a script alone")
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
        list[str], typer.Argument(metavar="IN...", help="Tapes; or, for a tape, one folder.")
    ],
    out: Out,
    target: OfTarget = None,
    calls: Calls = None,
    variant: Variants = None,
    force: Force = False,
) -> None:
    """A tape as a folder of .safetensors, or a tape of such a folder.

    OUT is a new folder with a .safetensors and a .json file for each call. An OUT that ends with
    .tape is a tape, made of the .safetensors files in the folder IN; each is a call, and needs no
    .json.

    \b
    calltape convert runs/llm.tape -o folder
    calltape convert folder -o calls.tape
    """
    is_tape = out.name.endswith(SUFFIXES)
    given = {"target": target, "calls": calls, "variant": variant, "force": force}
    for name, value in given.items():
        if value and is_tape != (name == "force"):
            what = "tape" if is_tape else "folder"
            raise typer.BadParameter(f"--{name} does nothing for a new {what}; leave it out")
    from calltape_analyzer.converting import read_safetensors_folder, write_safetensors_folder

    if is_tape:
        if len(paths) != 1:
            raise typer.BadParameter("a tape is made of one folder")
        with reading(_files_in(paths[0])):
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


def _files_in(folder: str) -> Iterator[str]:
    """All files of a folder, and of the folders in it; no link is followed."""
    for parent, _, names in os.walk(folder):
        yield from (os.path.join(parent, name) for name in names)


@command
def table(
    paths: Paths,
    out: Out,
    leaves: Annotated[
        bool, typer.Option("--leaves", help="A row per tensor of each call, not per call.")
    ] = False,
    target: OfTarget = None,
    force: Force = False,
) -> None:
    """The calls as a table in a file.

    OUT is a .parquet, .arrow or .csv file. A row per call: file, folder, target, time, duration,
    thread, variant, class of the exception, bytes, and the size of every symbol and dynamic axis;
    or, with --leaves, a row per tensor. No values, texts or messages. docs/tables.md has the
    columns, and queries for DuckDB and pandas.

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
            complain(f"{out}: {left_out} more symbols and axes have no column; --leaves has them")
        line(f"{out}: {counted(rows, 'row')}, {counted(len(batches.schema), 'column')}")
