"""A recording of one call, and what recordings and models are compared by."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from calltape_recorder import Stats, record
from calltape_recorder.snapshot.facts import DTYPES
from tests.recorder.models import Echo
from tests.recorder.reading import ReadCall, read

__all__ = ["ORDINARY", "Via", "adds_up", "appearance_of", "bits", "both", "taped"]

Via = Literal["hook", "method"]
both = pytest.mark.parametrize("via", ["hook", "method"])
"""The two ways to attach to a module."""

ORDINARY = sorted((d for d in DTYPES if not str(d).startswith("torch.q")), key=str)


def taped(
    tmp_path: Path, *args: Any, result: Any = None, values: Any = "all", **kwargs: Any
) -> ReadCall:
    """The tape's only call, of a model that takes anything and returns ``result``."""
    path = tmp_path / "one.tape"
    model = Echo(result)
    with record(model, path, values=values, overwrite=True) as recorder:
        assert model(*args, **kwargs) is result
    assert (recorder.stats().kept, recorder.stats().dropped) == (1, {})
    tape = read(path)
    assert not tape.damage
    return tape.calls[0]


def adds_up(stats: Stats) -> bool:
    """Whether each call seen is kept, dropped or on its way."""
    return stats.seen == stats.kept + sum(stats.dropped.values()) + stats.queued


def appearance_of(model: torch.nn.Module) -> tuple[Any, ...]:
    """Class, attributes, and signatures: the same before, during and after a recording."""
    signatures = inspect.signature(model.forward), inspect.signature(model)
    return type(model), sorted(vars(model)), model.forward, signatures


def bits(tensor: torch.Tensor) -> bytes:
    """Every bit of the logical elements, NaNs included."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.numel() == 0:
        return b""
    if plain.element_size() == 1 and plain.dtype not in (torch.bool,):
        plain = plain.view(torch.uint8)
    plain = plain.clone(memory_format=torch.contiguous_format)
    return bytes(plain.reshape(-1).view(torch.uint8).untyped_storage())[: plain.nbytes]
