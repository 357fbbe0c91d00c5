"""``calltape ls`` and ``show``: the calls of a tape as a list, and one of them as a tree.

Prints a line, or a JSON object, per call; of one call its arguments and outputs, node by node.
"""

from __future__ import annotations

import heapq
import json as jsonlib
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from calltape_analyzer.cli.options import (
    Address,
    Calls,
    Json,
    OfTarget,
    Part,
    Paths,
    Variants,
    opened_tape,
)
from calltape_analyzer.cli.output import command, line, print_json, print_list, wrong_words
from calltape_analyzer.errors import is_damage
from calltape_analyzer.observing.contexts import Context
from calltape_analyzer.observing.signature import PassedArguments, Signature
from calltape_analyzer.pytree.caches import is_cache_name
from calltape_analyzer.pytree.nodes import names_of_children, unreferenced
from calltape_analyzer.pytree.rendering import render, render_inputs, render_node, render_outputs
from calltape_analyzer.reading.call import Call, Side
from calltape_analyzer.reading.elements import elements_of, elements_text
from calltape_analyzer.reading.files import short_paths
from calltape_analyzer.reading.segment import UNDER_WAY, UNDER_WAY_WORDS
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import cells_of, counted, printable, shortened, terminal_width
from calltape_schema.errors import TapeError
from calltape_schema.packing import pack
from calltape_schema.recent import Recent
from calltape_schema.records import CallRecord, ModelError, Range, Tree
from calltape_schema.tree import CustomNode, FieldsNode, Node, children_of

__all__ = ["MOST_NAME", "cut_to", "ls", "show"]

_WIDEST_FILE, _LEAST_TEXT, _LEAST_RESULT = 40, 9, 1
_ARROW, _SHAPE = " -> ", "]"
_PART_ENDS = re.compile(r"[({]|(?<!\w)\[|, |: |=|(?<=\w)(?=\[)")
"""Here a text can be cut: not between the sizes of a shape, but before all of them."""
_MOST_ELEMENTS, MOST_NAME = 32, 200
_MAX_MESSAGE, _MAX_LINES = 4000, 60
"""Characters and lines of the message of an exception."""


@command
def ls(
    paths: Paths,
    target: OfTarget = None,
    calls: Calls = None,
    variant: Variants = None,
    json: Json = False,
) -> None:
    """List the calls, one per line.

    A line has the number of the call (its address if there are several recordings), seconds since
    the first call, duration in milliseconds, file (if there are several), arguments and outputs.
    Calls of one recording are sorted by number, and calls of several by time. On a terminal, lines
    are cut to its width; elsewhere only long texts, names and lists are, which show --json has.

    \b
    calltape ls runs/llm.tape --calls 0..9
    calltape ls runs/ --variant decode
    """
    with opened_tape(paths, Part(calls, variant, target=target)) as tape:
        shown = _records(tape)
        if json:
            print_list(jsonlib.dumps(_summary(tape, *one)) for one in shown)
        else:
            _print_lines(tape, shown)


def _records(tape: Tape) -> Iterator[tuple[Call, CallRecord]]:
    """The calls of each recording by number, and those of several by time. Clocks may be set back
    within a recording: then its next calls come at once."""
    recordings = [((call, call.record) for call in calls) for calls in tape.calls.by_recording()]
    if len(recordings) < 2:
        return (call for calls in recordings for call in calls)
    return heapq.merge(*recordings, key=lambda pair: pair[1].time_ns)


def _print_lines(tape: Tape, calls: Iterator[tuple[Call, CallRecord]]) -> None:
    first: int | None = None
    columns = terminal_width()
    all_calls = tape.calls
    width = max(6, len(all_calls.label_of(all_calls[0].ref)) if len(all_calls) else 0)
    names = short_paths(tape.paths) if len(tape.paths) > 1 else {}
    longest = max((len(printable(name)) for name in names.values()), default=0)
    column = min(max(longest, len("file")), _WIDEST_FILE) if names else 0
    head = f" {'file':<{column}}" if names else ""
    title = f"{'call':>{width}} {'at s':>10} {'ms':>9}{head}  arguments -> outputs"
    print(title if columns is None else shortened(title, columns))
    texts_by_inputs = Recent()
    for call, record in calls:
        first = record.time_ns if first is None else first
        seconds = (record.time_ns - first) / 1e9
        duration = "" if record.duration_ns is None else f"{record.duration_ns / 1e6:.3f}"
        texts = _texts(record, tape.signature, texts_by_inputs)
        file = f" {printable(names[call.path]):<{column}}" if names else ""
        before = f"{all_calls.label_of(call.ref):>{width}} {seconds:>10.3f} {duration:>9}{file}  "
        room = None if columns is None else columns - cells_of(before)
        if room is not None and cells_of(str(texts)) > room:
            brief = _rendered(record, tape.signature, brief=True)
            print(before + brief.fitted(room, raised=record.error is not None))
        else:
            print(f"{before}{texts}")


