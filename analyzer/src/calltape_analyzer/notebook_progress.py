"""Progress for somebody who looks: a bar on stderr, in a notebook a line below the cell.

In comes what is done now. Out goes the line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import Any, TypeVar

from calltape_analyzer.progress import with_progress
from calltape_analyzer.text import printable

__all__ = ["NotebookLine", "in_notebook", "told_by", "watched"]

T = TypeVar("T")

_EVERY_SECONDS = 0.2
_MAX_TEXT = 200


def in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookLine:
    """A line of text, with a bar if it is known how much there is to do.

    Call it with a text: ``export(tape, model, progress=NotebookLine())``. Nothing that goes wrong
    with the display is raised.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._told = float("-inf")

    def __call__(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Shows a text, at most five times a second; the last of a count is always shown."""
        now = time.monotonic()
        if now - self._told < _EVERY_SECONDS and (done is None or done != total):
            return
        self._told = now
        bar = "" if not total else f'<progress value="{done}" max="{total}"></progress> '
        self._show(f"{bar}<code>{escape(printable(text)[:_MAX_TEXT])}</code>")

    def _show(self, html: str) -> None:
        try:
            from IPython.display import HTML, display

            if self._handle is None:
                self._handle = display(HTML(html), display_id=True)
            else:
                self._handle.update(HTML(html))
        except Exception:
            return  # a front end that is gone is no reason to stop


def watched(items: Sequence[T], shown: bool) -> Iterable[T]:
    """The items, with a progress bar if ``shown``: in a notebook below the cell, else on stderr."""
    if shown and in_notebook():
        return _in_notebook(items, "calls")
    return with_progress(items, shown)


def _in_notebook(items: Sequence[T], what: str) -> Iterator[T]:
    """The items, with a line that says how many are done, and how long the rest may take."""
    line, begin, total = NotebookLine(), time.monotonic(), len(items)
    for done, item in enumerate(items):
        line(f"{what}: {done:,} of {total:,}{_rest(done, total, begin)}", done, total)
        yield item
    line(f"{what}: {total:,} of {total:,} in {time.monotonic() - begin:.1f} s", total, total)


def _rest(done: int, total: int, begin: float) -> str:
    spent = time.monotonic() - begin
    if not done or spent < 1:
        return ""
    return f", {done / spent:.1f} per s, about {spent / done * (total - done):.0f} s left"


def told_by(progress: Callable[[str], None] | bool | None) -> Callable[[str], None] | None:
    """Who is told what is done now: a function that was given; for True the line of a notebook, or
    stderr; None for nobody."""
    if progress is True:
        return NotebookLine() if in_notebook() else _tell
    return progress or None


def _tell(text: str) -> None:
    print(printable(text)[:_MAX_TEXT], file=sys.stderr, flush=True)  # noqa: T201 - it was asked for
