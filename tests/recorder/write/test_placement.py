"""Small records share members: where they go, their size, and what a failing disk leaves."""

from __future__ import annotations

import errno
import io
import os
import random
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from calltape_recorder import record
from calltape_recorder.write import tape_writer
from calltape_recorder.write.encoded_call import EncodedCall
from calltape_recorder.write.placement import Position, placed
from calltape_recorder.write.tape_writer import TapeWriter, growth_of_new
from calltape_schema.framing import BLOCK
from calltape_schema.gathered import GROUP_BYTES, LARGEST_GATHERED
from calltape_schema.packing import pack, seal_envelope
from calltape_schema.summing import CallFacts
from tests.recorder.models import Identity
from tests.recorder.reading import read, records_in


def call(number: int, size: int, blob_bytes: int = 0) -> EncodedCall:
    """A call with a payload of ``size`` bytes that cannot be packed."""
    facts = CallFacts(number, 0, 0, False, blob_bytes, b"s%d" % (number % 2), b"l", pack([]))
    payload = random.Random(number).randbytes(size)
    blob = [bytes([1 + number % 255]) * blob_bytes] if blob_bytes else []
    return EncodedCall(blob, seal_envelope(payload), facts, None if blob else payload)


def calls(sizes: Iterable[tuple[int, int]]) -> list[EncodedCall]:
    return [call(number, *size) for number, size in enumerate(sizes)]


def found_in(data: bytes) -> list[bytes]:
    """The records that stand in these members, by tarfile."""
    found: list[bytes] = []
    with tarfile.open(fileobj=io.BytesIO(data + bytes(2 * BLOCK))) as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            content = file.read()
            if member.name.endswith(".records"):
                found += records_in(content)
            elif member.name.endswith(".msgpack"):
                found.append(content)
    return found


SIZES = st.lists(
    st.tuples(
        st.one_of(st.integers(1, 600), st.integers(1, LARGEST_GATHERED + 600)),
        st.sampled_from((0, 0, 0, 0, 1, 600)),
    ),
    max_size=60,
)


@given(SIZES, st.lists(st.integers(1, 9), min_size=1))
@example([(10000, 0), (1, 0), (19_990, 0), (1, 0)], [1])  # two groups of twice the used bytes
@example([(1524, 0), (499, 0)], [1])
def test_any_calls_in_any_batches(sizes: list[tuple[int, int]], batches: list[int]) -> None:
    encoded, position, data, index = calls(sizes), Position.at(0), bytearray(), []
    done, turn = 0, 0
    while done < len(encoded):
        some = encoded[done : done + batches[turn % len(batches)]]
        placement = placed(position, some, gathers=True)
        for write in placement.writes:
            content = b"".join(map(bytes, write.parts))
            data += bytes(max(write.end, write.offset + len(content)) - len(data))
            assert not any(data[write.offset : write.offset + len(content)])  # never overwritten
            data[write.offset : write.offset + len(content)] = content
        position = placement.position
        assert len(data) == position.end
        index += placement.offsets
        done, turn = done + len(some), turn + 1
    assert found_in(bytes(data)) == [one.record for one in encoded]
    assert all(offset % BLOCK == 0 and data[offset : offset + 6] == b"calls/" for offset in index)
    # The last group may round its room up to a whole block.
    assert len(data) <= 2 * sum(one.size for one in encoded) + BLOCK


def test_what_a_new_file_grows_by() -> None:
    some = calls([(100, 0)] * 20 + [(100, 1000)])
    assert growth_of_new(some) == placed(Position.at(0), some, gathers=True).position.end
    assert placed(Position.at(512), some, gathers=False).position.end == 512 + sum(
        one.size for one in some
    )


