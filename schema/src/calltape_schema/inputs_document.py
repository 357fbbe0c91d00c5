"""Packs a table of counted inputs for the end of a tape, and unpacks and validates it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import pairwise
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter

from calltape_schema.bounds import (
    MAX_AXES,
    MAX_COUNT,
    MAX_NODES,
    MAX_RANK,
    MAX_ROW_BYTES,
    MAX_ROWS,
    MAX_SIZES,
)
from calltape_schema.fields import Count, Dtype, Index, Int64, Many, Maybe, Record, validated
from calltape_schema.inputs_table import (
    RANGE_COST,
    Axis,
    Counts,
    InputsTable,
    Kind,
    Ranges,
    Row,
    contradiction,
    row_cost,
    signature_of,
)
from calltape_schema.packing import little_endian, pack, u64s, unpack


def pack_inputs(table: InputsTable) -> bytes:
    """The msgpack document of the table."""
    parts: dict[bytes, int] = {}
    rows = [table.rows[key] for key in sorted(table.rows)]
    numbers = array("Q")
    for row in rows:
        example = _NO_CALL if row.example is None else row.example
        numbers.extend((row.seen, row.kept, row.raised, row.first, row.last, example))
    document: dict[str, Any] = {
        "rows": [
            (
                parts.setdefault(row.structure, len(parts)),
                parts.setdefault(row.leaves, len(parts)),
                row.scalars,
                pack(row.spans()) if row.ranges else b"",
            )
            for row in rows
        ],
        "parts": list(parts),
        "numbers": little_endian(numbers).tobytes(),
        "kinds": [_document_of(table.kinds[key]) for key in sorted(table.kinds)],
        "other": (table.other.seen, table.other.kept, table.other.raised),
        "rows_below": table.rows_below,
        "kinds_below": table.kinds_below,
    }
    return pack({name: value for name, value in document.items() if value is not None})


def unpack_inputs(data: bytes) -> InputsTable:
    """The table of a document. The trees in its rows are not validated yet.

    Raises:
        TapeError: ``damaged``, ``invalid`` or ``limit``.
    """
    document = validated(_tables, unpack(data), "table of inputs")
    document.expect_room()
    table = InputsTable()
    digests: dict[tuple[bytes, int], blake2b] = {}
    table.lower(document.rows_below, document.kinds_below)
    table.other.add(_counts(*document.other))
    for form in document.kinds:
        table.add_kind(form.kind())
    for row in document.decoded_rows():
        table.add_row(signature_of(row.structure, row.leaves, row.scalars, digests), row)
    # Duplicates were added up, and parts without room were counted in a coarser form.
    added = len(table.kinds), len(table.rows), table.kinds_below, table.rows_below
    stated = len(document.kinds), len(document.rows), document.kinds_below, document.rows_below
    if added != stated:
        raise contradiction(_NO_ROOM)
    if not (_ascend(table.rows) and _ascend(table.kinds)):
        raise contradiction("inputs or kinds that do not ascend by their signature")
    if table.totals().seen > MAX_COUNT:
        raise contradiction("more than 2^63 calls")
    return table


def _ascend(signatures: Iterable[int]) -> bool:
    return all(signature < following for signature, following in pairwise(signatures))


_NO_ROOM = "inputs or kinds stand twice, or have no room"
_NO_CALL = 2**64 - 1
_COLUMNS = 6
_MOST_OF_HEADER = 5  # bytes before the elements of a msgpack array; a range takes 32 at most


class _KindForm(Record):
    """A kind in the document of a table."""

    structure: bytes
    dtypes: Annotated[Many[Dtype], Field(max_length=MAX_NODES)]
    ranks: Annotated[Many[Annotated[int, Field(ge=0, le=MAX_RANK)]], Field(max_length=MAX_NODES)]
    axes: Many[tuple[Many[tuple[Int64, Count]], Count, Int64] | None]
    calls: tuple[Count, Count, Count]

    def kind(self) -> Kind:
        calls, sizes = _counts(*self.calls), sum(self.ranks)
        axes = [None if form is None else _axis(*form) for form in self.axes]
        if not calls.seen or len(self.dtypes) != len(self.ranks) or sizes > len(axes):
            raise contradiction("a kind does not fit its parts")
        for at, axis in enumerate(axes):
            counted = 0 if axis is None else axis.other + sum(axis.sizes.values())
            if counted > calls.seen or (at < sizes and counted != calls.seen):
                raise contradiction("an axis does not count the calls of its kind")
            if axis is not None and at < sizes and (min(axis.sizes) < 0 or axis.max > MAX_COUNT):
                raise contradiction("a size that no tensor has")
        return Kind(self.structure, self.dtypes, self.ranks, axes, calls)


class _TableForm(Record):
    """The document of a table."""

    parts: Many[bytes] = ()
    rows: Annotated[Many[tuple[int, int, bytes, bytes]], Field(max_length=MAX_ROWS)] = ()
    numbers: bytes = b""
    kinds: Annotated[Many[_KindForm], Field(max_length=MAX_AXES)] = ()
    other: tuple[Count, Count, Count] = (0, 0, 0)
    rows_below: Maybe[Annotated[int, Field(ge=0, lt=2**128)]] = None
    kinds_below: Maybe[Annotated[int, Field(ge=0, lt=2**128)]] = None

    def expect_room(self) -> None:
        """Raises if there is no room for all rows and kinds. They share parts, so a table of a few
        kilobytes could make a reader hash gigabytes."""
        parts = self.parts
        lengths, ranged = list(map(len, parts)), [part.count(b"int") for part in parts]
        left = MAX_ROW_BYTES
        for structure, leaves, scalars, ranges in self.rows:
            if not (0 <= structure < len(parts) and 0 <= leaves < len(parts)):
                raise contradiction("a row without its parts")
            left -= row_cost(lengths[structure], lengths[leaves], len(scalars), ranged[leaves])
            if left < 0:
                raise contradiction(_NO_ROOM)
            if len(ranges) > _MOST_OF_HEADER + RANGE_COST * ranged[leaves]:
                raise contradiction("a row with ranges of leaves that have no integers")
        if sum(1 + len(kind.axes) + len(kind.dtypes) for kind in self.kinds) > MAX_AXES:
            raise contradiction(_NO_ROOM)

    def decoded_rows(self) -> Iterator[Row]:
        if len(self.numbers) != 8 * _COLUMNS * len(self.rows):
            raise contradiction("numbers for another number of rows")
        numbers, parts = u64s(self.numbers), self.parts
        for at, (structure, leaves, scalars, ranges) in enumerate(self.rows):
            seen, kept, raised, first, last, example = numbers[_COLUMNS * at : _COLUMNS * (at + 1)]
            row = Row(parts[structure], parts[leaves], scalars, first, last)
            row.add(_counts(seen, kept, raised))
            row.example = example if kept else None
            is_example = first <= example <= last if kept else example == _NO_CALL
            if not (seen and first <= last < 2**63 and is_example):
                raise contradiction("a row contradicts itself")
            if ranges:
                row.widen(_spans(ranges))
            yield row


_tables: TypeAdapter[_TableForm] = TypeAdapter(_TableForm)
_ranges: TypeAdapter[tuple[tuple[int, int, int], ...]] = TypeAdapter(
    Annotated[Many[tuple[Index, Int64, Int64]], Field(max_length=MAX_NODES)],
    config=ConfigDict(strict=True),
)


def _counts(seen: int, kept: int, raised: int) -> Counts:
    if max(kept, raised) > seen:
        raise contradiction(f"{kept} calls kept and {raised} raised of {seen}")
    return Counts(seen, kept, raised)


def _axis(pairs: tuple[tuple[int, int], ...], other: int, largest: int) -> Axis:
    sizes = dict(pairs)
    ascending = [size for size, _ in pairs] == sorted(sizes)
    if not pairs or not ascending or not all(sizes.values()) or len(sizes) > MAX_SIZES:
        raise contradiction("sizes of an axis that do not ascend, or are too many or none")
    if (largest <= max(sizes)) == bool(other) or largest < max(sizes):
        raise contradiction("an axis without its largest size")
    if other and len(sizes) < MAX_SIZES:
        raise contradiction("other sizes, although there was room")
    return Axis(sizes, other, largest)


def _document_of(kind: Kind) -> dict[str, Any]:
    return {
        "structure": kind.structure, "dtypes": kind.dtypes, "ranks": kind.ranks,
        "axes": [
            None if axis is None else (sorted(axis.sizes.items()), axis.other, axis.max)
            for axis in kind.axes
        ],
        "calls": (kind.seen, kind.kept, kind.raised),
    }  # fmt: skip


def _spans(data: bytes) -> Ranges:
    spans = validated(_ranges, unpack(data), "the ranges of a row")
    if any(low > high for _, low, high in spans):
        raise contradiction("a range without an element")
    if len({leaf for leaf, _, _ in spans}) != len(spans):
        raise contradiction("two ranges of a leaf")
    return spans
