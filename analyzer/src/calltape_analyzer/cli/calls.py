"""``calltape ls``: the calls of a tape as a list.

In come the calls. Out goes a line, or a JSON object, per call.
"""

from __future__ import annotations

import heapq
import json as jsonlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from calltape_analyzer.cli.options import Calls, Json, OfTarget, Paths, Variants
from calltape_analyzer.cli.output import command
from calltape_analyzer.cli.tapes import Part, opened
from calltape_analyzer.cli.terminal import cells_of, shortened, terminal_width
from calltape_analyzer.observing.contexts import Context
from calltape_analyzer.pytree.inputs import parts_of_inputs
from calltape_analyzer.pytree.rendering import render, render_inputs, render_outputs
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.places import short_paths
from calltape_analyzer.reading.segment import UNDER_WAY, UNDER_WAY_WORDS
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import printable
from calltape_schema.errors import TapeError
from calltape_schema.packing import pack
from calltape_schema.recent import Recent
from calltape_schema.records import CallRecord
from calltape_schema.tree import Node

_WIDEST_FILE, _LEAST_TEXT, _LEAST_RESULT = 40, 9, 1
_ARROW, _SHAPE = " -> ", "]"
_PART_ENDS = re.compile(r"[({]|(?<!\w)\[|, |: |=|(?<=\w)(?=\[)")
"""Here a text can be cut: not between the sizes of a shape, but before all of them."""

__all__ = ["inputs_of", "ls", "result_of", "summary_of"]


@command
def ls(
    paths: Paths,
    target: OfTarget = None,
    calls: Calls = None,
    variant: Variants = None,
    json: Json = False,
) -> None:
    """The calls, one per line.

    Number (or, of several recordings, address), seconds since the first call, duration in
    milliseconds, file (if there are several), arguments and outputs. The calls of several
    recordings come in one order, that of time; those of each recording by their numbers. On a
    terminal a call is one line, which is shortened; elsewhere it is whole, but for long texts,
    names and lists: show --json has them.

    \b
    calltape ls runs/llm.tape --calls 0..9
    calltape ls runs/ --variant decode
    """
    with opened(paths, Part(calls, variant, target=target)) as tape:
        shown = _records(tape)
        if json:
            _print_list(tape, shown)
        else:
            _print_lines(tape, shown)


def _records(tape: Tape) -> Iterator[tuple[Call, CallRecord]]:
    """The calls of each recording by number, and those of several by time. Clocks may be set back
    within a recording: then its next calls come at once."""
    recordings = [map(_with_record, calls) for calls in tape.calls.by_recording()]
    found = (filter(None, calls) for calls in recordings)
    if len(recordings) < 2:
        return (one for calls in found for one in calls)
    return heapq.merge(*found, key=lambda pair: pair[1].time_ns)


def _with_record(call: Call) -> tuple[Call, CallRecord] | None:
    try:
        return call, call.record
    except TapeError:
        return None  # it stands in tape.damage


def _print_list(tape: Tape, calls: Iterator[tuple[Call, CallRecord]]) -> None:
    """A JSON list, written as it is read: tapes can be long."""
    before = "[\n"
    for call, record in calls:
        print(before + jsonlib.dumps(summary_of(tape, call, record)), end="")
        before = ",\n"
    print("[]" if before == "[\n" else "\n]")


def _print_lines(tape: Tape, calls: Iterator[tuple[Call, CallRecord]]) -> None:
    first: int | None = None
    columns = terminal_width()
    every = tape.calls
    width = max(6, len(every.shown(every[0].ref)) if len(every) else 0)
    names = short_paths(tape.paths) if len(tape.paths) > 1 else {}
    longest = max((len(printable(name)) for name in names.values()), default=0)
    column = min(max(longest, len("file")), _WIDEST_FILE) if names else 0
    head = f" {'file':<{column}}" if names else ""
    title = f"{'call':>{width}} {'at s':>10} {'ms':>9}{head}  arguments -> outputs"
    print(title if columns is None else shortened(title, columns))
    known = Recent()
    for call, record in calls:
        first = record.time_ns if first is None else first
        at = (record.time_ns - first) / 1e9
        duration = "" if record.duration_ns is None else f"{record.duration_ns / 1e6:.3f}"
        texts = _texts(tape, record, known)
        file = f" {printable(names[call.path]):<{column}}" if names else ""
        before = f"{every.shown(call.ref):>{width}} {at:>10.3f} {duration:>9}{file}  "
        left = None if columns is None else columns - cells_of(before)
        if left is not None and cells_of(str(texts)) > left:
            brief = _rendered(tape, record, brief=True)
            print(before + brief.fitted(left, raised=record.error is not None))
        else:
            print(f"{before}{texts}")


