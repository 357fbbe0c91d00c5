"""Copies of tensors: what they are made of, and where they lie."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import encoding, gathering, record, snapshot, tape_writer
from calltape_recorder.buffers import Buffers
from calltape_recorder.checksum import Checksum, checksum, crc32
from calltape_recorder.encoding import Encoder
from calltape_recorder.likeness import look, see_as
from calltape_recorder.snapshot import data_of, joined, release, see, take
from calltape_recorder.structures import Structure
from calltape_schema.packing import open_envelope, unpack
from tests.recorder.models import Echo, Identity
from tests.recorder.reading import read

MIB = 1 << 20


def copies(leaves: list[torch.Tensor], buffers: Buffers, wanted: Any = True) -> list[Any]:
    return take(leaves, see(leaves, wanted), buffers)


def test_large_leaves_of_one_side_lie_side_by_side() -> None:
    buffers = Buffers(64 * MIB)
    leaves = [torch.randn(50_000), torch.randn(3), torch.randn(70_001), torch.randn(600_000)]
    pieces = copies(leaves, buffers)
    for leaf, piece in zip(leaves, pieces, strict=True):
        assert bytes(data_of(piece)) == leaf.numpy().tobytes()
    parts = joined([pieces[0], pieces[2], pieces[3]])
    assert len(parts) == 1
    assert bytes(parts[0]) == b"".join(leaves[i].numpy().tobytes() for i in (0, 2, 3))
    assert [len(part) for part in joined(pieces)] == [200_000, 12, 280_004 + 2_400_000]
    assert [len(part) for part in joined([pieces[0], pieces[3]])] == [200_000, 2_400_000]


def test_a_buffer_comes_back_once_and_is_used_again() -> None:
    buffers = Buffers(64 * MIB)
    leaves = [torch.randn(50_000) for _ in range(5)]
    first = copies(leaves, buffers)
    owner = first[0].owner
    assert [piece.owner for piece in first[1:]] == [None] * 4
    second = copies(leaves, buffers)
    assert second[0].owner is not owner
    release(first, buffers)
    assert copies(leaves, buffers)[0].owner is owner


def test_the_pool_is_used_up_to_its_bound() -> None:
    buffers = Buffers(4 * MIB)
    used = [buffers.take(MIB) for _ in range(4)]
    for buffer in used:
        buffers.give_back(buffer)
    again = [buffers.take(MIB) for _ in range(4)]
    assert {id(buffer) for buffer in again} == {id(buffer) for buffer in used}
    for buffer in again:
        buffers.give_back(buffer)
    other = buffers.take(2 * MIB)  # idle ones of another size make room
    assert buffers._bytes <= 4 * MIB
    buffers.give_back(other)
    buffers.clear()
    assert buffers._bytes == 0


def test_memory_beyond_the_bound_is_let_go_when_it_comes_back() -> None:
    buffers = Buffers(MIB)
    used = [buffers.take(MIB) for _ in range(3)]
    for buffer in used:
        buffers.give_back(buffer)
    assert buffers._bytes <= MIB


def test_a_copy_that_fails_gives_its_buffer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(snapshot, "gather", fails)
    buffers = Buffers(64 * MIB)
    with pytest.raises(RuntimeError):
        copies([torch.randn(50_000), torch.randn(50_000)], buffers)
    assert sum(len(idle) for idle in buffers._idle.values()) == 1


# --- many pieces by one system call ------------------------------------------------------------

linux = pytest.mark.skipif(gathering._read is None, reason="no such system call")


def many() -> tuple[list[Any], bytes]:
    """Copies of more leaves than one system call takes, and what they are to be."""
    leaves = [torch.randn(20_000) for _ in range(1100)]
    return copies(leaves, Buffers(256 * MIB)), b"".join(leaf.numpy().tobytes() for leaf in leaves)


@linux
@pytest.mark.skipif(gathering._is_filtered(), reason="system calls are filtered here")
@pytest.mark.parametrize("most", [300_000, 1 << 30])
def test_large_sides_are_copied_by_a_system_call(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(gathering, "_MOST_BYTES", most)
    monkeypatch.setattr(gathering, "_one_by_one", None)
    pieces, expected = many()
    assert b"".join(joined(pieces)) == expected


@pytest.mark.parametrize("why", ["there is none", "filtered", "refused", "too large"])
def test_where_it_is_not_to_be_had(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    def refused(*_: Any) -> int:
        ctypes.set_errno(1)
        return -1

    if why == "there is none":
        monkeypatch.setattr(gathering, "_read", None)
    elif why == "filtered":
        monkeypatch.setattr(gathering, "_is_filtered", lambda: True)
    elif why == "refused":
        monkeypatch.setattr(gathering, "_read", refused)
    else:
        monkeypatch.setattr(gathering, "_MOST_BYTES", 1000)
    pieces, expected = many()
    assert b"".join(joined(pieces)) == expected


@linux
@pytest.mark.parametrize("first", [0, 1], ids=["all", "the second half"])
def test_memory_that_is_gone_is_an_error_not_a_signal(
    monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    monkeypatch.setattr(gathering, "_is_filtered", lambda: False)
    memory = mmap.mmap(-1, 8 * MIB)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    there = torch.ones(8 * MIB, dtype=torch.uint8)
    target = Buffers(256 * MIB).take(16 * MIB)
    gc.collect()
    memory.close()
    sources = [(there.data_ptr(), 8 * MIB), (address, 8 * MIB)][1 - first :]
    with pytest.raises(OSError, match="is gone"):
        gathering.gather(sources, target.address)


def test_a_tensor_that_is_given_other_memory_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread runs while a large copy is made."""
    real = snapshot.gather

    def gather(sources: Any, target: int) -> None:
        for leaf in leaves:
            leaf.data = torch.zeros(0)
        gc.collect()
        real(sources, target)

    leaves = [torch.randn(MIB) for _ in range(8)]
    expected = b"".join(leaf.numpy().tobytes() for leaf in leaves)
    monkeypatch.setattr(snapshot, "gather", gather)
    assert b"".join(joined(copies(leaves, Buffers(256 * MIB)))) == expected


