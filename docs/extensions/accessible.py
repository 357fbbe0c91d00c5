"""Pages that a keyboard and a screen reader can use: the theme leaves out two attributes."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

__all__ = ["accessible"]

_REPLACED = (
    # A heading has a level. These are the titles of groups in the list of pages.
    (re.compile(r'role="heading"(?! aria-level)'), 'role="heading" aria-level="2"'),
    # What is wider than the page is scrolled, which a keyboard does to what has the focus.
    (re.compile(r"<pre>"), '<pre tabindex="0">'),
    (re.compile(r'<div class="(table-wrapper[^"]*)">'), r'<div class="\1" tabindex="0">'),
)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", _rewrite)
    return {"parallel_read_safe": True}


def _rewrite(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        for file in sorted(Path(app.outdir).rglob("*.html")):
            text = file.read_text(encoding="utf-8")
            file.write_text(accessible(text), encoding="utf-8")


def accessible(page: str) -> str:
    """A page of HTML with the attributes. One that has them stays as it is."""
    for pattern, replacement in _REPLACED:
        page = pattern.sub(replacement, page)
    return page
