"""A survey of tapes says what one tape of all calls says, whoever read them and in what order."""

from __future__ import annotations

import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer import (
    Survey,
    Tape,
    diff,
    open_tape,
    survey,
)
from calltape_analyzer.surveying.executors import Loop
from calltape_analyzer.surveying.survey_file import survey_from_json, survey_to_json
from calltape_schema.records import Segment
from tests.analyzer.reading.test_summaries import Model, answers, calls
from tests.analyzer.tapes import Recorded, write_tape


def split(made: list[Recorded], folder: Path, rng: random.Random) -> list[Path]:
    """The calls in several files of one recording: sealed or not, with summaries or without."""
    parts: list[list[Recorded]] = [[] for _ in range(rng.randint(1, 4))]
    for call in made:
        rng.choice(parts).append(call)
    return [
        write_tape(
            folder / f"{at}.tape", part, target=Model(), table=rng.random() < 0.7,
            sealed=rng.random() < 0.8, segment=Segment(number=at),
        )
        for at, part in enumerate(parts)
    ]  # fmt: skip


def told(tape: Tape) -> dict[str, Any]:
    """The answers, without the files that calls are in."""
    return {question: without_files(answer) for question, answer in answers(tape).items()}


def without_files(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {name: without_files(one) for name, one in answer.items()}
    if isinstance(answer, list | tuple):
        return type(answer)(map(without_files, answer))
    return re.sub(r" of /[^,)]*", "", answer) if isinstance(answer, str) else answer


@given(calls(), st.integers(0, 2**16))
def test_any_split_in_any_order_on_any_executor(
    tmp_path_factory: pytest.TempPathFactory, made: list[Recorded], seed: int
) -> None:
    folder, rng = tmp_path_factory.mktemp("a"), random.Random(seed)
    paths = split(made, folder, rng)
    whole = write_tape(tmp_path_factory.mktemp("b") / "a.tape", made, target=Model())
    plain = survey(sorted(paths), Loop())
    rng.shuffle(paths)
    with ThreadPoolExecutor(2) as threads:
        found = survey(paths, threads, piece_bytes=rng.choice([512, 4096, 2**20]))
    cut = rng.randint(0, len(paths))
    parts = [survey(part, Loop()) for part in (paths[:cut], paths[cut:]) if part]
    document = survey_to_json(plain)
    assert survey_to_json(found) == document
    assert survey_to_json(Survey().merge(*parts)) == document
    assert survey_to_json(Survey().merge(*reversed(parts))) == document
    assert survey_to_json(survey_from_json(document)) == document
    with open_tape(paths) as split_tape, open_tape(whole) as tape:
        got = told(found.tape())
        assert got.pop("coverage") == split_tape.coverage  # of files without a trailer
        assert got.pop("missing") == len(split_tape.counters.missing)
        assert got == {name: one for name, one in told(tape).items() if name in got}
        assert str(diff(found.tape(), tape)) == "the traffic on both is the same"
        assert str(diff(tape, found.tape())) == "the traffic on both is the same"
    assert found.tape().damage == []
