"""A recording of one call, and what its tensors are compared by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from calltape_recorder import record
from calltape_recorder.snapshot.facts import DTYPES
from tests.recorder.models import Echo
from tests.recorder.reading import ReadCall, read

__all__ = ["ORDINARY", "bits", "one"]

ORDINARY = sorted((d for d in DTYPES if not str(d).startswith("torch.q")), key=str)


def one(tmp_path: Path, *args: Any, **kwargs: Any) -> ReadCall:
    """The tape's only call, of a model that takes anything."""
    path = tmp_path / "one.tape"
    model = Echo()
    with record(model, path, overwrite=True) as recorder:
        model(*args, **kwargs)
    tape = read(path)
    assert recorder.stats().dropped == {}
    assert not tape.damage
    return tape.calls[0]


def bits(tensor: torch.Tensor) -> bytes:
    """Every bit of the logical elements, NaNs included."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.numel() == 0:
        return b""
    if plain.element_size() == 1 and plain.dtype not in (torch.bool,):
        plain = plain.view(torch.uint8)
    plain = plain.clone(memory_format=torch.contiguous_format)
    return bytes(plain.reshape(-1).view(torch.uint8).untyped_storage())[: plain.nbytes]
