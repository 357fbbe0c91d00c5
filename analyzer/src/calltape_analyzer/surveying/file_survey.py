"""One file as a survey takes it: the result of a task, which goes from one process to another.

In comes a path. Out go facts, distinct inputs, counters and damage, as plain data.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, get_args

from calltape_analyzer.observing.traffic_counters import CountedKind
from calltape_analyzer.observing.trusted_counters import counters_of_file
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.reading.distinct_inputs import NOT_NUMBERED
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.reading.urls import shown
from calltape_analyzer.surveying.bounds import digest_of
from calltape_analyzer.surveying.counted_kinds import KindCounts, bare, digest_of_kind
from calltape_analyzer.surveying.file_facts import FileFacts, FileKey, head_of
from calltape_analyzer.surveying.inputs_table import InputsTable
from calltape_analyzer.surveying.surveyed_row import SurveyedRow, sound_row
from calltape_analyzer.text import counted
from calltape_schema.errors import Kind, TapeError
from calltape_schema.packing import pack, unpack
from calltape_schema.summary import Summary, encode_summary

__all__ = [
    "OTHER_KINDS",
    "FileCounts",
    "FileSurvey",
    "Listed",
    "digest_of_calls",
    "error_of",
    "listed",
    "scanned_facts",
    "scanned_inputs",
    "survey_of",
]

OTHER_KINDS = b""
"""Stands for the digest of a kind: calls whose kind is not known."""

_KINDS = frozenset(get_args(Kind))


class Listed(NamedTuple):
    """One place of damage, or a file that cannot be read. The fields are those of ``TapeError``."""

    path: str
    offset: int
    member: str
    kind: str
    reason: str
    advice: str


def listed(error: TapeError, path: str) -> Listed:
    """An error as plain data. What is secret in a URL is not in it."""
    problems = "; ".join(map(str, error.problems[:3]))
    reason = f"{error.reason} ({problems})" if problems else error.reason
    return Listed(
        shown(error.path or path), -1 if error.offset is None else error.offset, error.member or "",
        error.kind, reason, error.advice,
    )  # fmt: skip


def error_of(one: Listed) -> TapeError:
    """The error that a place of damage, or a file that cannot be read, stands for."""
    kind = one.kind if one.kind in _KINDS else "damaged"
    return TapeError(
        kind, one.reason, path=one.path or None, member=one.member or None,  # type: ignore[arg-type]
        offset=None if one.offset < 0 else one.offset, advice=one.advice,
    )  # fmt: skip


class FileCounts(NamedTuple):
    """The traffic counters of a file.

    Attributes:
        groups: calls by kind.
        other_calls: how many calls of further kinds there were.
        short: by digest of a kind, how many calls of the file must be counted in the file before.
        spare: by digest of a kind, how many calls are counted here and are not in the file.
    """

    groups: tuple[KindCounts, ...]
    other_calls: int
    short: Mapping[bytes, int]
    spare: Mapping[bytes, int]


class FileSurvey(NamedTuple):
    """One file.

    Attributes:
        facts: what tells it from other files, and accounts for its calls.
        head: the manifest that it shares with others.
        rows: the distinct inputs of its calls.
        limit: the smallest digest of inputs that are not among them; None if all are.
        counts: its counters; None if it has none that can be used.
        damage: what is wrong with it.
    """

    facts: FileFacts
    head: bytes
    rows: tuple[SurveyedRow, ...]
    limit: bytes | None
    counts: FileCounts | None
    damage: tuple[Listed, ...]


def survey_of(segment: Segment, *, scan: bool = False) -> FileSurvey:
    """The survey of an open file. Its end is read, or, if it has no summary, each of its records.

    Args:
        segment: the file.
        scan: whether the records are read in any case, and compared with the end.
    """
    summary = segment.summary
    if scan:
        segment.scan()
    rows = _summed_rows(segment)
    if rows is not None:
        return _finished(segment, _summed_facts(segment), rows, None)
    table = scanned_inputs(segment)
    facts = scanned_facts(segment, table)
    if summary is not None:  # a copy that was not scanned is the same file
        facts = facts._replace(key=_key(segment, digest_of_summary(summary)))
    return _finished(segment, facts, tuple(table), table.limit)


def _finished(
    segment: Segment, facts: FileFacts, rows: tuple[SurveyedRow, ...], limit: bytes | None
) -> FileSurvey:
    inputs = ((row.structure, row.leaves, unpack(row.scalars), row.calls) for row in rows)
    found = counters_of_file(segment, inputs, segment.damage)
    counts = None
    if found.counters is not None:
        counts = FileCounts(
            tuple(map(bare, found.counters.groups.values())),
            found.counters.other_calls,
            _by_digest(found.short),
            _by_digest(found.spare),
        )
    head = head_of(segment.manifest)
    damage = tuple(listed(error, segment.path) for error in segment.damage.list())
    facts = facts._replace(
        head=digest_of(head),
        counted=counts is not None and not counts.short,
        damaged=len(damage),
    )
    return FileSurvey(facts, head, rows, limit, counts, damage)


def _by_digest(
    calls: Mapping[CountedKind, int] | Mapping[CountedKind | None, int],
) -> dict[bytes, int]:
    return {
        OTHER_KINDS if kind is None else digest_of_kind(kind): count
        for kind, count in calls.items()
    }


def _key(segment: Segment, digest: bytes) -> FileKey:
    return FileKey(segment.manifest.tape, segment.part, digest)


def digest_of_summary(summary: Summary) -> bytes:
    """Equal for copies of a sealed file."""
    return digest_of(encode_summary(summary))


def digest_of_calls(numbers: bytes, places: bytes, closed_ns: int | None) -> bytes:
    """Equal for copies of a file that was scanned.

    Args:
        numbers, places: of its calls, in the order of the file: their numbers, and the offsets of
            their records.
        closed_ns: when it was sealed; None if it is not.
    """
    return digest_of(numbers, places, repr(closed_ns).encode())


def _summed_rows(segment: Segment) -> tuple[SurveyedRow, ...] | None:
    """The rows of a summary; None if there is none, or one that cannot be read: that is damage, and
    the file is scanned."""
    summary, tape = segment.summary, segment.manifest.tape
    if summary is None or summary.inputs is None:
        return None
    try:
        return tuple(
            sound_row(
                row.structure, row.leaves, pack(row.scalars), row.raised,
                row.calls, CallRef(tape, row.first), CallRef(tape, row.last),
                tuple((leaf, *row.ranges[leaf]) for leaf in sorted(row.ranges)),
            )
            for row in summary.inputs.rows()
        )  # fmt: skip
    except TapeError:
        segment.summed_inputs()
        return None


def _summed_facts(segment: Segment) -> FileFacts:
    summary = segment.summary
    assert summary is not None
    return _facts(segment, digest_of_summary(summary))._replace(
        first_ns=summary.first_ns,
        last_ns=summary.last_ns,
        raised=summary.raised,
        tensor_bytes=summary.tensor_bytes,
    )


def _facts(segment: Segment, digest: bytes) -> FileFacts:
    """What a segment says itself."""
    manifest, trailer = segment.manifest, segment.trailer
    first, last = segment.extent or (None, None)
    return FileFacts(
        key=_key(segment, digest),
        path=segment.path,
        head=b"",
        nbytes=segment.size,
        created_ns=manifest.created_ns,
        segment=manifest.segment,
        observed=manifest.observed,
        closed_ns=None if trailer is None else trailer.closed_ns,
        continues=None if trailer is None else trailer.continues,
        dumps=() if trailer is None else trailer.dumps,
        calls=len(segment),
        coverage=segment.coverage,
        first_call=first,
        last_call=last,
        first_ns=None,
        last_ns=None,
        raised=0,
        tensor_bytes=0,
        unfinished=segment.unfinished,
        is_ahead=segment.is_ahead,
        scanned=segment.is_scanned,
        counted=False,
        damaged=0,
    )


def scanned_inputs(segment: Segment) -> InputsTable:
    """The distinct inputs of the calls that a scan found. Inputs that break the format are left
    out, which is damage."""
    found, tape = segment.found, segment.manifest.tape
    table, alone = InputsTable(), array("Q")
    if not segment.knows_ranges:
        alone = segment.order
    else:
        numbers = list(map(found.numbers.__getitem__, segment.order))
        inputs = list(map(found.inputs.__getitem__, segment.order))
        counts, last = Counter(inputs), dict(zip(inputs, numbers, strict=True))
        first = dict(zip(reversed(inputs), reversed(numbers), strict=True))
        if counts.pop(NOT_NUMBERED, 0):
            alone = array("Q", (p for p in segment.order if found.inputs[p] == NOT_NUMBERED))
        for number, calls in counts.items():
            one = segment.distinct_inputs[number]
            try:
                row = sound_row(
                    one.structure, one.leaves, pack(one.scalars), one.raised, calls,
                    CallRef(tape, first[number]), CallRef(tape, last[number]),
                    found.ranges.of(number),
                )  # fmt: skip
            except TapeError as error:
                _leave_out(segment, calls, first[number], error)
            else:
                table.add(row)
    if alone:
        table.add_all(_inputs_of(alone, segment))
    return table


def _inputs_of(alone: array[int], segment: Segment) -> InputsTable:
    """The inputs of calls at these positions, each of which is read."""
    table, sound = InputsTable(), InputsTable()
    for position in alone:
        try:
            table.add(_row_at(segment, position))
        except TapeError as error:
            segment.report(segment.located(error, position), position)
    for row in table:
        try:
            row.tree()
        except TapeError as error:
            _leave_out(segment, row.calls, row.first.number, error)
        else:
            sound.add(row)
    return InputsTable(sound, table.limit)


def _row_at(segment: Segment, position: int) -> SurveyedRow:
    record = segment.record(position)
    inputs, has_raised = record.inputs, record.error is not None
    ref = CallRef(segment.manifest.tape, segment.number(position))
    return SurveyedRow.of(
        inputs.structure, inputs.leaves, pack(inputs.scalars), has_raised, 1, ref, ref,
        tuple(sorted((one.leaf, one.min, one.max) for one in inputs.ranges)),
    )  # fmt: skip


def _leave_out(segment: Segment, calls: int, first: int, error: TapeError) -> None:
    error.reason = f"{counted(calls, 'call')} from call {first} on left out: {error.reason}"
    segment.damage.add(error.at(path=segment.path))


def scanned_facts(segment: Segment, table: InputsTable) -> FileFacts:
    """The facts of a file, or of a piece of it, that was scanned."""
    found = segment.found
    closed_ns = None if found.trailer is None else found.trailer.closed_ns
    digest = digest_of_calls(found.numbers.tobytes(), found.records.tobytes(), closed_ns)
    first_ns, last_ns = times_of(segment)
    return _facts(segment, digest)._replace(
        calls=len(found.numbers),
        first_ns=first_ns,
        last_ns=last_ns,
        raised=sum(row.calls for row in table if row.raised),
        tensor_bytes=found.tensor_bytes,
        scanned=True,
    )


def times_of(segment: Segment) -> tuple[int | None, int | None]:
    """When the first of its calls began, and when the last one ended, by their numbers; Unix time
    in nanoseconds. The calls between are not looked at."""
    times: list[int] = []
    for position in (*segment.order[:1], *segment.order[-1:]):
        try:
            record = segment.record(position)
        except TapeError:
            continue  # reading the call reports it
        times += [record.time_ns, record.time_ns + (record.duration_ns or 0)]
    return (min(times), max(times)) if times else (None, None)
