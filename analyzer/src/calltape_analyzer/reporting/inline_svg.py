"""A figure as an SVG element for the middle of a page with a strict policy.

matplotlib writes styles into attributes, which a Content-Security-Policy refuses, and fixed
colours, which are unreadable in the dark. Out goes the same picture with nothing but shapes, text
and the classes of the page's style sheet.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from calltape_analyzer.reporting.charts import FIRST, INK, QUIET, SECOND, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["inline_svg"]

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_COLORS = {FIRST: "first", SECOND: "second", INK: "ink", QUIET: "quiet"}
_SHAPES = {"g", "path", "use", "defs", "clipPath", "rect", "text"}
_KEPT = {"d", "x", "y", "width", "height", "transform", "clip-path", "id"}
_STYLES = {"stroke-width", "stroke-dasharray", "opacity", "fill-opacity", "text-anchor"}
_REFERENCE = re.compile(r"url\(#([\w-]+)\)")


def inline_svg(figure: Figure, title: str, number: int) -> str:
    """The picture as one element.

    Args:
        figure: the picture.
        title: what it shows, for screen readers; the page has a table of it as well.
        number: another one for each picture of a page.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    file = io.BytesIO()
    with style():
        FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None})
    drawn = ElementTree.fromstring(file.getvalue())
    made = ElementTree.Element(
        "svg", {"viewBox": drawn.get("viewBox", ""), "role": "img", "aria-label": title}
    )
    for child in drawn:
        _copy(child, made, f"c{number}-")
    return ElementTree.tostring(made, encoding="unicode")


def _copy(source: ElementTree.Element, parent: ElementTree.Element, prefix: str) -> None:
    """Adds a shape with what is in it; anything that is no shape is left out."""
    name = source.tag.removeprefix(_SVG)
    if name not in _SHAPES:
        return
    style = dict(_styles(source.get("style", "")))
    if style.get("fill") == "#ffffff":  # the background is that of the page
        return
    made = ElementTree.SubElement(parent, name)
    made.text = source.text.strip() if source.text and source.text.strip() else None
    for key, value in source.attrib.items():
        if key == f"{_XLINK}href":
            made.set("href", f"#{prefix}{value.removeprefix('#')}")
        elif key == "id":
            made.set("id", f"{prefix}{value}")
        elif key in _KEPT:
            made.set(key, _short(_REFERENCE.sub(rf"url(#{prefix}\1)", value)))
    classes = [f"{kind}-{_COLORS[style[kind]]}" for kind in ("fill", "stroke")
               if style.get(kind) in _COLORS]  # fmt: skip
    if style.get("fill") == "none":
        made.set("fill", "none")
    if classes:
        made.set("class", " ".join(classes))
    for key in sorted(_STYLES & style.keys()):
        made.set(key, style[key])
    for child in source:
        _copy(child, made, prefix)


def _styles(text: str) -> list[tuple[str, str]]:
    parts = (part.partition(":") for part in text.split(";") if ":" in part)
    return [(key.strip(), value.strip()) for key, _, value in parts]


def _short(text: str) -> str:
    """Numbers with fewer digits: a page has many, and nobody sees a thousandth of a point."""
    return re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.2f}", " ".join(text.split()))
