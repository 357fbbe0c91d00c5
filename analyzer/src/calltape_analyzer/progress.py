"""How far long work is: a bar with rate and remaining time, for somebody who looks at a terminal.

In come loops over calls, bytes or files. Out goes a bar, if :func:`shown_progress` is in effect
and the outermost loop takes more than two seconds. Otherwise a loop costs what it cost without.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

__all__ = ["later_bar", "shown_progress", "steps", "with_progress"]

T = TypeVar("T")

_AFTER_SECONDS = 2.0
_shown: _Shown | None = None


class _Shown:
    """The bar of one thread, and whether a loop has it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.thread = threading.get_ident()
        self.taken = False


@contextmanager
def shown_progress(stream: TextIO | None = None) -> Iterator[None]:
    """Shows the progress of long loops of this thread in the block, if the stream is a terminal.

    Args:
        stream: where to; by default stderr.
    """
    global _shown
    found = stream or sys.stderr
    if _shown is not None or not found.isatty():
        yield
        return
    _shown = _Shown(found)
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
    items: Iterable[T], what: str, total: int, done: Callable[[T], int] | None, shown: _Shown
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
            if bar is None and time.monotonic() - begin > _AFTER_SECONDS:
                bar = _bar_of(shown.stream)
                bar.start()
                bar.add_task(what, total=total)
            if bar is not None:
                bar.update(bar.task_ids[0], completed=count)
            yield item
    finally:
        shown.taken = False
        if bar is not None:
            bar.stop()


@contextmanager
def later_bar(stream: TextIO, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar for work that is no loop of this thread: it comes after two seconds, whether a step is
    done or not.

    Args:
        stream: a terminal.
        what, total: as for :func:`steps`.

    Yields:
        What takes how many steps are done.
    """
    bar = _bar_of(stream)
    task = bar.add_task(what, total=total)
    timer = threading.Timer(_AFTER_SECONDS, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done: bar.update(task, completed=done)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def _bar_of(stream: TextIO) -> Progress:
    """A bar that is not there yet: what is done, how fast, and how long it still takes. It leaves
    what others print alone, and goes when it is done."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TimeRemainingColumn,
    )

    columns = (
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        _rate(),
        TimeRemainingColumn(),
        "left",
    )
    return Progress(
        *columns, console=Console(file=stream), transient=True,
        redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip


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


def with_progress(items: Sequence[T], shown: bool) -> Iterator[T]:
    """Calls, or places of calls, with a bar on stderr if ``shown`` and stderr is a terminal."""
    if not shown:
        yield from items
        return
    with shown_progress():
        yield from steps(items, "calls", len(items))
