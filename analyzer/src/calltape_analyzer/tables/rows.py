"""The rows of a table: one per call, or one per leaf of each call.

Takes the calls of a tape and its variants; returns record batches of bounded size, whose schema
says what each column is. A table of calls has columns that differ from tape to tape: the sizes of
symbols and dynamic axes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from calltape_analyzer.errors import is_damage
from calltape_analyzer.limits import metered
from calltape_analyzer.observing.groups import GroupKey
from calltape_analyzer.observing.signature import PassedArguments, Signature
from calltape_analyzer.observing.size_table import Column, value_in
from calltape_analyzer.observing.sorting import CallSorter, CallSource
from calltape_analyzer.pytree.nodes import nodes_with_paths
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.reading.selection import target_name
from calltape_analyzer.reading.urls import is_url
from calltape_analyzer.text import UniqueNames, printable, some_of
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema import __version__
from calltape_schema.blob import contiguous
from calltape_schema.errors import TapeError
from calltape_schema.recent import Recent
from calltape_schema.records import CallRecord, Tree
from calltape_schema.tree import Node

__all__ = ["CALL_FIELDS", "LEAF_FIELDS", "call_table", "leaf_table", "text_column"]

MOST_COLUMNS = 1000
_MOST_NAME, _MOST_DOCUMENTED = 200, 1000
_MOST_VARIANTS_NAMED = 8
_MOST_INT = 2**63


class SizeColumn(NamedTuple):
    """A column of the table.

    Attributes:
        name: unique in the table, also if case does not count; printable, without double quotes,
            and at most 200 characters long.
        kind: ``symbol``, ``axis`` or ``int``.
        label: the name on the tape, at most 1,000 characters of it.
        variants: the public names of some variants that have it.
    """

    name: str
    kind: str
    label: str
    variants: str


class CallSizes(NamedTuple):
    """The public name of the variant of a call, or None, and its value in each column (None if it
    has none there)."""

    variant: str | None
    values: tuple[int | None, ...]


class _Known(NamedTuple):
    """A variant, and where its values stand in a row of the table."""

    facts: VariantFacts
    places: tuple[tuple[int, Column], ...]


class SizeColumns:
    """The size columns of a tape.

    Args:
        tape: whose calls are sorted as its variants were.
        variants: of the tape.
        taken: the names of the other columns.

    Attributes:
        columns: symbols first, then axes and ints, in the order of the variants; at most 1,000.
        left_out: how many more there are.
    """

    def __init__(
        self, tape: CallSource, variants: Sequence[VariantFacts], taken_names: Iterable[str]
    ) -> None:
        self._sorter = CallSorter.of(tape).agreeing(variant.group.layout for variant in variants)
        columns: dict[tuple[str, str], list[tuple[int, Column]]] = {}
        symbols: dict[tuple[str, str], list[tuple[int, Column]]] = {}
        for number, facts in enumerate(variants):
            own_names = set()
            for symbol in facts.symbols:
                symbols.setdefault(("symbol", symbol.name), []).append((number, symbol.columns[0]))
                own_names.add((symbol.name, symbol.columns[0]))
            layout = facts.group.layout
            for column in facts.dynamic():
                name = layout.column_name(column)
                if (name, column) not in own_names:  # an int is a symbol by its own name
                    kind = "int" if column.is_int else "axis"
                    columns.setdefault((kind, name), []).append((number, column))
        for kind, name in list(columns):
            same_name = symbols.get(("symbol", name), [])
            if kind == "int" and any(column.is_int for _, column in same_name):
                same_name += columns.pop(
                    (kind, name)
                )  # a symbol elsewhere, and another's member here
        all_columns = [*symbols.items(), *columns.items()]
        self.left_out = max(len(all_columns) - MOST_COLUMNS, 0)
        names = UniqueNames(name.lower() for name in taken_names)
        self.columns: list[SizeColumn] = []
        places: list[list[tuple[int, Column]]] = [[] for _ in variants]
        for index, ((kind, name), where) in enumerate(all_columns[:MOST_COLUMNS]):
            label = some_of(
                [printable(variants[number].public_name[:_MOST_NAME]) for number, _ in where],
                _MOST_VARIANTS_NAMED,
            )
            column_name = _column_name(name, names)
            documented = printable(name[:_MOST_DOCUMENTED])
            self.columns.append(SizeColumn(column_name, kind, documented, label))
            for number, column in where:
                places[number].append((index, column))
        self._known: dict[object, list[_Known]] = {}
        for facts, own_places in zip(variants, places, strict=True):
            known_variant = _Known(facts, tuple(own_places))
            self._known.setdefault(_likeness(facts.group.key), []).append(known_variant)

    def of(self, inputs: Tree) -> CallSizes:
        """Variant and sizes of a call with these inputs; of a call that raised, of those that its
        arguments are like.

        Raises:
            TapeError: the inputs break the format.
        """
        placed = self._sorter.sorted(inputs)
        for known_variant in self._known.get(_likeness(placed.key), ()):
            if known_variant.facts.has(placed):
                values: list[int | None] = [None] * len(self.columns)
                for index, column in known_variant.places:
                    values[index] = int64(value_in(placed.row, column))
                return CallSizes(known_variant.facts.public_name, tuple(values))
        return CallSizes(None, (None,) * len(self.columns))


def int64(value: int) -> int | None:
    """A value that a column has; None for one beyond 64 bits with a sign."""
    return value if -_MOST_INT <= value < _MOST_INT else None


def _likeness(key: GroupKey) -> object:
    """A value that is equal for all keys that can stand for one another."""
    return key[:2]


def _column_name(name: str, names: UniqueNames) -> str:
    """A name that is as readable, and unique without regard to case: many engines have none. In
    SQL it stands between double quotes."""
    shown = printable(name[:_MOST_NAME]).replace('"', "'")[:_MOST_NAME] or "_"
    lower = shown.lower()
    unique_name = names.add(lower)
    return shown + unique_name[len(lower) :]


REPEATED = pa.dictionary(pa.int32(), pa.string())
"""The type of texts of which few are distinct."""

_ORIGIN: tuple[tuple[str, Any, str], ...] = (
    ("tape", REPEATED, "Id of the call's recording, in hexadecimal digits."),
    ("file", REPEATED, "Path of the file that has the call, as it was opened."),
    ("folder", REPEATED, "Folder of that file: one for each replica that records into its own."),
    ("target", REPEATED, "Class and method that was called; `unknown` if the tape does not say."),
)  # fmt: skip

CALL_FIELDS: tuple[tuple[str, Any, str], ...] = (
    *_ORIGIN,
    ("number", pa.int64(), "Number of the call in its recording, from 0. A missing number is a "
     "call that was dropped."),
    ("time", pa.timestamp("ns", tz="UTC"), "When the call began, in UTC."),
    ("duration", pa.float64(), "How long the call took, in seconds; null if it was not measured."),
    ("thread", pa.uint64(), "Python's identifier of the thread of the call."),
    ("variant", REPEATED, "Variant that the arguments belong to, by its name, or by its number if "
     "its name has what was passed; null if none takes them."),
    ("error", REPEATED, "Class of the exception that the call raised, without its message; null "
     "if it returned."),
    ("bytes", pa.int64(), "Size of the call's tensors on the tape, in bytes."),
)  # fmt: skip
"""Name, type and meaning of the columns that every table of calls has."""

LEAF_FIELDS: tuple[tuple[str, Any, str], ...] = (
    *_ORIGIN,
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


_KINDS = {"symbol": "Size of the symbol", "axis": "Size of the axis", "int": "Value of the int"}
MOST_ROWS, FEWEST_ROWS, _CELLS = 65_536, 1024, 2_000_000
ROOM = 32 * 1024 * 1024  # bytes of what is known of inputs and leaves

T = TypeVar("T")
_Origin: TypeAlias = tuple[str, str, str, str]
"""Where the calls of a file are from: the columns of :data:`_ORIGIN`."""


def call_table(tape: CallSource, variants: Sequence[VariantFacts]) -> pa.RecordBatchReader:
    """The calls of a tape, in its order, with a row each. Calls whose records are damaged are left
    out, and stand in ``tape.damage``. No tensor bytes are read.

    Args:
        tape: any.
        variants: of the tape.
    """
    sizes = SizeColumns(tape, variants, (name for name, _, _ in CALL_FIELDS))
    schema = _schema_of(
        [
            *CALL_FIELDS,
            *(
                (
                    column.name,
                    pa.int64(),
                    f"{_KINDS[column.kind]} {column.label} in variants that have it "
                    f"({column.variants}); null in others.",
                )
                for column in sizes.columns
            ),
        ],
        {"rows": "calls", "size_columns_left_out": str(sizes.left_out)},
    )
    most = max(FEWEST_ROWS, min(MOST_ROWS, _CELLS // len(schema)))
    return _reader(schema, most, _call_rows(tape, sizes), _call_columns)


def _call_rows(tape: CallSource, sizes: SizeColumns) -> Iterator[tuple[Any, ...]]:
    sizes_by_inputs = Recent(ROOM)

    def sizes_of(segment: Segment, position: int, record: CallRecord) -> CallSizes:
        """Calls of equal inputs are one object, also in the columns of a batch."""
        inputs = segment, segment.inputs_number(position)
        return sizes_by_inputs.once(
            inputs, lambda: sizes.of(record.inputs), lambda call_sizes: 8 * len(call_sizes.values)
        )

    for origin, record, call_sizes in _read(tape, sizes_of):
        duration = None if record.duration_ns is None else record.duration_ns / 1e9
        error = None if record.error is None else record.error.type
        nbytes = 0 if record.blob is None else record.blob.nbytes
        yield (
            origin,
            record.call,
            record.time_ns,
            duration,
            record.thread,
            call_sizes,
            error,
            nbytes,
        )


def _call_columns(rows: Sequence[tuple[Any, ...]]) -> list[pa.Array]:
    origins, numbers, times, durations, threads, sizes_of_calls, errors, sizes = zip(
        *rows, strict=True
    )
    distinct = {id(call_sizes): call_sizes for call_sizes in sizes_of_calls}
    place_of = {key: place for place, key in enumerate(distinct)}
    places = pa.array([place_of[id(call_sizes)] for call_sizes in sizes_of_calls], pa.int32())
    by_column = zip(*(call_sizes.values for call_sizes in distinct.values()), strict=True)
    return [
        *_origin_columns(origins),
        pa.array(numbers, pa.int64()),
        pa.array(times, pa.int64()).cast(pa.timestamp("ns", tz="UTC")),
        pa.array(durations, pa.float64()),
        pa.array(threads, pa.uint64()),
        text_column([call_sizes.variant for call_sizes in distinct.values()]).take(places),
        text_column(errors),
        pa.array(sizes, pa.int64()),
        *(pa.array(values, pa.int64()).take(places) for values in by_column),
    ]


def leaf_table(tape: CallSource) -> pa.RecordBatchReader:
    """The leaves of the calls of a tape, in its order, with a row each. Calls whose records are
    damaged are left out, and stand in ``tape.damage``. No tensor bytes are read."""
    schema = _schema_of(LEAF_FIELDS, {"rows": "leaves"})
    return _reader(schema, MOST_ROWS, _leaf_rows(tape), _leaf_columns)


_Leaves: TypeAlias = list[tuple[Any, ...]]
"""The leaves of one side of calls, by number: the values of the columns from path to kept."""


def _leaf_rows(tape: CallSource) -> Iterator[tuple[Any, ...]]:
    leaves_by_inputs = Recent(ROOM)

    def leaves_of(side: str, tree: Tree) -> _Leaves:
        signature = tape.signature if side == "inputs" else None
        return leaves_by_inputs.once(
            (side, tree.structure, tree.leaves),
            lambda: _leaves(tree, signature),
            lambda leaves: 64 * len(leaves) + len(tree.structure) + len(tree.leaves),
        )

    def sides_of(_: Segment, __: int, record: CallRecord) -> list[tuple[str, Tree, _Leaves]]:
        sides = ("inputs", record.inputs), ("outputs", record.outputs)
        return [(side, tree, leaves_of(side, tree)) for side, tree in sides if tree is not None]

    for origin, record, sides in _read(tape, sides_of):
        for side, tree, leaves in sides:
            ranges = {span.leaf: (int64(span.min), int64(span.max)) for span in tree.ranges}
            for number, leaf in enumerate(leaves):
                yield origin, record.call, side, *leaf, *ranges.get(number, (None, None))


def _leaf_columns(rows: Sequence[tuple[Any, ...]]) -> list[pa.Array]:
    origins, *columns = zip(*rows, strict=True)
    named_columns = zip(LEAF_FIELDS[len(_ORIGIN) :], columns, strict=True)
    return [
        *_origin_columns(origins),
        *(
            text_column(values) if kind == REPEATED else pa.array(values, kind)
            for (_, kind, _), values in named_columns
        ),
    ]


def _origin_columns(origins: Sequence[Any]) -> list[pa.Array]:
    """The columns of where rows are from. A file has many calls: each is a number, and its texts
    are made once."""
    place_of = {origin: place for place, origin in enumerate(dict.fromkeys(origins))}
    places = pa.array([place_of[origin] for origin in origins], pa.int32())
    return [text_column(texts).take(places) for texts in zip(*place_of, strict=True)]


def _leaves(tree: Tree, signature: Signature | None) -> _Leaves:
    """The leaves of a tree.

    Args:
        tree: a side of a call.
        signature: binds inputs to their parameters; None for outputs.
    """
    facts, root = tree.facts(), tree.spec().root
    roots: list[tuple[str, Node]] = [("outputs", root)]
    if signature is not None:
        passed = PassedArguments.of(root, signature)
        roots = [(str(name) or "?", node) for name, node in (*passed.positional, *passed.named)]
    paths = [""] * len(facts)
    for path, node in (pair for name, root in roots for pair in nodes_with_paths(root, name)):
        leaf = getattr(node, "leaf", None)
        if leaf is not None and not paths[leaf]:  # a tensor that is passed twice is one leaf
            paths[leaf] = path
    leaves: _Leaves = []
    for path, fact in zip(paths, facts, strict=True):
        stored = contiguous(fact.dtype, fact.shape)
        nbytes = None if stored is None else int64(stored.nbytes)
        leaves.append((path, fact.dtype, fact.shape, nbytes, fact.device, fact.key is not None))
    return leaves


def _read(
    tape: CallSource, read: Callable[[Segment, int, CallRecord], T]
) -> Iterator[tuple[_Origin, CallRecord, T]]:
    """Where each call is from, its record, and what is read of it. What is damaged is reported, and
    left out."""

    def each() -> Iterator[tuple[_Origin, CallRecord, T]]:
        for segment in tape.segments:
            path, manifest = segment.path, segment.manifest
            folder = path.rpartition("/")[0] if is_url(path) else os.path.dirname(path)
            target = target_name(manifest.target)
            origin = manifest.tape.hex(), path, folder or ".", target
            for position in segment.order:
                try:
                    record = Call(segment, position, 0, tape.class_index).record
                    cells = read(segment, position, record)
                except TapeError as error:
                    if not is_damage(error):
                        raise
                    segment.checks.reported(error, position)
                    continue
                yield origin, record, cells

    return metered(each(), [segment.allowance for segment in tape.segments])


def _reader(
    schema: pa.Schema,
    max_rows: int,
    rows: Iterator[tuple[Any, ...]],
    columns: Callable[[Sequence[tuple[Any, ...]]], list[pa.Array]],
) -> pa.RecordBatchReader:
    """A reader of batches of at most this many rows, which are produced while they are read."""

    def batches() -> Iterator[pa.RecordBatch]:
        while some := list(islice(rows, max_rows)):
            yield pa.RecordBatch.from_arrays(columns(some), schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _schema_of(fields: Iterable[tuple[str, Any, str]], facts: Mapping[str, str]) -> pa.Schema:
    """A schema whose fields say in ``description`` what they are.

    Args:
        fields: name, type and meaning of each column.
        facts: of the whole table; they stand in its metadata, with ``calltape.`` before each name.
    """
    columns = [
        pa.field(name, kind, metadata={"description": meaning}) for name, kind, meaning in fields
    ]
    whole = {f"calltape.{name}": value for name, value in {"version": __version__, **facts}.items()}
    return pa.schema(columns, metadata=whole)


def text_column(values: Sequence[str | None]) -> pa.Array:
    """Texts as a column of that type. UTF-8 has no lone surrogates, which a tape may have: they
    become escapes."""
    try:
        column = pa.array(values, pa.string())
    except UnicodeEncodeError:
        texts = [text and text.encode("utf-8", "backslashreplace").decode() for text in values]
        column = pa.array(texts, pa.string())
    return column.dictionary_encode()
