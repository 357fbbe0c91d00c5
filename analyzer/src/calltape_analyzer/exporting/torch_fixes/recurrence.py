"""Recurrent layers of any length.

In a program of ``torch.export`` an LSTM, GRU or RNN layer is one operator, which takes any length.
But to learn the shape of its result, torch runs a decomposition that loops over the sequence, which
makes the length a constant (torch 2.15: ``input.size()[1] == 5``). During a trace, functions that
only compute the shape replace the loop.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

__all__ = ["has_recurrence", "open_lengths"]


def has_recurrence(module: Any) -> bool:
    """Whether a model has recurrent layers of torch's own."""
    import torch

    return any(isinstance(part, torch.nn.RNNBase) for part in module.modules())


@contextlib.contextmanager
def open_lengths(enabled: bool) -> Iterator[None]:
    """Traces recurrent layers within the block without a loop over their sequence.

    Args:
        enabled: does nothing if it is False, or if this torch has no functions that loop.
    """
    decompositions = importlib.import_module("torch._decomp.decompositions")
    replaced = {"one_layer_rnn": _rnn_shapes, "one_layer_lstm": _lstm_shapes}
    before = {name: getattr(decompositions, name, None) for name in replaced}
    if not enabled or None in before.values():
        yield
        return
    try:
        for name, function in replaced.items():
            setattr(decompositions, name, function)
        yield
    finally:
        for name, function_before in before.items():
            setattr(decompositions, name, function_before)


def _rnn_shapes(inp: Any, hidden: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
    """[length, batch, hidden] and the last state, [batch, hidden]."""
    import torch

    return inp.new_empty((inp.shape[0], inp.shape[1], hidden.shape[-1])), torch.empty_like(hidden)


def _lstm_shapes(inp: Any, hidden: Any, *_: Any, **__: Any) -> tuple[Any, tuple[Any, Any]]:
    """[length, batch, hidden] and the last states, [batch, hidden] each."""
    import torch

    out = inp.new_empty((inp.shape[0], inp.shape[1], hidden[0].shape[-1]))
    return out, (torch.empty_like(hidden[0]), torch.empty_like(hidden[1]))
