"""Torn tapes, and tapes of which any byte is another one."""

from __future__ import annotations

import pytest

from calltape_schema.errors import LostCallsError, TapeError
from calltape_schema.groups import planned
from calltape_schema.storage import BytesSource
from calltape_schema.tar import BLOCK, members
from tests.schema.container.tapes import TAPE, new_call, opened, raises, read_all, tape, tensor

GROUPS = (
    [new_call(0, [1, 2])],
    [new_call(1, shape=(2,)), new_call(2, [3], scalars=[7]), new_call(3, [4])],
    [new_call(4, [9], [0], at=[("x1", 2, "x0")])],
)


def ends_of_groups() -> list[tuple[int, int]]:
    """Where the content of each group ends, and how many calls there are up to there."""
    found = []
    for count in range(1, len(GROUPS) + 1):
        source = BytesSource(tape(*GROUPS[:count], seals=False))
        *_, last = members(source.read_at, source.size, raises)
        found.append((last.start + last.size, sum(map(len, GROUPS[:count]))))
    return found


@pytest.mark.parametrize("step", [61, pytest.param(1, marks=pytest.mark.integration)])
def test_a_tape_torn_at_every_byte_keeps_what_was_flushed(step: int) -> None:
    data = tape(*GROUPS)
    ends = ends_of_groups()
    first = len(tape(seals=False).rstrip(b"\0"))
    refused = 0
    for size in [*range(0, len(data), step), *(end + by for end, _ in ends for by in (-1, 0, 1))]:
        try:
            whole, errors = read_all(data[:size])
        except TapeError:
            assert size < first
            refused += 1
            continue
        kept = max([calls for end, calls in ends if end <= size], default=0)
        assert whole == list(range(kept)), size
        # An end that is not whole, or not last, tells that a sealed tape was copied in part.
        in_end = size >= data.index(b"end.msgpack") + BLOCK
        assert errors == (["damaged"] if in_end else []), size
    assert step > 1 or refused == first


def test_the_torn_tail_is_told() -> None:
    data = tape(*GROUPS, seals=False)
    before = len(tape(*GROUPS[:2], seals=False))
    for size in (before + 100, before + 600, before + 1200, len(data) - BLOCK):
        scan = opened(data[:size]).scan()
        assert (scan.unfinished, scan.damage) == (size - before, [])
    assert opened(data).scan().unfinished == 0


EVERY = pytest.mark.integration


@pytest.mark.parametrize(
    ("mask", "step"),
    [
        (0x01, 31),
        pytest.param(0x01, 1, marks=[EVERY, pytest.mark.slow]),
        pytest.param(0x80, 1, marks=[EVERY, pytest.mark.slow]),
        pytest.param(0xFF, 1, marks=[EVERY, pytest.mark.slow]),
    ],
)
def test_a_flipped_byte_is_never_taken_for_whole(mask: int, step: int) -> None:
    """An error, or calls of which each is whole; what is changed is never taken for whole."""
    data = bytearray(tape(*GROUPS))
    right = {number: record_of(bytes(data), number) for number in range(5)}
    header = len(tape(seals=False))
    for at in range(0, len(data), step):
        data[at] ^= mask
        try:
            whole, _ = read_all(bytes(data))
        except TapeError:
            assert at < header
        else:
            # One byte costs one group, and who points to it.
            assert len(whole) >= 1, at
            for number in whole:
                assert record_of(bytes(data), number) == right[number], at
        data[at] ^= mask


def record_of(data: bytes, number: int) -> object:
    reader = opened(data)
    reader.scan()
    record = reader.record(number)
    return record, [tensor(reader, record, leaf) for leaf in record.inputs.facts() if leaf.key]


def test_a_group_inside_a_tensor_is_none() -> None:
    """Bytes of a tensor look like a group of this tape, and the header before them is damaged."""
    forged = tape([new_call(99)], seals=False)[len(tape(seals=False)) :]
    floats = [*memoryview(bytes(384) + forged).cast("f")]
    data = bytearray(tape([new_call(0, floats)], [new_call(1)]))
    assert data.index(forged) % BLOCK == 0
    at = data.index(b"blobs/00000000")
    data[at + 130] ^= 1
    scan = opened(bytes(data)).scan()
    assert list(scan.numbers) == [0, 1]
    assert any("bytes within a tensor" in str(error) for error in scan.damage)


def test_calls_of_a_group_that_repeats_a_number_are_lost() -> None:
    data = tape([new_call(0)], [new_call(0), new_call(1)], [new_call(2)])
    scan = opened(data).scan()
    assert list(scan.numbers) == [0, 2]
    (error,) = scan.damage
    assert isinstance(error, LostCallsError)
    assert (error.calls, error.low, error.high) == (2, 0, 1)


def test_rubbish_between_groups_is_skipped() -> None:
    one = tape(GROUPS[0], seals=False) + b"rubbish!" * 256
    plan = planned(TAPE, GROUPS[1])
    plan.groups[0].place(len(one))
    whole, errors = read_all(one + b"".join(map(bytes, plan.parts)))
    assert (whole, errors) == ([0, 1, 2, 3], ["damaged"])
