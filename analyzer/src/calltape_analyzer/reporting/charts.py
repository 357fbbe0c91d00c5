"""The pictures of a report page, as figures of matplotlib: for the page, and for notebooks.

In come histograms and timelines. Out go figures, or SVG elements for the middle of a page
with a strict policy: matplotlib writes styles into attributes, which a Content-Security-Policy
refuses, and fixed colours, which are unreadable in the dark. On the page no text of a tape is in
them.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from calltape_analyzer.errors import UsageError
from calltape_analyzer.reporting.contents import Histogram, Timeline, cut

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "calls_chart",
    "inline_svg",
    "latency_chart",
    "require_matplotlib",
    "size_chart",
]

_FIRST, _SECOND, _INK, _QUIET = "#0072b2", "#d55e00", "#1b1b1b", "#8a8a8a"
"""Blue and vermilion of Okabe and Ito ("Color Universal Design", 2008) are told apart with any
colour vision."""

_WIDTH, _HEIGHT = 5.0, 2.0  # inches
# A layout engine would find these, and take as long as all the rest.
_MARGINS = {"left": 0.13, "right": 0.98, "bottom": 0.23, "top": 0.93}
_BELOW_LEGEND = 0.84
_MAX_CHARACTERS = 50  # of numbers below an axis, with two between them
_GAP = 0.15  # of the width of a bar
_MARGIN = 0.02  # of the time that passed
_MAX_NAME = 40
_STYLE: Any = {  # the type of its keys is new in matplotlib
    "axes.edgecolor": _QUIET,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "calltape",
    "text.parse_math": False,
    "text.usetex": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
}

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_COLORS = {_FIRST: "first", _SECOND: "second", _INK: "ink", _QUIET: "quiet"}
_SHAPES = {"g", "path", "use", "defs", "clipPath", "rect", "text"}
_KEPT = {"d", "x", "y", "width", "height", "transform", "clip-path", "id"}
_STYLES = {"stroke-width", "stroke-dasharray", "opacity", "fill-opacity", "text-anchor"}
_REFERENCE = re.compile(r"url\(#([\w-]+)\)")


def require_matplotlib() -> None:
    """Raises UsageError if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError(
            "pictures need matplotlib", advice="install calltape-analyzer[report]"
        ) from None


def _style() -> AbstractContextManager[None]:
    """The style in which these pictures are drawn."""
    import matplotlib

    return matplotlib.rc_context(_STYLE)


@contextmanager
def _axes(xlabel: str, ylabel: str) -> Iterator[Axes]:
    """Axes of a new figure, in our style."""
    require_matplotlib()
    from matplotlib.figure import Figure

    with _style():
        figure = Figure(figsize=(_WIDTH, _HEIGHT))
        figure.subplots_adjust(**_MARGINS)
        axes = figure.add_subplot()
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: _short(value))
        yield axes


def _short(value: float) -> str:
    """``1,200``, ``12k``, ``1.2M``: the default of matplotlib writes an offset in a corner, which
    people miss."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * unit or (abs(value) >= unit and unit > 1e3):
            return f"{value / unit:,.4g}{name}"
    return f"{value:,.6g}"


def _figure_of(axes: Axes) -> Figure:
    from matplotlib.figure import Figure

    found = axes.figure
    assert isinstance(found, Figure)
    return found


def size_chart(found: Histogram, *, name: str = "size") -> Figure:
    """Calls per size; ``name`` is that of the symbol."""
    from matplotlib.ticker import MaxNLocator

    with _axes(cut(name, _MAX_NAME), "calls") as axes:
        bins = [(low, high) for low, high, _ in found.bins]
        if all(low == high for low, high in bins):
            labels = [_short(low) for low, _ in bins]
            step = math.ceil(len(labels) * (2 + max(map(len, labels))) / _MAX_CHARACTERS)
            axes.set_xticks(range(0, len(labels), step), labels[::step])
            bins = [(at, at) for at in range(len(bins))]
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _bars(axes, bins, [calls for *_, calls in found.bins])
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        return _figure_of(axes)


def _bars(axes: Axes, bins: Sequence[tuple[float, float]], calls: Sequence[int]) -> None:
    """A bar for each bin, and a gap after it: one outline, which is a fraction of many bars."""
    gap = _GAP * (bins[0][1] - bins[0][0] + 1)
    edges = [edge for low, high in bins for edge in (low - 0.5 + gap / 2, high + 0.5 - gap / 2)]
    heights = [height for number in calls for height in (number, 0)]
    axes.stairs(heights[:-1], edges, fill=True, color=_FIRST)


def _show_whole(axes: Axes, found: Timeline) -> None:
    """The same times along the axis of each picture: they stand one above the other."""
    margin = _MARGIN * (found.edges[-1] - found.edges[0])
    if margin:
        axes.set_xlim(found.edges[0] - margin, found.edges[-1] + margin)


def calls_chart(found: Timeline) -> Figure:
    """Calls over time."""
    with _axes("seconds after the first call", "calls per s" if found.is_rate else "calls") as axes:
        axes.stairs(found.calls, found.edges, fill=True, color=_FIRST)
        _show_whole(axes, found)
        return _figure_of(axes)


def latency_chart(found: Timeline) -> Figure:
    """The median and the longest latency over time."""
    with _axes("seconds after the first call", "ms") as axes:
        middles = [(a + b) / 2 for a, b in zip(found.edges, found.edges[1:], strict=False)]
        lines: Sequence[tuple[Sequence[float | None], str, str, str]] = (
            (found.median, _FIRST, "-", "median"),
            (found.most, _SECOND, "--", "longest"),
        )
        for values, color, style, label in lines:
            # A step without a call is a gap.
            known = [math.nan if value is None else value for value in values]
            axes.plot(middles, known, style, color=color, label=label, marker=".")
        _show_whole(axes, found)
        axes.set_ylim(bottom=0)
        # Above the axes: within them it covers what is drawn there.
        axes.legend(
            frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, labelcolor=_INK
        )
        figure = _figure_of(axes)
        figure.subplots_adjust(top=_BELOW_LEGEND)
        return figure


def inline_svg(figure: Figure, title: str, number: int) -> str:
    """The picture as one element.

    Args:
        figure: the picture.
        title: what it shows, for screen readers; the page has a table of it as well.
        number: another one for each picture of a page.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    file = io.BytesIO()
    with _style():
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
            made.set(key, _rounded(_REFERENCE.sub(rf"url(#{prefix}\1)", value)))
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


def _rounded(text: str) -> str:
    """Numbers with fewer digits: a page has many, and nobody sees a thousandth of a point."""
    return re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.2f}", " ".join(text.split()))