def test_a_tensor_that_was_given_other_memory_before() -> None:
    leaf = torch.randn(MIB)
    seen = see([leaf], True)
    leaf.data = torch.zeros(3)
    with pytest.raises(RuntimeError, match="other memory"):
        take([leaf], seen, Buffers(256 * MIB))


def test_a_buffer_that_comes_back_while_one_is_taken() -> None:
    """A signal handler of the host's calls the model in the middle of take()."""
    buffers = Buffers(64 * MIB)
    first, second = buffers.take(MIB), buffers.take(MIB)
    buffers.give_back(first)
    idle = buffers._idle[MIB]
    buffers.give_back(second)
    assert buffers._idle[MIB] is idle


# --- values by leaf ----------------------------------------------------------------------------


def test_only_wanted_leaves_have_bytes_and_integers_of_middle_size_for_their_range() -> None:
    sizes = (4, 1 << 10, 1 << 18)  # a range of few says what they are, of many it takes long
    leaves = [torch.randn(4), torch.randn(4), *(torch.zeros(size).long() for size in sizes)]
    assert see(leaves, True).sizes == [16, 16, 32, 8 << 10, 8 << 18]
    assert see(leaves, False).sizes == [0, 0, 0, 8 << 10, 0]
    assert see(leaves, (False, True, False, True, False)).sizes == [0, 16, 0, 8 << 10, 0]


def test_a_wanted_leaf_does_not_lean_on_an_unwanted_one() -> None:
    base = torch.randn(4)
    leaves = [base, base.view(4), base.view(4)]
    seen = see(leaves, (False, True, True))
    assert seen.same == (0, 1, 1)
    assert seen.sizes == [0, 16, 0]
    assert seen.storages == (0, 0, 0)


# --- large calls -------------------------------------------------------------------------------


