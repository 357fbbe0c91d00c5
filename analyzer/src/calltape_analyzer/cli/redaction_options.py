"""What every command that redacts is asked: which values stay, and in which form.

In come the options of a command. Out go those of :func:`~calltape_analyzer.redact`.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

__all__ = [
    "EFFORT",
    "Hash",
    "Keep",
    "Noise",
    "Permute",
    "ShapesOnly",
    "Special",
    "redaction_choices",
]

EFFORT = 10
"""How many times as long as reading redaction may take: what the analysis says of both tapes is
compared, under several keys if it differs, and the new tape is searched for what was removed."""


def _patterns(name: str, help_text: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(name, metavar="PATH", help=help_text)
    return found


Keep = Annotated[
    list[str] | None, _patterns("--keep", "Values that stay as they are, such as 'mode'.")
]
Hash = Annotated[
    list[str] | None,
    _patterns("--hash", "Values that become others, equal ones equal ones, as texts do anyway."),
]
Permute = Annotated[
    list[str] | None,
    _patterns("--permute", "Ids that become other ids of the same range, on all of the tape."),
]
Noise = Annotated[
    list[str] | None, _patterns("--noise", "Floats that become random ones of the same range.")
]
Special = Annotated[
    bool, typer.Option("--special", help="Under --noise, NaN and infinities stay in place.")
]
ShapesOnly = Annotated[
    list[str] | None,
    _patterns("--shapes-only", "Values of which no range and no pseudonym stays either."),
]


def redaction_choices(
    keep: Keep = None,
    hash: Hash = None,
    permute: Permute = None,
    noise: Noise = None,
    special: Special = False,
    shapes_only: ShapesOnly = None,
) -> dict[str, Any]:
    """The options that were given, by their names in Python."""
    given = {
        "keep": keep, "hash": hash, "permute": permute, "noise": noise, "special": special,
        "shapes_only": shapes_only,
    }  # fmt: skip
    return {name: chosen for name, chosen in given.items() if chosen}
