"""Copies of tensors: what they are made of, and the pool of buffers in which they lie."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from calltape_recorder.snapshot import buffers as pool_of_buffers
from calltape_recorder.snapshot import copies as copying
from calltape_recorder.snapshot.buffers import Buffers, SideCopies, copy_all
from calltape_recorder.snapshot.copies import copy_leaves, joined, pieces_of, release
from calltape_recorder.snapshot.device_copies import HostMemory
from calltape_recorder.snapshot.side_facts import read_facts

MIB = 1 << 20


def data_of(piece: Any) -> Any:
    return piece if type(piece) is bytearray else piece.data


def copies(leaves: list[torch.Tensor], buffers: HostMemory, wanted: Any = True) -> SideCopies:
    return copy_leaves(leaves, read_facts(leaves, wanted), buffers)


def bytes_of(side: SideCopies) -> bytes:
    return b"".join(joined(pieces_of(*side)))


def test_large_leaves_of_one_side_lie_side_by_side() -> None:
    buffers = HostMemory(64 * MIB)
    leaves = [torch.randn(50_000), torch.randn(3), torch.randn(70_001), torch.randn(600_000)]
    pieces = pieces_of(*copies(leaves, buffers))
    for leaf, piece in zip(leaves, pieces, strict=True):
        assert bytes(data_of(piece)) == leaf.numpy().tobytes()
    parts = joined([pieces[0], pieces[2], pieces[3]])
    assert len(parts) == 1
    assert bytes(parts[0]) == b"".join(leaves[i].numpy().tobytes() for i in (0, 2, 3))
    assert [len(part) for part in joined(pieces)] == [200_000, 12, 280_004 + 2_400_000]
    assert [len(part) for part in joined([pieces[0], pieces[3]])] == [200_000, 2_400_000]


def test_a_buffer_comes_back_once_and_is_used_again() -> None:
    buffers = HostMemory(64 * MIB)
    leaves = [torch.randn(50_000) for _ in range(5)]
    first = copies(leaves, buffers)
    owner = first[0][0]
    assert all(place is owner for place in first[0])
    second = copies(leaves, buffers)
    assert second[0][0] is not owner
    release(first[0], buffers)
    assert copies(leaves, buffers)[0][0] is owner


def test_a_copy_that_fails_gives_its_buffer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(copying, "copy_all", fails)
    buffers = HostMemory(64 * MIB)
    with pytest.raises(RuntimeError):
        copies([torch.randn(50_000), torch.randn(50_000)], buffers)
    buffers.clear()
    assert buffers.nbytes == 0


class Own(torch.Tensor):
    """A subclass with bytes of its own."""


@pytest.mark.parametrize(
    "leaf",
    [
        torch.arange(8.0),
        torch.arange(60_000.0),
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(8.0).as_subclass(Own),
        torch.arange(3.0).reshape(1, 3).expand(5, 3),
        np.arange(8.0),
        np.arange(12.0).reshape(3, 4).T,
    ],
    ids=["small", "large", "turned", "subclass", "expanded", "array", "turned array"],
)
def test_a_leaf_that_changes_after_the_call_does_not_change_its_copy(leaf: Any) -> None:
    (piece,) = pieces_of(*copies([leaf], HostMemory(64 * MIB)))
    before = bytes(data_of(piece))
    assert any(before)
    if isinstance(leaf, np.ndarray):
        leaf.fill(0)
    else:
        leaf.untyped_storage().fill_(0)
    assert bytes(data_of(piece)) == before


# --- large sides ------------------------------------------------------------------------------

MOST = 32_767 * 16  # bytes that torch copies with one thread


@pytest.mark.parametrize("size", [8 * MIB, MOST, MOST + 8, 5 * MIB + 4, 5 * MIB + 2, 5 * MIB + 1])
@pytest.mark.parametrize("offset", [0, 1, 4, 8])
def test_large_sides_are_copied_whatever_their_size_and_address(size: int, offset: int) -> None:
    base = torch.randint(0, 256, (size + offset,), dtype=torch.uint8)
    leaves = [base[offset:], torch.randn(MIB), torch.ones(70_001, dtype=torch.bool)]
    expected = b"".join(leaf.numpy().tobytes() for leaf in leaves)
    assert bytes_of(copies(leaves, Buffers(256 * MIB))) == expected


@pytest.mark.parametrize("elements", [2 * MIB, 3 * MIB + 1])
def test_no_piece_is_large_enough_for_several_threads(elements: int) -> None:
    leaf = torch.randn(elements + 4)[:elements]
    buffer = Buffers(256 * MIB).acquire(leaf.nbytes)
    copy_all([(leaf.data_ptr(), leaf.nbytes)], buffer)
    pieces = [piece for side in buffer.pieces for piece in side]  # type: ignore[attr-defined]
    assert all(piece.numel() < 32768 for piece in pieces)
    assert len(pieces) >= 2 * leaf.nbytes // MOST


HOSTS: dict[str, Callable[[], Any]] = {
    "usual": contextlib.nullcontext,
    "inference mode": torch.inference_mode,
    "no grad": torch.no_grad,
    "a default device": lambda: torch.device("meta"),
    "a dispatch mode": lambda: Forbids(),
    "a function mode": lambda: ForbidsFunctions(),
    "fake tensors": FakeTensorMode,
    "deterministic": lambda: deterministic(),
    "autocast": lambda: torch.autocast("cpu"),
}


class Forbids(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        raise AssertionError(f"the host's mode sees {function}")


class ForbidsFunctions(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        raise AssertionError(f"the host's mode sees {function}")


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("made", ["usual", "inference mode"])
@pytest.mark.parametrize("host", HOSTS)
def test_the_host_does_not_notice_a_large_copy(host: str, made: str, requires_grad: bool) -> None:
    with HOSTS[made]():
        leaves = [torch.randn(MIB) for _ in range(3)]
    leaves[0].requires_grad_(requires_grad and made == "usual")
    expected = b"".join(leaf.detach().numpy().tobytes() for leaf in leaves)
    versions = [None if leaf.is_inference() else leaf._version for leaf in leaves]
    before = torch.get_num_threads(), torch.is_grad_enabled(), torch.get_rng_state().tolist()
    buffers = Buffers(256 * MIB)
    with HOSTS[host](), torch._C.DisableTorchFunction():  # as the recorder's own
        sides = [copies(leaves, buffers) for _ in range(2)]
    sides.append(copies(leaves, buffers))  # the pool serves every mode
    for side in sides:
        assert bytes_of(side) == expected
        release(side[0], buffers)
    assert versions == [None if leaf.is_inference() else leaf._version for leaf in leaves]
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == before[:2]
    assert torch.get_rng_state().tolist() == before[2]
    assert all(leaf.grad_fn is None for leaf in leaves)


def test_other_threads_run_during_a_large_copy() -> None:
    """One that copies holding the interpreter lock would stop them for all of it."""
    leaves, buffers = [torch.randn(16 * MIB)], Buffers(256 * MIB)
    release(copies(leaves, buffers)[0], buffers)
    before, during = threading.Event(), threading.Event()
    real = copying.copy_all

    def copy(*args: Any) -> None:
        before.set()
        real(*args)
        during.set()

    seen: list[bool] = []
    interval, end = sys.getswitchinterval(), time.monotonic() + 60

    def watch() -> None:
        assert before.wait(60)
        seen.append(not during.is_set())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "copy_all", copy)
        # Only who gives the lock away lets others run. They may need a processor that is busy.
        sys.setswitchinterval(1000)
        try:
            while not any(seen) and time.monotonic() < end:
                before.clear()
                during.clear()
                watcher = threading.Thread(target=watch)
                watcher.start()
                release(copies(leaves, buffers)[0], buffers)
                watcher.join()
        finally:
            sys.setswitchinterval(interval)
    assert any(seen)


def test_a_tensor_that_is_given_other_memory_meanwhile_is_copied_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread runs while a large copy is made."""
    real = copying.copy_all

    def copy_all(sources: Any, target: Any) -> None:
        for leaf in leaves:
            leaf.data = torch.zeros(0)
        gc.collect()
        real(sources, target)

    leaves = [torch.randn(MIB) for _ in range(8)]
    expected = b"".join(leaf.numpy().tobytes() for leaf in leaves)
    monkeypatch.setattr(copying, "copy_all", copy_all)
    assert bytes_of(copies(leaves, Buffers(256 * MIB))) == expected


def test_a_tensor_that_was_given_other_memory_is_not_copied() -> None:
    leaf = torch.randn(MIB)
    seen = read_facts([leaf], True)
    leaf.data = torch.zeros(3)
    with pytest.raises(RuntimeError, match="other memory"):
        copy_leaves([leaf], seen, Buffers(256 * MIB))


# --- the pool of buffers --------------------------------------------------------------------------


def test_memory_that_is_not_to_be_had_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Buffers(2**24)

    def no_memory(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(pool_of_buffers.mmap, "mmap", no_memory)
        for _ in range(10):
            with pytest.raises(OSError, match="Cannot"):
                pool.acquire(2**20)
    kept = pool.acquire(2**20)
    assert pool.nbytes == kept.size
    del kept  # nobody gave it back
    pool.give_back(pool.acquire(2**20))
    assert pool.nbytes == 2**20


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
    assert buffers.nbytes <= 4 * MIB
    buffers.give_back(other)
    assert buffers.acquire(2 * MIB - 1000) is other
    buffers.give_back(buffers.acquire(5 * MIB))
    assert buffers.nbytes <= 4 * MIB
    buffers.clear()
    assert buffers.nbytes == other.size  # in use
