"""Groups of records: what a reader finds in them, whole, torn and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_analyzer import TapeError, filter_tape, open_tape
from calltape_recorder import record
from calltape_schema import sections
from calltape_schema.bounds import MAX_MEMBER_BYTES
from calltape_schema.tar import BLOCK, Member, is_group, member_header
from tests.forging.changes import flip, member_list

COUNT = 200


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sealed tape of calls without values, in several groups."""
    model = torch.nn.Identity()
    with record(model, tmp_path / "t.tape", values="none") as recorder:
        for number in range(COUNT):
            model(torch.empty(2, 3 + number % 7))
            if number % 50 == 49:
                recorder.flush()
    return tmp_path / "t.tape"


def groups(path: Path) -> list[Member]:
    return [member for member in member_list(path) if is_group(member.name)]


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
    last = groups(path)[-1]
    with open_tape(cut(path, last.start + last.size)) as tape:
        assert len(tape.calls) == COUNT
        assert not tape.sealed
        assert not tape.damage
        assert tape.unfinished == 0
    with open_tape(cut(path, last.start + last.size - 1)) as tape:
        assert 0 < len(tape.calls) < COUNT
        assert not tape.damage
        assert tape.unfinished == BLOCK + last.size - 1


def test_a_bad_group_costs_its_own_calls(path: Path) -> None:
    second = groups(path)[1]
    flip(path, second.start + second.size // 2)
    named = second.name, second.offset
    with open_tape(path, scan=True) as tape:
        lost = COUNT - len(tape.calls)
        assert 0 < lost < COUNT
        (error,) = tape.damage
        assert (error.member, error.offset) == named
        numbers = {call.number for call in tape.calls}
        low, high = min(set(range(COUNT)) - numbers), max(set(range(COUNT)) - numbers)
        assert f"calls {low} to {high} are lost: the checksum" in str(error)
    with open_tape(cut(path, groups(path)[-1].end)) as tape:
        assert len(tape.calls) == COUNT - lost
        (error,) = tape.damage
        assert (error.member, error.offset) == named


def test_a_group_of_zeros_or_beyond_the_limit_is_damage(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()[: groups(path)[-1].end]
    name = f"records/{COUNT:08d}.msgpack"
    for size, kind in ((BLOCK, "damaged"), (MAX_MEMBER_BYTES + BLOCK, "limit")):
        made = tmp_path / f"{size}.tape"
        with made.open("wb") as file:
            file.write(whole + member_header(name, size))
            file.truncate(file.tell() + size)  # a hole
        with open_tape(made) as tape:
            (error,) = tape.damage
            assert (error.kind, error.member, error.offset) == (kind, name, len(whole))
            assert len(tape.calls) == COUNT


def test_an_error_of_a_call_names_its_group(path: Path) -> None:
    for at in (5, COUNT - 1):
        with open_tape(path) as tape:
            call = tape.calls[at]
            error = call.segment.checks.located(TapeError("invalid", "x"), call.position)
        group = next(one for one in reversed(groups(path)) if int(one.name[8:16]) <= at)
        assert (error.member, error.offset, error.path) == (group.name, group.offset, str(path))


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


def test_copies_of_calls_in_groups_count_once(path: Path) -> None:
    part = cut(path, groups(path)[-1].offset)
    with open_tape([path, part]) as tape:
        assert len(tape.calls) == COUNT
        assert {error.path for error in tape.damage} == {str(part)}


def test_groups_are_inflated_once_for_their_calls(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    real = sections.inflated

    def inflated(data: bytes, size: int, what: str) -> bytes:
        if what == "the records of a group":
            found.append(size)
        return real(data, size, what)

    monkeypatch.setattr(sections, "inflated", inflated)
    with open_tape(path) as tape:
        tape.calls.scan()
        assert not found, "a walk inflates nothing"
        for call in tape.calls:
            assert call.record.inputs.spec()
        assert len(found) <= len(groups(path))
