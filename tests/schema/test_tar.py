"""Tar members: written for any tar, hopped over by us, found again after damage."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calltape_schema.errors import TapeError
from calltape_schema.tar import (
    BLOCK,
    ZEROS_AT_END,
    Member,
    group_name,
    is_group,
    member_header,
    members,
)
from tests.forging.sections import member, with_checksum

CONTENTS = {
    "tape.msgpack": b"manifest",
    "blobs/00000000.safetensors": bytes(range(256)) * 5,
    "records/00000000.msgpack": b"r" * BLOCK,
    "notes/empty": b"",
    "records/00000001.msgpack": b"x" * 511,
}


def archive(contents: dict[str, bytes] = CONTENTS) -> bytes:
    return b"".join(member(name, content) for name, content in contents.items())


def scan(data: bytes, start: int = 0) -> tuple[list[Member], list[TapeError]]:
    damage: list[TapeError] = []

    def read(offset: int, size: int) -> bytes:
        assert 0 <= offset <= len(data)
        return data[offset : offset + size]

    return list(members(read, len(data), damage.append, start)), damage


def test_members_have_their_contents() -> None:
    data = archive() + ZEROS_AT_END
    found, damage = scan(data)
    assert damage == []
    assert {m.name: data[m.start : m.start + m.size] for m in found} == CONTENTS
    assert [m.offset for m in found[1:]] == [m.end for m in found[:-1]]
    assert scan(data, found[2].offset)[0] == found[2:]


def test_tarfile_reads_what_we_write() -> None:
    with tarfile.open(fileobj=io.BytesIO(archive() + ZEROS_AT_END)) as tar:
        assert {m.name: tar.extractfile(m).read() for m in tar} == CONTENTS  # type: ignore[union-attr]
        assert all(m.isreg() and m.mode == 0o644 and m.mtime == 0 for m in tar)


def test_the_tar_command_reads_what_we_write(tmp_path: Path) -> None:
    (tmp_path / "a.tape").write_bytes(archive() + ZEROS_AT_END)
    run = {"cwd": tmp_path, "check": True, "capture_output": True, "text": True}
    listed = subprocess.run(["tar", "tf", "a.tape"], **run)  # type: ignore[call-overload]
    assert listed.stdout.splitlines() == [*CONTENTS]
    assert listed.stderr == ""
    subprocess.run(["tar", "xf", "a.tape"], **run)  # type: ignore[call-overload]
    for name, content in CONTENTS.items():
        assert (tmp_path / name).read_bytes() == content


def test_we_read_what_tarfile_writes() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in CONTENTS.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uname = len(content), 1_700_000_000, "somebody"
            tar.addfile(info, io.BytesIO(content))
        folder = tarfile.TarInfo("records/00000002.msgpack")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    data = file.getvalue()
    found, damage = scan(data)
    assert damage == []
    assert {m.name: data[m.start : m.start + m.size] for m in found} == CONTENTS


@pytest.mark.parametrize("size", [0, 1, 8**11 - 1, 8**11, 2**40 + 3, 2**63 - 1])
def test_sizes_of_any_magnitude_are_those_of_tarfile(size: int) -> None:
    header = member_header("blobs/00000000.safetensors", size)
    assert len(header) == BLOCK
    assert (header[124] == 0x80) == (size >= 8**11)
    info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
    assert (info.name, info.size, info.chksum) == (
        "blobs/00000000.safetensors", size, tarfile.calc_chksums(header)[0],
    )  # fmt: skip
    found = list(members(lambda at, n: header[at : at + n], 2**64, lambda error: None))
    assert found[0][:3] == ("blobs/00000000.safetensors", 0, size)


def test_names_that_do_not_fit_are_not_written() -> None:
    for name in ("", "x" * 100):
        with pytest.raises(ValueError, match="member name"):
            member_header(name, 0)
    with pytest.raises(UnicodeEncodeError):
        member_header("é", 0)


@given(st.integers(0, 2**63 - 1))
def test_names_of_groups(call: int) -> None:
    assert is_group(group_name(call))


def test_a_flipped_bit_in_a_header_costs_one_member() -> None:
    data = archive() + ZEROS_AT_END
    whole, _ = scan(data)
    for target in whole[1:]:
        for position in (*range(0, 40, 7), *range(100, 160), 257, 300, 511):
            damaged = bytearray(data)
            damaged[target.offset + position] ^= 1
            found, damage = scan(bytes(damaged))
            assert found == [m for m in whole if m != target], position
            assert [error.kind for error in damage] == ["damaged"]
            assert damage[0].offset == target.offset


def test_a_truncated_archive_keeps_its_whole_members() -> None:
    data = archive()
    whole, _ = scan(data)
    for length in range(len(data)):
        found, damage = scan(data[:length])
        assert found == [m for m in whole if m.start + m.size <= length]
        rest = length - (found[-1].end if found else 0)
        assert len(damage) == (1 if rest > 0 else 0)
        if damage:
            assert damage[0].offset == length - rest


def test_zero_blocks_end_a_tape_only_where_nothing_follows() -> None:
    data = archive()
    for zeros in (1, BLOCK, 5 * BLOCK, 3000):
        found, damage = scan(data + bytes(zeros))
        assert (len(found), damage) == (len(CONTENTS), [])
    found, damage = scan(data + bytes(3 * BLOCK) + member("later", b"x"))
    assert [m.name for m in found] == [*CONTENTS, "later"]
    assert [error.offset for error in damage] == [len(data)]
    found, damage = scan(data + bytes(1024) + b"x")
    assert (len(found), len(damage)) == (len(CONTENTS), 1)


def test_garbage_between_members_is_skipped_and_reported() -> None:
    garbage = b"ustar" * 1000 + bytes(120)
    assert len(garbage) % BLOCK == 0
    data = member("a", b"1") + garbage + member("b", b"2")
    found, damage = scan(data)
    assert [m.name for m in found] == ["a", "b"]
    assert [(error.offset, error.member) for error in damage] == [(1024, None)]
    assert f"{len(garbage)} bytes skipped" in damage[0].reason


def test_garbage_longer_than_a_window_is_skipped() -> None:
    data = member("a", b"1") + b"z" * (1200 * BLOCK) + member("b", b"2") + b"z" * (1300 * BLOCK)
    found, damage = scan(data)
    assert [m.name for m in found] == ["a", "b"]
    assert len(damage) == 2


@pytest.mark.parametrize(
    "field",
    [b"\xff" * 12, b"\x80\x7f" + b"\xff" * 10, b"00000000999\0", b"-0000000001\0", b"0x000000001\0",
     b"00000_00001\0", b"\0" * 12, b" 0000000001\0", b"\x81" + bytes(11)],
    ids=lambda field: field.hex(),
)  # fmt: skip
def test_sizes_that_are_none_are_damage(field: bytes) -> None:
    header = bytearray(member_header("a", 1))
    header[124:136] = field
    found, damage = scan(with_checksum(bytes(header)) + bytes(BLOCK))
    assert (found, len(damage)) == ([], 1)


def bytes_read(data: bytes) -> int:
    sizes: list[int] = []

    def read(offset: int, size: int) -> bytes:
        found = data[offset : offset + size]
        sizes.append(len(found))
        return found

    list(members(read, len(data), lambda _: None))
    return sum(sizes)


# A header that claims too much, again and again; and the magic at every position.
@pytest.mark.parametrize("unit", [member_header("greedy", 2**40), b"ustar" * 103])
def test_damage_everywhere_takes_linear_work(unit: bytes) -> None:
    small, large = bytes_read(unit * 500), bytes_read(unit * 8000)
    assert large <= 20 * small  # quadratic would be 256 times as much


@given(
    st.binary(max_size=2000), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=5)
)
def test_random_damage_raises_nothing_and_ends(garbage: bytes, changes: Any) -> None:
    data = bytearray(archive() + garbage + member("last", b"x"))
    for position, value in changes:
        data[position % len(data)] = value
    found, damage = scan(bytes(data))
    assert all(m.start + m.size <= len(data) for m in found)
    assert all(error.kind == "damaged" and error.offset is not None for error in damage)
