"""Writes docs/reference: the commands and the public names, as Markdown.

``python -m docs.extensions.reference`` from the root of the repository writes the pages; a test
fails if they are not what it writes.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from docs.extensions.api_reference import PAGES, api_page
from docs.extensions.command_reference import command_page

__all__ = ["FOLDER", "pages"]

_WIDTH = 100
FOLDER = Path(__file__).resolve().parents[1] / "reference"
_NOTE = (
    "<!-- Written by `python -m docs.extensions.reference`. Edit the help texts and docstrings. -->"
)


def pages() -> dict[str, str]:
    """By name, the text of each page."""
    found = {"command.md": command_page()}
    found |= {page: api_page(module) for module, page in PAGES.items()}
    return {name: _noted(text) for name, text in found.items()}


def _noted(text: str) -> str:
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{_NOTE}\n{_wrapped(rest)}"


def _wrapped(text: str) -> str:
    """The text with short lines, but for tables and code. A line that goes on in the next ones is
    wrapped together with them."""
    found: list[str] = []
    is_code = False
    lines = text.split("\n")
    while lines:
        line = lines.pop(0)
        is_code ^= line.startswith("```")
        if len(line) <= _WIDTH or is_code or line.startswith("|"):
            found.append(line)
            continue
        hanging = "  " if line.startswith(("- ", "  ")) else ""
        while lines and re.match(rf"{hanging}[^\s|`#<*-]|{hanging}[`*]\w", lines[0]):
            line += f" {lines.pop(0).strip()}"
        found += textwrap.wrap(
            line, _WIDTH, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(found)


def main() -> None:
    texts = pages()
    for old in FOLDER.glob("*.md"):
        if old.name not in texts:
            old.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
