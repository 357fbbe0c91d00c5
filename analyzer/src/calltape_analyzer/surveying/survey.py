"""``survey``: many tapes, read by an executor, as one survey: in this process, in a pool of
processes, or in an executor that the caller has.

Takes paths; returns a survey, which is the same whichever executor read the files.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from calltape_analyzer.errors import UsageError
from calltape_analyzer.limits import limits, seconds_for
from calltape_analyzer.plain_data import Shown, Sketch
from calltape_analyzer.reading.files import Paths, files_of
from calltape_analyzer.reading.selection import TargetsError, chosen_target, target_name
from calltape_analyzer.reading.tape_file import holds_no_call
from calltape_analyzer.surveying.target_survey import (
    FileSurvey,
    TargetSurvey,
    read_file,
    unexpected_error,
)
from calltape_analyzer.text import counted, some_of
from calltape_analyzer.writing.output_file import write_file
from calltape_schema.errors import TapeError
from calltape_schema.remedies import Remedy

__all__ = ["Loop", "Survey", "survey"]

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""Is told how many files were read, and how many there are."""

_FEW_FILES = 16
_FEW_BYTES = 64 * 1024 * 1024


class Survey(Shown):
    """A summary of many tapes; :func:`survey` makes it.

    Args:
        is_late: whether the time for adding up is over.

    Attributes:
        targets: the survey of each target, by name.
        unreadable: the files that could not be read. They do not affect the others.
        left_out: how many files were not reached in time.
    """

    def __init__(self, is_late: Callable[[], bool] = lambda: False) -> None:
        self._is_late = is_late
        self.left_out = 0
        self.targets: dict[str, TargetSurvey] = {}
        self.unreadable: list[TapeError] = []

    def __repr__(self) -> str:
        files = sum(summary.files for summary in self.targets.values())
        return f"<Survey of {counted(files, 'file')}, {counted(len(self.targets), 'target')}>"

    def _sketch(self) -> Sketch:
        rows = [(name, s.files, s.coverage.kept) for name, s in self.targets.items()]
        rows.sort(key=lambda row: -row[2])
        note = f"{len(self.unreadable):,} files could not be read" if self.unreadable else None
        return Sketch("Survey", head=("target", "files", "calls"), rows=rows, note=note)

    def add(self, one: FileSurvey) -> None:
        """Adds a file."""
        name = target_name(one.manifest.target)
        self.targets.setdefault(name, TargetSurvey(name, self._is_late)).add(one)

    def finish(self) -> None:
        """Adds the files that had to wait until all files were there."""
        for target in self.targets.values():
            target.finish(self.unreadable.append)
            self.left_out += len(target.left_out)
        self.targets = {name: summary for name, summary in self.targets.items() if summary.files}

    def target(self, name: str | None = None) -> TargetSurvey:
        """The survey of one target.

        Args:
            name: its name, or a part of the name that no other target has; None if there is only
                one.

        Raises:
            UsageError: there is no such target.
            TapeError: ``usage``, there are several.
        """
        if not self.targets:
            raise UsageError("no tape could be read")
        if name is not None:
            return self.targets[chosen_target(self.targets, name)]
        if len(self.targets) > 1:
            raise TargetsError(
                "usage", f"the survey has several targets: {some_of(sorted(self.targets), 5)}",
                advice=Remedy("target=", "--target").after("name one of them: "),
            )  # fmt: skip
        return next(iter(self.targets.values()))

    def write(
        self, path: str | os.PathLike[str], *, target: str | None = None,
        overwrite: bool = False, inputs: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """Writes the survey of one target as a tape without calls, which ``open_tape`` can open.

        Raises:
            UsageError: as :meth:`target`; or the path is one of the inputs.
            TapeError: ``exists``, ``io``, ``limit``.
        """
        data = self.target(target).to_bytes()
        write_file(path, data, overwrite=overwrite, inputs=inputs)


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
    adding, given_limits = _AddingTime(), limits()
    surveyed = Survey(adding.is_late)
    files = sorted(files_of(paths, surveyed.unreadable.append))
    waiting, done = iter(files), 0
    running: deque[tuple[str, Future[FileSurvey | TapeError]]] = deque()
    with _executor_for(executor, processes, files) as (pool, most_waiting):
        try:
            for path in waiting:
                running.append((path, pool.submit(read_file, path, scan, given_limits)))
                if len(running) < most_waiting and done + len(running) < len(files):
                    continue
                while len(running) >= most_waiting or (
                    running and done + len(running) == len(files)
                ):
                    if adding.is_over:
                        break
                    with adding:
                        _add_result(surveyed, *running.popleft(), adding)
                    done += 1
                    if progress is not None:
                        progress(done, len(files))
                if adding.is_over:
                    break
            with adding:
                surveyed.finish()
        except BrokenExecutor as error:
            raise TapeError(
                "io", f"a process that read tapes ended: {error}",
                advice=Remedy(
                    "a script that calls survey() needs `if __name__ == '__main__':`; if there is "
                    "not enough memory, pass processes=1",
                    "if there is not enough memory, pass --jobs 1",
                ),
            ) from None  # fmt: skip
        finally:
            for _, future in running:
                future.cancel()
    surveyed.left_out += len(files) - done
    return surveyed


class _AddingTime:
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
        seconds = self._taken + time.thread_time() - self._began
        self.is_over = seconds > seconds_for(self.nbytes)
        return self.is_over


def _add_result(
    surveyed: Survey, path: str, future: Future[FileSurvey | TapeError], adding: _AddingTime
) -> None:
    try:
        result = future.result()
        if not isinstance(result, TapeError):
            adding.nbytes += result.read_bytes
            surveyed.add(result)
            return
    except BrokenExecutor:
        raise
    except TapeError as error:
        if error.kind == "usage":
            raise
        result = error
    except Exception as error:
        result = unexpected_error(path, error)
    if not holds_no_call(result.path):
        surveyed.unreadable.append(result)


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
    if not processes:
        sizes = (os.stat(path).st_size for path in files if os.path.exists(path))
        are_few = len(files) <= _FEW_FILES and sum(sizes) < _FEW_BYTES
        processes = 1 if are_few else os.cpu_count() or 1
    if processes == 1:
        yield Loop(), 1
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context(start_method())) as pool:
        yield pool, 8 * processes


def start_method() -> str:
    """How new processes begin. A fork has all modules at once, and a copy of each lock that a
    thread holds at that moment: it is for a process with one thread only, which one where torch has
    computed is not."""
    methods = multiprocessing.get_all_start_methods()
    with suppress(OSError):  # nobody knows which threads there are
        if "fork" in methods and len(os.listdir("/proc/self/task")) == 1:
            return "fork"
    return "forkserver" if "forkserver" in methods else "spawn"
