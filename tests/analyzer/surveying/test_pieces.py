"""A file that is scanned in pieces is the file that one walk finds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from calltape_analyzer.reading.file_piece import planned
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer import survey
from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.surveying import piecewise
from calltape_analyzer.surveying.executors import Loop
from calltape_analyzer.surveying.file_survey import FileSurvey, survey_of
from calltape_analyzer.surveying.inputs_table import InputsTable
from calltape_analyzer.surveying.survey_file import survey_to_json
from calltape_recorder import Recorder
from tests.analyzer.reading.test_summaries import Model, calls
from tests.analyzer.tapes import Recorded, write_tape


def whole(path: Path) -> FileSurvey:
    segment = Segment(str(path), Damage(), scan=True)
    try:
        return survey_of(segment)
    finally:
        segment.close()


def in_pieces(path: Path, size: int) -> FileSurvey | None:
    pieces = [
        piecewise.survey_of_piece(str(path), piece) for piece in planned(path.stat().st_size, size)
    ]
    return united(pieces)


def united(pieces: list[piecewise.PieceSurvey]) -> FileSurvey | None:
    table = InputsTable()
    for piece in pieces:
        table.add_rows(piece.rows, piece.limit)
    return piecewise.united(pieces, table)


def surveyed(path: Path, size: int = 2**30) -> bytes:
    return survey_to_json(survey(path, Loop(), piece_bytes=size))


def gathered(path: Path, count: int = 300) -> Path:
    """A tape of small calls, which share members, and of calls with tensors between them; without
    its end."""
    model = Model()
    recorder = Recorder(path).attach(model)
    for i in range(count):
        n = 40 if i % 50 == 7 else 1
        model(torch.zeros(n, 1 + i % 7), mode="mean") if i % 3 else model(None, n=i)
        if i % 60 == 59:
            recorder.flush()
    recorder.flush()
    kept = path.read_bytes()
    recorder.close()
    path.write_bytes(kept)
    return path


@given(calls(), st.sampled_from([512, 1024, 2048, 5000]), st.booleans())
def test_pieces_of_members(
    tmp_path_factory: pytest.TempPathFactory, made: list[Recorded], size: int, values: bool
) -> None:
    path = write_tape(
        tmp_path_factory.mktemp("a") / "a.tape", made, target=Model(), sealed=False,
        values="all" if values else "none",
    )  # fmt: skip
    found = in_pieces(path, size)
    assert found is None or found == whole(path)
    assert survey_to_json(survey(path, Loop(), piece_bytes=size)) == survey_to_json(
        survey(path, Loop())
    )


@pytest.mark.parametrize("size", [1 << 12, 1 << 14, 1 << 16, 50_000])
def test_pieces_of_groups(tmp_path: Path, size: int) -> None:
    path = gathered(tmp_path / "a.tape")
    one = whole(path)
    assert one.facts.calls == 300
    assert not one.facts.sealed
    assert in_pieces(path, size) == one


def test_damage_is_that_of_one_walk(tmp_path: Path) -> None:
    path = gathered(tmp_path / "a.tape")
    good, rng = path.read_bytes(), random.Random(1)
    together = 0
    for _ in range(12):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(4096, len(data))
            data[at : at + rng.choice([1, 700])] = rng.randbytes(rng.choice([1, 700]))
        path.write_bytes(data[: rng.randrange(8192, len(data))])
        one, found = whole(path), in_pieces(path, 16_384)
        assert found is None or found == one
        together += found is not None
        assert surveyed(path, 16_384) == surveyed(path)
    assert together > 5, "a file that is scanned twice takes twice the time"


def test_a_tape_within_a_tensor_is_no_piece(tmp_path: Path) -> None:
    """The bytes of a tensor look like members, and a piece begins among them."""
    inner = write_tape(tmp_path / "inner.tape", [((), {})] * 30).read_bytes()
    pad = 0
    for _ in range(2):  # once to see where the bytes of the tensor are, once to move them
        data = torch.frombuffer(bytearray(pad) + inner, dtype=torch.uint8)
        path = write_tape(tmp_path / "a.tape", [Recorded((data,))], target=Model(), sealed=False)
        pad += -path.read_bytes().find(inner) % 512
    assert in_pieces(path, 4096) is None
    found = survey(path, Loop(), piece_bytes=4096)
    assert len(found.tape()) == 1
    assert survey_to_json(found) == surveyed(path)


def test_what_is_appended_meanwhile_belongs_to_no_piece(tmp_path: Path) -> None:
    path = gathered(tmp_path / "a.tape")
    one, plan = whole(path), planned(path.stat().st_size, 20_000)
    pieces: list[Any] = [piecewise.survey_of_piece(str(path), piece) for piece in plan[:-1]]
    path.write_bytes(path.read_bytes() + bytes(10_000))
    pieces.append(piecewise.survey_of_piece(str(path), plan[-1]))
    found = united(pieces)
    assert found is not None
    assert found.rows == one.rows
    assert found.facts.calls == one.facts.calls
