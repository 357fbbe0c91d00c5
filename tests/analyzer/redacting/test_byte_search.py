"""Values are found wherever they stand in a file, and only those that are there."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from calltape_analyzer.redacting import byte_search
from calltape_analyzer.redacting.byte_search import found_in

VALUES = [
    b"12345678", b"12345678-longer", b"12345678-other", b"\xff" * 8,
    bytes(16) + b"a long value that begins with zeros", b"no such value",
]  # fmt: skip


@pytest.mark.parametrize("at", range(40))
def test_at_each_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Also across the border of two parts that are read."""
    monkeypatch.setattr(byte_search, "_PART", 16)
    path = tmp_path / "file"
    for value in VALUES[:5]:
        path.write_bytes(b"\0" * at + value + b"." * (40 - at))
        wanted = [one for one in VALUES if one in value]
        assert sorted(found_in(str(path), VALUES)) == sorted(wanted)
        path.write_bytes(b"\0" * at + value)
        assert sorted(found_in(str(path), VALUES)) == sorted(wanted)


def test_nothing_to_look_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234567")
    assert found_in(str(tmp_path / "file"), []) == []
    assert found_in(str(tmp_path / "file"), VALUES) == []


def test_many_values_in_a_large_file(tmp_path: Path) -> None:
    """Masks have zeros and ones everywhere, and rows of ids begin with them."""
    rows = torch.randint(0, 50_000, (20_000, 9))
    rows[:, :3] = torch.tensor([0, 0, 1])
    values = [row.numpy().tobytes() for row in rows]
    mask = torch.randint(0, 2, (2**20,)).numpy().tobytes()
    ids = torch.randint(0, 50_000, (2**19,)).numpy().tobytes()
    (tmp_path / "file").write_bytes(b"." + mask + values[7] + ids + values[-1])
    began = time.process_time()
    assert sorted(found_in(str(tmp_path / "file"), values)) == sorted((values[7], values[-1]))
    assert time.process_time() - began < 20
