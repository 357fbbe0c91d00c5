"""What ``calltape info`` reads and checks, and that it says so (docs/decisions/format.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import Recorded, write_tape

_OF_READING = ("checksums", "source", "private", "note: ")
"""How the lines begin that say what was read, and what only records tell."""


def tape(path: Path, values: str, number: int = 0) -> Path:
    calls = [Recorded((torch.zeros(64, 1 + i % 3),)) for i in range(300)]
    return write_tape(
        path, calls, target=torch.nn.Identity(), values=values,
        tape_id=bytes([number]) * 16,
    )  # fmt: skip


def damage(path: Path, within: bytes, after: int) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(within) + after] ^= 0xFF
    path.write_bytes(data)


def checksums(*words: str) -> str:
    found: str = json.loads(run("info", *words, "--json")[1])["checksums"]
    return found


def test_without_tensors_the_end_answers_and_a_scan_finds_the_damage(tmp_path: Path) -> None:
    path = tape(tmp_path / "a.tape", "none")
    whole, scanned = run("info", str(path)), run("info", str(path), "--scan")
    assert (whole[0], scanned[0]) == (0, 0)
    rows = [
        [line for line in text.splitlines() if not line.startswith(_OF_READING)]
        for text in (whole[1], scanned[1])
    ]
    assert rows[0] == rows[1]
    damage(path, b"records/00000004.msgpack", 600)
    code, out, err = run("info", str(path))
    assert (code, err) == (0, "")
    assert "--scan reads and checks each record" in out
    assert checksums(str(path)) == "no tensors"
    code, out, err = run("info", str(path), "--scan")
    assert code == 3
    assert "call 4" in err
    assert checksums(str(path), "--scan") == "checked"


@pytest.mark.integration
def test_tensors_are_compared_with_their_checksums(tmp_path: Path) -> None:
    path = tape(tmp_path / "a.tape", "all")
    assert checksums(str(path)) == "checked"
    damage(path, b"blobs/00000004.safetensors", 700)
    assert run("info", str(path), "--quick")[0] == 0
    code, _, err = run("info", str(path))
    assert code == 3
    assert "00000004" in err


@pytest.mark.integration
def test_info_says_of_a_folder_whether_all_its_checksums_were_checked(tmp_path: Path) -> None:
    tape(tmp_path / "a.tape", "all", 1)
    tape(tmp_path / "b.tape", "none", 2)
    code, out, _ = run("info", str(tmp_path))
    assert code == 0
    assert "answered from their ends" in out
    assert checksums(str(tmp_path)) == "tensors"
    assert checksums(str(tmp_path), "--scan") == "checked"
    assert checksums(str(tmp_path), "--quick") == "skipped"
