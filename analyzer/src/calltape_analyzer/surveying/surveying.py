"""``survey``: many tapes, read by an executor, as one survey.

In come paths. Out goes a survey, which is the same whichever executor read the files.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future

from calltape_analyzer.reading.files import Paths, files_of
from calltape_analyzer.reading.tape_file import holds_no_call
from calltape_analyzer.surveying.executors import executor_for
from calltape_analyzer.surveying.file_survey import FileSurvey, Guard, failed, read_file
from calltape_analyzer.surveying.survey import Survey
from calltape_schema.errors import TapeError

__all__ = ["Progress", "survey"]

Progress = Callable[[int, int], None]
"""Is told how many files were read, and how many there are."""


def survey(
    paths: Paths,
    executor: Executor | None = None,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
    scan: bool = False,
    guard: Guard | None = None,
    may_take: Callable[[int], float] | None = None,
) -> Survey:
    """What many tapes say together, by recorded target.

    A sealed tape is read at its end; the records of another one are scanned. A file that cannot be
    read is in :attr:`Survey.unreadable`, and costs its own answer only.

    Args:
        paths: files, directories, patterns, as for :func:`open_tape`; also surveys.
        executor: any executor of :mod:`concurrent.futures` whose workers see the files by the same
            paths, such as ``distributed.Client(...).get_executor()``. By default a pool of
            processes; a script that calls this then needs ``if __name__ == "__main__":``.
        processes: how many that pool has, by default one per processor; 1 reads all files in this
            process.
        progress: is called after each file.
        scan: whether every record is read, and compared with what sealed files say at their end.
        guard: makes a block, for the paths that are read in it, which bounds what that may cost:
            a function that can be pickled.
        may_take: how many seconds of processor time the adding up of what files say may take, by
            the size of these. Files that are left are counted in :attr:`Survey.left_out`.

    Raises:
        TapeError: ``not_found`` if there is no file; ``io`` if the workers of the pool died.
        UsageError: a survey and a tape, or two surveys, have a recording in common.
    """
    adding = _Adding(may_take)
    found = Survey(adding.is_late)
    files = sorted(files_of(paths, found.unreadable.append))
    waiting, done = iter(files), 0
    running: deque[tuple[str, Future[FileSurvey | TapeError]]] = deque()
    with executor_for(executor, processes, files) as (pool, most):
        try:
            for path in waiting:
                running.append((path, pool.submit(read_file, path, scan, guard)))
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

    def __init__(self, may_take: Callable[[int], float] | None) -> None:
        self.nbytes = 0
        self.is_over = False
        self._may_take = may_take
        self._taken = self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._taken += time.thread_time() - self._began

    def is_late(self) -> bool:
        """Whether all time was taken; asked within a block."""
        taken = self._taken + time.thread_time() - self._began
        self.is_over = self._may_take is not None and taken > self._may_take(self.nbytes)
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
        advice="a script that calls survey() needs `if __name__ == '__main__':`; if there is not "
        "enough memory, pass processes=1",
    )  # fmt: skip
