"""The order of the keys of a dict counts where the model reads it, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import NoVariant, export, load_programs
from calltape_analyzer.programs.notes import KeyOrders
from tests.analyzer.exported import call, taped


class Concatenates(torch.nn.Module):
    def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat(list(features.values()), -1)


class Adds(torch.nn.Module):
    def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        return sum(features.values(), torch.zeros(1))


class Keywords(torch.nn.Module):
    def forward(self, **features: torch.Tensor) -> torch.Tensor:
        return torch.cat(list(features.values()), -1)


def features(n: int, names: str = "ba") -> dict[str, torch.Tensor]:
    made = {name: torch.randn(n, 3) for name in sorted(names)}
    return {name: made[name] for name in names}


def same(programs: Any, model: Any, given: dict[str, torch.Tensor]) -> bool:
    return torch.equal(programs(dict(given)), model(dict(given)))


def test_another_order_is_rejected_where_the_model_reads_it(tmp_path: Path) -> None:
    model = Concatenates()
    programs = export(taped(tmp_path, model, [call(features(n)) for n in (2, 4)]), model)
    assert same(programs, model, features(5))
    with pytest.raises(NoVariant, match="features has its keys in another order"):
        programs(features(5, "ab"))
    assert KeyOrders(("features",)) in programs.notes


def test_each_recorded_order_has_a_program(tmp_path: Path) -> None:
    model = Concatenates()
    calls = [call(features(n, names)) for names in ("ab", "ba") for n in (2, 4)]
    programs = export(taped(tmp_path, model, calls), model)
    assert len(programs) == 2
    assert same(programs, model, features(5, "ab"))
    assert same(programs, model, features(5, "ba"))
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    assert same(loaded, model, features(6, "ba"))
    assert same(loaded, model, features(6, "ab"))


def test_any_order_will_do_where_the_model_does_not_read_it(tmp_path: Path) -> None:
    model = Adds()
    programs = export(taped(tmp_path, model, [call(features(n)) for n in (2, 4)]), model)
    assert same(programs, model, features(5, "ab"))
    assert same(programs, model, features(5, "ba"))


def test_keyword_arguments_have_an_order_too(tmp_path: Path) -> None:
    model = Keywords()
    programs = export(taped(tmp_path, model, [call(**features(n)) for n in (2, 4)]), model)
    given = features(5)
    assert torch.equal(programs(**given), model(**given))
    with pytest.raises(NoVariant, match="keyword arguments come in another order"):
        programs(**features(5, "ab"))
