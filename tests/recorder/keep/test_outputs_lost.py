"""Outputs that found no memory: their call is kept, and the loss is counted and told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import InferenceError, diagnose, open_tape, replay
from calltape_recorder import record
from tests.analyzer.cli.commands import run


class Grows(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.repeat(1000)


def test_outputs_without_memory_are_counted(tmp_path: Path) -> None:
    model = Grows()
    with record(model, tmp_path / "t.tape", max_queue_bytes=2000) as recorder:
        for _ in range(3):
            model(torch.ones(4))
            assert recorder.flush()
        stats = recorder.stats()
    assert (stats.kept, stats.lost, stats.outputs_lost) == (3, {}, {"queue_full": 3})
    with open_tape(tmp_path / "t.tape") as tape:
        assert {call.record.outputs_missing for call in tape} == {"queue_full"}
        assert all(torch.equal(call.inputs.args[0], torch.ones(4)) for call in tape)
        (told,) = [
            symptom for symptom in diagnose(tape).symptoms if symptom.kind == "outputs_missing"
        ]
        assert "max_queue_bytes" in told.advice
        assert "outputs=True" not in told.advice
        with pytest.raises(InferenceError) as caught:
            replay(tape, model)
        assert "max_queue_bytes" in caught.value.advice
        assert "outputs=True" not in caught.value.advice
    shown = run("info", tmp_path / "t.tape").out
    assert "max_queue_bytes" in shown


@pytest.mark.parametrize(
    ("options", "advice"),
    [({"outputs": False}, "outputs=True"), ({"max_queue_bytes": 10**6}, None)],
)
def test_outputs_that_were_not_wanted_are_no_loss(
    tmp_path: Path, options: dict[str, Any], advice: str | None
) -> None:
    model = Grows()
    with record(model, tmp_path / "t.tape", **options) as recorder:
        model(torch.ones(4))
        assert recorder.flush()
        assert recorder.stats().outputs_lost == {}
    with open_tape(tmp_path / "t.tape") as tape:
        advices = [
            symptom.advice
            for symptom in diagnose(tape).symptoms
            if symptom.kind == "outputs_missing"
        ]
    assert advices == ([] if advice is None else [f"record with {advice}"])
