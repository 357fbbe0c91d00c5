"""How fast calls reach the disk, and how long another Python thread waits meanwhile: both held
against one bare ``writev`` of the same bytes."""

from __future__ import annotations

import ctypes
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.report import Row
from benchmarks.rounds import measure
from calltape_recorder import Recorder

__all__ = ["rows"]

MIB = 1024 * 1024
CALLTAPE, BARE = "calltape", "bare writev"


class KeyValues(torch.nn.Module):
    """Takes the tensors of a KV cache; the work itself is nothing, so that recording is all."""

    def forward(self, caches: list[torch.Tensor]) -> None:
        return None


def _caches(mebibytes: int) -> list[torch.Tensor]:
    return [torch.randn(MIB // 4) for _ in range(mebibytes)]


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


def _recorded_write(folder: Path, caches: list[torch.Tensor], calls: int) -> None:
    path = folder / "bench.tape"
    module = KeyValues()
    recorder = Recorder(path, max_queue_bytes=1024 * MIB).attach(module)
    for _ in range(calls):
        module(caches)
    recorder.flush()
    stats = recorder.stats()
    if stats.kept != calls:
        raise RuntimeError(f"kept {stats.kept} of {calls} calls: the ratio would be of less work")
    recorder.close()
    path.unlink()


def _longest_stall(work: Callable[[], None]) -> float:
    """Seconds of the longest gap that a thread, looping in Python, sees while ``work`` runs."""
    longest, done = 0.0, threading.Event()
    started = threading.Event()

    def loop() -> None:
        nonlocal longest
        previous = time.perf_counter()
        started.set()
        while not done.is_set():
            now = time.perf_counter()
            longest = max(longest, now - previous)
            previous = now

    thread = threading.Thread(target=loop)
    thread.start()
    started.wait()
    work()
    done.set()
    thread.join()
    return longest


def rows(scale: float) -> Iterator[Row]:
    """Throughput over 64 MiB calls and the longest stall during one of them."""
    rounds = max(int(9 * scale), 3)
    caches = _caches(64)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calls = 8
        writes: dict[str, Callable[[], object]] = {
            CALLTAPE: lambda: _recorded_write(folder, caches, calls),
            BARE: lambda: _bare_write(folder, caches, calls),
        }
        measure(writes, 2)  # the first pages of a file's cache are the machine's cost, not ours
        samples = measure(writes, rounds)
        speed = {name: 64 * calls / samples.median(name) for name in (CALLTAPE, BARE)}
        yield Row(
            "64 MiB calls to disk",
            f"{speed[CALLTAPE]:.0f} MiB/s",
            (f"{speed[CALLTAPE] / speed[BARE]:.2f} × {BARE} ({speed[BARE]:.0f} MiB/s)",),
        )
        stalls: dict[str, list[float]] = {CALLTAPE: [], BARE: []}
        for _ in range(rounds):
            stalls[CALLTAPE].append(_longest_stall(lambda: _recorded_write(folder, caches, 1)))
            stalls[BARE].append(_longest_stall(lambda: _in_thread(folder, caches)))
        ours, bare = (statistics.median(stalls[name]) * 1e3 for name in (CALLTAPE, BARE))
        yield Row(
            "longest stall of another thread, 64 MiB call",
            f"{ours:.1f} ms",
            (f"{ours / bare:.2f} × {BARE} ({bare:.1f} ms)",),
        )


def _in_thread(folder: Path, caches: list[torch.Tensor]) -> None:
    # The recorder writes from a thread of its own; so does what it is held against.
    thread = threading.Thread(target=_bare_write, args=(folder, caches, 1))
    thread.start()
    thread.join()
