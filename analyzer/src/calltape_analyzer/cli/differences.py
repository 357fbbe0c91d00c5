"""``calltape diff``: what the traffic on one tape shows that another's did not.

In come two tapes. Out go the changes.
"""

from __future__ import annotations

from typing import Annotated

import typer

from calltape_analyzer.cli.options import FILES, Json, OfTarget, Scan
from calltape_analyzer.cli.output import (
    command,
    lines,
    print_model,
)
from calltape_analyzer.cli.tapes import Part, opened

__all__ = ["DIFFERS", "diff"]

DIFFERS = 4
"""The exit code of two tapes that differ; 1 would be taken for a failure."""


@command
def diff(
    before: Annotated[
        list[str], typer.Argument(metavar="BEFORE...", help=f"What was seen before. {FILES}.")
    ],
    now: Annotated[
        str, typer.Argument(metavar="NOW", help="What is seen now: a file, directory or pattern.")
    ],
    target: OfTarget = None,
    scan: Scan = False,
    json: Json = False,
) -> None:
    """What calls on tape NOW show that those on BEFORE do not.

    Structures, constants, dtypes, sizes outside the range seen, dimensions that were constant, and
    equalities and sums that no longer hold; then what disappeared. Ends with 4 if something
    differs, with 0 if nothing does, and with 3 if nothing does in what could be read of a damaged
    tape.

    \b
    calltape diff runs/exported.tape runs/today.tape
    calltape diff runs/monday.tape runs/tuesday.tape runs/today.tape --json
    """
    from calltape_analyzer.differences.difference import diff as compare

    part = Part(target=target)
    with opened(before, part, scan=scan) as a, opened([now], part, scan=scan) as b:
        found = compare(a, b)
        if json:
            print_model(found)
        else:
            lines(str(found))
        if not found.same:
            raise typer.Exit(DIFFERS)
