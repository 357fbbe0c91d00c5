"""What damage costs: the calls that it hits, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_analyzer import TapeError, open_tape
from calltape_schema.tar import BLOCK, member_header
from tests.analyzer.tape.recorded import calls
from tests.analyzer.tapes import Recorded, write_tape
from tests.forging.changes import change_end, flip, member_list, patch, rename
from tests.forging.sections import deflated, member


def test_a_damaged_record_costs_its_call(tape_file: Path) -> None:
    record = member_list(tape_file)[4]
    assert record.name == "records/00000001.msgpack"
    flip(tape_file, record.start + 60)
    with open_tape(tape_file) as tape:
        assert [call.number for call in tape] == [0, 2, 3]
        (error,) = tape.damage
        assert (error.kind, error.member, error.offset) == ("damaged", record.name, record.offset)
        assert error.path == str(tape_file)
        assert "call 1 is lost: the checksum" in str(error)


def test_a_damaged_group_costs_its_calls(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", calls(6), groups=[2, 3, 1])
    group = next(m for m in member_list(path) if m.name == "records/00000002.msgpack")
    flip(path, group.start + group.size - 30)
    with open_tape(path) as tape:
        assert [call.number for call in tape] == [0, 1, 5]
        (error,) = tape.damage
        assert (error.path, error.member, error.offset) == (str(path), group.name, group.offset)
        assert "calls 2 to 4 are lost" in str(error)


def test_a_damaged_group_of_an_unsealed_tape_loses_only_its_calls(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", calls(6), groups=[2, 3, 1], sealed=False)
    group = next(m for m in member_list(path) if m.name == "records/00000002.msgpack")
    flip(path, group.start + group.size - 30)
    with open_tape(path) as tape:
        assert [call.number for call in tape] == [0, 1, 5]
        (error,) = tape.damage
        assert (error.path, error.member, error.offset) == (str(path), group.name, group.offset)


def test_damaged_tensors_are_found_when_read(tape_file: Path) -> None:
    blob = member_list(tape_file)[3]
    flip(tape_file, blob.start + blob.size - 1)
    with open_tape(tape_file) as tape:
        assert len(tape) == 4
        assert tape.damage == []
        for _ in range(2):
            with pytest.raises(TapeError) as caught:
                tape[1].inputs  # noqa: B018
            assert caught.value.kind == "damaged"
        (error,) = tape.damage
        assert (error.member, error.offset) == (blob.name, blob.offset)
        assert [call.number for call in tape] == [0, 2, 3]
        assert tape[1].record.inputs.facts()[0].shape == (2, 2)
        assert len(tape.damage) == 1
        assert len(tape.verify()) == 1


def test_verify_leaves_damaged_calls_out(tape_file: Path) -> None:
    flip(tape_file, member_list(tape_file)[3].start + 200)
    with open_tape(tape_file, verify=True) as tape:
        assert len(tape) == 3
        assert len(tape.damage) == 1
        assert [call.index for call in tape] == [0, 1, 2]


def test_a_broken_header_is_skipped(tape_file: Path) -> None:
    third = member_list(tape_file)[5]
    patch(tape_file, third.offset, bytes(BLOCK))
    with open_tape(tape_file) as tape:
        assert [call.number for call in tape.calls] == [0, 1, 2, 3]
        assert [error.offset for error in tape.damage] == [third.offset]
        assert tape[2].record.inputs.facts()[0].shape == (2, 3)
        with pytest.raises(TapeError, match="the tensors of call 2 are not there"):
            tape[2].inputs  # noqa: B018
        assert len(tape.verify()) == 2
        assert [call.number for call in tape] == [0, 1, 3]


@pytest.mark.parametrize("size", [10**9, 2**62])
def test_a_record_that_claims_more_than_the_file_is_lost(tape_file: Path, size: int) -> None:
    record = member_list(tape_file)[4]
    patch(tape_file, record.offset, member_header(record.name, size))
    with open_tape(tape_file) as tape:
        assert [call.number for call in tape] == [0, 2, 3]
        (error,) = tape.damage
        assert (error.member, error.offset) == (record.name, record.offset)
        assert "call 1 is lost" in str(error)


def test_calls_cut_out_are_told_by_the_index(tape_file: Path) -> None:
    listed = member_list(tape_file)
    data = tape_file.read_bytes()
    # Calls 1 and 2 are gone altogether, as if they had never been written: calls 0 and 3 remain,
    # and 3 is not where the index has it.
    tape_file.write_bytes(data[: listed[3].offset] + data[listed[7].offset :])
    with open_tape(tape_file) as tape:
        assert [call.number for call in tape] == [0]  # the group of call 3 says that it was moved
        assert not tape.sealed
        group, end = tape.damage
        assert "a copy of it" in group.reason
        assert (end.member, end.path) == ("end.msgpack", str(tape_file))
    change_end(tape_file, lambda end: {})
    with open_tape(tape_file, scan=True) as tape:
        reasons = [error.reason for error in tape.damage]
        assert [text[: len("call 1 is lost")] for text in reasons] == [
            f"call {number} is lost" for number in (1, 2, 3)
        ]


def test_a_record_of_another_tape_is_damage(tmp_path: Path, tape_file: Path) -> None:
    other = write_tape(tmp_path / "other.tape", calls(4), tape_id=bytes(16), outputs=[None] * 4)
    mine, theirs = member_list(tape_file), member_list(other)
    data, foreign = tape_file.read_bytes(), other.read_bytes()
    joined = data[: mine[-1].offset] + foreign[theirs[1].offset : theirs[3].offset]
    tape_file.write_bytes(joined + data[mine[-1].offset :])
    change_end(tape_file, lambda end: {})
    with open_tape(tape_file, scan=True) as tape:
        assert len(tape) == 4
        (error,) = tape.damage
        assert "another tape" in str(error)


def test_of_concatenated_tapes_the_first_is_read(tmp_path: Path, tape_file: Path) -> None:
    other = write_tape(tmp_path / "other.tape", calls(2), tape_id=bytes(16))
    tape_file.write_bytes(tape_file.read_bytes() + other.read_bytes())
    with open_tape(tape_file) as tape:
        assert len(list(tape)) == 4
        assert len(tape.damage) >= 2


def test_a_second_call_of_one_number_is_damage(tmp_path: Path) -> None:
    given = [Recorded(args=(1,), number=3), Recorded(args=(2,), number=3)]
    path = write_tape(tmp_path / "a.tape", given, sealed=False)
    with open_tape(path) as tape:
        assert [call.inputs.args for call in tape] == [(1,)]
        (error,) = tape.damage
        assert "has the number of another one" in str(error)
        assert error.member == "records/00000003.msgpack"


def test_a_call_without_its_blob_is_lost(tape_file: Path) -> None:
    listed = member_list(tape_file)
    rename(tape_file, listed[3], "extra/thing")
    with open_tape(tape_file, verify=True) as tape:
        assert [call.number for call in tape] == [0, 2, 3]
        (error,) = tape.damage
        assert (error.member, error.offset) == (listed[3].name, listed[3].offset)
        assert "call 1" in str(error)


def test_a_call_without_its_record_is_lost(tape_file: Path) -> None:
    listed = member_list(tape_file)
    rename(tape_file, listed[4], "extra/thing")
    with open_tape(tape_file) as tape:
        assert [call.number for call in tape] == [0, 2, 3]
        (error,) = tape.damage
        assert error.offset == listed[4].offset
        assert "call 1 is lost" in str(error)


def test_unknown_members_are_skipped(tape_file: Path) -> None:
    listed = member_list(tape_file)
    data = tape_file.read_bytes()
    at = listed[-1].offset
    tape_file.write_bytes(data[:at] + member("notes/x.txt", b"hello" * 300) + data[at:])
    change_end(tape_file, lambda end: {})
    with open_tape(tape_file) as tape:
        assert len(list(tape)) == 4
        assert tape.damage == []
        assert tape.sealed


def test_order_is_that_of_the_numbers(tmp_path: Path) -> None:
    given = [Recorded(args=(n,), number=n) for n in (2, 0, 3, 1)]
    path = write_tape(tmp_path / "a.tape", given)
    with open_tape(path) as tape:
        assert [call.inputs.args[0] for call in tape] == [0, 1, 2, 3]
        assert tape[1].number == 1


def test_a_tape_with_a_damaged_end_counts_as_unsealed(tape_file: Path) -> None:
    end = member_list(tape_file)[-1]
    flip(tape_file, end.start + 20)
    with open_tape(tape_file) as tape:
        assert len(list(tape)) == 4
        assert not tape.sealed
        (error,) = tape.damage
        assert error.member == "end.msgpack"


def test_junk_after_the_end_is_damage(tape_file: Path) -> None:
    size = tape_file.stat().st_size
    tape_file.write_bytes(tape_file.read_bytes() + b"junk" * 1000)
    with open_tape(tape_file) as tape:
        assert len(list(tape)) == 4
        assert not tape.sealed
        assert [error.offset for error in tape.damage] == [
            member_list(tape_file)[-1].offset,
            size - 2 * BLOCK,
        ]


def test_members_inside_a_damaged_blob_are_not_calls(tmp_path: Path) -> None:
    """A tensor holds a tape of the same id; its blob's header is destroyed, so that the reader
    resynchronises inside the tensor."""
    inner = write_tape(tmp_path / "in.tape", [Recorded(args=("fake",), number=7)], sealed=False)
    listed = member_list(inner)
    fake = inner.read_bytes()[listed[1].offset :]
    # Blob data start at a multiple of 64, so that one of 8 positions is at a block of the file.
    carrier = torch.frombuffer(
        bytearray(b"".join(bytes(64) for _ in range(8)) + fake), dtype=torch.uint8
    )
    for shift in range(8):
        path = write_tape(tmp_path / "a.tape", [((carrier[shift * 64 :].clone(),), {}), ((1,), {})])
        data = path.read_bytes()
        if any(
            data[at : at + 24] == b"records/00000007.msgpack" for at in range(0, len(data), BLOCK)
        ):
            break
    else:
        pytest.fail("no alignment puts the fake at a block")
    blob = member_list(path)[1]
    patch(path, blob.offset, bytes(BLOCK))
    with open_tape(path) as tape:
        assert [call.number for call in tape.calls] == [0, 1]
        assert any("bytes within a tensor" in str(error) for error in tape.damage)
        assert tape.damage[0].offset == blob.offset


def test_a_group_in_a_tensor_takes_no_number(tmp_path: Path) -> None:
    """What looks like call 1 in the tensor of call 0 does not stand in its way."""
    inner = write_tape(tmp_path / "in.tape", [Recorded(args=("fake",), number=1)], sealed=False)
    fake = inner.read_bytes()[member_list(inner)[1].offset :]
    carrier = torch.frombuffer(bytearray(fake), dtype=torch.uint8)
    for shift in range(0, BLOCK, 64):
        given = torch.cat([torch.zeros(shift, dtype=torch.uint8), carrier])
        path = write_tape(tmp_path / "a.tape", [((given,), {}), (("true",), {})])
        patch(path, member_list(path)[1].offset, bytes(BLOCK))
        with open_tape(path) as tape:
            assert [call.number for call in tape.calls] == [0, 1]
            assert tape[1].inputs.args == ("true",)


def test_damage_is_bounded(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", calls(1), sealed=False)
    junk = b"".join(member(f"records/{i:08d}.msgpack", b"") for i in range(5, 3005))
    path.write_bytes(path.read_bytes() + junk)
    with open_tape(path) as tape:
        assert len(tape.damage) == 1001
        assert "2000 more" in str(tape.damage[-1])


def test_a_table_that_cannot_be_read_is_told_once(tape_file: Path) -> None:
    change_end(tape_file, lambda end: {"inputs": deflated(b"\xc1")})
    with open_tape(tape_file) as tape:
        assert [call.number for call in tape] == [0, 1, 2, 3]
        (error,) = tape.damage
        assert (error.member, error.path) == ("end.msgpack", str(tape_file))
        assert "forged or stale table of inputs" in str(error)
        assert len(tape.verify()) == 1
