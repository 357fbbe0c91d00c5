"""Values are found wherever they stand in a file, and only those that are there."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from calltape_analyzer import TapeError, filter_tape, open_tape
from calltape_analyzer.redacting import byte_search
from calltape_analyzer.redacting.byte_search import found_in, found_in_parts
from tests.analyzer.tapes import Recorded, write_tape
from tests.unpacked import readable

VALUES = [
    b"12345678", b"12345678-longer", b"12345678-other", b"\xff" * 8,
    bytes(16) + b"a long value that begins with zeros", b"no such value",
]  # fmt: skip


@pytest.mark.parametrize("at", range(40))
def test_at_each_place(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Also across the border of two parts that are read."""
    monkeypatch.setattr(byte_search, "_PART", 16)
    for value in VALUES[:5]:
        wanted = [one for one in VALUES if one in value]
        for data in (b"\0" * at + value + b"." * (40 - at), b"\0" * at + value):
            assert sorted(found_in_parts([data], VALUES)) == sorted(wanted)


def test_nothing_to_look_for() -> None:
    assert found_in_parts([b"1234567"], []) == []
    assert found_in_parts([b"1234567"], VALUES) == []
    assert found_in_parts([], VALUES) == []


def test_what_is_deflated_is_found(tmp_path: Path) -> None:
    """The records of a group are deflated together, and so is the table of inputs."""
    prompts = [f"the prompt of user {number} of the clinic" for number in range(300)]
    calls = [Recorded((torch.ones(3),), {"prompt": prompt}) for prompt in prompts]
    write_tape(tmp_path / "a.tape", calls)
    edited = str(tmp_path / "b.tape")
    with open_tape(tmp_path / "a.tape") as tape:
        filter_tape(tape, edited, drop=["args.*"])
    values = [prompt.encode() for prompt in prompts]
    data = (tmp_path / "b.tape").read_bytes()
    assert sum(value in data for value in values) < 20, "a search of the file alone does not see it"
    assert sorted(found_in(edited, [*values, b"no such prompt"])) == sorted(values)
    assert sum(readable(data).count(value + b"c") for value in values) == 0
    assert sum(readable(data).count(value) for value in values) >= 2 * len(values)


def test_what_is_no_tape_is_an_error(tmp_path: Path) -> None:
    """Nobody knows what is deflated in it."""
    (tmp_path / "file").write_bytes(b"1234567")
    with pytest.raises(TapeError):
        found_in(str(tmp_path / "file"), VALUES)


@pytest.mark.integration
def test_many_values_in_a_large_file() -> None:
    """Masks have zeros and ones everywhere, and rows of ids begin with them."""
    rows = torch.randint(0, 50_000, (20_000, 9))
    rows[:, :3] = torch.tensor([0, 0, 1])
    values = [row.numpy().tobytes() for row in rows]
    mask = torch.randint(0, 2, (2**20,)).numpy().tobytes()
    ids = torch.randint(0, 50_000, (2**19,)).numpy().tobytes()
    data = b"." + mask + values[7] + ids + values[-1]
    began = time.process_time()
    assert sorted(found_in_parts([data], values)) == sorted((values[7], values[-1]))
    assert time.process_time() - began < 20
