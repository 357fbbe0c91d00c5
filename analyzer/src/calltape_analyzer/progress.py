"""How far long work is, for somebody who looks: a bar with rate and remaining time on a terminal,
in a notebook a line below the cell.

It counts loops over calls, bytes or files, or shows words for what is being done. A bar appears if
:func:`shown_progress` is in effect and the outermost loop takes more than two seconds. Otherwise a
loop costs what it cost without.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from calltape_analyzer.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

__all__ = ["NotebookLine", "later_bar", "reporter_of", "shown_progress", "steps", "watched"]

T = TypeVar("T")

AFTER_SECONDS = 2.0
EVERY_SECONDS = 0.2
_MAX_TEXT = 200
_shown: _StepDisplay | None = None


class _StepDisplay:
    """The bar of one thread, and whether a loop has it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.thread = threading.get_ident()
        self.taken = False


@contextmanager
def shown_progress() -> Iterator[None]:
    """Shows the progress of long loops of this thread in the block, if stderr is a terminal."""
    global _shown
    if _shown is not None or not sys.stderr.isatty():
        yield
        return
    _shown = _StepDisplay(sys.stderr)
    try:
        yield
    finally:
        _shown = None


def steps(
    items: Iterable[T], what: str, total: int, done: Callable[[T], int] | None = None
) -> Iterable[T]:
    """The items, counted while somebody takes them. Within another such loop they are not counted.

    Args:
        items: what a loop goes over.
        what: in the plural (``calls``, ``bytes``).
        total: how many there are.
        done: how many were done when an item comes; by default, items are counted.
    """
    shown = _shown
    if shown is None or shown.taken or shown.thread != threading.get_ident():
        return items
    return _counted(items, what, total, done, shown)


def _counted(
    items: Iterable[T], what: str, total: int, done: Callable[[T], int] | None, shown: _StepDisplay
) -> Iterator[T]:
    if shown.taken:  # another loop began between
        yield from items
        return
    shown.taken = True
    bar: Progress | None = None
    begin, count = time.monotonic(), 0
    try:
        for item in items:
            count = count + 1 if done is None else done(item)
            if bar is None and time.monotonic() - begin > AFTER_SECONDS:
                bar = _bar_of(shown.stream, what, total)
                bar.start()
            if bar is not None:
                bar.update(bar.task_ids[0], completed=count)
            yield item
    finally:
        shown.taken = False
        if bar is not None:
            bar.stop()


@contextmanager
def later_bar(what: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr for work that is no loop of this thread: it comes after two seconds, whether
    a step is done or not.

    Args:
        what: as for :func:`steps`.
        total: as for :func:`steps`.

    Yields:
        What takes how many steps are done, and of how many.
    """
    bar = _bar_of(sys.stderr, what, total)
    timer = threading.Timer(AFTER_SECONDS, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done, total: bar.update(bar.task_ids[0], completed=done, total=total)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def _bar_of(stream: TextIO, what: str, total: int) -> Progress:
    """A bar that is not there yet: what is done, how fast, and how long it still takes. It leaves
    what others print alone, and goes when it is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    bar = Progress(
        "{task.description}", BarColumn(), MofNCompleteColumn(), _rate(), TimeRemainingColumn(),
        "left", console=Console(file=stream), transient=True, redirect_stdout=False,
        redirect_stderr=False,
    )  # fmt: skip
    bar.add_task(what, total=total)
    return bar


def _rate() -> ProgressColumn:
    """A column with the steps per second of the last seconds."""
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            if speed is None:
                return Text("")
            return Text(f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.1f}/s")

    return Rate()


class NotebookLine:
    """A line of text, with a bar if it is known how much there is to do.

    Call it with a text: ``export(tape, model, progress=NotebookLine())``. Nothing that goes wrong
    with the display is raised.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._last_shown = float("-inf")

    def __call__(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Shows a text, at most five times a second; the last of a count is always shown."""
        now = time.monotonic()
        if now - self._last_shown < EVERY_SECONDS and (done is None or done != total):
            return
        self._last_shown = now
        bar = "" if not total else f'<progress value="{done}" max="{total}"></progress> '
        html = f"{bar}<code>{escape(printable(text)[:_MAX_TEXT])}</code>"
        try:
            from IPython.display import HTML, display

            if self._handle is None:
                self._handle = display(HTML(html), display_id=True)
            else:
                self._handle.update(HTML(html))
        except Exception:
            return  # a front end that is gone is no reason to stop


def watched(items: Sequence[T], shown: bool) -> Iterator[T]:
    """Calls, or places of calls, with progress if ``shown``: in a notebook a line below the cell,
    else a bar, if stderr is a terminal."""
    if not shown:
        yield from items
    elif not _in_notebook():
        with shown_progress():
            yield from steps(items, "calls", len(items))
    else:
        line, begin, total = NotebookLine(), time.monotonic(), len(items)
        for done, item in enumerate(items):
            line(f"calls: {done:,} of {total:,}{_time_left(done, total, begin)}", done, total)
            yield item
        line(f"calls: {total:,} of {total:,} in {time.monotonic() - begin:.1f} s", total, total)


def _in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def _time_left(done: int, total: int, begin: float) -> str:
    spent = time.monotonic() - begin
    if not done or spent < 1:
        return ""
    return f", {done / spent:.1f} per s, about {spent / done * (total - done):.0f} s left"


def reporter_of(progress: Callable[[str], None] | bool | None) -> Callable[[str], None] | None:
    """Who is told what is done now: a function that was given; for True the line of a notebook, or
    what stderr is now; None for nobody."""
    if progress is True:
        return NotebookLine() if _in_notebook() else partial(_print_line, sys.stderr)
    return progress or None


def _print_line(stream: TextIO, text: str) -> None:
    print(printable(text)[:_MAX_TEXT], file=stream, flush=True)
