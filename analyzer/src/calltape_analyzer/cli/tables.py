"""``calltape table``: the calls as a table in a file."""

from __future__ import annotations

from typing import Annotated

import typer

from calltape_analyzer.cli.budget import reading
from calltape_analyzer.cli.options import Force, OfTarget, Out, Paths
from calltape_analyzer.cli.output import command, complain, forced, line
from calltape_analyzer.cli.tapes import Part, opened
from calltape_analyzer.text import counted

__all__ = ["table"]


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

    OUT is a .parquet, .arrow or .csv file. A row per call: time, duration, thread, variant, class
    of the exception, bytes, and the size of every symbol and dynamic axis; or, with --leaves, a row
    per tensor. No values, texts or messages. docs/tables.md has the columns, and queries for DuckDB
    and pandas.

    \b
    calltape table runs/ -o calls.parquet
    calltape table runs/llm.tape -o leaves.parquet --leaves
    """
    from calltape_analyzer.tables.table_file import check_suffix, require_pyarrow, write_batches

    check_suffix(out)
    require_pyarrow()
    with opened(paths, Part(target=target), runs=True) as tape, forced():
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
