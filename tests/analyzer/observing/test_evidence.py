"""One rule for which calls are evidence, in every analysis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Tape, open_tape
from calltape_analyzer.observing.traffic_counters import left_out_note
from tests.analyzer.tapes import Recorded, write_tape

ERROR = ("builtins:ValueError", "no")


def tape_of(path: Path, *sizes: int) -> Tape:
    """A call per size; a call of a negative size raised."""
    calls: list[Any] = [
        Recorded(kwargs={"x": torch.zeros(abs(size), 3)}, error=ERROR if size < 0 else None)
        for size in sizes
    ]
    return open_tape(write_tape(path, calls))


@pytest.mark.parametrize(
    ("sizes", "counted", "seen"),
    [
        ((2, -9, 4), 2, [2, 4]),
        ((-9, 4), 1, [4]),
        ((-9, -5, -7), 3, [5, 7, 9]),
        ((2, 4), 2, [2, 4]),
    ],
)
def test_all_analyses_count_the_same_calls(
    tmp_path: Path, sizes: tuple[int, ...], counted: int, seen: list[int]
) -> None:
    with tape_of(tmp_path / "a.tape", *sizes) as tape:
        findings = tape.single.findings
        (variant,) = tape.variants()
        (dimension, _) = tape.explain("x").parts[0].dimensions
        assert findings.calls == tape.observations().calls == len(variant) == counted
        assert len(variant.calls) == variant.findings.calls == counted
        assert [sighting.value for sighting in dimension.seen] == seen


def test_a_note_counts_in_plain_words() -> None:
    assert left_out_note(1) == "1 call raised and is left out"
    assert left_out_note(12) == "12 calls raised and are left out"
