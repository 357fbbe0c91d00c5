"""How lines and tables are printed: a terminal has a width, and a pipe gets everything.

In come texts, which may hold anything that is on a tape. Out go lines that are safe to show, as
:mod:`calltape_analyzer.fitting` makes them fit. Elsewhere than on a terminal, nothing has a colour
or a frame.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TextIO

from calltape_analyzer.fitting import fitted, table_lines, terminal_width

__all__ = ["line", "lines", "table"]


def line(*parts: str, indent: int = 2, stream: TextIO | None = None) -> None:
    """Prints parts on one line, made printable: what a tape says is not for terminals to obey.

    Args:
        parts: with a space between them.
        indent: of the further lines, beyond that of the first, if a terminal is not wide enough.
        stream: where to; stdout by default.
    """
    for one in fitted(" ".join(parts), terminal_width(stream), indent):
        print(one, file=stream)


def lines(text: str) -> None:
    """Prints a text of several lines, each as :func:`line` does."""
    for one in text.splitlines():
        line(one)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns side by side: fitted to a terminal, in full if the output goes elsewhere."""
    width = terminal_width()
    above, below = table_lines(head, rows, width)
    if above:
        (print if width is None else _print_bold)("\n".join(above))
    if below:
        print(*below, sep="\n")


def _print_bold(text: str) -> None:
    from rich.console import Console
    from rich.text import Text

    # https://no-color.org speaks of colour; a bold head is an escape all the same.
    style = "" if os.environ.get("NO_COLOR") else "bold"
    Console(highlight=False, soft_wrap=True).print(Text(text, style))
