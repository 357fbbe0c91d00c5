"""A survey of tapes says what one tape of all calls says, whoever read them and in what order."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer import diff, open_tape, survey
from calltape_analyzer.surveying.survey import Loop
from calltape_schema.records import Segment
from tests.analyzer.reading.summarised import Model, calls
from tests.analyzer.surveying.surveyed import written
from tests.analyzer.tapes import Recorded, write_tape


def split(made: list[Recorded], folder: Path, rng: random.Random) -> list[Path]:
    """The calls in several files of one recording: sealed or not, with tables or without."""
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


@pytest.mark.integration
@given(calls(), st.integers(0, 2**16))
def test_any_split_in_any_order_on_any_executor(
    tmp_path_factory: pytest.TempPathFactory, made: list[Recorded], seed: int
) -> None:
    folder, rng = tmp_path_factory.mktemp("a"), random.Random(seed)
    paths = split(made, folder, rng)
    plain = survey(sorted(paths), Loop()).target()
    shuffled = rng.sample(paths, len(paths))
    with ThreadPoolExecutor(2) as threads:
        found = survey(shuffled, threads).target()
    assert found.to_bytes() == plain.to_bytes()
    whole = folder / "whole.s"
    whole.write_bytes(plain.to_bytes())
    cut = rng.randint(0, len(paths))
    halves = [
        written(folder / f"half-{at}.s", *half)
        for at, half in enumerate((shuffled[:cut], shuffled[cut:]))
        if half
    ]
    both = written(folder / "both.s", *halves)
    with open_tape(paths) as tape:
        for path in (whole, both):
            with open_tape(path) as surveyed:
                assert len(surveyed) == len(tape)
                assert surveyed.coverage.kept == tape.coverage.kept
                # A call that raised may be the first one of equal calls, so the order may differ.
                found, expected = (
                    Counter(repr(v.findings.tensors) for v in one.variants())
                    for one in (surveyed, tape)
                )
                assert found == expected
                assert {str(s.first) for s in surveyed.calls.by_inputs()} <= {
                    str(call.ref) for call in tape.calls
                }
                assert not surveyed.damage
                if all(not part.coverage.at_least for part in tape.segments):
                    assert str(diff(tape, surveyed)) == "the traffic on both is the same"
        with open_tape(whole) as surveyed:
            found_there, found_here = surveyed.coverage, tape.coverage
            assert (found_there.seen, found_there.at_least, sum(found_there.lost.values())) == (
                found_here.seen, found_here.at_least, sum(found_here.lost.values())
            )  # fmt: skip


@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("sealed", [True, False])
def test_elements_of_calls_that_raised_are_in_no_range(
    tmp_path: Path, table: bool, sealed: bool
) -> None:
    """A token that made an embedding raise is none that the model takes."""
    error = ("builtins:IndexError", "index out of range")
    made = [
        Recorded(args=(torch.tensor([[value]]),), number=number, error=error if value > 9 else None)
        for number, value in enumerate((1, 50, 3, 60))
    ]
    path = write_tape(tmp_path / "a.tape", made, target=Model(), table=table, sealed=sealed)
    paths = [path, written(tmp_path / "s.tape", path)]
    for tape in map(open_tape, paths):
        with tape:
            (variant,) = tape.variants()
            assert [tensor.range for tensor in variant.findings.tensors] == [(1, 3)]
    with open_tape(path) as tape, open_tape(paths[1]) as surveyed:
        assert str(diff(surveyed, tape)) == "the traffic on both is the same"
