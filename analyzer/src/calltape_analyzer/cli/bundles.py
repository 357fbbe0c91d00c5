"""``calltape bundle``: one file for a bug report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from calltape_analyzer.cli.budget import REDACTION_EFFORT
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
)
from calltape_analyzer.cli.output import command, forced, line, lines
from calltape_analyzer.cli.tapes import Part, opened
from calltape_analyzer.scripting import is_factory
from calltape_analyzer.tape import Tape

__all__ = ["bundle"]


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
        typer.Option("--call", parser=address, metavar="CALL", help="The script is about it."),
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
    if model is not None and not is_factory(model):
        raise typer.BadParameter(f"{model!r} is not of the form package.module:factory")
    part = Part(calls, variant, target=target)
    is_script = out.suffix == ".py"
    if is_script and model_code:
        raise typer.BadParameter("--model-code goes into a zip file, and not with a script alone")
    with opened(paths, part, effort=1 if is_script else REDACTION_EFFORT) as tape, forced():
        if is_script:
            _write_script(tape, out, model=model, to=to, call=call, overwrite=force)
            return
        from calltape_analyzer.bundling import bundle as bundled

        found = bundled(
            tape, out, model_code=model_code or (), model=model, call=call, to=to, overwrite=force
        )
        lines(str(found))


def _write_script(
    tape: Tape,
    out: Path,
    *,
    model: str | None,
    to: Literal["torch", "onnx"] | None,
    call: str | None,
    overwrite: bool,
) -> None:
    from calltape_analyzer.scripting import script
    from calltape_analyzer.writing.output_file import write_file

    source = script(tape, model=model, to=to, call=call)
    write_file(out, source.encode("ascii"), overwrite=overwrite)
    line("wrote", str(out))
