"""Tapes that no recorder wrote: checksums that hold over content that lies, and files built to
cost a reader time or memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from calltape_analyzer import Placeholder, TapeError, open_tape, redact
from calltape_schema.packing import seal_envelope
from calltape_schema.tar import MANIFEST, member_header, members
from tests.analyzer.reading.lies import HARMLESS, LATER, LIES, MEBIBYTE, read_everything
from tests.analyzer.tapes import write_tape
from tests.forging.call import Forged
from tests.forging.sections import member


@pytest.fixture
def forged(tmp_path: Path) -> Forged:
    return Forged(tmp_path / "a.tape", (torch.arange(6.0).reshape(2, 3),))


def test_the_forge_makes_good_tapes(forged: Forged) -> None:
    assert read_everything(forged.write()) == (1, [])


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_lie_is_a_tape_error(forged: Forged, lie: Callable[[Forged], None]) -> None:
    lie(forged)
    path = forged.write()
    tracemalloc.start()
    whole, damage = read_everything(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert whole == 0
    assert damage
    assert all(isinstance(error, TapeError) for error in damage)
    assert peak < 32 * MEBIBYTE + 64 * path.stat().st_size


@pytest.mark.parametrize("oddity", HARMLESS.values(), ids=HARMLESS)
def test_what_is_odd_but_true_reads(forged: Forged, oddity: Callable[[Forged], None]) -> None:
    oddity(forged)
    path = forged.write()
    assert read_everything(path) == (1, [])
    with open_tape(path) as tape:
        value = tape[0].inputs.args[0]
        while isinstance(value, list):
            value = value[0]
        assert value.flatten().tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("later", "told"), LATER.values(), ids=LATER)
def test_what_a_later_version_has_is_a_placeholder(
    forged: Forged, later: Callable[[Forged], None], told: list[str]
) -> None:
    later(forged)
    path = forged.write()
    whole, damage = read_everything(path)
    assert (whole, [error.kind for error in damage]) == (1, told)
    with open_tape(path) as tape:
        (value,) = tape[0].inputs.args
        assert isinstance(value, Placeholder)
        assert "unsupported" in value.reason or "dtype" in value.reason
        redact(tape, path.with_name("b.tape"))
    assert b"system" not in path.with_name("b.tape").read_bytes()


def test_an_expansion_costs_no_memory(tmp_path: Path) -> None:
    forged = Forged(tmp_path / "a.tape", (torch.ones(1, 1).expand(3, 3),))
    forged.set_leaf(shape=[2**31, 2**31], strides=[0, 0])
    with open_tape(forged.write()) as tape:
        value = tape[0].inputs.args[0]
        assert value.shape == (2**31, 2**31)
        assert value.untyped_storage().nbytes() == 4


def test_a_missing_value_costs_no_memory(forged: Forged) -> None:
    forged.set_leaf(shape=[2**30, 2**30], key=None, missing="policy")
    with open_tape(forged.write()) as tape:
        value = tape[0].inputs.args[0]
        assert value.is_meta
        assert value.shape == (2**30, 2**30)


def test_inference_skips_a_call_that_lies(tmp_path: Path, forged: Forged) -> None:
    good = write_tape(tmp_path / "b.tape", [((torch.ones(n, 3),), {}) for n in (2, 4)],
                      tape_id=b"b" * 16)  # fmt: skip
    forged.set_root({"kind": "none"})
    forged.write()
    with open_tape([forged.path, good]) as tape:
        shapes = tape.infer_dynamic_shapes()
        with open_tape(good) as alone:
            assert shapes == alone.infer_dynamic_shapes()
        (error,) = tape.damage
        assert error.path == str(forged.path)
        assert len(tape) == 2
        assert [call.index for call in tape] == [0, 1]


# Files as such.


@pytest.mark.parametrize(
    "size", [b"\x80" + b"\xff" * 11, b"\xff" * 12, b"\x80" + (2**63 - 1).to_bytes(11, "big"),
             b"77777777777\0", b"-0000000001\0", b"0x000000010\0", b"            "],
)  # fmt: skip
def test_a_member_with_a_wrong_size_costs_its_call(tmp_path: Path, size: bytes) -> None:
    path = write_tape(tmp_path / "a.tape", [((torch.ones(3),), {})] * 3)
    data = bytearray(path.read_bytes())
    listed = list(members(lambda at, n: bytes(data[at : at + n]), len(data), lambda error: None))
    for index in (0, 3, 4):
        header = bytearray(data[listed[index].offset :][:512])
        header[124:136] = size
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        broken = bytes(data[: listed[index].offset]) + header + data[listed[index].offset + 512 :]
        path.write_bytes(broken)
        try:
            whole, damage = read_everything(path)
        except TapeError:
            assert index == 0
        else:
            assert whole == (2 if index else 3)  # the end repeats the manifest
            assert damage


def test_a_record_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [((1,), {})], sealed=False)
    with path.open("ab") as file:
        file.write(member_header("records/00000001.msgpack", 2**30))
        file.truncate(file.tell() + 2**30)  # sparse: the file has this size, but not on disk
    tracemalloc.start()
    with open_tape(path) as tape:
        assert len(tape) == 1
        (error,) = tape.damage
        assert error.kind == "limit"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * MEBIBYTE


def test_thousands_of_empty_members_are_skipped(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [((1,), {})], sealed=False)
    path.write_bytes(path.read_bytes() + member_header("x", 0) * 20_000)
    assert read_everything(path) == (1, [])


def test_a_manifest_bomb_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.tape"
    bomb = b"\xdc\xff\xff" + b"\x90" * 65535
    path.write_bytes(member(MANIFEST, seal_envelope(bomb * 40)))
    tracemalloc.start()
    with pytest.raises(TapeError):
        open_tape(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 128 * MEBIBYTE


LIMITED = """
import resource, sys
import torch
import calltape_analyzer.pytree.rebuilding, calltape_analyzer.pytree.rendering
import calltape_analyzer.pytree.tensors
from tests.analyzer.reading.lies import HARMLESS, LIES, read_everything
from tests.forging.call import Forged
from pathlib import Path
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 256 * 2**20, resource.RLIM_INFINITY))
for name, change in {**LIES, **HARMLESS}.items():
    forged = Forged(Path(sys.argv[1]) / "a.tape", (torch.arange(6.0).reshape(2, 3),))
    change(forged)
    read_everything(forged.write())
print("all read")
"""


@pytest.mark.integration
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
def test_all_lies_are_read_in_256_mebibytes(tmp_path: Path) -> None:
    assert resource.getpagesize()
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert result.stdout.strip() == "all read", result.stderr
