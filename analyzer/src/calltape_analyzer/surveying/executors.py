"""Where the tasks of a survey run: in this process, in a pool of processes, or in an executor that
the caller has."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = ["Loop", "executor_for"]

T = TypeVar("T")

_FEW_FILES = 16
_FEW_BYTES = 64 * 1024 * 1024


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
def executor_for(
    executor: Executor | None, jobs: int | None, files: list[str]
) -> Iterator[tuple[Executor, int]]:
    """An executor, and how many tasks it is given at once.

    Args:
        executor: of the caller, who also shuts it down.
        jobs: how many processes read; by default one per processor, and none but this one for a
            few small files.
        files: what is to be read.
    """
    if executor is not None:
        yield executor, 1024
        return
    jobs = jobs or (1 if _are_few(files) else os.cpu_count() or 1)
    if jobs == 1:
        yield Loop(), 1
        return
    # Never a fork of this process: it may have torch's threads, whose locks a fork copies.
    ways = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in ways else "spawn")
    with ProcessPoolExecutor(jobs, context) as pool:
        yield pool, 8 * jobs


def _are_few(files: list[str]) -> bool:
    if len(files) > _FEW_FILES:
        return False
    sizes = (os.stat(path).st_size for path in files if os.path.exists(path))
    return sum(sizes) < _FEW_BYTES