def test_groups_grow_while_small_calls_come_and_shrink_when_others_come() -> None:
    position, sizes = Position.at(0), []
    for number in range(2000):
        before = position.end
        position = placed(position, [call(number, 100)], gathers=True).position
        if position.end != before:
            sizes.append(position.end - before - BLOCK)
    assert sizes[:4] == [512, 1024, 2048, 4096]
    assert max(sizes) == GROUP_BYTES
    position = placed(position, [call(2000, 100, 100), call(2001, 100)], gathers=True).position
    position = placed(position, [call(2002, 100, 100)], gathers=True).position
    before = position.end
    position = placed(position, [call(2003, 100)], gathers=True).position
    assert position.end - before == 2 * BLOCK


def test_shapes_only_calls_take_at_most_256_bytes_each(tmp_path: Path) -> None:
    model, path = Identity(), tmp_path / "t.tape"
    with record(model, path, values="none") as recorder:
        for number in range(2000):
            model(torch.empty(2, 3 + number % 50))
            if number % 50 == 0:
                recorder.flush()
    assert len(read(path).calls) == 2000
    assert path.stat().st_size <= 256 * 2000


@pytest.mark.parametrize("flushes", [True, False])
def test_decode_steps_of_a_large_cache_take_little(tmp_path: Path, flushes: bool) -> None:
    model, path = Identity(), tmp_path / "t.tape"
    with record(model, path, values="none") as recorder:
        for step in range(200):
            cache = [torch.empty(1, 4, 5 + step, 2, device="meta") for _ in range(48)]
            model({"past": cache, "ids": torch.empty(1, 1, device="meta")})
            assert not flushes or recorder.flush()
    tape = read(path)
    assert len(tape.calls) == 200
    assert path.stat().st_size <= 1000 * 200  # a record has about 15,000 bytes


def test_each_call_is_in_the_file_when_it_was_flushed(tmp_path: Path) -> None:
    model, path = Identity(), tmp_path / "t.tape"
    with record(model, path, values="none") as recorder:
        for number in range(30):
            model(torch.empty(number))
            assert recorder.flush()
            assert read(path).numbers == list(range(number + 1))
            assert recorder.stats().written_bytes == path.stat().st_size


@pytest.mark.parametrize("how_many", [0, 1, 3, 5000])
def test_a_write_into_a_group_that_fails_leaves_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how_many: int
) -> None:
    path = tmp_path / "t"
    tape = TapeWriter(str(path), overwrite=False)
    tape.append([call(0, 100)])
    tape.append([call(1, 100), call(2, 300), call(3, 900)])
    before, end = path.read_bytes(), tape.end
    real = os.pwritev
    room = [how_many]

    def fails(file: int, parts: list[Any], at: int) -> int:
        data = b"".join(map(bytes, parts))[: room[0]]
        room[0] -= len(data)
        if not data:
            raise OSError(errno.ENOSPC, "No space left")
        return real(file, [data], at)

    with monkeypatch.context() as patch:
        patch.setattr(tape_writer, "pwritev", fails)
        with pytest.raises(OSError, match="No space"):
            tape.append([call(4, 200), call(5, 4000), call(6, 200, 9000)])
    assert path.read_bytes() == before
    assert tape.end == end
    tape.append([call(7, 200)])
    assert found_in(path.read_bytes()) == [
        call(number, size).record for number, size in ((0, 100), (1, 100), (2, 300), (3, 900),
                                                       (7, 200))
    ]  # fmt: skip
    tape.close()


def test_a_disk_that_cannot_even_cut_leaves_zeros_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    tape = TapeWriter(str(path), overwrite=False)
    tape.append([call(0, 100)])
    real = os.pwritev

    def fails(file: int, parts: list[Any], at: int) -> int:
        real(file, [b"".join(map(bytes, parts))[:50]], at)
        raise OSError(errno.EIO, "Input/output error")

    def refuses(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(tape_writer, "pwritev", fails)
        patch.setattr(tape_writer.os, "ftruncate", refuses)
        with pytest.raises(OSError, match="Input/output"):
            tape.append([call(1, 100)])
    tape.append([call(2, 30)])
    assert found_in(path.read_bytes()) == [call(0, 100).record, call(2, 30).record]
    tape.close()
