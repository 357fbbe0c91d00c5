"""Recurrent layers of any length.

While ``torch.export`` traces, an LSTM, GRU or RNN layer stays one operator in the program; but to
learn the shape of what it returns, torch runs a decomposition that loops over the sequence, and
so makes its length a constant (measured with torch 2.15: ``input.size()[1] == 5``). The operator
itself takes any length. Here the loop is replaced, while a trace runs, by what it returns: a shape.
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
def open_lengths(wanted: bool) -> Iterator[None]:
    """Lets recurrent layers be traced without a loop over their sequence, where ``wanted``, and
    where this torch has the functions that loop."""
    decompositions = importlib.import_module("torch._decomp.decompositions")
    replaced = {"one_layer_rnn": _rnn_shapes, "one_layer_lstm": _lstm_shapes}
    before = {name: getattr(decompositions, name, None) for name in replaced}
    if not wanted or None in before.values():
        yield
        return
    try:
        for name, function in replaced.items():
            setattr(decompositions, name, function)
        yield
    finally:
        for name, own in before.items():
            setattr(decompositions, name, own)


def _rnn_shapes(inp: Any, hidden: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
    """[length, batch, hidden] and the last state, [batch, hidden]."""
    import torch

    return inp.new_empty((inp.shape[0], inp.shape[1], hidden.shape[-1])), torch.empty_like(hidden)


def _lstm_shapes(inp: Any, hidden: Any, *_: Any, **__: Any) -> tuple[Any, tuple[Any, Any]]:
    """[length, batch, hidden] and the last states, [batch, hidden] each."""
    import torch

    out = inp.new_empty((inp.shape[0], inp.shape[1], hidden[0].shape[-1]))
    return out, (torch.empty_like(hidden[0]), torch.empty_like(hidden[1]))
