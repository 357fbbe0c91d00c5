"""What a run of a real model costs is known before it is made, and is little by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensor

from calltape_analyzer import Programs, export
from calltape_analyzer.exporting.session import unseen_runs
from calltape_analyzer.exporting.session.observed_calls import measured
from tests.analyzer.exported import call, taped

pytestmark = pytest.mark.usefixtures("runs_here")

SEEN: list[tuple[int, ...]] = []


class Attention(torch.nn.Module):
    """Has scores of 4 bytes for all pairs of rows."""

    def forward(self, x: Any) -> Any:
        if not isinstance(x, FakeTensor) and not torch.compiler.is_exporting():
            SEEN.append(tuple(x.shape))
        scores = x @ x.transpose(-1, -2)
        return scores.softmax(-1) @ x


class Careful(Attention):
    """Cannot run with tensors that have no values."""

    def forward(self, x: Any) -> Any:
        if not torch.compiler.is_exporting() and float(x.abs().max()) > 1e6:
            raise ValueError("too large")
        return super().forward(x)


def exported(folder: Path, module: torch.nn.Module) -> Programs:
    calls = [call(torch.randn(batch, length, 8)) for batch, length in ((1, 64), (2, 96), (3, 64))]
    tape = taped(folder, module, calls)
    SEEN.clear()
    return export(tape, module)


@pytest.mark.parametrize("least", [0, 40_000, 256 * 2**20])
def test_no_run_takes_more_than_a_recorded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    monkeypatch.setattr(unseen_runs, "LEAST_MEMORY", least)
    programs = exported(tmp_path, Attention())
    assert programs.verify().ok
    pairs = max(batch * length**2 for batch, length, _ in SEEN)
    told = [str(text) for attempt in programs.attempts for text in attempt.untried]
    if least == 256 * 2**20:
        assert pairs > 2 * 96**2
        assert not any("of memory" in text for text in told)
    else:
        assert pairs <= 2 * 96**2
        assert any("of memory; without max_memory it is" in text for text in told)
    assert all(attempt.probed for attempt in programs.attempts)


def test_where_a_run_is_the_only_way_to_know_it_is_taken_for_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unseen_runs, "LEAST_MEMORY", 0)
    programs = exported(tmp_path, Careful())
    assert programs.verify().ok
    assert max(batch * length**2 for batch, length, _ in SEEN) <= 2 * 96**2
    # Sizes below the recorded ones were tried instead.
    assert any(length < 64 for _, length, _ in SEEN)


def test_scores_of_attention_count_where_they_are_in_memory() -> None:
    query = torch.randn(2, 4, 256, 16)

    def run() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(query, query, query)

    scores = 2 * 4 * 256 * 256 * 4
    fused, other = measured(run), measured(run, fused=False)
    assert torch.equal(fused.value, other.value)
    assert fused.peak < scores
    assert other.peak >= 2 * scores
