"""The parts of pages that are made from the code, and the navigation.

A page stays plain Markdown for those who read it in the repository. Where a part is generated, it
has a comment of HTML, which is replaced when the site is built:

- ``<!-- generated: navigation of this folder -->``: its pages as a part of the navigation;
- ``<!-- generated: rows of FILE -->``: a file of CSV, with a heading for each value of its first
  column;
- ``<!-- the other pages -->`` on docs/index.md: the pages in docs/ that it does not name.

The navigation is the list of links on docs/index.md: a section there is a section of it.
"""

from __future__ import annotations

import csv
import re
from itertools import groupby
from pathlib import Path

from sphinx.application import Sphinx

_MARK = re.compile(r"^<!-- generated: (.+?) -->$", re.MULTILINE)
_OTHERS = "<!-- the other pages -->"
_SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([\w./-]+\.md)\)")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _complete)
    return {"parallel_read_safe": True}


def _complete(app: Sphinx, page: str, source: list[str]) -> None:
    folder = (Path(app.srcdir) / page).parent
    source[0] = _MARK.sub(lambda mark: _part(mark[1], folder), source[0])
    if page == app.config.root_doc:
        named = set(_LINK.findall(source[0]))
        others = [file for file in _pages(folder) if file.name not in named | {"index.md"}]
        source[0] = source[0].replace(_OTHERS, _links(others))
        source[0] = _SECTION.sub(_with_navigation, source[0])


def _part(name: str, folder: Path) -> str:
    if name == "navigation of this folder":
        return _toctree([file.name for file in _pages(folder) if file.name != "README.md"])
    if name.startswith("rows of "):
        return rows_as_markdown(folder / name.removeprefix("rows of "))
    raise ValueError(f"no part of a page is called {name!r}")


# --- navigation ---------------------------------------------------------------------------------


def _with_navigation(section: re.Match[str]) -> str:
    pages = dict.fromkeys(_LINK.findall(section[2]))
    return section[0] + _toctree(list(pages), f":caption: {section[1]}") if pages else section[0]


def _pages(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.md"))


def _links(pages: list[Path]) -> str:
    return "\n".join(f"- [{_title(page)}]({page.name})" for page in pages)


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _toctree(pages: list[str], *options: str) -> str:
    return "\n\n" + "\n".join(["```{toctree}", ":hidden:", *options, "", *pages, "```"]) + "\n\n"


# --- rows ---------------------------------------------------------------------------------------


def rows_as_markdown(path: Path) -> str:
    """A table for each value of the first column, without the columns that are empty there."""
    with path.open(newline="", encoding="utf-8") as file:
        columns, *rows = csv.reader(file)
    parts = []
    for value, found in groupby(rows, key=lambda row: row[0]):
        of_group = list(found)
        shown = [at for at in range(1, len(columns)) if any(row[at] for row in of_group)]
        lines = [[columns[at] for at in shown], ["---"] * len(shown)]
        lines += [[_cell(row[at], is_name=at == 1) for at in shown] for row in of_group]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        parts.append(f"### {value}\n\n{table}")
    return "\n\n".join(parts)


def _cell(text: str, *, is_name: bool) -> str:
    return f"`{text}`" if is_name else re.sub(r"([|<*])", r"\\\1", text)
