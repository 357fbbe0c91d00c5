"""One file as a survey takes it: the result of a task, which goes from one process to another.

In comes a path. Out go facts, the table of counted inputs, and damage. No task raises for what a
file holds: a file that cannot be read costs its own answer only.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from calltape_analyzer.errors import Damage
from calltape_analyzer.limits import Limits, add_worth, bounded
from calltape_analyzer.observing.traffic_counters import CountedGroup
from calltape_analyzer.reading.call_ref import SeenInputs, checked_inputs, row_of
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.reading.urls import without_secrets
from calltape_schema.drop_reasons import DropReason
from calltape_schema.end import Coverage, FileNumbers
from calltape_schema.errors import TapeError
from calltape_schema.inputs_table import InputsTable, signature_of
from calltape_schema.records import Manifest, Source

__all__ = ["FileSurvey", "failed", "read_file"]


@dataclass(slots=True)
class FileSurvey:
    """One file.

    Attributes:
        path: of the file, without what is secret in a URL.
        manifest: of the file, until it counts.
        recording, part: the id of its recording, and its number among the files of that.
        sources: the recordings of its calls.
        sealed, elsewhere: whether it has an end, and whether it is a survey.
        is_ahead: whether its only call was under way.
        coverage: of its calls.
        continues, closed_ns, next_call, deleted: as those of a
            :class:`~calltape_analyzer.reading.segment.Segment`.
        extent: the lowest and the highest number of a call; None without calls, and of a survey.
        numbers: of its calls, if it has no end.
        span_ns: when the first call began and the last one ended.
        raised: how many of its calls raised.
        nbytes, tensor_bytes: its size, and that of the tensors.
        read_bytes: of the file, without holes, and without what did not come from a server.
        table: its counted inputs, until they are added to those of others.
        records_read: how many records were read and compared with what the file says of them.
        damage: what is wrong with it.
    """

    path: str
    manifest: Manifest
    recording: bytes
    part: int
    sources: tuple[Source, ...]
    sealed: bool
    elsewhere: bool
    is_ahead: bool
    coverage: Coverage
    continues: bool
    closed_ns: int | None
    next_call: int
    deleted: FileNumbers
    extent: tuple[int, int] | None
    numbers: array[int]
    span_ns: tuple[int, int] | None
    raised: int
    nbytes: int
    tensor_bytes: int
    read_bytes: int
    table: InputsTable
    records_read: int
    damage: tuple[TapeError, ...]

    @property
    def left_out(self) -> int:
        return 0

    def __len__(self) -> int:
        return self.coverage.kept

    @property
    def last(self) -> int:
        """The highest number of a call; -1 without calls."""
        if not self.elsewhere:
            return -1 if self.extent is None else self.extent[1]
        return max((row.last for row in self.table.rows.values()), default=-1)


def read_file(path: str, scan: bool, limits: Limits) -> FileSurvey | TapeError:
    """Reads a file: its end, or, without a table there, all of its records."""
    try:
        with limits:
            return _read(path, scan)
    except TapeError as error:
        return error.at(path=without_secrets(path, path))
    except MemoryError:
        return TapeError("limit", "there was not enough memory to read it", path=path)
    except Exception as error:
        return failed(path, error)


def failed(path: str, error: Exception) -> TapeError:
    """The error of a file that could not be read for a reason that says nothing about it: a fault
    of calltape, or a worker that died of it, again and again."""
    text = without_secrets(str(error), path)
    return TapeError(
        "io", f"unexpected {type(error).__name__}: {text}",
        path=without_secrets(path, path),
        advice="the file may be intact: run calltape info on it, and report what fails",
    )  # fmt: skip


@bounded()
def _read(path: str, scan: bool) -> FileSurvey:
    segment = Segment(path, Damage())
    add_worth(segment.disk_bytes)
    try:
        if scan and not segment.elsewhere:
            segment.drop_unsound()
        table = _told(segment)
        if table is None or segment.damaged:
            others = None if table is None else table.others()
            table = _counted(segment.seen_inputs())
            if others is not None:
                table.merge(others)
        end, totals = segment.end, table.totals()
        return FileSurvey(
            path=segment.path,
            manifest=segment.manifest,
            recording=segment.recording,
            part=segment.part,
            sources=segment.sources,
            sealed=end is not None,
            elsewhere=segment.elsewhere,
            is_ahead=segment.is_ahead,
            coverage=_with_kept(segment.coverage, totals.kept),
            continues=segment.continues,
            closed_ns=segment.closed_ns,
            next_call=segment.next_call,
            deleted=segment.deleted,
            extent=segment.extent,
            numbers=array("Q", segment.numbers if end is None else ()),
            span_ns=segment.span_ns,
            raised=min(totals.raised if end is None else end.raised, totals.kept),
            nbytes=segment.size,
            tensor_bytes=segment.tensor_bytes,
            read_bytes=segment.disk_bytes,
            table=table,
            records_read=segment.records_read,
            damage=tuple(segment.damage.list()),
        )
    finally:
        segment.close()


def _with_kept(coverage: Coverage, kept: int) -> Coverage:
    """The coverage of a file of which so many calls could be read."""
    if kept == coverage.kept:
        return coverage
    dropped = dict(coverage.dropped)
    if kept < coverage.kept:
        dropped[DropReason.DAMAGED] = dropped.get(DropReason.DAMAGED, 0) + coverage.kept - kept
    seen = kept + sum(dropped.values())
    return coverage.model_copy(update={"seen": seen, "kept": kept, "dropped": dropped})


def _told(segment: Segment) -> InputsTable | None:
    """The table of the end; None if there is none, or one of which a part breaks the format."""
    table = segment.table
    if table is None:
        return None
    try:
        for row in table.rows.values():
            checked_inputs(row.tree())
        for kind in table.kinds.values():
            CountedGroup.of(kind)
    except TapeError as error:
        if segment.elsewhere:
            raise
        segment.damage.add(error.at(path=segment.path))
        return None
    return table


def _counted(every: Iterable[SeenInputs]) -> InputsTable:
    table = InputsTable()
    for row in map(row_of, every):
        table.add_row(signature_of(row.structure, row.leaves, row.scalars), row)
    return table
