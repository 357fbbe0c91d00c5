"""The assertions of an exported program as an output of its ONNX model.

A trace that read values has assertions about them: the result is not empty, the length is that of a
mask. torch.onnx (2.15) removes them, because ONNX has no operator that fails, and a model without
them computes something else for other values. Here they stay: one boolean output says which of them
hold, and :class:`~calltape_analyzer.programs.onnx_model.OnnxModel` raises an error if one does not
(docs/decisions/onnx.md).
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from onnxscript import ir, opset18
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument

from calltape_analyzer.exporting.onnx.untranslated import UntranslatedError, reject_floats
from calltape_analyzer.foreign_errors import says_not_negative
from calltape_analyzer.programs.onnx_model import CHECKS

__all__ = ["check", "checked", "checks_kept", "join_checks"]

op: Any = opset18

_BOOL = 9  # of onnx.TensorProto.DataType
_PASSES = "torch.onnx._internal.exporter._fx_passes"
_CORE = "torch.onnx._internal.exporter._core"
_PREPARE = "_prepare_exported_program_for_export"
_REMOVE = "remove_assertion_nodes"


def check(condition: Any) -> Any:
    """Takes the place of an assertion in a graph; it is translated and never called."""
    return condition


def checked(condition: Any) -> Any:
    """The translation of :func:`check`: the condition as one element."""
    return op.Reshape(op.Cast(condition, to=_BOOL), op.Constant(value_ints=[1]))


@contextmanager
def checks_kept(change: Callable[[Any], None]) -> Iterator[list[str]]:
    """Keeps the assertions of a program that is converted within the block, each as an output
    behind its own.

    Args:
        change: changes its graph when torch has taken its operators apart.

    Yields:
        What each says if it does not hold, in torch's words; filled in by the conversion.
    """
    messages: list[str] = []
    passes: Any = importlib.import_module(_PASSES)
    core: Any = importlib.import_module(_CORE)
    remove, prepare = getattr(passes, _REMOVE, None), getattr(core, _PREPARE, None)
    if remove is None or prepare is None:  # another version, which may do it in another way
        yield messages
        return

    def keep(module: Any) -> Any:
        _reject_within(module)
        change(module)
        messages[:] = _replace(module.graph)
        return remove(module)

    def with_outputs(*args: Any, **kwargs: Any) -> Any:
        program = prepare(*args, **kwargs)
        _add_outputs(program)
        return program

    setattr(passes, _REMOVE, keep)
    setattr(core, _PREPARE, with_outputs)
    try:
        yield messages
    finally:
        setattr(passes, _REMOVE, remove)
        setattr(core, _PREPARE, prepare)


def _reject_within(module: Any) -> None:
    """Rejects assertions within a branch or a loop, whose conditions the graph around it does not
    see. That a size is not negative always holds."""
    for name, part in module.named_modules():
        for node in part.graph.nodes if name and hasattr(part, "graph") else ():
            text = str(node.args[1]) if node.target in _kinds() and len(node.args) > 1 else ""
            if text and not says_not_negative(text):
                raise UntranslatedError(
                    f"an ONNX model cannot check what a branch or a loop of it asserts: {text}"
                )


def _kinds() -> set[Any]:
    """The operators that assert something."""
    aten = torch.ops.aten
    return {aten._assert_scalar.default, aten._assert_async.msg, aten._assert_async.default}


def _replace(graph: Any) -> list[str]:
    """Puts a check in the place of each assertion of a graph.

    Returns:
        The texts of the assertions.
    """
    kinds = _kinds()
    texts: dict[Any, str] = {}
    for node in list(graph.nodes):
        condition = node.args[0] if node.args else None
        if node.target not in kinds or not isinstance(condition, torch.fx.Node):
            continue
        if condition in texts:
            continue
        reject_floats(node)
        texts[condition] = str(node.args[1]) if len(node.args) > 1 else "a tensor is false"
        with graph.inserting_before(node):
            made = graph.call_function(check, (condition,))
        made.meta = {**node.meta, "val": torch.ones(1, dtype=torch.bool)}
        graph.erase_node(node)
    return list(texts.values())


def _add_outputs(program: Any) -> None:
    """Makes the checks outputs of an exported program, behind its own."""
    graph = program.graph_module.graph
    checks = [node for node in graph.nodes if node.target is check]
    if not checks:
        return
    output = graph.output_node()
    output.args = ((*output.args[0], *checks),)
    program.graph_signature.output_specs += [
        OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in checks
    ]


def join_checks(program: Any, messages: list[str]) -> None:
    """Makes one output of the checks of a model.

    Args:
        program: a ``torch.onnx.ONNXProgram``.
        messages: of :func:`checks_kept`.
    """
    if not messages:
        return
    graph = program.model.graph
    own = len(graph.outputs) - len(messages)
    checks = list(graph.outputs)[own:]
    del graph.outputs[own:]
    kind, shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([len(checks)])
    joined = ir.Value(name=CHECKS, type=kind, shape=shape)
    graph.append(ir.Node("", "Concat", checks, [ir.AttrInt64("axis", 0)], outputs=[joined]))
    graph.outputs.append(joined)
    program.model.metadata_props[CHECKS] = json.dumps(messages)
