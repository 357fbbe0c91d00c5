"""Text of a tape as a terminal may have it."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["printable", "printable_lines", "some_of"]


def printable(text: str) -> str:
    """The text with everything that is not plainly visible (control and format characters, lone
    surrogates) as escapes, so that it cannot move a terminal's cursor or turn text around."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def printable_lines(text: str) -> str:
    """The same for text of several lines, which stay lines."""
    if text.isprintable():  # it may be long
        return text
    return "\n".join(map(printable, text.split("\n")))


def some_of(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more
