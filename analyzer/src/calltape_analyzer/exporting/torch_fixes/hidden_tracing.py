"""Models that do something else while they are traced: ``if torch.compiler.is_exporting()``.

transformers makes a mask for each attention in a trace, and leaves it out in a call whose
``attention_mask`` has no zero. Where attention without a mask sees all tokens, that is another
result. Here the model's own code is told that there is no trace. It reads values then, which the
trace has to know, and its program asserts them. So it is tried only where the program of a usual
trace gave other values than a recorded call.
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
def hidden_tracing(wanted: bool) -> Iterator[None]:
    """Lets a trace go hidden_tracing by all code but torch's own within the block.

    Args:
        wanted: does nothing if it is False.
    """
    names: Any = vars(torch.compiler)
    before = {name: names[name] for name in _QUESTIONS if name in names} if wanted else {}
    try:
        names.update({name: _answering(asked) for name, asked in before.items()})
        yield
    finally:
        names.update(before)


def _answering(asked: Callable[[], bool]) -> Callable[[], bool]:
    """A question of torch that only torch gets an answer to."""

    @functools.wraps(asked)
    def answer() -> bool:
        name = str(sys._getframe(1).f_globals.get("__name__", ""))
        return name.partition(".")[0] == "torch" and asked()

    return answer
