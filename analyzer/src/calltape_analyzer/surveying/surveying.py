"""``survey``: many tapes, read by an executor, as one survey.

In come paths. Out goes a survey, which is the same whichever executor read the files, and in
whatever order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from functools import partial
from typing import Any

from calltape_analyzer.reading.files import Paths, files_of
from calltape_analyzer.surveying.executors import executor_for
from calltape_analyzer.surveying.file_survey import FileSurvey, listed
from calltape_analyzer.surveying.inputs_table import InputsTable
from calltape_analyzer.surveying.piecewise import PieceSurvey, united
from calltape_analyzer.surveying.survey import Survey
from calltape_analyzer.surveying.tasks import (
    PIECE_BYTES,
    Failed,
    Guard,
    NoCall,
    Read,
    Reading,
    ToScan,
    read_file,
    read_files,
    read_piece,
)
from calltape_schema.errors import TapeError

__all__ = ["Progress", "survey"]

Progress = Callable[[int, int], None]
"""Is told how many files were read, and how many there are."""

_Taker = Callable[[Any], None]

_MOST_TASKS = 4096
"""Beyond so many files, a task reads several."""


def survey(
    paths: Paths,
    executor: Executor | None = None,
    *,
    jobs: int | None = None,
    onto: Survey | None = None,
    progress: Progress | None = None,
    scan: bool = False,
    piece_bytes: int = PIECE_BYTES,
    guard: Guard | None = None,
) -> Survey:
    """What many tapes say together, by recorded target.

    A sealed tape is read at its end; the records of another one are scanned, those of a large one
    by several tasks. A file that cannot be read is in :attr:`Survey.unreadable`, and costs its own
    answer only. The result does not depend on the executor.

    Args:
        paths: files, directories, patterns, as for :func:`open_tape`.
        executor: any executor of :mod:`concurrent.futures` whose workers see the files by the same
            paths, such as ``distributed.Client(...).get_executor()``. By default a pool of
            processes; a script that calls this then needs ``if __name__ == "__main__":``.
        jobs: how many processes that pool has, by default one per processor; 1 reads all files in
            this process.
        onto: a survey that the files are added to, and that is returned: a copy would cost what all
            its files cost. Those that it has count once.
        progress: is called after each file.
        scan: whether every record is read, and compared with what sealed files say at their end.
        piece_bytes: a file of more bytes that has to be scanned is scanned in pieces of so many.
        guard: makes a block, for the paths that are read in it, which bounds what that may cost:
            a function that can be pickled.

    Raises:
        TapeError: ``not_found`` if there is no file; ``io`` if the workers of the pool died.
    """
    found = Survey() if onto is None else onto
    files = files_of(paths, lambda error: found.add_unreadable(listed(error, "")))
    with executor_for(executor, jobs, files) as (pool, most):
        how = Reading(scan, piece_bytes, guard)
        run = _Run(found, pool, how, progress, len(files))
        run.read(files, most)
    return found


class _Run:
    """One run over files: submits tasks, and adds what they find."""

    def __init__(
        self, found: Survey, pool: Executor, how: Reading, progress: Progress | None, total: int
    ) -> None:
        self._found = found
        self._pool = pool
        self._how = how
        self._progress = progress
        self._total = total
        self._done = 0
        self._pieces: dict[str, list[PieceSurvey | Failed | Exception | None]] = {}
        self._tables: dict[str, InputsTable] = {}
        # Per task what takes its result, and what takes the exception that its worker raised.
        self._running: dict[Future[Any], tuple[_Taker, _Taker]] = {}

    def read(self, files: list[str], most: int) -> None:
        """Reads all files, with at most so many tasks at once."""
        try:
            for batch in _batches(files):
                lost = partial(self._add_lost, batch)
                self._submit(self._add_all, lost, read_files, batch, self._how)
                while len(self._running) >= most:
                    self._take()
            while self._running:
                self._take()
        except BrokenExecutor as error:
            raise _broken(error) from None
        finally:
            for future in self._running:
                future.cancel()

    def _submit(self, take: _Taker, lose: _Taker, task: Callable[..., Any], *args: Any) -> None:
        self._running[self._pool.submit(task, *args)] = take, lose

    def _take(self) -> None:
        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
        for future in done:
            take, lose = self._running.pop(future)
            try:
                result = future.result()
            except BrokenExecutor:
                raise
            except Exception as error:  # the worker died of it, again and again
                lose(error)
            else:
                take(result)

    def _add_all(self, results: list[Read]) -> None:
        for result in results:
            self._add(result)

    def _add_lost(self, files: list[str], error: Exception) -> None:
        for path in files:
            self._add(Failed(listed(_lost(error, path), path)))

    def _add(self, result: Read) -> None:
        if isinstance(result, ToScan):
            self._scan(result)
            return
        if isinstance(result, Failed):
            self._found.add_unreadable(result.error)
        elif not isinstance(result, NoCall):
            self._found.add(result)
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _scan(self, plan: ToScan) -> None:
        self._pieces[plan.path] = [None] * len(plan.pieces)
        self._tables[plan.path] = InputsTable()
        for number, piece in enumerate(plan.pieces):
            take = partial(self._take_piece, plan.path, number)
            self._submit(take, take, read_piece, plan.path, piece, self._how)

    def _take_piece(self, path: str, number: int, result: PieceSurvey | Failed | Exception) -> None:
        if isinstance(result, PieceSurvey):  # its inputs are added while others are scanned
            self._tables[path].add_rows(result.rows, result.limit)
            result = result._replace(rows=())
        self._pieces[path][number] = result
        if None not in self._pieces[path]:
            self._unite(path, self._pieces.pop(path))

    def _unite(self, path: str, pieces: Sequence[object]) -> None:
        whole = [one for one in pieces if isinstance(one, PieceSurvey)]
        table = self._tables.pop(path)
        made: FileSurvey | None = united(whole, table) if len(whole) == len(pieces) else None
        if made is not None:
            self._add(made)
            return
        how = self._how._replace(piece_bytes=None)
        self._submit(self._add, partial(self._add_lost, [path]), read_file, path, how)


def _batches(files: list[str]) -> Iterator[list[str]]:
    size = -(-len(files) // _MOST_TASKS)
    for start in range(0, len(files), size):
        yield files[start : start + size]


def _lost(error: Exception, path: str) -> TapeError:
    reason = f"the worker that read it failed: {type(error).__name__}: {error}"
    return TapeError("io", reason, path=path, advice="read it by itself, with calltape info")


def _broken(error: Exception) -> TapeError:
    return TapeError(
        "io", f"a process that read tapes ended: {error}",
        advice="a script that calls survey() needs `if __name__ == '__main__':`; if there is not "
        "enough memory, pass jobs=1",
    )  # fmt: skip
