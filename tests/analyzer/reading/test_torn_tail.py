"""A torn segment of a killed process: a call that was being written is no call and no damage."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch

from calltape_analyzer.errors import Damage
from calltape_analyzer.reading.recordings import coverage_without_end
from calltape_analyzer.reading.segment import Segment
from calltape_schema.drop_reasons import DropReason
from calltape_schema.tar import BLOCK, member_header
from tests.analyzer.tapes import Recorded, write_tape


@pytest.fixture
def whole(tmp_path: Path) -> tuple[bytes, int]:
    """An unsealed tape of two calls, and the bytes of the first of them."""
    calls = [Recorded(args=(torch.ones(300),), number=number) for number in (0, 1)]
    first = write_tape(tmp_path / "first.tape", calls[:1], sealed=False).read_bytes()
    return write_tape(tmp_path / "both.tape", calls, sealed=False).read_bytes(), len(first)


def test_whatever_is_left_of_the_last_call_is_no_damage(
    whole: tuple[bytes, int], tmp_path: Path
) -> None:
    data, first = whole
    blocks = range(first + BLOCK, len(data), BLOCK)
    for size in (first + 1, first + 100, *blocks, blocks[-1] + 300):
        path = tmp_path / "torn.tape"
        path.write_bytes(data[:size])
        damage = Damage()
        segment = Segment(str(path), damage)
        assert (list(segment.numbers), segment.unfinished) == ([0], size - first)
        assert not damage
        segment.close()
    assert len(Segment(str(tmp_path / "both.tape"), Damage())) == 2


def test_a_group_that_is_cut_short_takes_its_blobs_with_it(tmp_path: Path) -> None:
    calls = [Recorded(args=(torch.ones(300),), number=number) for number in range(4)]
    first = write_tape(tmp_path / "first.tape", calls[:1], sealed=False).stat().st_size
    with closing(Segment(str(tmp_path / "first.tape"), Damage())) as segment:
        tensor_bytes = segment.tensor_bytes
    path = write_tape(tmp_path / "all.tape", calls, sealed=False, groups=[1, 3])
    data = path.read_bytes()
    for size in (first + 700, len(data) - 1500, len(data) - 600):
        path.write_bytes(data[:size])
        damage = Damage()
        with closing(Segment(str(path), damage)) as segment:
            assert (list(segment.numbers), segment.unfinished) == ([0], size - first)
            assert segment.tensor_bytes == tensor_bytes
        assert not damage


def torn(path: Path, data: bytes) -> tuple[int, list[str]]:
    """How many bytes are unfinished, and where damage is."""
    path.write_bytes(data)
    damage = Damage()
    with closing(Segment(str(path), damage)) as segment:
        return segment.unfinished, [f"{one.member} {one.offset}" for one in damage.list()]


def test_damage_before_the_tail_is_damage(whole: tuple[bytes, int], tmp_path: Path) -> None:
    data, first = whole
    broken = bytearray(data[: len(data) - 300])
    blob = data.index(b"blobs/00000000")
    broken[blob : blob + BLOCK] = b"x" * BLOCK
    assert torn(tmp_path / "a.tape", bytes(broken)) == (
        len(broken) - first,
        [f"None {blob}"],
    )


def test_what_no_call_begins_with_is_damage(whole: tuple[bytes, int], tmp_path: Path) -> None:
    data, _ = whole
    found = torn(tmp_path / "a.tape", data + b"x" * 3 * BLOCK)
    assert found == (0, [f"None {len(data)}"])
    found = torn(tmp_path / "b.tape", data + member_header("end.msgpack", 900) + b"x" * BLOCK)
    assert found == (0, [f"end.msgpack {len(data)}"])


def test_zeros_at_the_end_are_no_damage(whole: tuple[bytes, int], tmp_path: Path) -> None:
    assert torn(tmp_path / "a.tape", whole[0] + bytes(5 * BLOCK + 7)) == (0, [])


def test_numbers_tell_how_many_calls_were_seen_at_least() -> None:
    found = coverage_without_end([3, 5, 4, 9], first_call=3)
    assert (found.seen, found.kept, found.dropped) == (7, 4, {DropReason.NOT_SEALED: 3})
    assert coverage_without_end([], first_call=7).seen == 0
    # A call that began before this segment may end in it.
    assert coverage_without_end([2], first_call=7).seen == 1
