"""Of a large blob only the parts are read and compared that have what was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_analyzer import TapeError, open_tape
from calltape_analyzer.reading.tape_file import TapeFile
from calltape_recorder import record
from calltape_schema.bounds import CHECKED_BYTES
from tests.analyzer.tape.changes import member_list

LARGE = 3 * CHECKED_BYTES // 4  # float32: 3 MiB


class Model(torch.nn.Module):
    def forward(self, *tensors: torch.Tensor) -> None:
        """Takes anything."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    model = Model()
    with record(model, tmp_path / "a.tape", outputs=False):
        model(torch.zeros(LARGE), torch.arange(5.0))
        model(torch.ones(2))
    return tmp_path / "a.tape"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def start_of_blob(path: Path) -> int:
    return next(one.start for one in member_list(path) if one.name.startswith("blobs/"))


def test_a_broken_part_costs_the_values_that_are_in_it(path: Path) -> None:
    flip(path, start_of_blob(path) + 2 * CHECKED_BYTES + 7)
    with open_tape(path) as tape:
        call = tape.calls[0]
        assert call.tensor("inputs", 1).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert tape.damage == []
        for _ in range(2):
            with pytest.raises(TapeError, match="the checksum of its tensors"):
                call.tensor("inputs", 0)
        assert [error.kind for error in tape.damage] == ["damaged"]
        assert call.tensor("inputs", 1).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        with pytest.raises(TapeError, match="the checksum of its tensors"):
            call.check()
    with open_tape(path, verify=True) as tape:
        assert [error.kind for error in tape.damage] == ["damaged"]


def test_a_broken_header_costs_all_values(path: Path) -> None:
    flip(path, start_of_blob(path) + 9)
    with open_tape(path) as tape, pytest.raises(TapeError, match="the checksum of its tensors"):
        tape.calls[0].tensor("inputs", 1)


def test_no_more_is_read_than_what_was_asked_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    begin = start_of_blob(path)
    real = TapeFile.crc32

    def crc32(self: TapeFile, offset: int, size: int, found: int = 0) -> int:
        if offset >= begin:  # not of the head of the file, which is looked at if it is opened again
            read.append(size)
        return real(self, offset, size, found)

    monkeypatch.setattr(TapeFile, "crc32", crc32)
    with open_tape(path) as tape:
        for _ in range(2):
            tape.calls[0].tensor("inputs", 1)
        # The part of the header, and the last one, each once.
        assert len(read) == 2
        assert sum(read) < 2 * CHECKED_BYTES
        tape.calls[0].check()
        assert len(read) == 4
        tape.calls[1].check()
        assert len(read) == 5
