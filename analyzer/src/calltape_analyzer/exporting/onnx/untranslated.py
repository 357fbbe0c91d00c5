"""Finds what an ONNX model cannot do, in a program that is to be converted.

torch.onnx (2.15) silently converts some operators to something else: a batch normalization uses the
running statistics where torch uses those of the batch, and an adaptive pool uses the windows of the
traced picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from calltape_analyzer.foreign_errors import place_in_model

__all__ = ["UntranslatedError", "reject_draws", "reject_floats", "reject_untranslated"]


class UntranslatedError(NotImplementedError):
    """A program does something that no ONNX model can. Another trace of the model seldom helps."""


class _Untranslated(NamedTuple):
    """An operator without translation.

    Attributes:
        called: its name, for people.
        instead: what to use instead.
        applies: whether a call of it with some arguments has no translation.
    """

    called: str
    instead: str
    applies: Callable[[Sequence[Any]], bool] = lambda _: True


def _is_by_the_batch(args: Sequence[Any]) -> bool:
    """Whether a normalization uses the statistics of the batch, and changes its running ones."""
    return args[3] is not None and bool(args[5])


_SORTED = "sort, and take the element that is wanted"
_EVAL = "record the model after eval()"
_BY_HAND = f"{_EVAL}, or compute with the mean and the variance"
_OPERATORS = {
    "median": _Untranslated("torch.median", _SORTED),
    "kthvalue": _Untranslated("torch.kthvalue", _SORTED),
    "scaled_dot_product_attention": _Untranslated(
        "attention with dropout", _EVAL, lambda args: len(args) > 4 and args[4] != 0
    ),
    "batch_norm": _Untranslated("batch_norm in training mode", _BY_HAND, _is_by_the_batch),
    "instance_norm": _Untranslated("instance_norm in training mode", _BY_HAND, _is_by_the_batch),
    **{
        f"adaptive_max_pool{dims}d": _Untranslated(
            f"adaptive_max_pool{dims}d to more than one element",
            f"use max_pool{dims}d with a kernel size and a stride",
            lambda args: any(size != 1 for size in args[1]),
        )
        for dims in (1, 2, 3)
    },
}


def reject_untranslated(exported: Any, translated: Collection[Any] = ()) -> None:
    """Rejects a program that cannot be converted.

    Args:
        exported: a ``torch.export.ExportedProgram``.
        translated: the operators that the caller has translations for.

    Raises:
        UntranslatedError: it cannot; says why, and what to do.
    """
    for part in exported.graph_module.modules():
        for node in part.graph.nodes if hasattr(part, "graph") else ():
            if node.op == "call_function" and node.target not in translated:
                _reject(node)


def _reject(node: Node) -> None:
    if node.target is torch.ops.aten._assert_scalar.default:
        reject_floats(node)
    namespace, _, name = str(node.target).partition(".")
    untranslated = _OPERATORS.get(name.partition(".")[0]) if namespace == "aten" else None
    if untranslated is not None and untranslated.applies(node.args):
        raise UntranslatedError(
            f"{untranslated.called} has no ONNX translation "
            f"({untranslated.instead}, or export to torch)"
        )


def reject_floats(assertion: Node) -> None:
    """Rejects an assertion about floats. torch.onnx (2.15) compares float32, in which 0.2 is more
    than Python's 0.2. Floats that are converted to ints as they are read are exact."""
    waiting, visited = [assertion], {assertion}
    while waiting:
        for node in waiting.pop().all_input_nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.SymFloat):
                place = place_in_model(str(assertion.args[1])) or f"{assertion.args[0]}"
                raise UntranslatedError(
                    "Python compares doubles, an ONNX model float32 (compare tensors, as "
                    "torch.where does, or export to torch): the model decides by a float at "
                    f"{place}"
                )
            is_number = isinstance(value, torch.SymInt | torch.SymBool)
            if is_number and node not in visited and not _is_read_as_int(node):
                waiting.append(node)
                visited.add(node)


_READS = {torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default}
_TO_INT = {math.trunc, math.floor, math.ceil, round}


def _is_read_as_int(node: Node) -> bool:
    read = node.args[0] if node.target in _TO_INT else None
    if not isinstance(read, Node) or read.target not in _READS:
        return False
    (tensor,) = read.all_input_nodes
    return bool(tensor.meta["val"].dtype.itemsize <= 4)


def reject_draws(model: Any) -> None:
    """Rejects an ONNX model that draws random numbers: ONNX Runtime has generators of its own, so
    that no call can be compared.

    Args:
        model: of onnxscript's ``ir``, without nodes that nothing needs.
    """
    for node in model.graph.all_nodes():
        if node.op_type.startswith(_DRAWING) or (node.op_type == "Dropout" and _is_training(node)):
            raise UntranslatedError(
                "random: the model draws random numbers, and ONNX Runtime draws others; pass them "
                "as an argument, or export to torch"
            )


_DRAWING = "Random", "Bernoulli", "Multinomial"


def _is_training(dropout: Any) -> bool:
    from onnxscript import ir

    mode = dropout.inputs[2] if len(dropout.inputs) > 2 else None
    known = None if mode is None else ir.convenience.get_const_tensor(mode)
    return mode is not None and (known is None or bool(known.numpy()))
