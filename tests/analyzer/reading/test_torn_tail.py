"""A torn segment of a killed process: a call that was being written is no call and no damage."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from calltape_analyzer.reading.torn_tail import UNSEALED, TornTail, coverage_without_trailer

from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.segment import Segment
from calltape_schema.errors import TapeError
from calltape_schema.framing import BLOCK, TRAILER, Member
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


def tail(*errors: TapeError) -> tuple[TornTail, list[TapeError]]:
    reported: list[TapeError] = []
    made = TornTail(reported.append)
    for error in errors:
        made.hold(error)
    return made, reported


def damaged(offset: int, member: str | None = None) -> TapeError:
    return TapeError("damaged", "no header", offset=offset, member=member)


def test_damage_before_the_tail_is_reported() -> None:
    early, late = damaged(512), damaged(2048, "calls/00000001.msgpack")
    made, reported = tail(early, late)
    assert reported == [early]
    assert made.unfinished_bytes(2600, None) == 552
    assert reported == [early]


def test_damage_that_something_follows_is_reported() -> None:
    error = damaged(512)
    made, reported = tail(error)
    made.release()
    made.release()
    assert reported == [error]
    assert made.unfinished_bytes(2048, None) == 0


@pytest.mark.parametrize("error", [damaged(512), damaged(512, TRAILER)], ids=["blocks", "trailer"])
def test_an_end_that_no_call_can_have_is_damage(error: TapeError) -> None:
    made, reported = tail(error)
    assert made.unfinished_bytes(512 + 2 * BLOCK, None) is None
    assert reported == [error]


def test_a_blob_without_its_record_is_unfinished() -> None:
    made, _ = tail(damaged(2048))
    assert made.unfinished_bytes(2100, Member("calls/00000001.safetensors", 1024, 512)) == 1076


def test_numbers_tell_how_many_calls_were_seen_at_least() -> None:
    found = coverage_without_trailer([3, 5, 4, 9], first_call=3)
    assert (found.seen, found.kept, found.dropped) == (7, 4, {UNSEALED: 3})
    assert coverage_without_trailer([], first_call=7).seen == 0
    # A call that began before this segment may end in it.
    assert coverage_without_trailer([2], first_call=7).seen == 1
