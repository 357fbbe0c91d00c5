"""``calltape redact``: tapes that one can give away.

In comes a tape. Out goes a new one without what may tell of a person or a machine.
"""

from __future__ import annotations

from typing import Annotated

import typer

from calltape_analyzer.cli.budget import REDACTION_EFFORT
from calltape_analyzer.cli.edits import print_report
from calltape_analyzer.cli.options import Force, Json, OfTarget, Out, Paths
from calltape_analyzer.cli.output import command, forced, wrong_words
from calltape_analyzer.cli.tapes import Part, opened

__all__ = ["redact"]

Keep = Annotated[
    list[str] | None,
    typer.Option("--keep", metavar="PATH", help="Values that stay as they are, such as 'mode'."),
]
ShapesOnly = Annotated[
    list[str] | None,
    typer.Option(
        "--shapes-only",
        metavar="PATH",
        help="Values of which no range and no pseudonym stays either.",
    ),
]


@command
def redact(
    paths: Paths,
    out: Out,
    keep: Keep = None,
    shapes_only: ShapesOnly = None,
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
    with opened(paths, part, tells=False, effort=REDACTION_EFFORT) as tape, forced(), wrong_words():
        report = redacted(
            tape, out, keep=keep or (), shapes_only=shapes_only or (), overwrite=force
        )
        print_report(report, json)
