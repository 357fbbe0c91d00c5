"""``calltape show``: one call as a tree.

In comes a call. Out go its arguments and outputs, node by node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from calltape_analyzer.cli.calls import inputs_of, result_of, summary_of
from calltape_analyzer.cli.options import Address, Json, OfTarget, Paths
from calltape_analyzer.cli.output import command, line, print_json, wrong_words
from calltape_analyzer.cli.tapes import Part, opened
from calltape_analyzer.observing.contexts import Context
from calltape_analyzer.pytree.caches import is_cache_name
from calltape_analyzer.pytree.rendering import render_node
from calltape_analyzer.reading.call import Call
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted
from calltape_schema.records import ModelError, Tree
from calltape_schema.tree import CustomNode, DictNode, FieldsNode, Node, children_of

__all__ = ["show"]

_MAX_MESSAGE, _MAX_LINES = 4000, 60
"""Characters and lines of the message of an exception."""


@command
def show(
    paths: Paths,
    call: Address,
    target: OfTarget = None,
    json: Json = False,
) -> None:
    """One call as a tree.

    Every argument and output with its type, shape and, if small, value; for tensors of
    integers the smallest and largest element.

    \b
    calltape show runs/llm.tape 0
    calltape show runs/ 3f9a01bc:12 --json
    """
    with opened(paths, Part(target=target)) as tape:
        with wrong_words():
            found = tape.find(call)
        record = found.record
        if json:
            print_json(
                {
                    **summary_of(tape, found, record),
                    "inputs": _tree_document(record.inputs, inputs_of(tape, record)),
                    "outputs": None
                    if record.outputs is None
                    else _tree_document(record.outputs, record.outputs.spec().root),
                }
            )
        else:
            _print_call(tape, found)


def _tree_document(tree: Tree, root: Node) -> dict[str, Any]:
    """A tree as it stands in the spec, its leaves and scalars in place."""
    return {
        "root": _node_document(root, tree),
        "ranges": [given.model_dump() for given in tree.ranges],
    }


def _node_document(node: Any, tree: Tree) -> dict[str, Any]:
    shown = {
        name: value
        for name, value in node
        if name not in ("children", "context", "leaf", "scalar") and value is not None
    }
    if hasattr(node, "leaf"):
        shown |= tree.facts()[node.leaf].model_dump(exclude_defaults=True)
    if hasattr(node, "scalar"):
        shown["value"] = tree.scalars[node.scalar]
    if hasattr(node, "context"):
        shown["context"] = _node_document(node.context, tree)
    if hasattr(node, "children"):
        shown["children"] = [_node_document(child, tree) for child in node.children]
    return shown


def _print_call(tape: Tape, call: Call) -> None:
    record = call.record
    duration = "" if record.duration_ns is None else f", took {record.duration_ns / 1e6:.3f} ms"
    line(f"call {tape.calls.shown(call.ref)} of {call.path}{duration}, thread {record.thread}")
    context = Context.of(record.inputs.spec().context).words()
    if context is not None:
        line("called in", context)
    print("inputs")
    inputs = _Shown(record.inputs)
    for part in children_of(inputs_of(tape, record)):
        for name, child in _named_children(part):
            _print_node(name, child, inputs, 1)
    if record.error is not None:
        _print_error(record.error)
    elif record.outputs is None:
        line("outputs", result_of(record))
    else:
        _print_node("outputs", record.outputs.spec().root, _Shown(record.outputs), 0)
        if record.outputs_missing:
            line("outputs are not complete:", record.outputs_missing)


def _print_error(error: ModelError) -> None:
    """The message as it was raised, line by line; of a very long one, the end is left out."""
    line("outputs", f"raised {error.type.rpartition(':')[2]}")
    text = error.message.strip("\n")
    shown = text[:_MAX_MESSAGE].split("\n")[:_MAX_LINES]
    for row in shown:
        line(f"  {row}")
    left = len(text) - len("\n".join(shown))
    if left:
        line(f"  ({counted(left, 'more character')}, with --json)")


class _Shown:
    """A tree with what is known of its leaves, decoded once."""

    def __init__(self, tree: Tree) -> None:
        self.scalars = tree.scalars
        self.facts = tree.facts()
        self.ranges: dict[int, list[str]] = {}
        for given in tree.ranges:
            self.ranges.setdefault(given.leaf, []).append(f"{given.min}..{given.max}")


def _print_node(name: Any, node: Any, tree: _Shown, depth: int) -> None:
    label = f"{'  ' * depth}{name if isinstance(name, str) else repr(name)}:"
    children = list(_named_children(node))
    if not children:
        line(label, render_node(node, tree.facts, tree.scalars), _facts(node, tree))
        return
    type_name = getattr(node, "type", None)
    line(label, _kind(node) if type_name is None else f"{_kind(node)} {type_name}")
    for child_name, child in children:
        _print_node(child_name, child, tree, depth + 1)


def _kind(node: Any) -> str:
    """What a node is. A cache is recorded by its attributes, whether its class is a dataclass or
    not: the tape says object of both."""
    is_object = isinstance(node, FieldsNode) and node.kind == "object"
    return "cache" if is_object and is_cache_name(node.type) else str(node.kind)


def _named_children(node: Any) -> Iterator[tuple[Any, Any]]:
    children = getattr(node, "children", ())
    if isinstance(node, FieldsNode):
        return zip(node.fields, children, strict=True)
    if isinstance(node, DictNode):
        return zip(node.keys, children, strict=True)
    if node.kind in ("slice", "range", "size"):
        return iter(())
    if isinstance(node, CustomNode):
        return iter([("context", node.context), *enumerate(children)])
    return enumerate(children)


def _facts(node: Any, tree: _Shown) -> str:
    """What is unusual about a tensor, and the reason of a placeholder."""
    if node.kind == "opaque":
        return "" if node.of is not None else f"# {node.type}: {node.reason}"
    if not hasattr(node, "leaf"):
        return ""
    leaf = tree.facts[node.leaf]
    known = list(tree.ranges.get(node.leaf, ()))
    if leaf.strides is not None:
        known.append(f"strides {list(leaf.strides)}")
    known += [name for name in ("requires_grad", "inference", "conj", "neg") if getattr(leaf, name)]
    if leaf.layout != "strided":
        known.append(leaf.layout)
    if leaf.subclass is not None:
        known.append(leaf.subclass)
    if leaf.key is None:
        known.append(f"no value: {leaf.missing}")
    return f"# {', '.join(known)}" if known else ""
