"""Bytes that an earlier call has are neither copied nor written again, and each value is right."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder import FlightRecorder, Rate, When, record
from calltape_recorder.keep.ledger import Ledger
from calltape_recorder.snapshot import earlier_copies
from calltape_recorder.snapshot.buffers import Buffers
from calltape_recorder.snapshot.copies import copy_leaves, release
from calltape_recorder.snapshot.device_copies import HostMemory
from calltape_recorder.snapshot.earlier_copies import EarlierCopies
from calltape_recorder.snapshot.side_facts import read_facts
from tests.recorder import disks
from tests.recorder.calls import adds_up
from tests.recorder.lines import at_each_line
from tests.recorder.parts import recording
from tests.recorder.reading import read
from tests.recorder.waiting import in_threads

KIB = 1024
SIZES = (20 * KIB, 80 * KIB)  # bytes of a copy by itself, and of one in a pooled buffer


class Cache(torch.nn.Module):
    """A cache that grows, as the one of a decoder does."""

    def forward(self, x: Any, cache: Any = None) -> Any:
        return x if cache is None else torch.cat([cache, x])


class Change(torch.nn.Module):
    """Returns what it got, after some changes that no version of a tensor counts."""

    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        if n % 3 == 2:
            x.numpy()[-1] = n
        return x


def rows(count: int, nbytes: int) -> torch.Tensor:
    return torch.rand(count, nbytes // 4 // count)


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_cache_that_grows_is_written_once(tmp_path: Path, nbytes: int) -> None:
    model, path, given = Cache(), tmp_path / "a.tape", []
    with record(model, path) as recorder:
        cache = None
        for _ in range(12):
            x = torch.rand(1, nbytes // 4)
            given.append((x.clone(), None if cache is None else cache.clone()))
            cache = model(x, cache)
        assert recorder.flush()
    new = sum(x.nbytes for x, _ in given) + sum(c.nbytes for _, c in given[2:] if c is not None)
    new += cache.nbytes
    assert path.stat().st_size < 1.1 * new + 30_000
    calls = read(path).calls
    for (x, before), call in zip(given, calls, strict=True):
        assert torch.equal(call.input(0), x)
        if before is not None:
            assert torch.equal(call.input(1), before)
            assert torch.equal(call.output(0), torch.cat([before, x]))
    assert sum(len(call.record.at) for call in calls) >= 10
    with open_tape(path) as tape:
        assert tape.verify() == []
        assert torch.equal(tape[-1].outputs, cache)


@pytest.mark.parametrize(("elements", "is_once"), [(2048, True), (2047, False)])
def test_tensors_of_less_than_8_kib_are_written_each_time(
    tmp_path: Path, elements: int, is_once: bool
) -> None:
    model, path, x = Cache(), tmp_path / "a.tape", torch.rand(elements)
    with record(model, path):
        for _ in range(20):
            model(x)  # it returns its argument
    assert path.read_bytes().count(x.numpy().tobytes()) == (1 if is_once else 40)
    assert all(torch.equal(call.input(0), x) for call in read(path).calls)


@pytest.mark.parametrize("nbytes", SIZES)
def test_what_was_changed_in_place_is_written_again(tmp_path: Path, nbytes: int) -> None:
    model, path, x, given = Change(), tmp_path / "a.tape", rows(4, nbytes), []
    with record(model, path), torch.inference_mode():
        for n in range(9):
            given.append([x.clone()])
            model(x, n)
            given[-1].append(x.clone())
    calls = read(path).calls
    for n, (before, after) in enumerate(given):
        assert torch.equal(calls[n].input(0), before)
        assert torch.equal(calls[n].output(0), after)
    assert [bool(call.record.at) for call in calls] == [n > 0 for n in range(9)]
    # Each state of the tensor is on the tape once.
    assert 4 * nbytes <= path.stat().st_size < 4 * nbytes + 32 * KIB


def test_the_same_memory_in_another_form_is_no_reference(tmp_path: Path) -> None:
    model, path, x = Cache(), tmp_path / "a.tape", rows(4, 20 * KIB)
    with record(model, path):
        model(x)
        model(x.view(2, -1))
        model(x.view(torch.int32))
        model(x[:2])
        model(x)
    calls = read(path).calls
    assert torch.equal(calls[1].input(0), x.view(2, -1))
    assert torch.equal(calls[2].input(0), x.view(torch.int32))
    assert torch.equal(calls[3].input(0), x[:2])
    assert torch.equal(calls[4].input(0), x)


def test_references_stay_within_a_file(tmp_path: Path) -> None:
    model, x = Cache(), rows(4, 40 * KIB)
    with record(model, tmp_path / "a.tape", segment_bytes=160 * KIB) as recorder:
        for n in range(24):
            model(x)
            model(torch.full((4 * KIB,), float(n)))
            assert recorder.flush()
    paths = sorted(tmp_path.glob("*.tape"))
    assert len(paths) > 3
    found = [call for path in paths for call in read(path).calls]
    assert len(found) == 48
    for call in found:
        n = call.record.call
        expected = torch.full((4 * KIB,), float(n // 2)) if n % 2 else x
        assert torch.equal(call.input(0), expected)
    assert any(call.record.at for call in found)


@pytest.mark.parametrize("pause", [True, False])
def test_a_call_that_is_not_written_is_not_referred_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: bool
) -> None:
    """Each write may fail, of single calls and of batches."""
    model, x = Cache(), rows(4, 20 * KIB)
    for failing in range(8):
        path = tmp_path / f"{failing}.tape"
        recorder = record(model, path)
        bad = (failing, failing + 1)
        disks.failing(monkeypatch, errno.EIO, lambda number, _, bad=bad: number in bad)
        for _ in range(6):
            model(x)
            if pause:
                assert recorder.flush()
        recorder.close()
        monkeypatch.undo()
        stats = recorder.stats()
        assert adds_up(stats)
        assert stats.kept < 6 or not pause or failing > 5
        tape = read(path)
        assert len(tape.calls) == stats.kept
        assert not tape.damage
        assert all(torch.equal(call.input(0), x) for call in tape.calls)
        assert all(torch.equal(call.output(0), x) for call in tape.calls)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])  # of ints the range is kept
def test_values_that_are_withheld_are_not_referred_to(tmp_path: Path, dtype: Any) -> None:
    model, x = Cache(), (1000 * rows(4, 20 * KIB)).to(dtype)
    with record(model, tmp_path / "a.tape", values={"*": "none", "outputs": "all"}):
        for _ in range(3):
            model(x)
    for call in read(tmp_path / "a.tape").calls:
        assert call.record.inputs.facts()[0].missing == "policy"
        (fact,) = call.record.outputs.facts()
        assert fact.key is not None
        assert fact.key.startswith("outputs")
        assert torch.equal(call.output(0), x)


def test_a_flight_recorder_drops_what_others_refer_to(tmp_path: Path) -> None:
    model, cache = Cache(), None
    given = []
    held = FlightRecorder(calls=4)
    never = Rate(0)
    with record(model, tmp_path / "a.tape", keep=never, flight_recorder=held) as recorder:
        for _ in range(9):
            x = torch.rand(1, 2 * KIB)
            given.append((x, cache))
            cache = model(x, cache)
        recorder.dump("asked")
    calls = read(tmp_path / "a.tape").calls
    assert [call.record.call for call in calls] == [5, 6, 7, 8]
    for call in calls:
        x, before = given[call.record.call]
        assert torch.equal(call.input(0), x)
        assert before is not None
        assert torch.equal(call.input(1), before)
        assert torch.equal(call.output(0), torch.cat([before, x]))


def test_calls_that_are_held_count_what_they_share(tmp_path: Path) -> None:
    """Every other call is kept; those between have the same tensor, and are held."""
    model, bound = Change(), 1 << 20
    options: dict[str, Any] = {
        "keep": When(lambda args, kwargs: args[1] == 0), "max_queue_bytes": bound,
        "flight_recorder": FlightRecorder(calls=1000, bytes=bound),
    }  # fmt: skip
    with recording(model, tmp_path / "a.tape", outputs=False, **options) as parts:
        for n in range(20):
            x = torch.full((64 * KIB,), float(n))  # 256 KiB
            for again in range(2):
                model(x, again)
                assert parts.writer.flush(None)
        assert parts.stats("recording").queued_bytes <= bound
        assert parts.buffers.nbytes <= 2 * bound
    stats = parts.stats("closed")
    assert adds_up(stats)
    assert (stats.kept, stats.dropped) == (20, {"flight_recorder": 20})


def test_calls_have_room_before_what_is_remembered(tmp_path: Path) -> None:
    """Copies that later calls may share take memory only as long as no call needs it."""
    model = Cache()
    with record(model, tmp_path / "a.tape", max_queue_bytes=200 * KIB) as recorder:
        for n in range(20):
            model(torch.full((24 * KIB,), float(n)))  # 96 KiB in; out, it is the same
            assert recorder.flush()
        stats = recorder.stats()
    assert stats.kept == 20
    assert stats.dropped == {}
    assert stats.queued_bytes == 0


@pytest.mark.integration
def test_threads_share_what_they_return_to_each_other(tmp_path: Path) -> None:
    model, path, rounds = Cache(), tmp_path / "a.tape", 40
    shared = [rows(4, nbytes) for nbytes in SIZES]

    def work(seed: int) -> None:
        for n in range(rounds):
            kept = model(shared[(seed + n) % 2])
            model(torch.full((2 * KIB,), float(seed * rounds + n)))
            model(kept)

    with record(model, path) as recorder:
        in_threads(work, range(6))
    stats = recorder.stats()
    assert adds_up(stats)
    assert stats.kept == stats.seen == 6 * rounds * 3
    for call in read(path).calls:
        value = call.input(0)
        expected = [one for one in shared if one.shape == value.shape]
        assert torch.equal(value, expected[0]) if expected else len(set(value.tolist())) == 1


def test_a_thread_puts_another_tensor_in_the_place_of_the_first_part() -> None:
    """It lies at the same address and has other bytes, between two steps of the one that grew."""
    memory, grown = bytearray(36_000), torch.zeros(1, 9001, dtype=torch.int8)
    earlier, grown_look = EarlierCopies(Buffers(2**20), Ledger(2**24)), read_facts([grown], True)
    is_there: list[bool] = []

    def kept(tensor: torch.Tensor) -> int:
        facts = read_facts([tensor], True)
        copies = copy_leaves([tensor], facts, HostMemory(2**20))
        return int.from_bytes(earlier.keep([tensor], facts, copies, None)[:8], "little")

    def run() -> None:
        earlier.clear()
        origin = kept(torch.frombuffer(memory, dtype=torch.int8, count=9000)[None])
        found = earlier.find([grown], grown_look)
        is_there.append(found is not None)
        assert found is None or [one and one.prefix_origin for one in found] == [origin]

    def put() -> None:
        kept(torch.frombuffer(memory, dtype=torch.float32)[None])

    list(at_each_line(lambda code: code.co_filename == earlier_copies.__file__, run, put))
    assert set(is_there) == {True, False}  # the other one came before the first part was found


def test_all_memory_comes_back() -> None:
    ledger, buffers = Ledger(64 << 20, None), HostMemory(64 << 20)
    earlier = EarlierCopies(buffers, ledger)
    for n in range(40):
        leaves = [torch.full((80 * KIB,), float(n % 7)), torch.rand(1 * KIB), torch.rand(40 * KIB)]
        leaves.append(leaves[0].clone())
        for _ in range(2):
            facts = read_facts(leaves, True)
            found = earlier.find(leaves, facts)
            copies = copy_leaves(leaves, facts, buffers, found)
            earlier.keep(leaves, facts, copies, found)
            release(copies[0], buffers)
        assert ledger.shared_bytes <= 16 << 20
        assert buffers.nbytes <= 64 << 20
    earlier.clear()
    buffers.clear()
    assert ledger.shared_bytes == buffers.nbytes == 0


def test_a_buffer_has_as_many_users_as_share_it() -> None:
    buffers = Buffers(1 << 20)
    buffer = buffers.acquire(1 << 16)
    buffers.share(buffer)
    buffers.give_back(buffer)
    assert buffers.acquire(1 << 16) is not buffer
    buffers.give_back(buffer)
    assert buffers.acquire(1 << 16) is buffer
