"""Compressed tapes read like the tapes in them; what is wrong with one is one TapeError."""

from __future__ import annotations

import gzip
import importlib
import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import calltape_analyzer.reading.compressed as compressed
from calltape_analyzer import Limits, TapeError, open_tape
from calltape_analyzer.reading.tape_file import descriptors
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import write_tape


def zstd(data: bytes) -> bytes:
    try:
        module = importlib.import_module("compression.zstd")
    except ImportError:
        module = pytest.importorskip("backports.zstd")
    found: bytes = module.compress(data)
    return found


FORMS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".zst": zstd}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    calls = [((torch.full((2 + i, 3), float(i)),), {}) for i in range(3)]
    return write_tape(tmp_path / "a.tape", calls)


@pytest.fixture(params=FORMS)
def packed(plain: Path, request: pytest.FixtureRequest) -> Path:
    path = plain.with_name(f"a.tape{request.param}")
    path.write_bytes(FORMS[request.param](plain.read_bytes()))
    plain.unlink()
    return path


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_reads_as_what_is_in_it(packed: Path) -> None:
    before = open_files()
    with open_tape(packed, verify=True) as tape:
        assert tape.paths == (str(packed),)
        assert [tuple(call.inputs.args[0].shape) for call in tape] == [(2, 3), (3, 3), (4, 3)]
        assert tape.calls[2].inputs.args[0].eq(2).all()
        assert tape.sealed
        assert not tape.damage
    assert open_files() <= before


def test_directories_and_patterns_find_it(packed: Path) -> None:
    for given in (packed.parent, str(packed.parent / "*.tape.*")):
        with open_tape(given) as tape:
            assert len(tape) == 3
    code, out, err = run("info", packed.parent)
    assert (code, err) == (0, "")
    assert "all match" in out


def test_the_descriptor_may_be_closed_meanwhile(packed: Path) -> None:
    with open_tape(packed) as tape:
        while descriptors.close_oldest():
            pass
        packed.unlink()  # it was decompressed once
        assert len(tape.calls[1].inputs.args[0]) == 3


def test_the_bytes_decide_and_not_the_name(plain: Path) -> None:
    named = plain.with_name("b.tape.zst")
    named.write_bytes(gzip.compress(plain.read_bytes()))
    plain.rename(plain.with_name("a.tape.gz"))
    for path in (named, plain.with_name("a.tape.gz")):
        with open_tape(path) as tape:
            assert len(tape) == 3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda d: d[: len(d) // 2], "damaged"),
        (lambda d: d[:-1], "damaged"),
        (lambda d: d[:5], "damaged"),
        (lambda d: d + b"garbage", "damaged"),
        (lambda d: d[:20] + bytes(b ^ 0xFF for b in d[20:60]) + d[60:], "damaged"),
        (lambda d: b"\x00" + d, "not_a_tape"),
        (lambda d: b"", "not_a_tape"),
    ],
)
def test_what_is_wrong_is_one_error(
    plain: Path, form: str, change: Callable[[bytes], bytes], kind: str
) -> None:
    path = plain.with_name(f"bad.tape{form}")
    path.write_bytes(change(FORMS[form](plain.read_bytes())))
    before = open_files()
    with pytest.raises(TapeError) as caught:
        open_tape(path)
    assert caught.value.kind == kind
    assert caught.value.path == str(path)
    assert open_files() <= before
    code, out, err = run("info", path)
    assert (code, out, err.count("\n")) == (1, "", 1)


