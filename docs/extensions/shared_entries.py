"""Documentation that gives two names one text, as ``first, last: of these calls``.

Sphinx takes the first name for a type. So each name gets the text, before Sphinx reads it.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

__all__ = ["with_entries_of_their_own"]

_SECTION = re.compile(r"^(Args|Attributes):$")
_SHARED = re.compile(r"^    (\w+(?:, \w+)+): (.*)$")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process, priority=1)  # napoleon comes after it
    return {"parallel_read_safe": True}


def _process(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    lines[:] = with_entries_of_their_own(lines)


def with_entries_of_their_own(lines: list[str]) -> list[str]:
    """The lines of a docstring; in its lists each name has a text of its own."""
    found: list[str] = []
    waiting: list[tuple[str, list[str]]] = []  # names that get the text that is being read
    in_section = False
    for line in [*lines, ""]:
        if waiting and not line.startswith("     "):
            found += [
                text for name, rest in waiting for text in (f"    {name}: {rest[0]}", *rest[1:])
            ]
            waiting = []
        if line and not line.startswith(" "):
            in_section = bool(_SECTION.match(line))
        if in_section and (shared := _SHARED.match(line)):
            waiting = [(name, [shared[2]]) for name in shared[1].split(", ")]
        elif waiting:
            for _, rest in waiting:
                rest.append(line)
        else:
            found.append(line)
    return found[:-1]