def _texts(record: CallRecord, signature: Signature, texts_by_inputs: Recent) -> _Texts:
    """What a call took and gave. Many calls are alike: their texts are made once."""
    inputs, outputs = record.inputs, record.outputs
    if record.error is not None or outputs is None:
        return _rendered(record, signature)
    scalars = pack([inputs.scalars, outputs.scalars])  # there 1, 1.0 and True differ
    key = (
        inputs.structure, inputs.leaves, outputs.structure, outputs.leaves, scalars,
        record.outputs_missing,
    )  # fmt: skip
    return texts_by_inputs.once(
        key,
        lambda: _rendered(record, signature),
        lambda texts: sum(map(len, key[:5])) + len(texts.inputs) + len(texts.result),
    )


def _rendered(record: CallRecord, signature: Signature, *, brief: bool = False) -> _Texts:
    devices = [leaf.device for leaf in record.inputs.facts()]
    context = Context.of(record.inputs.spec().context, devices)
    under = f", {context.separating()}" if context.key else ""  # the reason for its dtypes
    result = printable(f"{_result(record, brief=brief)}{under}")
    names = [name for name, _ in _arguments(record.inputs, signature)]
    return _Texts(render_inputs(record.inputs, names, brief=brief), result)


def _arguments(tree: Tree, signature: Signature) -> Sequence[tuple[str, Node]]:
    """The arguments of a call, by the names that ``calltape variants`` has for them."""
    passed = PassedArguments.of(tree.spec().root, signature)
    return *passed.positional, *passed.named


