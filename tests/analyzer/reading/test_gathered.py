"""Groups of small records: what a reader finds in them, whole, torn and damaged."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest
import torch

from calltape_analyzer import TapeError, filter_tape, open_tape
from calltape_recorder import record
from calltape_schema.framing import BLOCK, member_header, members
from calltape_schema.gathered import entry, is_group, places
from calltape_schema.packing import pack

COUNT = 200


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sealed tape of calls without values, all of them in groups."""
    model = torch.nn.Identity()
    with record(model, tmp_path / "t.tape", values="none") as recorder:
        for number in range(COUNT):
            model(torch.empty(2, 3 + number % 7))
            recorder.flush()
    return tmp_path / "t.tape"


def groups(data: bytes) -> list[tuple[int, int, bytes]]:
    """Offset, size and content of the groups."""
    found = members(lambda at, size: data[at : at + size], len(data), lambda error: None)
    return [(m.start, m.size, data[m.start : m.start + m.size]) for m in found if is_group(m.name)]


def cut(path: Path, end: int) -> Path:
    """An unsealed tape: the first bytes of another one."""
    made = path.with_name("cut.tape")
    made.write_bytes(path.read_bytes()[:end])
    return made


def test_calls_in_groups_are_calls(path: Path) -> None:
    with open_tape(path, verify=True) as tape:
        assert not tape.damage
        assert [call.number for call in tape.calls] == list(range(COUNT))
        for call in tape.calls:
            assert call.record.inputs.facts()[0].shape == (2, 3 + call.number % 7)
            assert call.record.call == call.number


def test_an_unsealed_tape_has_every_call_that_was_written(path: Path) -> None:
    start, size, content = groups(path.read_bytes())[-1]
    last = [at for at, _ in places(content)][-1]
    with open_tape(cut(path, start + size)) as tape:
        assert len(tape.calls) == COUNT
        assert not tape.sealed
        assert not tape.damage
        assert tape.unfinished == 0
    data = bytearray(path.read_bytes()[: start + size])
    half = start + last + 20  # the last entry was cut in its middle, and the rest is a hole
    data[half:] = bytes(len(data) - half)
    torn = path.with_name("torn.tape")
    torn.write_bytes(data)
    with open_tape(torn) as tape:
        assert len(tape.calls) == COUNT - 1
        assert not tape.damage
        assert tape.unfinished > 0


def test_a_bad_entry_costs_its_own_call(path: Path) -> None:
    data = bytearray(path.read_bytes())
    start, _, content = groups(bytes(data))[-1]
    entries = list(places(content))
    bad, size = entries[8]  # it refers to an earlier entry, and none refers to it
    assert size < 200
    data[start + bad + 3] ^= 1  # of its checksum
    path.write_bytes(data)
    with open_tape(path, scan=True) as tape:
        assert len(tape.calls) == COUNT - 1
        assert any("checksum" in str(error) for error in tape.damage)
        assert any("is lost: by the tape's index" in str(error) for error in tape.damage)
    unsealed = cut(path, start + len(content))
    with open_tape(unsealed) as tape:
        assert len(tape.calls) == COUNT - 1
        (error,) = tape.damage
        assert error.offset == start + bad - 4
        assert error.member is not None
        assert error.member.endswith(".records")


def test_calls_that_refer_to_a_bad_entry_are_lost_and_named(path: Path) -> None:
    data = bytearray(path.read_bytes())
    start, _, content = groups(bytes(data))[-1]
    at, size = next(iter(places(content)))
    data[start + at + size - 1] ^= 1
    path.write_bytes(data)
    with open_tape(path, scan=True) as tape:
        lost = COUNT - len(tape.calls)
        assert 1 < lost < COUNT
        said = [str(error) for error in tape.damage]
        assert sum("is lost: by the tape's index" in text for text in said) == lost


def test_a_group_of_zeros_only_and_one_that_is_too_large(path: Path, tmp_path: Path) -> None:
    start, size, _ = groups(path.read_bytes())[-1]
    whole = path.read_bytes()[: start + size]
    empty = tmp_path / "empty.tape"
    empty.write_bytes(whole + member_header("calls/00000099.records", BLOCK) + bytes(BLOCK))
    with open_tape(empty) as tape:
        assert len(tape.calls) == COUNT
        assert not tape.damage
    large, most = tmp_path / "large.tape", 1024 * 1024
    header = member_header("calls/00000099.records", most + BLOCK)
    large.write_bytes(whole + header + bytes(most + BLOCK))
    with open_tape(large) as tape:
        (error,) = tape.damage
        assert error.kind == "limit"
        assert len(tape.calls) == COUNT


def test_a_vast_entry_of_a_group_that_is_named_by_an_error(path: Path) -> None:
    data = bytearray(path.read_bytes())
    start, _, content = groups(bytes(data))[0]
    data[start : start + 4] = struct.pack("<I", 2**31)
    path.write_bytes(data)
    with open_tape(path, scan=True) as tape:
        assert len(tape.calls) == COUNT - len(list(places(content)))
        assert "longer than the group" in str(tape.damage[0])


def test_a_record_that_breaks_the_format_is_located_at_its_entry(path: Path) -> None:
    with open_tape(path) as tape:
        call = tape.calls[5]
        error = call._segment.located(TapeError("invalid", "x"), call._position)
        data = path.read_bytes()
        assert error.offset is not None
        assert error.member is None
        size = int.from_bytes(data[error.offset : error.offset + 4], "little")
        assert 20 < size < 400


def test_what_is_made_of_such_a_tape_has_groups_too(path: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.tape"
    with open_tape(path) as tape:
        filter_tape(tape.only(calls="3..52"), made)
    assert made.stat().st_size < 200 * 50 + 4096
    with open_tape(path) as tape, open_tape(made, verify=True, scan=True) as other:
        assert not other.damage
        assert [call.number for call in other.calls] == list(range(3, 53))
        for call in other.calls:
            assert call.record.inputs == tape.find(call.number).record.inputs
            assert call.time == tape.find(call.number).time


def test_copies_of_calls_in_groups_count_once(path: Path, tmp_path: Path) -> None:
    part = cut(path, groups(path.read_bytes())[-1][0] + 3000)
    with open_tape([path, part]) as tape:
        assert len(tape.calls) == COUNT


def test_a_group_of_bad_entries_is_read_once(path: Path) -> None:
    """What follows each of them was looked through: a mebibyte took most of a minute."""
    data = path.read_bytes()
    start, _, _ = groups(data)[0]
    bad = entry(pack([1, b""])) * 100_000
    made = cut(path, start - BLOCK)
    with made.open("ab") as file:
        file.write(member_header("calls/00000000.records", len(bad)) + bad)
    began = time.process_time()
    with open_tape(made) as tape:
        assert len(tape.calls) == 0
        assert "more places are damaged" in str(tape.damage[-1])
    assert time.process_time() - began < 15
