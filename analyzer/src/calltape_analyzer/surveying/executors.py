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
