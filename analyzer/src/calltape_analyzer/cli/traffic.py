"""``calltape diff``: what the traffic on one tape shows that another's did not."""

from __future__ import annotations

from typing import Annotated

import typer

from calltape_analyzer.cli.output import Json, command, line, opened, print_json

__all__ = ["DIFFERS", "diff"]

DIFFERS = 4
"""The exit code of two tapes that differ; 1 would be taken for a failure."""

_Path = "A file, a directory of *.tape, or a pattern."


@command
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help=f"What was seen before. {_Path}")],
    now: Annotated[str, typer.Argument(metavar="B", help=f"What is seen now. {_Path}")],
    json: Json = False,
) -> None:
    """What the calls on tape B show that those on A do not.

    Structures, constants, dtypes, sizes outside the range seen, dimensions that were constant, and
    equalities and sums that no longer hold; then what disappeared. Ends with 0 where nothing
    differs, with 4 where something does.

    \b
    calltape diff runs/exported.tape runs/today.tape
    calltape diff runs/exported.tape runs/today.tape --json
    """
    from calltape_analyzer.difference import diff as compare

    with opened([before]) as a, opened([now]) as b:
        found = compare(a, b)
        if json:
            print_json(found.as_dict())
        else:
            for text in str(found).splitlines():
                line(text)
    if not found.same:
        raise typer.Exit(DIFFERS)
