"""The site asks no other server: what a page loads by itself lies beside it, or the build fails."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import SphinxError

__all__ = ["loaded_from_elsewhere"]

# What a browser fetches when a page opens. A link (<a>) is fetched when somebody follows it.
_FETCHED = {"src", "srcset", "poster", "data", "action", "formaction", "background"}
_LINKS_THAT_ARE_FETCHED = {"link", "image", "use"}
_ELSEWHERE = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_IN_STYLE = re.compile(r"(?:@import\s+|url\()\s*['\"]?((?:https?:)?//[^'\")\s]+)", re.IGNORECASE)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True}


def _check(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html" and (found := site_asks(Path(app.outdir))):
        raise SphinxError("the site loads from other servers:\n" + "\n".join(found))


def site_asks(folder: Path) -> list[str]:
    """What the pages and styles of a built site load from other servers."""
    found = []
    for file in sorted(folder.rglob("*.html")):
        text = file.read_text(encoding="utf-8")
        found += [f"{file.relative_to(folder)}: {url}" for url in loaded_from_elsewhere(text)]
    for file in sorted(folder.rglob("*.css")):
        urls = _IN_STYLE.findall(file.read_text(encoding="utf-8"))
        found += [f"{file.relative_to(folder)}: {url}" for url in urls]
    return found


def loaded_from_elsewhere(page: str) -> list[str]:
    """The URLs of other servers that a browser loads with this page of HTML."""
    reader = _Reader()
    reader.feed(page)
    return reader.found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        fetched = [value for name, value in attrs if name in _FETCHED]
        if tag in _LINKS_THAT_ARE_FETCHED and named.get("rel") != "canonical":
            fetched += [named.get("href"), named.get("xlink:href")]
        if style := named.get("style"):
            self.found += _IN_STYLE.findall(style)
        self.found += [value for value in fetched if value and _ELSEWHERE.match(value)]
        if tag == "meta" and _ELSEWHERE.match((named.get("content") or "").partition("url=")[2]):
            self.found.append(str(named["content"]))
