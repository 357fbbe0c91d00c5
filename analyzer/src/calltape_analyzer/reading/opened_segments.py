"""Many files opened or scanned one after the other, and remote ones several at a time.

In come paths and URLs, or segments. Out go answers in the same order: what was opened, or why it
could not be. A server takes some milliseconds for an answer, and a tape needs four of them: one by
one, thousands of tapes would take minutes in which nothing happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import islice
from typing import TypeVar

from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.file_descriptors import DescriptorError, RemoteError
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.reading.urls import is_url
from calltape_schema.errors import TapeError

__all__ = ["opened_segments", "scanned_segments"]

_AT_A_TIME = 16

T = TypeVar("T")


def opened_segments(names: Sequence[str], damage: Damage) -> Iterator[Segment | TapeError]:
    """For each name a segment that is not scanned, or the error of a file that cannot be read.

    Args:
        names: paths and URLs.
        damage: gets what is wrong with single calls.

    Raises:
        DescriptorError: the process may open no more files.
    """
    return _answers(lambda name: _opened(name, damage), names, sum(map(is_url, names)) > 1)


def scanned_segments(segments: Sequence[Segment]) -> Iterator[Segment | TapeError]:
    """Scans each segment. Out comes the segment, or the error of a file that cannot be read.

    Raises:
        DescriptorError: the process may open no more files.
    """
    remote = sum(is_url(segment.location) for segment in segments)
    return _answers(_scanned, segments, remote > 1)


def _answers(
    ask: Callable[[T], Segment | TapeError], things: Sequence[T], several: bool
) -> Iterator[Segment | TapeError]:
    """The answer for each thing, in their order; several at a time, if that is asked for."""
    if not several:
        yield from map(ask, things)
        return
    pool = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="calltape-open")
    waiting = iter(things)
    started: deque[Future[Segment | TapeError]] = deque()
    try:
        while True:
            for thing in islice(waiting, 2 * _AT_A_TIME - len(started)):
                # What was granted to this thread holds for the others too.
                started.append(pool.submit(copy_context().run, ask, thing))
            if not started:
                return
            found = started[0].result()
            started.popleft()
            yield found
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for left in started:
            left.add_done_callback(_close)


def _opened(name: str, damage: Damage) -> Segment | TapeError:
    return _tried(lambda: Segment(name, damage, scan=None))


def _scanned(segment: Segment) -> Segment | TapeError:
    def scan() -> Segment:
        segment.scan()
        return segment

    return _tried(scan)


def _tried(read: Callable[[], Segment]) -> Segment | TapeError:
    """What was read, or the error of this one file."""
    try:
        return read()
    except RemoteError as error:
        return error
    except DescriptorError:
        raise
    except TapeError as error:
        return error


def _close(left: Future[Segment | TapeError]) -> None:
    if not left.cancelled() and left.exception() is None:
        found = left.result()
        if isinstance(found, Segment):
            found.close()
