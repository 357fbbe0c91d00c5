"""``survey``: many tapes, read by an executor, as one survey: in this process, in a pool of
processes, or in an executor that the caller has.

In come paths. Out goes a survey, which is the same whichever executor read the files.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from calltape_analyzer.limits import limits, seconds_for
from calltape_analyzer.reading.files import Paths, files_of
from calltape_analyzer.reading.tape_file import holds_no_call
from calltape_analyzer.surveying.file_survey import FileSurvey, failed, read_file
from calltape_analyzer.surveying.survey import Survey
from calltape_schema.errors import TapeError
from calltape_schema.remedies import Remedy

__all__ = ["Loop", "Progress", "survey"]

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""Is told how many files were read, and how many there are."""

_FEW_FILES = 16
_FEW_BYTES = 64 * 1024 * 1024


def survey(
    paths: Paths,
    executor: Executor | None = None,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
    scan: bool = False,
) -> Survey:
    """Summarizes many tapes, by recorded target.

    Of a sealed tape, only the end is read; the records of any other tape are scanned. A file that
    cannot be read is listed in :attr:`Survey.unreadable`, and does not affect the others.

    Args:
        paths: files, directories, patterns, as for :func:`open_tape`; also surveys.
        executor: any executor of :mod:`concurrent.futures` whose workers see the files at the same
            paths, such as ``distributed.Client(...).get_executor()``. By default a process pool; a
            script that calls this function then needs ``if __name__ == "__main__":``.
        processes: the size of that pool, by default one process per CPU; 1 reads all files in this
            process.
        progress: is called after each file.
        scan: whether to read every record and compare it with the end of sealed files.

    Reading each file is subject to the limits of :class:`~calltape_analyzer.Limits`, and so is
    adding up the results. Files that were not reached are counted in :attr:`Survey.left_out`.

    Raises:
        TapeError: ``not_found`` if there is no file; ``io`` if the workers of the pool died.
        UsageError: a survey and a tape, or two surveys, have a recording in common.
    """
    adding, given = _Adding(), limits()
    found = Survey(adding.is_late)
    files = sorted(files_of(paths, found.unreadable.append))
    waiting, done = iter(files), 0
    running: deque[tuple[str, Future[FileSurvey | TapeError]]] = deque()
    with _executor_for(executor, processes, files) as (pool, most):
        try:
            for path in waiting:
                running.append((path, pool.submit(read_file, path, scan, given)))
                if len(running) < most and done + len(running) < len(files):
                    continue
                while len(running) >= most or (running and done + len(running) == len(files)):
                    if adding.is_over:
                        break
                    with adding:
                        _take(found, *running.popleft(), adding)
                    done += 1
                    if progress is not None:
                        progress(done, len(files))
                if adding.is_over:
                    break
            with adding:
                found.finish()
        except BrokenExecutor as error:
            raise _broken(error) from None
        finally:
            for _, future in running:
                future.cancel()
    found.left_out += len(files) - done
    return found


class _Adding:
    """A block that adds up, and how much processor time all of them may take.

    Attributes:
        nbytes: of the files.
        is_over: whether more was taken.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self.is_over = False
        self._taken = self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._taken += time.thread_time() - self._began

    def is_late(self) -> bool:
        """Whether all time was taken; asked within a block."""
        taken = self._taken + time.thread_time() - self._began
        self.is_over = taken > seconds_for(self.nbytes)
        return self.is_over


def _take(
    found: Survey, path: str, future: Future[FileSurvey | TapeError], adding: _Adding
) -> None:
    try:
        one = future.result()
        if not isinstance(one, TapeError):
            adding.nbytes += one.read_bytes
            found.add(one)
            return
    except BrokenExecutor:
        raise
    except TapeError as error:
        if error.kind == "usage":
            raise
        one = error
    except Exception as error:
        one = failed(path, error)
    if not holds_no_call(one.path):
        found.unreadable.append(one)


def _broken(error: Exception) -> TapeError:
    return TapeError(
        "io", f"a process that read tapes ended: {error}",
        advice=Remedy(
            "a script that calls survey() needs `if __name__ == '__main__':`; if there is not "
            "enough memory, pass processes=1",
            "if there is not enough memory, pass --jobs 1",
        ),
    )  # fmt: skip


class Loop(Executor):
    """Runs each task when it is submitted, in this process."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Runs a function; its result, or what it raised, is in the future."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def _executor_for(
    executor: Executor | None, processes: int | None, files: list[str]
) -> Iterator[tuple[Executor, int]]:
    """An executor, and how many tasks it is given at once.

    Args:
        executor: of the caller, who also shuts it down.
        processes: how many read; by default one per processor, and none but this one for a
            few small files.
        files: what is to be read.
    """
    if executor is not None:
        yield executor, 1024
        return
    processes = processes or (1 if _are_few(files) else os.cpu_count() or 1)
    if processes == 1:
        yield Loop(), 1
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context(_way_to_start())) as pool:
        yield pool, 8 * processes


def _way_to_start() -> str:
    """How new processes begin. A fork has all modules at once, and a copy of each lock that a
    thread holds at that moment: it is for a process with one thread only, which one where torch has
    computed is not."""
    ways = multiprocessing.get_all_start_methods()
    if "fork" in ways and _has_one_thread():
        return "fork"
    return "forkserver" if "forkserver" in ways else "spawn"


def _has_one_thread() -> bool:
    """Whether this process has no other thread, also of a library; False if nobody knows."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def _are_few(files: list[str]) -> bool:
    if len(files) > _FEW_FILES:
        return False
    sizes = (os.stat(path).st_size for path in files if os.path.exists(path))
    return sum(sizes) < _FEW_BYTES