def _under(record: CallRecord) -> str:
    """The autocast and the default dtype that a call was under: the reason for its dtypes."""
    context = Context.of(
        record.inputs.spec().context, [leaf.device for leaf in record.inputs.facts()]
    )
    return f", {context.separating()}" if context.key else ""


def _texts(tape: Tape, record: CallRecord, known: Recent) -> _Texts:
    """What a call took and gave. Many calls are alike: their texts are made once."""
    inputs, outputs = record.inputs, record.outputs
    if record.error is not None or outputs is None:
        return _rendered(tape, record)
    scalars = pack([inputs.scalars, outputs.scalars])  # there 1, 1.0 and True differ
    key = (
        inputs.structure, inputs.leaves, outputs.structure, outputs.leaves, scalars,
        record.outputs_missing,
    )  # fmt: skip
    found: _Texts | None = known.get(key)
    if found is None:
        found = _rendered(tape, record)
        size = sum(map(len, key[:5])) + len(found.inputs) + len(found.result)
        known.keep(key, found, size)
    return found


def _rendered(tape: Tape, record: CallRecord, *, brief: bool = False) -> _Texts:
    result = printable(f"{result_of(record, brief=brief)}{_under(record)}")
    return _Texts(render_inputs(record.inputs, inputs_of(tape, record), brief=brief), result)


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
        inputs = _cut(self.inputs, room - share)
        if not raised and _SHAPE not in inputs:
            longer = _cut(self.inputs, room - min(share, _LEAST_RESULT))
            inputs = longer if _SHAPE in longer else inputs
        left, cut = room - cells_of(inputs), shortened if raised else _cut
        return f"{inputs}{_ARROW}{cut(self.result, left)}"


def _cut(text: str, width: int) -> str:
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


def inputs_of(tape: Tape, record: CallRecord) -> Node:
    """The root of a call's inputs, without the arguments that are left out."""
    root = record.inputs.spec().root
    parts = parts_of_inputs(root)
    if not tape.removed or parts is None:
        return root
    args, kwargs = parts
    removed, name_at = frozenset(tape.removed), tape.signature.complete.name_at
    left = [node for i, node in enumerate(args.children) if name_at(i) not in removed]
    named = [(n, c) for n, c in zip(kwargs.keys, kwargs.children, strict=True) if n not in removed]
    own = {"keys": tuple(n for n, _ in named), "children": tuple(c for _, c in named)}
    children = (args.model_copy(update={"children": tuple(left)}), kwargs.model_copy(update=own))
    return root.model_copy(update={"children": children})


def result_of(record: CallRecord, *, brief: bool = False) -> str:
    """What a call gave, on one line; ``brief`` as for :func:`render_outputs`."""
    if record.error is not None:
        return f"raised {record.error.type.rpartition(':')[2]}: {_short(record.error.message)}"
    if record.outputs_missing == UNDER_WAY:
        return f"{UNDER_WAY_WORDS}, or still is"
    if record.outputs is None:
        return (
            f"not recorded ({record.outputs_missing})" if record.outputs_missing else "not recorded"
        )
    text = render_outputs(record.outputs, brief=brief)
    return f"{text} ({record.outputs_missing})" if record.outputs_missing else text


def _short(text: str) -> str:
    first = text.strip().split("\n", 1)[0]
    return first if len(first) <= 100 else f"{first[:100]}…"


def summary_of(tape: Tape, call: Call, record: CallRecord) -> dict[str, Any]:
    """A call as plain data, with its inputs and outputs as text."""
    return {
        "index": call.index,
        "call": call.number,
        "address": call.address,
        "path": call.path,
        "time_ns": record.time_ns,
        "duration_ns": record.duration_ns,
        "thread": record.thread,
        "inputs": render_inputs(record.inputs, inputs_of(tape, record)),
        "outputs": render(record.outputs) if record.outputs is not None else None,
        "outputs_missing": record.outputs_missing,
        "context": Context.of(record.inputs.spec().context).words(),
        "error": record.error.model_dump() if record.error is not None else None,
        "tensor_bytes": record.blob.size if record.blob is not None else 0,
    }
