"""``calltape script``: a Python file that shows what is wrong with a recorded model, for others.

In comes a tape. Out goes a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from calltape_analyzer.cli.models import OptionalModelName
from calltape_analyzer.cli.output import Json, command, forced, line, print_json
from calltape_analyzer.cli.tapes import (
    Calls,
    Ignore,
    OfTarget,
    Part,
    Paths,
    Variants,
    address,
    opened,
)

__all__ = ["script"]


@command
def script(
    paths: Paths,
    model: OptionalModelName = None,
    to: Annotated[
        Literal["torch", "onnx"] | None,
        typer.Option("--to", help="Export to this, also if a call raised."),
    ] = None,
    call: Annotated[
        str | None,
        typer.Option(
            "--call",
            parser=address,
            metavar="CALL",
            help="About this call; by default about the first one that raised, or about what "
            "minimise made small.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write it here.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file, if it is there.")
    ] = False,
    target: OfTarget = None,
    calls: Calls = None,
    variant: Variants = None,
    ignore: Ignore = None,
    json: Json = False,
) -> None:
    """A Python file that shows what is wrong.

    What to attach to a bug report, beside the tape: it loads the tape, builds the model, and runs
    the call that raised; if none did, it exports the model and verifies the programs. Of a tape
    that minimise made it does what failed. Without --model there is a marked function to fill in.
    It needs torch and calltape-analyzer, and libraries only if the model does.

    \b
    calltape script runs/llm.tape --model my.models:llama -o report.py
    calltape script runs/llm.tape --to onnx
    calltape script runs/llm.tape --call 12 --model my.models:llama
    """
    from calltape_analyzer.scripting import is_factory
    from calltape_analyzer.scripting import script as source_of
    from calltape_analyzer.writing.output_file import write_file

    if model is not None and not is_factory(model):
        raise typer.BadParameter(f"{model!r} is not of the form package.module:factory")
    with opened(paths, Part(calls, variant, ignore, target)) as tape:
        source = source_of(tape, model=model, to=to, call=call)
        if out is not None:
            with forced():
                write_file(out, source.encode("ascii"), overwrite=force)
        if json:
            saved = str(out) if out is not None else None
            print_json({"source": source, "saved": saved}, whole=True)
        elif out is None:
            print(source, end="")
        else:
            line("wrote", str(out))
