"""How fast large calls reach the disk, and how long another Python thread waits meanwhile: both
held against one bare ``writev`` of the same bytes. And what the call itself takes: held against
clones of the same tensors."""

from __future__ import annotations

import contextlib
import ctypes
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import Question, Row
from calltape_recorder import Recorder

__all__ = ["longest_stall", "rows"]

MIB = 1024 * 1024
_CALLS = 8
_WARM_CALLS = 3 * _CALLS  # more than what is measured until the next time takes
_MOST_CORES = 4
_STALLS = 3  # in a round
_QUEUED = 2  # 64 MiB calls that wait: as many as keep the writer busy
_add_to_all: Any = torch._foreach_add_  # pyright: ignore[reportPrivateImportUsage]
CALLTAPE, BARE, CLONES = "calltape", "bare writev", "clones of the tensors"
# The allocator may give the memory of earlier clones out again. Whoever keeps them has new memory.
AGAIN = "clones in the memory of earlier ones"


class KeyValues(torch.nn.Module):
    """Takes the tensors of a KV cache; the work itself is nothing, so that recording is all."""

    def forward(self, caches: list[torch.Tensor]) -> None:
        return None


def _caches(mebibytes: int) -> list[torch.Tensor]:
    return [torch.randn(MIB // 4) for _ in range(mebibytes)]


def _warm(folder: Path, caches: list[torch.Tensor]) -> None:
    """Leaves free memory behind that was just in use, on every core: in a virtual machine a page
    that nobody touched lately costs several times what writing it does, whoever writes it."""

    def write(core: int) -> None:
        os.sched_setaffinity(0, {core})  # of this thread
        _bare_write(folder, caches, _WARM_CALLS)

    for core in sorted(os.sched_getaffinity(0))[:_MOST_CORES]:
        thread = threading.Thread(target=write, args=(core,))
        thread.start()
        thread.join()


def _view(tensor: torch.Tensor) -> memoryview:
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def _bare_write(folder: Path, caches: list[torch.Tensor], calls: int) -> None:
    path = folder / "bare"
    with path.open("wb", buffering=0) as file:
        for _ in range(calls):
            views = [_view(tensor) for tensor in caches]
            left = sum(view.nbytes for view in views)
            while left:
                # Linux writes at most 2 GiB - 4 KiB at once, and may write less.
                done = os.writev(file.fileno(), views)
                left -= done
                while views and done >= views[0].nbytes:
                    done -= views.pop(0).nbytes
                if done:
                    views[0] = views[0][done:]
    path.unlink()


class _Recorded:
    """A recorder that has run for a while: what it needs once, such as memory, it has."""

    def __init__(self, folder: Path, caches: list[torch.Tensor]) -> None:
        self._path = folder / "bench.tape"
        self._module = KeyValues()
        self._caches = caches
        self._firsts = [tensor[:1] for tensor in caches]
        self.seconds: list[float] = []
        self._recorder = Recorder(self._path, overwrite=True).attach(self._module)
        self.write(3 * _QUEUED)
        self.seconds.clear()

    def write(self, calls: int) -> None:
        """Calls as fast as the disk takes them, until all are in the file."""
        for _ in range(calls):
            while self._recorder.stats().queued > _QUEUED:
                time.sleep(0.0005)
            # Bytes that an earlier call has would be neither copied nor written.
            _add_to_all(self._firsts, 1)
            begin = time.perf_counter()
            self._module(self._caches)
            self.seconds.append(time.perf_counter() - begin)
        self._recorder.flush()

    def close(self) -> None:
        dropped = self._recorder.stats().dropped
        if dropped:
            raise RuntimeError(f"dropped {dropped}: the ratio would be of less work")
        self._recorder.close()
        self._path.unlink()


def longest_stall(work: Callable[[], None]) -> float:
    """Seconds of the longest gap that a thread, looping in Python, sees while ``work`` runs."""
    longest = 0.0
    started, begun, done = threading.Event(), threading.Event(), threading.Event()

    def loop() -> None:
        nonlocal longest
        previous = time.perf_counter()
        started.set()
        over = False
        while not over:
            counts = begun.is_set()
            over = done.is_set()  # asked first: the last gap counts as well
            now = time.perf_counter()
            if counts:
                longest = max(longest, now - previous)
            previous = now

    thread = threading.Thread(target=loop)
    thread.start()
    started.wait()
    time.sleep(0.02)  # until it has a core: a new thread begins on that of its maker
    begun.set()
    work()
    done.set()
    thread.join()
    return longest


def rows(scale: float) -> Iterator[Row]:
    """Throughput over 64 MiB calls, and the time in one of them and the longest stall during it."""
    rounds = max(int(9 * scale), 3)
    caches = _caches(64)
    with tempfile.TemporaryDirectory() as name:
        yield from _rows(Path(name), caches, rounds)


def _rows(folder: Path, caches: list[torch.Tensor], rounds: int) -> Iterator[Row]:
    times: dict[str, list[float]] = {CALLTAPE: [], BARE: [], CLONES: [], AGAIN: []}
    stalls: dict[str, list[float]] = {CALLTAPE: [], BARE: []}
    written: list[float] = []
    for _ in range(rounds):
        _warm(folder, caches)
        recorded = _Recorded(folder, caches)
        written.append(_seconds(lambda recorded=recorded: recorded.write(_CALLS)))
        times[CALLTAPE].append(_one_call(recorded))
        for _ in range(_STALLS):
            stalls[CALLTAPE].append(longest_stall(lambda recorded=recorded: recorded.write(1)))
        recorded.close()
        _warm(folder, caches)
        times[BARE].append(_seconds(lambda: _bare_write(folder, caches, _CALLS)))
        for _ in range(_STALLS):
            stalls[BARE].append(longest_stall(lambda: _in_thread(folder, caches)))
        for _ in range(3):
            _free()
            for kind in (CLONES, AGAIN):
                times[kind].append(_seconds(lambda: [tensor.clone() for tensor in caches]))
    ours, bare = (64 * _CALLS / statistics.median(taken) for taken in (written, times[BARE]))
    yield Row(
        "64 MiB calls to disk", f"{ours:.0f} MiB/s", f"{BARE}: {bare:.0f} MiB/s",
        f"{ours / bare:.2f} ×", Question.DISK,
    )  # fmt: skip
    ours, *clones = (statistics.median(times[name]) * 1e3 for name in (CALLTAPE, CLONES, AGAIN))
    for name, theirs in zip((CLONES, AGAIN), clones, strict=True):
        yield Row(
            "64 MiB call, recorded whole", f"+{ours:.1f} ms", f"{name}: +{theirs:.1f} ms",
            f"{ours / theirs:.2f} ×", Question.RECORDED if name == CLONES else None,
        )  # fmt: skip
    ours, bare = (statistics.median(stalls[name]) * 1e3 for name in (CALLTAPE, BARE))
    yield Row(
        "64 MiB call, longest stall of another thread", f"{ours:.1f} ms", f"{BARE}: {bare:.1f} ms",
        f"{ours / bare:.2f} ×", Question.RECORDED,
    )  # fmt: skip


def _free() -> None:
    """Gives back what the allocator holds: the next large tensors get new memory."""
    with contextlib.suppress(AttributeError, OSError):  # glibc's
        ctypes.CDLL(None).malloc_trim(0)


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _one_call(recorded: _Recorded) -> float:
    """Of calls one by one, each written before the next: the model's own work is nothing."""
    recorded.seconds.clear()
    for _ in range(3):
        recorded.write(1)
    return statistics.median(recorded.seconds)


def _in_thread(folder: Path, caches: list[torch.Tensor]) -> None:
    # The recorder writes from a thread of its own; so does what it is held against.
    thread = threading.Thread(target=_bare_write, args=(folder, caches, 1))
    thread.start()
    thread.join()
