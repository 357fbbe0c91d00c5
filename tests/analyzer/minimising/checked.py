"""Models and checks of the tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn


class Sum(nn.Module):
    def forward(self, x: Any, mask: Any = None, scale: float = 1.0) -> Any:
        found = x.sum(-1) * scale
        return found if mask is None else found * mask.sum(-1)


class BadAtLongRows(Sum):
    """Wrong for rows of more than 40."""

    def forward(self, x: Any, mask: Any = None, scale: float = 1.0) -> Any:
        found = super().forward(x, mask, scale)
        return found + 1 if x.shape[-1] > 40 else found


class Refuses(Sum):
    """Raises for values above 90."""

    def forward(self, x: Any, mask: Any = None, scale: float = 1.0) -> Any:
        if (x > 90).any():
            raise ValueError(f"{x.shape[0]} rows have a value of {x.max().item()}")
        return super().forward(x, mask, scale)


def is_long(tape: Any) -> bool:
    return any(call.inputs.args[0].shape[-1] > 40 for call in tape)


def raises(tape: Any) -> None:
    model = Refuses()
    for call in tape:
        model(*call.inputs.args, **call.inputs.kwargs)


def differs_from_recorded(tape: Any) -> bool:
    model = BadAtLongRows()
    pairs = [(model(*c.inputs.args, **c.inputs.kwargs), c.outputs) for c in tape]
    return any(not torch.equal(one, other) for one, other in pairs)


def differs_from_a_correct_model(tape: Any) -> bool:
    models, calls = (Sum(), BadAtLongRows()), [call.inputs for call in tape]
    found = [[model(*args, **kwargs) for args, kwargs in calls] for model in models]
    return any(not torch.equal(one, other) for one, other in zip(*found, strict=True))


def never(tape: Any) -> bool:
    return False


def two_needed(tape: Any) -> bool:
    sizes = {call.inputs.args[0].shape[-1] for call in tape}
    return any(size > 40 for size in sizes) and any(size < 10 for size in sizes)


def _is_bad(tape: Any) -> bool:
    return any(bool((call.inputs.args[0] > 90).any()) for call in tape)


def exits(tape: Any) -> None:
    if _is_bad(tape):
        os._exit(7)


def crashes(tape: Any) -> None:
    if _is_bad(tape):
        os.kill(os.getpid(), 11)


def says_exit(tape: Any) -> None:
    if _is_bad(tape):
        raise SystemExit(3)


def flips(tape: Any) -> bool:
    """Fails every other time, in turn over processes."""
    path = Path(os.environ["FLIPS"])
    count = len(path.read_bytes()) if path.exists() else 0
    path.write_bytes(b"x" * (count + 1))
    return count % 2 == 0


def alarms_once(tape: Any) -> bool:
    """Fails always where the failure is, and elsewhere the first time that it sees a tape."""
    if _is_bad(tape):
        return True
    (path,) = tape.paths
    seen = Path(os.environ["SEEN"]) / Path(path).name
    is_new = not seen.exists()
    seen.touch()
    return is_new


class Worded(nn.Module):
    """Depends on the shape of x, a value of y, and a text."""

    def forward(self, x: Any, y: Any = None, prompt: str = "", title: str = "") -> Any:
        return x.sum(-1)


def is_wide(tape: Any) -> bool:
    """A shape is enough."""
    return any(call.record.inputs.facts()[0].shape[-1] > 40 for call in tape.calls)


def has_value_in_y(tape: Any) -> bool:
    """Needs the value of one argument, and another one to be there."""
    calls = [call.inputs.kwargs for call in tape]
    return any("prompt" in one and float(one["y"].max()) > 90 for one in calls)


def needs_the_word(tape: Any) -> str:
    """Needs what a text says."""
    texts = [call.inputs.kwargs.get("prompt", "") for call in tape]
    return "the word is there" if any("SECRET-WORD" in text for text in texts) else ""
