"""A dict keyed by the ids of requests: its calls are one variant, and no id is printed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import ExportError, export, open_tape
from calltape_analyzer.surveying.survey import survey
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import write_tape


class Sums(torch.nn.Module):
    def forward(self, x, batch):
        return x + sum(value.sum() for value in batch.values())


def ids(calls: int) -> list[str]:
    chance = random.Random(1)
    return [f"{chance.getrandbits(64):016x}" for _ in range(calls)]


def calls(count: int) -> list[dict[str, Any]]:
    return [
        {"x": torch.zeros(i % 5 + 2, 3), "batch": {name: torch.zeros(i % 7)}}
        for i, name in enumerate(ids(count))
    ]


def written(path: Path, arguments: list[dict[str, Any]]) -> Path:
    return write_tape(path, arguments, target=Sums())


def test_calls_with_keys_that_are_data_are_one_variant(tmp_path: Path) -> None:
    with open_tape(written(tmp_path / "a.tape", calls(40))) as tape:
        (variant,) = tape.variants()
        assert len(variant) == 40
        (symbol,) = variant.findings.symbols
        assert symbol.dimensions == ("x[0]",)
        assert any("they are data" in warning for warning in variant.findings.warnings())
        assert len(tape.observations().groups) == 1
        assert variant.infer_dynamic_shapes()["batch"] is None


def test_calls_with_keys_that_are_data_are_one_variant_in_a_survey(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tape", calls(40))
    survey(path).write(tmp_path / "a.survey")
    with open_tape(tmp_path / "a.survey") as tape:
        (variant,) = tape.variants()
        assert len(variant) == 40


def test_few_calls_are_told_apart(tmp_path: Path) -> None:
    with open_tape(written(tmp_path / "a.tape", calls(5))) as tape:
        assert len(tape.variants()) == 5


def test_keys_that_come_back_are_told(tmp_path: Path) -> None:
    arguments = [
        {"x": torch.zeros(2), "batch": {"ids": torch.zeros(i % 3 + 1), name: 1}}
        for i, name in enumerate(ids(30))
    ]
    with open_tape(written(tmp_path / "a.tape", arguments)) as tape:
        (variant,) = tape.variants()
        assert [symbol.dimensions for symbol in variant.findings.symbols] == [("batch.ids[0]",)]


def test_a_part_is_laid_out_as_the_whole(tmp_path: Path) -> None:
    with open_tape(written(tmp_path / "a.tape", calls(40))) as tape:
        assert len(tape.only(calls="0..2").variants()) == 1


@pytest.mark.parametrize("verb", ["info", "variants", "explain"])
def test_no_command_prints_an_id(tmp_path: Path, verb: str) -> None:
    path = written(tmp_path / "a.tape", calls(40))
    words = [verb, str(path), *(["batch"] if verb == "explain" else [])]
    result = run(*words)
    assert result.code == 0
    assert not [name for name in ids(40) if name in result.out]


def test_an_export_is_refused_for_this_reason(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tape", calls(12))
    with open_tape(path) as tape, pytest.raises(ExportError, match="batch has a dict whose keys"):
        export(tape, Sums())