def large() -> dict[str, torch.Tensor]:
    return {f"t{index}": torch.randn(MIB // 4) for index in range(10)}


def test_the_sums_are_those_of_the_standard_library() -> None:
    data = os.urandom(100_001)
    assert crc32(data) == zlib.crc32(data)
    assert checksum([data[:70_000], b"", memoryview(data)[70_000:]]) == zlib.crc32(data)


@pytest.fixture
def others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if more calls waited: a large one is checked while it is written."""

    def encode(self: Encoder, call: Any, *, others_wait: bool) -> Any:
        return real(self, call, others_wait=True)

    real = Encoder.encode
    monkeypatch.setattr(Encoder, "encode", encode)


@pytest.mark.parametrize("at_once", [0, 8 * MIB, 64 * MIB])
@pytest.mark.usefixtures("others_wait")
def test_a_large_call_reads_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(encoding, "_AT_ONCE_BYTES", at_once)
    model = Echo()
    sent = large() | {"strided": torch.randn(1000, 700).t(), "few": torch.arange(3)}
    with record(model, tmp_path / "t.tape") as recorder:
        for _ in range(3):
            model(**sent)
            recorder.flush()
    tape = read(tmp_path / "t.tape")
    assert not tape.damage
    assert len(tape.calls) == 3
    for call in tape.calls:
        assert call.record.blob is not None
        assert call.record.blob.crc32 == zlib.crc32(call.blob)
        for name, tensor in sent.items():
            assert torch.equal(call.input(call.kwargs[name].leaf), tensor)


@pytest.mark.usefixtures("others_wait")
def test_the_blob_is_written_while_its_checksum_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = threading.Event()
    waited = threading.Event()

    def pwritev(file: int, parts: list[Any], offset: int) -> int:
        done = write(file, parts, offset)
        if done > MIB:
            written.set()
        return done

    def slow(parts: list[Any]) -> int:
        if sum(map(len, parts)) > MIB and written.wait(30):
            waited.set()
        return checksum(parts)

    write = tape_writer.pwritev
    monkeypatch.setattr(tape_writer, "pwritev", pwritev)
    monkeypatch.setattr("calltape_recorder.checksum.checksum", slow)
    model = Echo()
    with record(model, tmp_path / "t.tape"):
        model(**large())
    assert waited.is_set()
    assert not read(tmp_path / "t.tape").damage


@pytest.mark.parametrize("value", [0, 1, 200, 70_000])
def test_a_checksum_of_few_digits_keeps_the_length(
    monkeypatch: pytest.MonkeyPatch, value: int
) -> None:
    monkeypatch.setattr(Checksum, "value", lambda self: value)
    late = encoding._late_record({"call": 1}, [b"abc"], 3)
    content = late.make()
    assert len(content) == len(late)
    assert unpack(open_envelope(content)) == {"call": 1, "blob": {"size": 3, "crc32": value}}


def test_only_where_others_wait_a_thread_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noted(parts: Any) -> Checksum:
        made.append(1)
        return Checksum(parts)

    made: list[int] = []
    monkeypatch.setattr(encoding, "Checksum", noted)
    model, arguments = Echo(), large()
    with record(model, tmp_path / "t.tape") as recorder:
        for _ in range(3):
            model(**arguments)
            recorder.flush()  # waits as well, and is no call
        assert not made
        held, stuck = threading.Event(), threading.Event()
        pipeline: Any = recorder._tap.pipeline

        def stick() -> None:
            stuck.set()
            held.wait(60)

        asks = threading.Thread(target=pipeline.writer.ask, args=(stick, None))
        asks.start()
        assert stuck.wait(60)
        for _ in range(3):
            model(**arguments)
        held.set()
        asks.join()
        recorder.flush()
        assert len(made) == 2  # for the last one nobody waits
    tape = read(tmp_path / "t.tape")
    assert not tape.damage
    assert len(tape.calls) == 6


@pytest.mark.usefixtures("others_wait")
def test_without_a_thread_the_checksum_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    model = Identity()
    with record(model, tmp_path / "t.tape") as recorder:
        model(1)
        recorder.flush()  # its own thread is there
        monkeypatch.setattr(threading.Thread, "start", start)
        model(list(large().values()))
        recorder.flush()
    monkeypatch.undo()
    assert recorder.stats().kept == 2
    assert not read(tmp_path / "t.tape").damage


def test_a_large_call_that_cannot_be_written_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, parts: list[Any], offset: int) -> int:
        if sum(map(len, parts)) > MIB:
            raise OSError(28, "No space left on device")
        return write(file, parts, offset)

    write = tape_writer.pwritev
    model = Echo()
    with record(model, tmp_path / "t.tape") as recorder:
        monkeypatch.setattr(tape_writer, "pwritev", full)
        model(**large())
        model(torch.ones(1))
        recorder.flush()
        stats = recorder.stats()
        assert (stats.kept, stats.dropped, stats.queued_bytes) == (1, {"io": 1}, 0)
    assert [call.record.call for call in read(tmp_path / "t.tape").calls] == [1]


@pytest.mark.usefixtures("others_wait")
def test_a_record_that_fails_after_its_blob_takes_the_blob_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, parts: list[Any], offset: int) -> int:
        sizes.append(sum(map(len, parts)))
        if len(sizes) == 2:
            raise OSError(28, "No space left on device")
        return write(file, parts, offset)

    sizes: list[int] = []
    write = tape_writer.pwritev
    model, path = Echo(), tmp_path / "t.tape"
    with record(model, path) as recorder:
        before = path.stat().st_size
        monkeypatch.setattr(tape_writer, "pwritev", full)
        model(**large())
        recorder.flush()
        assert sizes[0] > 10 * MIB
        assert path.stat().st_size == before
        model(torch.ones(1))
    tape = read(path)
    assert not tape.damage
    assert [call.record.call for call in tape.calls] == [1]


def test_many_parts_before_and_after_a_late_one(tmp_path: Path) -> None:
    writer = tape_writer.TapeWriter(str(tmp_path / "t"), overwrite=False)
    late = tape_writer.Late(4, lambda: b"late")
    parts: list[Any] = [*([b"ab"] * 1300), late, *([b"cd"] * 700), late]
    writer._append(parts)
    writer.close()
    expected = b"ab" * 1300 + b"late" + b"cd" * 700 + b"late"
    assert (tmp_path / "t").read_bytes() == expected


# --- leaves that look like earlier ones --------------------------------------------------------


def structure_of(count: int, wanted: Any = True) -> Structure:
    return Structure(b"", tuple(f"args.{index}" for index in range(count)), {}, wanted)


def see_twice(leaves: list[torch.Tensor], structure: Structure) -> None:
    """A likeness is left by what came twice in a row."""
    see_as(leaves, structure)
    assert structure.like is None
    see_as(leaves, structure)


def freed(size: int) -> torch.Tensor:
    tensor = torch.randn(size)
    tensor.untyped_storage().resize_(0)
    return tensor


_base = torch.randn(4, 8)
UNLIKE: dict[str, torch.Tensor] = {
    "another size": torch.randn(5, 8),
    "another rank": torch.randn(4, 8, 1),
    "another dtype": torch.randn(4, 8).double(),
    "requires grad": torch.randn(4, 8, requires_grad=True),
    "a parameter": torch.nn.Parameter(torch.randn(4, 8)),
    "strided": torch.randn(8, 4).t(),
    "expanded": torch.randn(1, 8).expand(4, 8),
    "negative": torch.ops.aten._neg_view(torch.randn(4, 8)),
    "meta": torch.randn(4, 8, device="meta"),
    "sparse": torch.randn(4, 8).to_sparse(),
    "freed": freed(32).view(4, 8),
}
with torch.inference_mode():
    UNLIKE["inference"] = torch.randn(4, 8)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", UNLIKE)
def test_what_looks_different_is_read(name: str, grad: bool) -> None:
    structure = structure_of(2)
    with torch.set_grad_enabled(grad):
        see_twice([_base, torch.ones(3)], structure)
        leaves = [torch.randn(4, 8), torch.zeros(3)]
        like = look(leaves, structure)
        assert like is not None
        assert like.seen == see(leaves, True)
        unlike = [UNLIKE[name], torch.ones(3)]
        assert look(unlike, structure) is None
        assert see_as(unlike, structure) == see(unlike, True)


@pytest.mark.parametrize("wanted", [True, False])
def test_leaves_that_share_memory_are_read(wanted: bool) -> None:
    structure = structure_of(2, wanted)
    see_twice([torch.randn(4), torch.randn(4)], structure)
    both = torch.randn(8)
    assert look([both[:4], both[4:]], structure) is None
    assert see_as([both[:4], both[4:]], structure).storages == (0, 0)
    assert structure.like is None


MODES: dict[str, Any] = {
    "usual": contextlib.nullcontext,
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
    "below autograd": torch._C._AutoDispatchBelowAutograd,
}


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("then", MODES)
@pytest.mark.parametrize("first", MODES)
def test_inference_tensors_are_told_apart_in_every_mode(
    first: str, then: str, wanted: bool
) -> None:
    ordinary = [torch.randn(4), torch.randn(4)]
    with torch.inference_mode():
        inference = [torch.randn(4), torch.randn(4)]
    for known in (ordinary, inference):
        for count in (1, 2):
            structure = structure_of(count, wanted)
            with MODES[first]():
                see_twice(known[:count], structure)
            for leaves in (ordinary, inference):
                with MODES[then]():
                    found = look(leaves[:count], structure)
                    read = see(leaves[:count], wanted)
                    alone = count == 1 and structure.like.is_of(leaves[0])
                assert found is None or found.seen == read
                assert (found is not None) == (leaves is known) or first != then
                assert count > 1 or alone == (found is not None)


@pytest.mark.parametrize("name", sorted(set(UNLIKE) - {"requires grad", "inference"}))
def test_unusual_leaves_leave_no_likeness(name: str) -> None:
    structure = structure_of(1)
    see_twice([UNLIKE[name]], structure)
    left = structure.like
    assert (left is not None) == name.startswith("another")


def test_without_guards_every_leaf_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calltape_recorder.likeness._Guards", None)
    structure = structure_of(1)
    assert see_as([_base], structure) == see([_base], True)
    assert look([_base], structure) is None
