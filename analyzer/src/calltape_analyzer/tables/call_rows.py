"""One row per call.

In come the calls of a tape. Out go record batches of bounded size.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from calltape_analyzer.observing.call_source import CallSource
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.damage import is_damage
from calltape_analyzer.tables.size_columns import CallSizes, SizeColumns
from calltape_analyzer.tables.table_schema import REPEATED, repeated, schema_of
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.errors import TapeError
from calltape_schema.records import CallRecord

__all__ = ["CALL_FIELDS", "call_table"]

CALL_FIELDS: tuple[tuple[str, Any, str], ...] = (
    ("tape", REPEATED, "Id of the call's recording, in hexadecimal digits."),
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

_KINDS = {"symbol": "Size of the symbol", "axis": "Size of the axis", "int": "Value of the int"}
_MOST_ROWS, _FEWEST_ROWS, _CELLS = 65_536, 1024, 2_000_000
_MOST_KNOWN_CELLS = 4_000_000


def call_table(tape: CallSource, variants: Sequence[VariantFacts]) -> pa.RecordBatchReader:
    """The calls of a tape, in its order, with a row each. Calls whose records are damaged are left
    out, and stand in ``tape.damage``. No tensor bytes are read.

    Args:
        tape: any.
        variants: of the tape.
    """
    sizes = SizeColumns(tape, variants, (name for name, _, _ in CALL_FIELDS))
    schema = schema_of(
        [
            *CALL_FIELDS,
            *(
                (
                    one.name,
                    pa.int64(),
                    f"{_KINDS[one.kind]} {one.told} in variants that have it ({one.variants}); "
                    "null in others.",
                )
                for one in sizes.columns
            ),
        ],
        {"rows": "calls", "size_columns_left_out": str(sizes.left_out)},
    )
    return pa.RecordBatchReader.from_batches(schema, _Rows(tape, sizes, schema).batches())


class _Rows:
    """Makes record batches of calls.

    Args:
        tape: has the calls.
        sizes: gives their variants and sizes.
        schema: of the batches.
    """

    def __init__(self, tape: CallSource, sizes: SizeColumns, schema: pa.Schema) -> None:
        self._tape = tape
        self._sizes = sizes
        self._schema = schema
        self._most = max(_FEWEST_ROWS, min(_MOST_ROWS, _CELLS // len(schema)))
        self._known: dict[Hashable, CallSizes] = {}

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All batches, one after the other."""
        self._start()
        for segment in self._tape.segments:
            tape, self._known = segment.manifest.tape.hex(), {}
            for position in segment.order:
                try:
                    record = Call(segment, position, 0, self._tape.class_index).record
                    sizes = self._sizes_of(segment.inputs_number(position), record)
                except TapeError as error:
                    if not is_damage(error):
                        raise
                    segment.reported(error, position)
                    continue
                self._add(tape, record, sizes)
                if len(self._numbers) >= self._most:
                    yield self._batch()
        if self._numbers:
            yield self._batch()

    def _start(self) -> None:
        self._tapes: list[str] = []
        self._numbers: list[int] = []
        self._fields: list[tuple[int, int | None, int, str | None, int]] = []
        self._places: list[int] = []  # of each call its sizes among the distinct ones
        self._distinct: dict[int, int] = {}  # by their id; _rows keeps them
        self._rows: list[CallSizes] = []

    def _sizes_of(self, number: int, record: CallRecord) -> CallSizes:
        found = self._known.get(number)
        if found is None:
            found = self._sizes.of(record.inputs)
            if len(self._known) * (len(self._sizes.columns) + 1) > _MOST_KNOWN_CELLS:
                self._known = {}
            self._known[number] = found
        return found

    def _add(self, tape: str, record: CallRecord, sizes: CallSizes) -> None:
        place = self._distinct.get(id(sizes))
        if place is None:
            place = self._distinct[id(sizes)] = len(self._rows)
            self._rows.append(sizes)
        self._tapes.append(tape)
        self._numbers.append(record.call)
        error = None if record.error is None else record.error.type
        size = 0 if record.blob is None else record.blob.size
        fields = record.time_ns, record.duration_ns, record.thread, error, size
        self._fields.append(fields)
        self._places.append(place)

    def _batch(self) -> pa.RecordBatch:
        places = pa.array(self._places, pa.int32())
        times, durations, threads, errors, sizes = zip(*self._fields, strict=True)
        columns = [
            repeated(self._tapes),
            pa.array(self._numbers, pa.int64()),
            pa.array(times, pa.int64()).cast(pa.timestamp("ns", tz="UTC")),
            pa.array([None if d is None else d / 1e9 for d in durations], pa.float64()),
            pa.array(threads, pa.uint64()),
            repeated([row.variant for row in self._rows]).take(places),
            repeated(errors),
            pa.array(sizes, pa.int64()),
        ]
        by_column = zip(*(row.values for row in self._rows), strict=True)
        columns += [pa.array(values, pa.int64()).take(places) for values in by_column]
        made = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._start()
        return made
