"""The report page: contents to one HTML file that needs no network, and runs only its own script.

In come contents. Out goes HTML in which every text is escaped by the template engine, with a policy
that allows the style sheet and the script of this page and nothing else.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calltape_analyzer.errors import UsageError
from calltape_analyzer.notebook import Shown, Sketch
from calltape_analyzer.reporting.charts import (
    calls_chart,
    inline_svg,
    latency_chart,
    require_matplotlib,
    size_chart,
)
from calltape_analyzer.reporting.contents import (
    Cell,
    Contents,
    Histogram,
    Timeline,
)
from calltape_analyzer.writing.output_file import write_file

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup
    from matplotlib.figure import Figure

__all__ = ["ReportPage", "require_libraries"]

_MAX_CHARTS = 64
_FOLDER = "templates"


@dataclass(frozen=True)
class ReportPage(Shown):
    """What tapes say, for people.

    Attributes:
        title: what it is about.
        html: the whole page.
    """

    title: str
    html: str

    @classmethod
    def of(cls, contents: Contents) -> ReportPage:
        """The page with these contents.

        Raises:
            UsageError: jinja2 or matplotlib is not installed (the extra ``report``).
        """
        return cls(contents.title, _html(contents))

    def __repr__(self) -> str:
        return f"<ReportPage of {self.title}: {len(self.html):,} bytes>"

    def _sketch(self) -> Sketch:
        facts = [("title", self.title), ("bytes", len(self.html.encode()))]
        return Sketch("ReportPage", facts, note='write("report.html") writes it')

    def write(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Writes the page to a file.

        Args:
            path: where to; a report page is called ``.html``.
            overwrite: replaces a file that is there.

        Raises:
            TapeError: ``exists`` or ``io``.
        """
        write_file(path, self.html.encode(), overwrite=overwrite)
        return Path(path)


class _Charts:
    """Draws the charts of one page, so many and no more; each has a number."""

    def __init__(self) -> None:
        self._drawn = 0
        self.is_full = False
        self.most = _MAX_CHARTS

    def sizes(self, found: Histogram) -> str | None:
        return self._drawing(found, size_chart, found.text()) if found.is_drawn else None

    def times(self, found: Timeline) -> Iterator[tuple[str | None, str]]:
        """The pictures of a timeline, with what they show."""
        if found.is_drawn:
            what = "Calls over time"
            yield self._drawing(found, calls_chart, f"{what}. {found.said}"), what
        if found.is_drawn and found.median:
            what = "Latency over time: the median (solid) and the longest call (dashed)"
            yield self._drawing(found, latency_chart, "Median and longest latency over time"), what

    def _drawing(self, found: Any, draw: Any, title: str) -> str | None:
        from markupsafe import Markup

        if self._drawn >= _MAX_CHARTS:
            self.is_full = True
            return None
        self._drawn += 1
        figure: Figure = draw(found)
        # It is made of shapes, numbers, and texts that its maker escaped.
        return Markup(inline_svg(figure, title, self._drawn))


def require_libraries() -> None:
    """Raises UsageError if jinja2 or matplotlib is not installed (the extra ``report``)."""
    require_matplotlib()
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise UsageError(
            "a report page needs jinja2", advice="install calltape-analyzer[report]"
        ) from None


def _html(contents: Contents) -> str:
    require_libraries()
    from markupsafe import Markup

    style, script = _own("page.css"), _own("page.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    made = _template().render(
        contents=contents,
        charts=_Charts(),
        policy=policy,
        style=Markup(style),
        script=Markup(script),
    )
    # What UTF-8 has no bytes for is not printable, and was escaped; this is for names of files.
    return made.encode("utf-8", "backslashreplace").decode()


@functools.cache
def _template() -> Template:
    """Compiled once: that takes a third of the time of a small page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("calltape_analyzer.reporting", _FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = _shown
    environment.filters["breakable"] = _breakable
    return environment.get_template("page.html")


def _own(name: str) -> str:
    return (files("calltape_analyzer.reporting") / _FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _breakable(name: str) -> Markup:
    """A long name, which a line may break after a dot or a colon."""
    from markupsafe import Markup, escape

    parts = re.split(r"(?<=[.:])", name)
    return Markup("<wbr>").join(map(escape, parts))


def _shown(cell: Cell) -> str:
    """A cell as text."""
    if cell is None:
        return "–"
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:,.10g}" if isinstance(cell, float) else cell
