"""Ways to copy 64 MiB of tensors into memory of our own, to check them, and to write them: the
recorder's way against others (docs/decisions/recording-cost.md and
docs/decisions/processes-and-kills.md). Not on the page docs/costs.md."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import statistics
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator

import torch

from benchmarks.report import Row
from benchmarks.rounds import Samples, measure, processor_seconds
from benchmarks.throughput import longest_stall
from calltape_recorder.snapshot.buffers import Buffer, copy_all
from calltape_schema.packing import crc32

__all__ = ["rows"]

MIB = 1024 * 1024
_TENSORS = 64  # of 1 MiB
_RECORDER, _THREADS = "one operator, one thread", "one operator, all threads"
_BUFFERED, _DIRECT = "through the page cache", "O_DIRECT, from aligned memory"
_DIRECT_COPIED = "O_DIRECT, copied into aligned memory"
_LOCKED, _UNLOCKED, _CLONES = "under the lock", "a lock per tensor", "fresh clones"
_copy_unlocked = ctypes.memmove
_copy_locked = ctypes.PYFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
)(ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0)


def rows(scale: float) -> Iterator[Row]:
    """Copies (alone, beside a busy thread, and how long that one stands still), first touch of
    memory, checksums, and writes (their processor time, and how long they take)."""
    rounds = max(int(15 * scale), 3)
    yield from _copies(rounds)
    yield from _touched(rounds)
    yield from _checked(rounds)
    yield from _written(rounds)


def _copies(rounds: int) -> Iterator[Row]:
    tensors = [torch.randn(MIB // 4) for _ in range(_TENSORS)]
    sources = [(tensor.data_ptr(), MIB) for tensor in tensors]
    buffer = Buffer(_TENSORS * MIB)
    memory = torch.frombuffer(buffer.memory, dtype=torch.float32).split(MIB // 4)
    other = Buffer(_TENSORS * MIB)
    others = torch.frombuffer(other.memory, dtype=torch.float32).split(MIB // 4)
    ways: dict[str, Callable[[], object]] = {
        _RECORDER: lambda: copy_all(sources, buffer),
        _THREADS: lambda: torch._foreach_copy_(memory, tensors),
        _LOCKED: lambda: _one_by_one(_copy_locked, sources, buffer.address),
        _UNLOCKED: lambda: _one_by_one(_copy_unlocked, sources, buffer.address),
        _CLONES: lambda: [tensor.clone() for tensor in tensors],
    }
    yield from _rows_of("64 copies of 1 MiB", measure(ways, rounds), ways)
    busy: dict[str, list[float]] = {way: [] for way in ways}
    stalls: dict[str, list[float]] = {way: [] for way in ways}
    both: dict[str, list[float]] = {way: [] for way in (_RECORDER, _THREADS)}
    for _ in range(rounds):
        both[_RECORDER].append(_at_once(ways[_RECORDER], lambda: copy_all(sources, other)))
        both[_THREADS].append(
            _at_once(ways[_THREADS], lambda: torch._foreach_copy_(others, tensors))
        )
        for way, copy in ways.items():
            stall = longest_stall(lambda way=way, copy=copy: busy[way].append(_seconds(copy)))
            stalls[way].append(stall)
    yield from _rows_of("64 copies of 1 MiB, beside a busy thread", Samples(busy), ways)
    yield from _rows_of("longest stall of that thread", Samples(stalls), ways)
    yield from _rows_of("64 copies of 1 MiB, in two threads at once", Samples(both), both)


def _one_by_one(
    copy: Callable[[int, int, int], object], sources: list[tuple[int, int]], target: int
) -> None:
    for address, size in sources:
        copy(target, address, size)
        target += size


def _at_once(*works: Callable[[], object]) -> float:
    def all_of_them() -> None:
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return _seconds(all_of_them)


def _seconds(work: Callable[[], object]) -> float:
    return measure({"": work}, 1).median("")


def _touched(rounds: int) -> Iterator[Row]:
    size = _TENSORS * MIB

    def shared() -> None:
        memory = mmap.mmap(-1, size)
        export = ctypes.c_char.from_buffer(memory)
        ctypes.memset(ctypes.addressof(export), 0, size)

    ways: dict[str, Callable[[], object]] = {
        "private, huge pages": lambda: Buffer(size),
        "shared": shared,
    }
    return _rows_of("64 MiB of new memory", measure(ways, rounds), ways)


def _checked(rounds: int) -> Iterator[Row]:
    data = memoryview(torch.randn(_TENSORS * MIB // 4).numpy()).cast("B")
    ways: dict[str, Callable[[], object]] = {
        f"crc32 of {crc32.__module__}": lambda: crc32(data),
        "crc32 of the standard library": lambda: zlib.crc32(data),
        "blake2b": lambda: hashlib.blake2b(data).digest(),
        "sha256": lambda: hashlib.sha256(data).digest(),
    }
    return _rows_of("checksum of 64 MiB", measure(ways, rounds), ways)


def _written(rounds: int) -> Iterator[Row]:
    """Each way writes a new file. What the kernel does later to bring the page cache to the disk
    is in neither number."""
    if not hasattr(os, "O_DIRECT"):
        return
    size = _TENSORS * MIB
    data = memoryview(torch.randn(size // 4).numpy()).cast("B")
    aligned = mmap.mmap(-1, size)  # at a page
    aligned[:] = data
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = os.path.join(folder, "written")

        def write(flags: int, source: memoryview | mmap.mmap) -> None:
            if os.path.exists(path):
                os.unlink(path)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | flags)
            done = 0
            while done < size:
                done += os.pwrite(file, memoryview(source)[done:], done)
            os.close(file)

        def copied() -> None:
            aligned[:] = data
            write(os.O_DIRECT, aligned)

        ways: dict[str, Callable[[], object]] = {
            _BUFFERED: lambda: write(0, data),
            _DIRECT: lambda: write(os.O_DIRECT, aligned),
            _DIRECT_COPIED: copied,
        }
        processor = measure(ways, rounds, clock=processor_seconds, repeat=16)
        yield from _rows_of("processor time to write 64 MiB", processor, ways)
        yield from _rows_of("time to write 64 MiB", measure(ways, rounds), ways)


def _rows_of(what: str, samples: Samples, ways: Iterable[str]) -> Iterator[Row]:
    first, *others = ways
    ours = statistics.median(samples.seconds[first])
    for other in others:
        theirs = samples.median(other)
        yield Row(
            f"{what}: {first}", f"{ours * 1e3:.2f} ms", f"{other}: {theirs * 1e3:.2f} ms",
            f"{ours / theirs:.2f} ×",
        )  # fmt: skip