class _Texts(NamedTuple):
    """What a call took and gave."""

    inputs: str
    result: str

    def __str__(self) -> str:
        return f"{self.inputs}{_ARROW}{self.result}"

    def fitted(self, width: int, *, raised: bool) -> str:
        """Both, shortened to a width: the arguments first, but something of the result is seen.

        Args:
            raised: whether the result is an exception, whose class says more than the arguments.
        """
        room = max(width, _LEAST_TEXT) - len(_ARROW)
        share = min(cells_of(self.result), room // 2 if raised else room // 3)
        inputs = cut_to(self.inputs, room - share)
        if not raised and _SHAPE not in inputs:
            longer = cut_to(self.inputs, room - min(share, _LEAST_RESULT))
            inputs = longer if _SHAPE in longer else inputs
        room_left, cut = room - cells_of(inputs), shortened if raised else cut_to
        return f"{inputs}{_ARROW}{cut(self.result, room_left)}"


def cut_to(text: str, width: int) -> str:
    """A text of :func:`render_inputs` or :func:`render_outputs`, cut to a width between its parts:
    of a shape all is shown, or nothing. The name of a class alone if there is no room for more."""
    if cells_of(text) <= width:
        return text
    end = 0
    for place in _PART_ENDS.finditer(text):
        if cells_of(text[: place.end()]) >= width:
            break
        end = place.end()
    name = text.partition("(")[0]
    if end == 0 and name.isidentifier() and cells_of(name) <= width:
        return name
    return f"{text[:end]}…" if end else shortened(text, width)


def _result(record: CallRecord, *, brief: bool = False) -> str:
    """What a call gave, on one line; ``brief`` as for :func:`render_outputs`."""
    if record.error is not None:
        message = record.error.message.strip().split("\n", 1)[0]
        message = message if len(message) <= 100 else f"{message[:100]}…"
        return f"raised {record.error.type.rpartition(':')[2]}: {message}"
    if record.outputs_missing == UNDER_WAY:
        return f"{UNDER_WAY_WORDS}, or still is"
    if record.outputs is None:
        return (
            f"not recorded ({record.outputs_missing})" if record.outputs_missing else "not recorded"
        )
    text = render_outputs(record.outputs, brief=brief)
    return f"{text} ({record.outputs_missing})" if record.outputs_missing else text


def _summary(tape: Tape, call: Call, record: CallRecord) -> dict[str, Any]:
    """A call as plain data, with its inputs and outputs as text."""
    names = [name for name, _ in _arguments(record.inputs, tape.signature)]
    return {
        "index": call.index,
        "call": call.number,
        "address": call.address,
        "path": call.path,
        "time_ns": record.time_ns,
        "duration_ns": record.duration_ns,
        "thread": record.thread,
        "inputs": render_inputs(record.inputs, names),
        "outputs": render(record.outputs) if record.outputs is not None else None,
        "outputs_missing": record.outputs_missing,
        "context": Context.of(record.inputs.spec().context).words(),
        "error": record.error.model_dump() if record.error is not None else None,
        "tensor_bytes": record.blob.nbytes if record.blob is not None else 0,
    }


@command
def show(
    paths: Paths,
    call: Address,
    target: OfTarget = None,
    json: Json = False,
) -> None:
    """Show one call as a tree.

    Every argument and output with its name, type and shape, and its value if it is small: of
    tensors up to 32 elements, and of larger tensors of integers the smallest and largest element.
    An argument has the name that variants, explain and redact --keep have for it.

    \b
    calltape show runs/llm.tape 0
    calltape show runs/ 3f9a01bc:12 --json
    """
    with opened_tape(paths, Part(target=target)) as tape:
        with wrong_words():
            call_found = tape.find(call)
        record = call_found.record
        if json:
            outputs = None
            if record.outputs is not None:
                outputs = _document(
                    _ShownSide(call_found, "outputs"), [_of_outputs(record.outputs)]
                )
            inputs = _document(
                _ShownSide(call_found, "inputs"), _arguments(record.inputs, tape.signature)
            )
            summary = _summary(tape, call_found, record)
            print_json({**summary, "inputs": inputs, "outputs": outputs})
        else:
            _print_call(tape, call_found)


def _of_outputs(tree: Tree) -> tuple[str, Node]:
    return "outputs", tree.spec().root


def _document(shown: _ShownSide, nodes: Sequence[tuple[str, Node]]) -> dict[str, Any]:
    """A tree as it stands in the spec, its leaves and scalars in place."""
    tensors, scalars = unreferenced(shown.tree)
    document: dict[str, Any] = {
        "values": [_node_document(name, node, shown) for name, node in nodes]
    }
    if tensors or scalars:
        document["unreferenced"] = {"tensors": tensors, "scalars": scalars}
    return document


def _node_document(name: str, node: Any, shown: _ShownSide) -> dict[str, Any]:
    document: dict[str, Any] = {"name": name}
    document |= {
        field: value
        for field, value in node
        if field not in ("children", "context", "leaf", "scalar") and value is not None
    }
    if hasattr(node, "leaf"):
        document |= shown.facts[node.leaf].model_dump(exclude_defaults=True, exclude={"key"})
        for span in shown.ranges.get(node.leaf, ()):
            document |= {"min": span.min, "max": span.max}
        elements = shown.elements(node.leaf)
        if elements is not None:
            document["elements"] = elements
    if hasattr(node, "scalar"):
        document["value"] = shown.tree.scalars[node.scalar]
    children = [_node_document(*child, shown) for child in _children(name, node)]
    if children:
        document["children"] = children
    return document


def _print_call(tape: Tape, call: Call) -> None:
    record = call.record
    duration = "" if record.duration_ns is None else f", took {record.duration_ns / 1e6:.3f} ms"
    line(f"call {tape.calls.label_of(call.ref)} of {call.path}{duration}, thread {record.thread}")
    context = Context.of(record.inputs.spec().context).words()
    if context is not None:
        line("called in", context)
    sides: tuple[Side, ...] = ("inputs",) if record.outputs is None else ("inputs", "outputs")
    shown = {side: _ShownSide(call, side) for side in sides}
    facts = [leaf for side_shown in shown.values() for leaf in side_shown.facts]
    if facts and all(leaf.missing == "policy" for leaf in facts):
        line("tensors have no values on the tape, only shapes")
        for side_shown in shown.values():
            side_shown.are_shapes = True
    print("inputs")
    for name, node in _arguments(record.inputs, tape.signature):
        _print_node(name, node, shown["inputs"], 1)
    _print_unreferenced("inputs", record.inputs)
    if record.error is not None:
        _print_error(record.error)
    elif record.outputs is None:
        line("outputs", _result(record))
    else:
        _print_node(*_of_outputs(record.outputs), shown["outputs"], 0)
        if record.outputs_missing:
            line("outputs are incomplete:", record.outputs_missing)
    if record.outputs is not None:
        _print_unreferenced("outputs", record.outputs)


def _print_unreferenced(side: str, tree: Tree) -> None:
    """Says how much a tree has that no line above shows."""
    tensors, scalars = unreferenced(tree)
    if tensors or scalars:
        counts = f"{counted(scalars, 'scalar')} and {counted(tensors, 'tensor')}"
        line("warning:", f"nothing refers to {counts} of the {side}, so they are not shown")


def _print_error(error: ModelError) -> None:
    """The message as it was raised, line by line; of a very long one, the end is left out."""
    line("outputs", f"raised {error.type.rpartition(':')[2]}")
    text = error.message.strip("\n")
    shown = text[:_MAX_MESSAGE].split("\n")[:_MAX_LINES]
    for row in shown:
        line(f"  {row}")
    cut = len(text) - len("\n".join(shown))
    if cut:
        line(f"  ({counted(cut, 'more character')}, with --json)")


class _ShownSide:
    """One side of a call with what is known of its leaves, decoded once.

    Attributes:
        are_shapes: whether it was said that the tape has only the shapes of this call's tensors.
    """

    are_shapes = False

    def __init__(self, call: Call, side: Side) -> None:
        tree = call.record.inputs if side == "inputs" else call.record.outputs
        assert tree is not None
        self.tree = tree
        self.facts = tree.facts()
        self.ranges: dict[int, list[Range]] = {}
        for range_ in tree.ranges:
            self.ranges.setdefault(range_.leaf, []).append(range_)
        self._call = call
        self._side: Side = side

    def elements(self, leaf: int) -> Any:
        """The elements of a tensor in nested lists; None if there are many, or if they are not on
        the tape. What is wrong with them is added to the tape's damage."""
        facts = self.facts[leaf]
        if facts.key is None or math.prod(facts.shape) > _MOST_ELEMENTS:
            return None
        try:
            data = self._call.stored(self._side, leaf)
            return None if data is None else elements_of(facts, data)
        except TapeError as error:
            if not is_damage(error):
                raise
            with suppress(TapeError):
                self._call.check(entries=True)
            return None


def _print_node(name: str, node: Any, shown: _ShownSide, depth: int) -> None:
    label = f"{'  ' * depth}{name}:"
    children = _children(name, node)
    if not children:
        line(label, render_node(node, shown.facts, shown.tree.scalars), _facts(node, shown))
        return
    type_name = getattr(node, "type", None)
    line(label, _kind(node) if type_name is None else f"{_kind(node)} {type_name}")
    for child_name, child in children:
        _print_node(child_name, child, shown, depth + 1)


def _kind(node: Any) -> str:
    """What a node is. A cache is recorded by its attributes, whether its class is a dataclass or
    not: the tape says object of both."""
    is_object = isinstance(node, FieldsNode) and node.kind == "object"
    return "cache" if is_object and is_cache_name(node.type) else str(node.kind)


def _children(name: str, node: Any) -> list[tuple[str, Node]]:
    """The nodes below one, each with its name from the argument on."""
    if node.kind in ("slice", "range", "size"):
        return []
    below: list[tuple[Any, Node]] = []
    if isinstance(node, CustomNode):
        below.append(("context", node.context))
    below += zip(names_of_children(node), children_of(node), strict=True)
    return [(_ending(f"{name}.{key}"), child) for key, child in below]


def _ending(name: str) -> str:
    """A name; of a long one only the end, because keys of a tape may be long, and nested."""
    return name if len(name) <= MOST_NAME else f"…{name[1 - MOST_NAME :]}"


def _facts(node: Any, shown: _ShownSide) -> str:
    """The elements of a small tensor, what is unusual about it, and the reason of a placeholder."""
    if node.kind == "opaque":
        return "" if node.of is not None else f"# {node.type}: {node.reason}"
    if not hasattr(node, "leaf"):
        return ""
    leaf = shown.facts[node.leaf]
    elements = shown.elements(node.leaf)
    facts = []
    if elements is None:
        facts += [f"{span.min}..{span.max}" for span in shown.ranges.get(node.leaf, ())]
    if leaf.strides is not None:
        facts.append(f"strides {list(leaf.strides)}")
    facts += [name for name in ("requires_grad", "inference", "conj", "neg") if getattr(leaf, name)]
    if leaf.layout != "strided":
        facts.append(leaf.layout)
    if leaf.subclass is not None:
        facts.append(leaf.subclass)
    if leaf.key is None and not shown.are_shapes:
        facts.append(f"no value: {leaf.missing}")
    value = "" if elements is None else f"= {elements_text(elements)}"
    return f"{value} # {', '.join(facts)}".strip() if facts else value
