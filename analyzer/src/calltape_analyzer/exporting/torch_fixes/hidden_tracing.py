"""Models that behave differently while they are traced: ``if torch.compiler.is_exporting()``.

transformers makes a mask for each attention in a trace, and none in a call whose ``attention_mask``
has no zero. The results differ if attention without a mask sees all tokens. Here the model's own
code is told that there is no trace. It then reads values, which the trace has to know, and its
program asserts them. So this is tried only if the program of a usual trace was wrong for a recorded
call.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["hidden_tracing"]

_QUESTIONS = "is_compiling", "is_dynamo_compiling", "is_exporting"


@contextlib.contextmanager
def hidden_tracing(enabled: bool) -> Iterator[None]:
    """Hides the trace within the block from all code but torch's own.

    Args:
        enabled: does nothing if it is False.
    """
    names: Any = vars(torch.compiler)
    before = {name: names[name] for name in _QUESTIONS if name in names} if enabled else {}
    try:
        names.update({name: _answering(asked) for name, asked in before.items()})
        yield
    finally:
        names.update(before)


def _answering(asked: Callable[[], bool]) -> Callable[[], bool]:
    """A function that answers False to all code but torch's own."""

    @functools.wraps(asked)
    def answer() -> bool:
        name = str(sys._getframe(1).f_globals.get("__name__", ""))
        return name.partition(".")[0] == "torch" and asked()

    return answer
