"""What Python's garbage collector has to go through for calls that wait for the writer."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import FlightRecorder, Rate, record
from tests.recorder.calls import adds_up
from tests.recorder.reading import read

LAYERS, MOST = 6, 10


class Layer:
    def __init__(self, tokens: int) -> None:
        self.keys = torch.rand(1, 4, tokens, 64)
        self.values = torch.rand(1, 4, tokens, 64)


class Cache:
    """A cache as the ``DynamicCache`` of transformers: an object for each layer."""

    def __init__(self, tokens: int) -> None:
        self.layers = [Layer(tokens) for _ in range(LAYERS)]


torch.utils._pytree.register_pytree_node(
    Cache,
    lambda cache: ([part for layer in cache.layers for part in (layer.keys, layer.values)], None),
    lambda parts, _: parts,  # type: ignore[arg-type, return-value]
)


class Decoder(torch.nn.Module):
    def forward(self, ids: Any, mask: Any, cache: Any, scale: float = 1.0) -> Any:
        for layer in cache.layers:
            layer.keys = torch.cat([layer.keys, torch.rand(1, 4, 1, 64)], dim=2)
            layer.values = torch.cat([layer.values, torch.rand(1, 4, 1, 64)], dim=2)
        return {"logits": torch.rand(1, 1, 100), "cache": cache}


def decode(model: Decoder, cache: Cache, steps: int) -> None:
    for _ in range(steps):
        mask = torch.ones(1, cache.layers[0].keys.shape[2] + 1).long()
        model(torch.ones(1, 1).long(), mask, cache=cache, scale=0.5)


def tracked() -> int:
    for _ in range(3):  # a collection leaves out tuples of what it left out before
        gc.collect()
    return len(gc.get_objects())


# Bytes of a tensor below what is remembered, in plain memory, and in mapped memory.
@pytest.mark.parametrize("tokens", [2, 20, 70])
@pytest.mark.parametrize("values", ["all", "none"])
def test_few_objects_wait_with_a_decode_step(tmp_path: Path, tokens: int, values: Any) -> None:
    model, cache, steps = Decoder(), Cache(tokens), 30
    ring = FlightRecorder(calls=1000, bytes=1 << 32)  # it holds the calls back from the writer
    held: dict[str, Any] = {"keep": Rate(0), "flight_recorder": ring}
    with record(model, tmp_path / "a.tape", values=values, **held) as recorder:
        decode(model, cache, 40)  # all that is remembered of earlier calls is there
        before, queued = tracked(), recorder.stats().queued
        decode(model, cache, steps)
        assert recorder.stats().queued == queued + steps
        assert tracked() - before <= MOST * steps
        recorder.dump("asked")
    assert adds_up(recorder.stats())
    calls = read(tmp_path / "a.tape").calls
    assert len(calls) == 40 + steps
    if values == "all":
        assert torch.equal(calls[-1].output(1), cache.layers[0].keys)
