"""``calltape bundle``: one file for a bug report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calltape_analyzer.cli.edits import Force, Out
from calltape_analyzer.cli.models import OptionalModelName
from calltape_analyzer.cli.output import Json, command, forced, lines, print_model
from calltape_analyzer.cli.redaction_options import EFFORT, Keep, Noise, Permute, redaction_choices
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
    keep: Keep = None,
    permute: Permute = None,
    noise: Noise = None,
    target: OfTarget = None,
    calls: Calls = None,
    variant: Variants = None,
    ignore: Ignore = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """A redacted tape, a script and versions in one zip file.

    What to attach to a bug report, of at most 10 MiB: bug.tape, redacted; reproduce.py, the script
    that `calltape script` writes; report.md to paste; versions.json; and the model's code. The
    model is what build_model() in that code returns, or --model. A tape that is redacted already
    goes in as it is.

    \b
    calltape bundle runs/llm.tape --model-code model.py -o bug.zip
    calltape bundle runs/llm.tape --calls 0..9 --permute input_ids -o ten.zip
    """
    from calltape_analyzer.bundling import bundle as bundled

    redaction = redaction_choices(keep=keep, permute=permute, noise=noise)
    part = Part(calls, variant, ignore, target)
    with opened(paths, part, effort=EFFORT) as tape, forced():
        found = bundled(
            tape,
            out,
            model_code=model_code or (),
            model=model,
            call=call,
            redaction=redaction,
            overwrite=force,
        )
        if json:
            print_model(found)
        else:
            lines(str(found))
