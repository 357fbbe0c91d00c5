"""One row per leaf of each call.

In come the calls of a tape. Out go record batches of bounded size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from calltape_analyzer.observing.call_source import CallSource
from calltape_analyzer.observing.passed_arguments import PassedArguments
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.pytree.node_paths import nodes_with_paths
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.damage import is_damage
from calltape_analyzer.tables.table_schema import REPEATED, repeated, schema_of
from calltape_schema.blob import contiguous
from calltape_schema.errors import TapeError
from calltape_schema.records import Tree
from calltape_schema.tree import Leaf, Node

__all__ = ["LEAF_FIELDS", "leaf_table"]

LEAF_FIELDS: tuple[tuple[str, Any, str], ...] = (
    ("tape", REPEATED, "Id of the call's recording, in hexadecimal digits."),
    ("number", pa.int64(), "Number of the call in its recording."),
    ("side", REPEATED, "`inputs` or `outputs`."),
    ("path", REPEATED, "Where the leaf stands: the argument, then keys, positions and attributes. "
     "Of an output it begins with `outputs`."),
    ("dtype", REPEATED, "As torch names it."),
    ("shape", pa.list_(pa.int64()), "Size of each axis."),
    ("bytes", pa.int64(), "Size of its elements, in bytes, also if they are not on the tape; null "
     "for a dtype of unknown size."),
    ("device", REPEATED, "Where it was."),
    ("kept", pa.bool_(), "Whether its elements are on the tape."),
    ("min", pa.int64(), "Smallest element of an integer tensor; null if the tape does not say, or "
     "beyond 64 bits with a sign."),
    ("max", pa.int64(), "Largest element, likewise."),
)  # fmt: skip
"""Name, type and meaning of the columns of a table of leaves."""

_MOST_ROWS = 65_536
_MOST_KNOWN = 500_000  # leaves, and bytes of structure divided by 64
_MOST_INT = 2**63


class _Leaves(NamedTuple):
    """The leaves of one side of calls, a list per column."""

    paths: list[str]
    dtypes: list[str]
    shapes: list[tuple[int, ...]]
    bytes: list[int | None]
    devices: list[str]
    kept: list[bool]


def leaf_table(tape: CallSource) -> pa.RecordBatchReader:
    """The leaves of the calls of a tape, in its order, with a row each. Calls whose records are
    damaged are left out, and stand in ``tape.damage``. No tensor bytes are read."""
    schema = schema_of(LEAF_FIELDS, {"rows": "leaves"})
    return pa.RecordBatchReader.from_batches(schema, _Rows(tape, schema).batches())


class _Rows:
    def __init__(self, tape: CallSource, schema: pa.Schema) -> None:
        self._tape = tape
        self._schema = schema
        self._signature = tape.signature
        self._known: dict[tuple[bool, bytes, bytes], _Leaves] = {}
        self._room = _MOST_KNOWN

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All batches, one after the other."""
        self._start()
        for segment in self._tape.segments:
            tape = segment.manifest.tape.hex()
            for position in segment.order:
                try:
                    record = Call(segment, position, 0, self._tape.class_index).record
                    sides = ("inputs", record.inputs), ("outputs", record.outputs)
                    found = [
                        (name, tree, self._leaves_of(name, tree))
                        for name, tree in sides
                        if tree is not None
                    ]
                except TapeError as error:
                    if not is_damage(error):
                        raise
                    segment.report(segment.located(error, position), position)
                    continue
                for name, tree, leaves in found:
                    self._add(tape, record.call, name, leaves, tree)
                if len(self._rows["number"]) >= _MOST_ROWS:
                    yield self._batch()
        if self._rows["number"]:
            yield self._batch()

    def _start(self) -> None:
        self._rows: dict[str, list[Any]] = {name: [] for name, _, _ in LEAF_FIELDS}

    def _leaves_of(self, name: str, tree: Tree) -> _Leaves:
        key = name == "inputs", tree.structure, tree.leaves
        found = self._known.get(key)
        if found is None:
            found = _leaves(tree, self._signature if name == "inputs" else None)
            cost = len(found.paths) + (len(tree.structure) + len(tree.leaves)) // 64 + 1
            if cost > self._room:
                self._known, self._room = {}, _MOST_KNOWN
            self._room -= cost
            self._known[key] = found
        return found

    def _add(self, tape: str, number: int, name: str, leaves: _Leaves, tree: Tree) -> None:
        count, rows = len(leaves.paths), self._rows
        rows["tape"] += [tape] * count
        rows["number"] += [number] * count
        rows["side"] += [name] * count
        rows["path"] += leaves.paths
        rows["dtype"] += leaves.dtypes
        rows["shape"] += leaves.shapes
        rows["bytes"] += leaves.bytes
        rows["device"] += leaves.devices
        rows["kept"] += leaves.kept
        low: list[int | None] = [None] * count
        high: list[int | None] = [None] * count
        for span in tree.ranges:
            if span.leaf < count:
                low[span.leaf], high[span.leaf] = _int64(span.min), _int64(span.max)
        rows["min"] += low
        rows["max"] += high

    def _batch(self) -> pa.RecordBatch:
        columns = [
            repeated(self._rows[name]) if kind == REPEATED else pa.array(self._rows[name], kind)
            for name, kind, _ in LEAF_FIELDS
        ]
        self._start()
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _leaves(tree: Tree, signature: Signature | None) -> _Leaves:
    """The leaves of a tree, by number.

    Args:
        tree: a side of a call.
        signature: binds inputs to their parameters; None for outputs.
    """
    facts = tree.facts()
    paths = [""] * len(facts)
    for path, node in _named_nodes(tree.spec().root, signature):
        leaf = getattr(node, "leaf", None)
        if leaf is not None and not paths[leaf]:  # a tensor that is passed twice is one leaf
            paths[leaf] = path
    return _Leaves(
        paths,
        [leaf.dtype for leaf in facts],
        [leaf.shape for leaf in facts],
        [_bytes_of(leaf) for leaf in facts],
        [leaf.device for leaf in facts],
        [leaf.key is not None for leaf in facts],
    )


def _named_nodes(root: Node, signature: Signature | None) -> Iterator[tuple[str, Node]]:
    if signature is None:
        yield from nodes_with_paths(root, "outputs")
        return
    passed = PassedArguments.of(root, signature)
    for name, node in (*passed.positional, *passed.named):
        yield from nodes_with_paths(node, str(name) or "?")


def _bytes_of(leaf: Leaf) -> int | None:
    stored = contiguous(leaf.dtype, leaf.shape)
    return None if stored is None else _int64(stored.nbytes)


def _int64(value: int) -> int | None:
    return value if -_MOST_INT <= value < _MOST_INT else None
