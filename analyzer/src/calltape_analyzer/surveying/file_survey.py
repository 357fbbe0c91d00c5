"""One file as a survey takes it: the result of a task, which goes from one process to another.

In comes a path. Out go facts, the table of counted inputs, and damage. No task raises for what a
file holds: a file that cannot be read costs its own answer only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, TypeAlias

from calltape_analyzer.observing.traffic_counters import CountedGroup
from calltape_analyzer.pytree.inputs import parts_of_inputs
from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.reading.urls import without_secrets
from calltape_schema.endings import Coverage
from calltape_schema.errors import TapeError
from calltape_schema.inputs_table import InputsTable, Row, inputs_hash
from calltape_schema.packing import pack
from calltape_schema.records import Manifest

__all__ = ["FileSurvey", "Guard", "read_file"]

Guard: TypeAlias = Callable[[Sequence[str]], AbstractContextManager[None]]
"""Bounds the time and memory that reading some files takes, within a block."""


class FileSurvey(NamedTuple):
    """One file.

    Attributes:
        path: of the file, without what is secret in a URL.
        manifest: of the file.
        sealed, elsewhere: whether it has an end, and whether it is a survey.
        coverage: of its calls.
        last: the highest number of a call; -1 without calls.
        nbytes: its size.
        table: its counted inputs.
        damage: what is wrong with it.
    """

    path: str
    manifest: Manifest
    sealed: bool
    elsewhere: bool
    coverage: Coverage
    last: int
    nbytes: int
    table: InputsTable
    damage: tuple[TapeError, ...]

    @property
    def part(self) -> int:
        """Its number among the files of its recording."""
        return 0 if self.manifest.segment is None else self.manifest.segment.number


def read_file(path: str, scan: bool, guard: Guard | None) -> FileSurvey | TapeError:
    """Reads a file: its end, or, without a table there, all of its records."""
    try:
        with nullcontext() if guard is None else guard([path]):
            return _read(path, scan)
    except TapeError as error:
        return error.at(path=without_secrets(path, path))
    except MemoryError:
        return TapeError("limit", "there was not enough memory to read it", path=path)
    except Exception as error:
        text = without_secrets(str(error), path)
        return TapeError("damaged", f"unexpected {type(error).__name__}: {text}", path=path)


def _read(path: str, scan: bool) -> FileSurvey:
    segment = Segment(path, Damage(), scan=None)
    try:
        if scan and not segment.elsewhere:
            segment.scan()
        table = _told(segment)
        if table is None:
            segment.scan()
            table = _scanned(segment)
        numbers = [row.last for row in table.rows.values()]
        if segment.extent is not None:
            numbers.append(segment.extent[1])
        return FileSurvey(
            segment.path, segment.manifest, segment.trailer is not None, segment.elsewhere,
            segment.coverage, max(numbers, default=-1), segment.size, table,
            tuple(segment.damage.list()),
        )  # fmt: skip
    finally:
        segment.close()


def _told(segment: Segment) -> InputsTable | None:
    """The table of the end; None if there is none, or one of which a part breaks the format."""
    table = segment.table
    if table is None:
        return None
    try:
        for row in table.rows.values():
            if parts_of_inputs(row.tree().spec().root) is None:
                raise TapeError("invalid", "the inputs are not (args, kwargs)")
        for kind in table.kinds.values():
            CountedGroup.of(kind)
    except TapeError as error:
        if segment.elsewhere:
            raise
        segment.damage.add(error.at(path=segment.path))
        return None
    return table


def _scanned(segment: Segment) -> InputsTable:
    """The inputs of the calls that a scan found; those that break the format are damage."""
    table = InputsTable()
    for position, last, calls in segment.by_inputs():
        try:
            record = segment.record(position)
            inputs = record.inputs
            if parts_of_inputs(inputs.spec().root) is None:
                raise TapeError("invalid", "the inputs are not (args, kwargs)")
            inputs.facts()
            spans = segment.ranges_at(position)
        except TapeError as error:
            segment.report(segment.located(error, position), position)
            continue
        first = segment.number(position)
        row = Row(
            inputs.structure, inputs.leaves, pack(inputs.scalars), first, segment.number(last)
        )
        row.seen = row.kept = calls
        row.raised = calls if record.error is not None else 0
        row.example = first
        row.widen(spans)
        table.add_row(inputs_hash(row.structure, row.leaves, row.scalars), row)
    return table
