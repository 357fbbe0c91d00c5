"""Many files opened one after the other, and remote ones several at a time.

In come paths and URLs. Out go segments in the same order, or why a file could not be opened. A
server takes some milliseconds for an answer, and a tape needs four of them: one by one, thousands
of tapes would take minutes in which nothing happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import islice

from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.file_descriptors import DescriptorError, RemoteError
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.reading.urls import is_url
from calltape_schema.errors import TapeError

__all__ = ["opened_segments"]

_AT_A_TIME = 16


def opened_segments(
    names: Sequence[str], damage: Damage, *, scan: bool
) -> Iterator[Segment | TapeError]:
    """For each name a segment, or the error of a file that cannot be read.

    Args:
        names: paths and URLs.
        damage: gets what is wrong with single calls.
        scan: whether each file is scanned now.

    Raises:
        DescriptorError: the process may open no more files.
    """
    if sum(map(is_url, names)) < 2:
        yield from (_opened(name, damage, scan) for name in names)
        return
    pool = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="calltape-open")
    waiting = iter(names)
    started: deque[Future[Segment | TapeError]] = deque()
    try:
        while True:
            for name in islice(waiting, 2 * _AT_A_TIME - len(started)):
                # What was granted to this thread holds for the others too.
                started.append(pool.submit(copy_context().run, _opened, name, damage, scan))
            if not started:
                return
            found = started[0].result()
            started.popleft()
            yield found
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for left in started:
            left.add_done_callback(_close)


def _opened(name: str, damage: Damage, scan: bool) -> Segment | TapeError:
    try:
        return Segment(name, damage, scan=scan)
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
