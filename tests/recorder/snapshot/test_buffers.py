"""The pool of buffers: its bound, and what becomes of the memory that it gave out."""

from __future__ import annotations

from typing import Any

import pytest

from calltape_recorder.snapshot import buffers
from calltape_recorder.snapshot.buffers import Buffers

MIB = 1 << 20


def test_memory_that_is_not_to_be_had_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Buffers(2**24)

    def no_memory(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(buffers.mmap, "mmap", no_memory)
        for _ in range(10):
            with pytest.raises(OSError, match="Cannot"):
                pool.acquire(2**20)
    kept = pool.acquire(2**20)
    assert pool._bytes == kept.size
    del kept  # nobody gave it back
    pool.give_back(pool.acquire(2**20))
    assert pool._bytes == 2**20


def test_the_pool_is_used_up_to_its_bound() -> None:
    buffers = Buffers(4 * MIB)
    used = [buffers.acquire(MIB) for _ in range(4)]
    for buffer in used:
        buffers.give_back(buffer)
    again = [buffers.acquire(MIB) for _ in range(4)]
    assert {id(buffer) for buffer in again} == {id(buffer) for buffer in used}
    for buffer in again:
        buffers.give_back(buffer)
    other = buffers.acquire(2 * MIB)  # idle ones of another size make room
    assert buffers._bytes <= 4 * MIB
    buffers.give_back(other)
    buffers.clear()
    assert buffers._bytes == 0


def test_memory_beyond_the_bound_is_let_go_when_it_comes_back() -> None:
    buffers = Buffers(MIB)
    used = [buffers.acquire(MIB) for _ in range(3)]
    for buffer in used:
        buffers.give_back(buffer)
    assert buffers._bytes <= MIB


def test_a_buffer_that_comes_back_while_one_is_taken() -> None:
    """A signal handler of the host's calls the model in the middle of take()."""
    buffers = Buffers(64 * MIB)
    first, second = buffers.acquire(MIB), buffers.acquire(MIB)
    buffers.give_back(first)
    idle = buffers._idle[MIB]
    buffers.give_back(second)
    assert buffers._idle[MIB] is idle


def test_the_pool_reuses_and_stays_within_its_bound() -> None:
    pool = Buffers(1 << 20)
    first = pool.acquire(200_000)
    assert first.size >= 200_000
    pool.give_back(first)
    assert pool.acquire(199_000) is first
    for size in (300_000, 900_000, 5_000_000):
        pool.give_back(pool.acquire(size))
    assert pool._bytes <= 1 << 20
    in_use = first.size
    assert pool._bytes == in_use + sum(b.size for idle in pool._idle.values() for b in idle)
