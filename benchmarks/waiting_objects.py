"""Objects that Python's garbage collector tracks for a decode step that waits for the writer.

A process makes a full collection when the objects it made since the last one are a quarter of all
older ones. It takes 150 ms with transformers loaded. So a recorder must not leave objects behind
for each tensor of a call.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from benchmarks.report import Question, Row
from calltape_recorder import FlightRecorder, Rate, Recorder, record

__all__ = ["rows"]

_LAYERS, _STEPS = 16, 40


class Step(torch.nn.Module):
    """A decoder without weights: only its cache matters."""

    def forward(self, input_ids: Any, attention_mask: Any, cache: Any) -> Any:
        for layer in range(_LAYERS):
            cache.update(torch.rand(1, 2, 1, 64), torch.rand(1, 2, 1, 64), layer)
        return {"logits": torch.rand(1, 1, 1000), "cache": cache}


def _steps(step: Step, cache: Any, count: int) -> None:
    for _ in range(count):
        length = cache.get_seq_length() + 1
        step(torch.ones(1, 1).long(), torch.ones(1, length).long(), cache=cache)


def _cache() -> Any:
    cache = DynamicCache()
    for layer in range(_LAYERS):
        cache.update(torch.rand(1, 2, 100, 64), torch.rand(1, 2, 100, 64), layer)
    return cache


def _tracked() -> int:
    for _ in range(3):  # a collection leaves out tuples of what it left out before
        gc.collect()
    return len(gc.get_objects())


def _full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


def rows(scale: float) -> Iterator[Row]:
    """A row for the objects, and one for the collections of calls back to back."""
    ring = FlightRecorder(calls=1000, bytes=1 << 32)  # it holds the calls back from the writer
    held: dict[str, Any] = {"keep": Rate(0), "flight_recorder": ring}
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        step, cache = Step(), _cache()
        with Recorder(Path(folder, "a.tape"), **held).attach(step) as recorder:
            _steps(step, cache, 5)
            before, queued = _tracked(), recorder.stats().queued
            _steps(step, cache, _STEPS)
            waiting = recorder.stats().queued - queued
            each = (_tracked() - before) / waiting
        tensors = 4 * _LAYERS + 3
        yield Row(
            f"objects tracked by the garbage collector per waiting decode step, {_LAYERS} layers",
            f"{each:.0f}", f"tensors of the step: {tensors}", f"{each / tensors:.2f} ×",
            Question.RECORDED,
        )  # fmt: skip
        count = max(int(600 * scale), 100)
        plain = _collections(Step(), count)
        step = Step()
        with record(step, Path(folder, "b.tape")):
            recorded = _collections(step, count)
        yield Row(
            f"full collections in {count} decode steps back to back, {_LAYERS} layers",
            f"{recorded}", f"{plain}",
        )  # fmt: skip


def _collections(step: Step, count: int) -> int:
    cache = _cache()
    _steps(step, cache, 5)
    gc.collect()
    before = _full_collections()
    _steps(step, cache, count)
    return _full_collections() - before
