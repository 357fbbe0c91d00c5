"""``survey``: many tapes, read by an executor, as one survey.

In come paths. Out goes a survey, which is the same whichever executor read the files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future

from calltape_analyzer.reading.files import Paths, files_of
from calltape_analyzer.reading.tape_file import holds_no_call
from calltape_analyzer.surveying.executors import executor_for
from calltape_analyzer.surveying.file_survey import FileSurvey, Guard, read_file
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

    Raises:
        TapeError: ``not_found`` if there is no file; ``io`` if the workers of the pool died.
        UsageError: a survey and a tape, or two surveys, have a recording in common.
    """
    found = Survey()
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
                    _take(found, *running.popleft())
                    done += 1
                    if progress is not None:
                        progress(done, len(files))
            found.finish()
        except BrokenExecutor as error:
            raise _broken(error) from None
        finally:
            for _, future in running:
                future.cancel()
    return found


def _take(found: Survey, path: str, future: Future[FileSurvey | TapeError]) -> None:
    try:
        one = future.result()
        if not isinstance(one, TapeError):
            found.add(one)
            return
    except BrokenExecutor:
        raise
    except TapeError as error:
        if error.kind == "usage":
            raise
        one = error
    except Exception as error:  # the worker died of it, again and again
        reason = f"the worker that read it failed: {type(error).__name__}: {error}"
        one = TapeError("io", reason, path=path, advice="read it by itself, with calltape info")
    if not holds_no_call(one.path):
        found.unreadable.append(one)


def _broken(error: Exception) -> TapeError:
    return TapeError(
        "io", f"a process that read tapes ended: {error}",
        advice="a script that calls survey() needs `if __name__ == '__main__':`; if there is not "
        "enough memory, pass processes=1",
    )  # fmt: skip
