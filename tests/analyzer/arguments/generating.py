"""A model that generates tokens, its calls, and arguments made for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from calltape_analyzer import Tape
from calltape_analyzer.arguments.samples import (
    sample_in,
)
from tests.analyzer.observed import Given, Optional, given, sorter_of, tape_of


def single(directory: Path, calls: list[Given], **options: Any) -> tuple[Tape, Any]:
    """A tape whose calls are one variant, and that."""
    tape = tape_of(directory, calls, Optional(), **options)
    (variant,) = tape.variants()
    return tape, variant


def sample_at(tape: Tape, variant: Any, row: int) -> Any:
    call = tape.calls.at(variant.facts.rows.calls_of(row).first)
    return sample_in(variant.facts, call, sorter_of(tape))


def ids(*shape: int) -> torch.Tensor:
    size = torch.Size(shape).numel()
    return (torch.arange(size, dtype=torch.int64) % 7 + 3).reshape(shape)


class Generating(torch.nn.Module):
    def forward(
        self, input_ids: Any, attention_mask: Any = None, past_key_values: Any = None
    ) -> torch.Tensor:
        return torch.zeros(())


def step(batch: int, new: int, past: int) -> Given:
    cache = [(torch.rand(batch, 2, past, 4), torch.rand(batch, 2, past, 4)) for _ in range(2)]
    kwargs: dict[str, Any] = {"past_key_values": cache} if past else {}
    mask = torch.ones(batch, past + new, dtype=torch.int64)
    return given(input_ids=ids(batch, new), attention_mask=mask, **kwargs)
