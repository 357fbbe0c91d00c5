"""Tapes to cut and to join."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from calltape_analyzer import Call, Tape
from calltape_recorder import record

__all__ = ["Model", "as_copied", "contents", "numbers", "recorded", "values"]


class Model(torch.nn.Module):
    def forward(self, x: Any, n: int = 0, text: str = "", mask: Any = None) -> Any:
        if n < 0:
            raise ValueError(f"n is {n}")
        return {"y": x + n, "same": x}


def recorded(path: Path, sizes: list[int], **options: Any) -> Path:
    """A tape of one call per size, each in a group of its own: ``x`` has that many rows, and ``n``
    is the size. A negative size raises."""
    model = Model()
    torch.manual_seed(len(sizes))
    with record(model, path, **options) as recorder:
        for size in sizes:
            mask = torch.ones(abs(size), 2) if size % 2 else None
            with suppress(ValueError):
                model(torch.randn(abs(size), 4), n=size, text="a prompt", mask=mask)
            recorder.flush()
    return path


def numbers(tape: Tape) -> list[int]:
    return [call.number for call in tape.calls]


def values(value: Any) -> Any:
    """A value as plain data, comparable."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), "meta" if value.is_meta else value.tolist()
    if isinstance(value, dict):
        return {key: values(item) for key, item in value.items()}
    return [values(item) for item in value] if isinstance(value, (list, tuple)) else value


def contents(calls: list[Call]) -> list[Any]:
    """Everything that stands on a tape about calls, but where they are."""
    found = []
    for call in calls:
        blob = call.record.blob
        stored = None if blob is None else (blob.size, blob.checksum)
        facts = call.record.model_copy(update={"tape": bytes(16), "call": 0, "blob": stored})
        found.append((repr(facts), values(call.inputs), values(call.outputs)))
    return found


def as_copied(call: Call) -> tuple[str, bytes]:
    """What a copy of a call has of it: the record, and its own tensors, which are not compressed in
    a copy."""
    facts = call.record.model_copy(update={"tape": bytes(16), "blob": None})
    return repr(facts), b"".join(call.raw_blob(call.references))
