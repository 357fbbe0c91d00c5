"""Tapes of tiny models, and their variants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Variant, open_tape
from calltape_recorder import record

Calls = Iterable[tuple[tuple[Any, ...], dict[str, Any]]]
VariantsOf = Callable[[Callable[..., Any], Calls], list[Variant]]


class Decoder(torch.nn.Module):
    """Three sizes of which one is the sum of the others, like a mask over past and new tokens."""

    def forward(
        self, ids: torch.Tensor, past: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        new = ids.to(past.dtype).unsqueeze(-1).expand(-1, -1, past.shape[-1])
        whole = torch.cat([past, new], 1)
        return whole * mask.unsqueeze(-1), whole.sum()


def decoder_call(batch: int, new: int, past: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    ids = torch.ones(batch, new, dtype=torch.int64)
    return (ids, torch.zeros(batch, past, 4), torch.ones(batch, new + past)), {}


@pytest.fixture
def variants_of(tmp_path: Path) -> VariantsOf:
    """Records a module with some calls, and gives the variants of the tape."""

    def made(model: Callable[..., Any], calls: Calls) -> list[Variant]:
        with record(model, tmp_path / "a.tape"):
            for args, kwargs in calls:
                model(*args, **kwargs)
        return open_tape(tmp_path / "a.tape").variants()

    return made


@pytest.fixture
def decoder(variants_of: VariantsOf) -> Variant:
    """Batches 1 to 3, 1 to 5 new tokens after 0 to 10; most calls have sizes 2, 1, 7."""
    sizes = [(2, 5, 2), (2, 1, 7), (2, 1, 7), (3, 2, 10), (1, 3, 4), (2, 1, 7), (2, 4, 6)]
    (variant,) = variants_of(Decoder(), [decoder_call(*given) for given in sizes])
    return variant
