"""``calltape ls`` and ``calltape show``: the calls of a tape, as a list and one by one."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import typer

from calltape_analyzer.call import Call
from calltape_analyzer.cli.output import Json, Paths, command, line, opened, print_json
from calltape_analyzer.rendering import render, render_node
from calltape_analyzer.segment import UNDER_WAY, UNDER_WAY_WORDS
from calltape_analyzer.tallies import CallRef
from calltape_analyzer.tape import Tape
from calltape_schema.errors import TapeError
from calltape_schema.records import CallRecord, Tree
from calltape_schema.tree import CustomNode, DictNode, FieldsNode, children_of

__all__ = ["ls", "show"]


@command
def ls(
    paths: Paths,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, help="Show at most this many calls.")
    ] = None,
    json: Json = False,
) -> None:
    """The calls, one per line.

    Number, seconds since the first call, duration in milliseconds, arguments and outputs.

    \b
    calltape ls runs/llm.tape
    calltape ls runs/llm.tape --limit 10
    """
    with opened(paths) as tape:
        calls = islice(_records(tape), limit)
        if json:
            _print_list(calls)
        else:
            _print_lines(calls)


def _records(tape: Tape) -> Iterator[tuple[Call, CallRecord]]:
    for call in tape.calls:
        try:
            record = call.record
        except TapeError:
            continue  # it stands in tape.damage
        yield call, record


def _print_list(calls: Iterator[tuple[Call, CallRecord]]) -> None:
    """A JSON list, written as it is read: tapes can be long."""
    before = "[\n"
    for call, record in calls:
        print(before + jsonlib.dumps(_summary(call, record)), end="")
        before = ",\n"
    print("[]" if before == "[\n" else "\n]")


def _print_lines(calls: Iterator[tuple[Call, CallRecord]]) -> None:
    first: int | None = None
    print(f"{'call':>6} {'at s':>10} {'ms':>9}  arguments -> outputs")
    for call, record in calls:
        first = record.time_ns if first is None else first
        at = (record.time_ns - first) / 1e9
        duration = "" if record.duration_ns is None else f"{record.duration_ns / 1e6:.3f}"
        within = f", within {_named(call.parent)}" if call.parent is not None else ""
        text = f"{render(record.inputs)} -> {_result(record)}{within}"
        line(f"{call.number:>6} {at:>10.3f} {duration:>9} ", text)


def _result(record: CallRecord) -> str:
    if record.error is not None:
        return f"raised {record.error.type.rpartition(':')[2]}: {_short(record.error.message)}"
    if record.outputs_missing == UNDER_WAY:
        return f"{UNDER_WAY_WORDS}, or still is"
    if record.outputs is None:
        return (
            f"not recorded ({record.outputs_missing})" if record.outputs_missing else "not recorded"
        )
    text = render(record.outputs)
    return f"{text} ({record.outputs_missing})" if record.outputs_missing else text


def _named(call: CallRef) -> str:
    return f"call {call.number} of recording {call.tape.hex()[:8]}"


def _short(text: str) -> str:
    first = text.strip().split("\n", 1)[0]
    return first if len(first) <= 100 else f"{first[:100]}…"


def _summary(call: Call, record: CallRecord) -> dict[str, Any]:
    return {
        "index": call.index,
        "call": call.number,
        "path": call.path,
        "time_ns": record.time_ns,
        "duration_ns": record.duration_ns,
        "thread": record.thread,
        "inputs": render(record.inputs),
        "outputs": render(record.outputs) if record.outputs is not None else None,
        "outputs_missing": record.outputs_missing,
        "error": record.error.model_dump() if record.error is not None else None,
        "tree": str(call.tree) if call.tree is not None else None,  # JSON's readers round it
        "parent": {"tape": call.parent.tape.hex(), "call": call.parent.number}
        if call.parent is not None
        else None,
        "tensor_bytes": record.blob.size if record.blob is not None else 0,
    }


@command
def show(
    paths: Paths,
    number: Annotated[
        int, typer.Argument(metavar="N", min=0, help="Number of the call, as in ls.")
    ],
    json: Json = False,
) -> None:
    """One call as a tree.

    Every argument and output with its type, shape and, where small, value; for tensors of
    integers the smallest and largest element.

    \b
    calltape show runs/llm.tape 0
    calltape show runs/llm.tape 0 --json
    """
    with opened(paths) as tape:
        call = tape.find(number)
        record = call.record
        if json:
            print_json(
                {
                    **_summary(call, record),
                    "inputs": _tree_document(record.inputs),
                    "outputs": _tree_document(record.outputs)
                    if record.outputs is not None
                    else None,
                }
            )
        else:
            _print_call(call, record)


def _tree_document(tree: Tree) -> dict[str, Any]:
    """A tree as it stands in the spec, its leaves and scalars in place."""
    spec = tree.spec()
    return {
        "root": _node_document(spec.root, tree),
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


def _print_call(call: Call, record: CallRecord) -> None:
    duration = "" if record.duration_ns is None else f", took {record.duration_ns / 1e6:.3f} ms"
    line(f"call {call.number} of {call.path}{duration}, thread {record.thread}")
    if call.tree is not None:
        within = f"within {_named(call.parent)}, " if call.parent is not None else ""
        line(f"{within}tree {call.tree:016x}")
    print("inputs")
    inputs = _Shown(record.inputs)
    for part in children_of(record.inputs.spec().root):
        for name, child in _named_children(part):
            _print_node(name, child, inputs, 1)
    if record.error is not None or record.outputs is None:
        line("outputs", _result(record))
    else:
        _print_node("outputs", record.outputs.spec().root, _Shown(record.outputs), 0)
        if record.outputs_missing:
            line("outputs are not complete:", record.outputs_missing)


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
    line(label, node.kind if type_name is None else f"{node.kind} {type_name}")
    for child_name, child in children:
        _print_node(child_name, child, tree, depth + 1)


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