@pytest.mark.integration
@pytest.mark.parametrize("form", FORMS)
def test_recover_takes_what_can_be_decompressed(tmp_path: Path, form: str) -> None:
    calls = [((torch.randn(512, 256),), {}) for _ in range(4)]  # zstd has blocks of 128 KiB
    plain = write_tape(tmp_path / "a.tape", calls).read_bytes()
    cut, out = tmp_path / f"cut.tape{form}", tmp_path / "out.tape"
    data = FORMS[form](plain)
    for size, expected in ((len(data) // 2, 1), (len(data) - 1, 3)):
        cut.write_bytes(data[:size])
        assert "take what is left with `calltape recover`" in run("info", cut).err
        result = run("recover", cut, "-o", out, "--force")
        assert result.err == ""
        with open_tape(out, verify=True) as tape:
            assert not tape.damage
            assert len(tape) >= expected
            assert tape.calls[0].inputs.args[0].eq(calls[0][0][0]).all()
    before = open_files()
    cut.write_bytes(data[:5])
    result = run("recover", cut, "-o", out, "--force")
    assert result.code == 1
    assert "recover`" not in result.err
    assert open_files() <= before


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "content",
    [b"", b"nothing of a tape", gzip.compress(b"once more")],
    ids=["nothing", "text", "compressed"],
)
def test_a_compressed_file_without_a_tape_is_rejected(
    tmp_path: Path, form: str, content: bytes
) -> None:
    path = tmp_path / f"a.tape{form}"
    path.write_bytes(FORMS[form](content))
    with pytest.raises(TapeError) as caught:
        open_tape(path)
    assert caught.value.kind == "not_a_tape"


@pytest.mark.parametrize("form", FORMS)
def test_a_bomb_is_not_unpacked(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "LEAST_BYTES", 2**20)
    monkeypatch.setattr(compressed, "TIMES_FILE", 1)
    made, real = list[int](), tempfile.TemporaryFile

    def temporary(**options: Any) -> Any:
        file = real(**options)
        made.append(os.dup(file.fileno()))
        return file

    monkeypatch.setattr(tempfile, "TemporaryFile", temporary)
    path = tmp_path / f"a.tape{form}"
    path.write_bytes(FORMS[form](bytes(20 * 2**20)))
    with pytest.raises(TapeError, match="it becomes larger than 1,048,576 bytes") as caught:
        open_tape(path)
    assert caught.value.kind == "limit"
    assert "gzip -d" in caught.value.advice
    assert os.fstat(made[0]).st_size <= 2**20
    with Limits(nbytes=30 * 2**20), pytest.raises(TapeError) as caught:
        open_tape(path)
    assert caught.value.kind == "not_a_tape"
    assert "larger than 2,097,152" in run("--max-memory", 2, "info", path).err
    assert "manifest" in run("--max-memory", 30, "info", path).err
    for descriptor in made:
        os.close(descriptor)


@pytest.mark.integration
@pytest.mark.slow
def test_memory_follows_the_file_and_not_its_claims(tmp_path: Path) -> None:
    calls = [((torch.zeros(64, 2**16),), {})]
    path = write_tape(tmp_path / "a.tape", calls)
    packed = tmp_path / "a.tape.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with open_tape(packed) as tape:
        assert tape.segments[0].disk_bytes <= 8 * (packed.stat().st_size + 4096)
        assert tape.calls[0].inputs.args[0].shape == (64, 2**16)


def test_the_error_names_what_to_install_for_zstandard(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = plain.with_name("b.tape.zst")
    path.write_bytes(zstd(plain.read_bytes()))

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(TapeError, match=r"analyzer\[zstd\]") as caught:
        open_tape(path)
    assert caught.value.kind == "usage"


def test_several_members_are_one_file(plain: Path) -> None:
    data = plain.read_bytes()
    path = plain.with_name("b.tape.gz")
    path.write_bytes(gzip.compress(data[:1000]) + gzip.compress(data[1000:]))
    with open_tape(path) as tape:
        assert len(tape) == 3


def test_a_checksum_that_does_not_hold(plain: Path) -> None:
    data = bytearray(gzip.compress(plain.read_bytes()))
    data[-8:-4] = (zlib.crc32(plain.read_bytes()) ^ 1).to_bytes(4, "little")
    path = plain.with_name("b.tape.gz")
    path.write_bytes(data)
    with pytest.raises(TapeError, match="CRC"):
        open_tape(path)
