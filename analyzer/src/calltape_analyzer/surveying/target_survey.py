"""What many tapes of one target say together. It is written as a tape without calls, which every
verb reads.

Takes paths. Each file is the result of a task, which goes from one process to another: its facts,
the table of its counted inputs, and damage. No task raises for what a file holds: a file that
cannot be read costs its own answer only. Returns the distinct inputs of all calls, and the counts.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain

from calltape_analyzer.errors import Damage, UsageError
from calltape_analyzer.limits import Limits, add_allowance, bounded
from calltape_analyzer.observing.traffic_counters import CountedGroup
from calltape_analyzer.reading.call_ref import checked_inputs, row_of
from calltape_analyzer.reading.duplicates import Steps, are_same_steps, of_other_ranks, steps_of
from calltape_analyzer.reading.recordings import recordings_of
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.reading.urls import without_secrets
from calltape_analyzer.writing.lineage import coverage_for
from calltape_schema import __version__
from calltape_schema.bounds import MAX_COUNT, MAX_SOURCES
from calltape_schema.drop_reasons import DropReason
from calltape_schema.end import Coverage, FileNumbers
from calltape_schema.errors import TapeError
from calltape_schema.inputs_table import InputsTable, Row, signature_of
from calltape_schema.records import (
    MINOR,
    Manifest,
    Source,
    Step,
    joined_parts,
    redacted_of_all,
    redacted_of_steps,
)
from calltape_schema.storage import BytesSink
from calltape_schema.writer import TapeWriter

__all__ = ["FileSurvey", "TargetSurvey", "read_file", "unexpected_error"]


@dataclass(slots=True)
class FileSurvey:
    """One file.

    Attributes:
        path: of the file, without what is secret in a URL.
        manifest: of the file, until it counts.
        recording, part: the id of its recording, and its number among the files of that.
        sources: the recordings of its calls.
        sealed, is_survey: whether it has an end, and whether it is a survey.
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
    is_survey: bool
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
        if not self.is_survey:
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
        return unexpected_error(path, error)


def unexpected_error(path: str, error: Exception) -> TapeError:
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
    add_allowance(segment.disk_bytes)
    try:
        if scan and not segment.is_survey:
            segment.drop_unsound()
        table = _table_of(segment)
        if table is None or segment.damaged:
            other_counts = None if table is None else table.others()
            table = InputsTable()
            for row in map(row_of, segment.seen_inputs()):
                table.add_row(signature_of(row.structure, row.leaves, row.scalars), row)
            if other_counts is not None:
                table.merge(other_counts)
        end, totals = segment.end, table.totals()
        return FileSurvey(
            path=segment.path,
            manifest=segment.manifest,
            recording=segment.recording,
            part=segment.part,
            sources=segment.sources,
            sealed=end is not None,
            is_survey=segment.is_survey,
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
    """The coverage of a file of which this many calls could be read."""
    if kept == coverage.kept:
        return coverage
    dropped = dict(coverage.dropped)
    if kept < coverage.kept:
        dropped[DropReason.DAMAGED] = dropped.get(DropReason.DAMAGED, 0) + coverage.kept - kept
    seen = kept + sum(dropped.values())
    return coverage.model_copy(update={"seen": seen, "kept": kept, "dropped": dropped})


def _table_of(segment: Segment) -> InputsTable | None:
    """The table at the end of a file; None if there is none, or if a part of it breaks the
    format."""
    table = segment.table
    if table is None:
        return None
    try:
        for row in table.rows.values():
            checked_inputs(row.tree())
        for kind in table.kinds.values():
            CountedGroup.of(kind)
    except TapeError as error:
        if segment.is_survey:
            raise
        segment.damage.add(error.at(path=segment.path))
        return None
    return table


_STRIDE = 2**40
"""The calls of each recording have numbers of their own in a survey, so many apart."""
_MOST_SEEN = 2**53
"""The calls of one file; more are a lie, with which nobody else's calls could be counted."""
_MAX_FILES, _MAX_TEXT = 16, 1000
_NO_TABLE, _NO_NUMBERS = InputsTable(), array("Q")


class TargetSurvey:
    """A summary of all tapes of one target.

    Args:
        name: the name of the target.
        is_late: whether the time for adding up is over; then no more files are counted.

    Attributes:
        name: the name of the target.
        table: the counted inputs of all calls.
        copies: the paths of files that are copies of others, in full or in part.
        other_ranks: the paths of files whose calls another rank of the job made too.
        left_out: the paths of files that were not reached in time.
        made_of_others: the paths of files that were made, as by ``merge``, from recordings of which
            other files are counted too: their calls may count twice.
        damage: what is corrupted.
    """

    def __init__(self, name: str, is_late: Callable[[], bool]) -> None:
        self.name = name
        self._is_late = is_late
        self.table = InputsTable()
        self.copies: list[str] = []
        self.other_ranks: list[str] = []
        self.left_out: list[str] = []
        self.made_of_others: list[str] = []
        self._made: list[tuple[str, set[bytes]]] = []
        self.damage: list[TapeError] = []
        self._files: list[FileSurvey] = []
        self._waiting: list[FileSurvey] = []
        self._known: dict[Hashable, FileSurvey] = {}
        self._sources: dict[bytes, Source] = {}
        self._in_surveys: set[bytes] = set()
        self._next = self._seen = 0
        self._first: Manifest | None = None

    @property
    def coverage(self) -> Coverage:
        """The coverage over all files.

        Raises:
            TapeError: ``limit`` if there are more calls than can be counted.
        """
        return coverage_for(self._files, sum(map(len, self._files)), 0)

    @property
    def files(self) -> int:
        """How many files are counted."""
        return len(self._files)

    @property
    def unsealed(self) -> int:
        """How many of them have no end."""
        return sum(not file.sealed for file in self._files)

    @property
    def nbytes(self) -> int:
        """Their total size."""
        return sum(file.nbytes for file in self._files)

    @property
    def records(self) -> int:
        """How many calls have a record in one of the files; calls in surveys have none."""
        return sum(len(file) for file in self._files if not file.is_survey)

    @property
    def records_read(self) -> int:
        """How many records were read and compared with what their file says about them; the others
        are counted by the ends of sealed files. ``survey(..., scan=True)`` reads all."""
        return sum(file.records_read for file in self._files)

    @property
    def recordings(self) -> int:
        """How many recordings there are."""
        return len(self._sources)

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """When the first call began and the last one ended; None if no file says."""
        spans = [file.span_ns for file in self._files if file.span_ns is not None]
        return (min(a for a, _ in spans), max(b for _, b in spans)) if spans else None

    @property
    def hosts(self) -> list[str]:
        """The hosts that the tapes name."""
        return sorted({source.host for source in self._sources.values() if source.host is not None})

    def add(self, one: FileSurvey) -> None:
        """Adds a file, or keeps it until all files are there. An unsealed file, or one that was
        made from others, has to wait, because there may be a file with more of its calls; a file of
        one rank, because another rank may have made the same calls.

        Raises:
            UsageError, TapeError: as :meth:`finish`.
        """
        is_made = one.manifest.history is not None and not one.is_survey
        if one.sealed and one.manifest.rank is None and not is_made:
            self._count(one)
        else:
            self._waiting.append(one)

    def finish(self, report: Callable[[TapeError], None]) -> None:
        """Adds the files that had to wait.

        Args:
            report: is called for each file that a survey cannot hold.

        Raises:
            UsageError: a survey has calls of a file that is counted already, or the other way
                round, so it is unknown which calls they have in common.
        """
        waiting = sorted(self._waiting, key=lambda file: (-len(file), not file.sealed))
        self._waiting.clear()
        ahead = [file for file in waiting if file.is_ahead]
        first: dict[Hashable, FileSurvey] = {}  # without copies of better ones
        for waiting_file in (file for file in waiting if not file.is_ahead):
            key = _identity(waiting_file)
            better = self._known.get(key) or first.setdefault(key, waiting_file)
            if better is not waiting_file:
                self._note_copy(waiting_file, better)
        gone: set[int] = set()  # those whose calls another rank of the job has
        for parts in of_other_ranks(recordings_of(first.values()), self._is_repeat):
            self.other_ranks += [file.path for file in parts]
            gone.update(map(id, parts))
        for waiting_file in (file for file in first.values() if id(file) not in gone):
            self._add_or_leave_out(waiting_file, report)
        recordings = {parts[0].recording: parts for parts in recordings_of(self._files)}
        for waiting_file in ahead:
            for file in recordings.get(waiting_file.recording, ()):
                low, high = file.extent or (0, -1)
                # If it has an end, nobody knows whether it has all numbers between.
                if waiting_file.last in file.numbers or (
                    not file.numbers and low <= waiting_file.last <= high
                ):
                    break
            else:
                self._add_or_leave_out(waiting_file, report)
        for counted_file in self._files:
            counted_file.numbers = _NO_NUMBERS
        makers = Counter(chain.from_iterable(tapes for _, tapes in self._made))
        self.made_of_others += [
            path for path, tapes in self._made
            if any(tape in self._sources or makers[tape] > 1 for tape in tapes)
        ]  # fmt: skip

    def _add_or_leave_out(self, file: FileSurvey, report: Callable[[TapeError], None]) -> None:
        try:
            self._count(file)
        except UsageError:
            raise
        except TapeError as error:
            report(error)

    def _is_repeat(self, parts: Sequence[FileSurvey], steps: Sequence[FileSurvey]) -> bool:
        if self._is_late():
            return False
        is_whole = all(file.sealed for file in (*parts, *steps))
        return are_same_steps(_steps(parts), _steps(steps), is_whole=is_whole)

    def _count(self, file: FileSurvey) -> None:
        key = _identity(file)
        known_file = self._known.get(key)
        if known_file is not None:
            self._note_copy(file, known_file)
            return
        if self._is_late():
            self.left_out.append(file.path)
            return
        for source in file.sources:
            before = self._sources.get(source.tape)
            has_survey = file.is_survey or source.tape in self._in_surveys
            if before is not None and has_survey and before.shares(source.tape, source.parts):
                raise UsageError(
                    f"{file.path} and another survey or tape have calls of recording "
                    f"{source.tape.hex()[:8]}, which would count twice",
                    advice="survey the tapes themselves",
                )
        if file.coverage.seen > _MOST_SEEN or self._seen + file.coverage.seen > MAX_COUNT:
            reason = (
                f"it claims to have seen {file.coverage.seen:,} calls, which cannot be added up"
            )
            raise TapeError("limit", reason, path=file.path)
        begins = self._first_calls_of(file)
        self._seen += file.coverage.seen
        self._known[key] = file
        self.damage += file.damage
        self._files.append(file)
        if not file.is_survey and file.manifest.history:
            read = {source.tape for step in file.manifest.history for source in step.sources}
            self._made.append((file.path, read - {file.recording}))
        for source in file.sources:
            self._note(source, begins[source.tape], file)
        _renumber(file.table, sorted((s.first, begins[s.tape] - s.first) for s in file.sources))
        self.table.merge(file.table)
        # What a file is not asked for any more goes: there may be a hundred thousand files.
        mine = file.manifest
        if self._first is None or (mine.created_ns, mine.tape) < (
            self._first.created_ns, self._first.tape
        ):  # fmt: skip
            self._first = mine
        file.manifest = self._first
        file.table, file.damage, file.sources = _NO_TABLE, (), ()
        if file.sealed:
            file.numbers = _NO_NUMBERS

    def _note_copy(self, file: FileSurvey, known_file: FileSurvey) -> None:
        self.copies.append(file.path)
        is_part = file.manifest.history is not None and len(file) <= len(known_file)
        if (
            file.sealed
            and known_file.sealed
            and file.coverage != known_file.coverage
            and not is_part
        ):
            reason = f"it has other calls than {known_file.path}, and claims to be the same file"
            advice = "find out which of them was changed"
            self.damage.append(TapeError("damaged", reason, path=file.path, advice=advice))

    def _first_calls_of(self, file: FileSurvey) -> dict[bytes, int]:
        """What call 0 of each recording of a file is in this survey."""
        begins: dict[bytes, int] = {}
        next_call = self._next
        firsts = sorted(source.first for source in file.sources)
        for source in file.sources:
            behind = bisect_right(firsts, source.first)
            end = firsts[behind] if behind < len(firsts) else file.last + 1
            known_source = self._sources.get(source.tape)
            begins[source.tape] = next_call if known_source is None else known_source.first
            if known_source is None:
                next_call += max(-(-(end - source.first) // _STRIDE), 1) * _STRIDE
            elif end - source.first > _STRIDE:
                next_call = MAX_COUNT + 1
        lowest = min((row.first for row in file.table.rows.values()), default=firsts[0])
        if next_call > MAX_COUNT or not 0 <= firsts[0] <= lowest:
            raise TapeError("limit", "numbers of calls that a survey cannot hold", path=file.path)
        self._next = next_call
        return begins

    def _note(self, source: Source, first: int, file: FileSurvey) -> None:
        """Notes a recording, or more files of it."""
        if file.is_survey:
            self._in_surveys.add(source.tape)
            new = source.model_copy(update={"first": first})
        else:
            name = os.path.basename(file.path).encode("utf-8", "backslashreplace").decode()
            new = source.model_copy(
                update={
                    "first": first,
                    "files": (name[:_MAX_TEXT],),
                    "calls": len(file),
                    "redacted": redacted_of_steps(file.manifest.history or ()),
                    "host": file.manifest.producer.host,
                }
            )
        known_source = self._sources.get(source.tape)
        if known_source is not None:  # by other files of the recording
            files = (*known_source.files, *new.files)
            parts = None
            if known_source.parts is not None and new.parts is not None:
                parts = joined_parts((*known_source.parts, *new.parts))
            new = known_source.model_copy(
                update={
                    "files": files[:_MAX_FILES],
                    "other_files": known_source.other_files
                    + new.other_files
                    + len(files[_MAX_FILES:]),
                    "calls": known_source.calls + new.calls,
                    "redacted": redacted_of_all((known_source.redacted, new.redacted)),
                    "host": known_source.host or new.host,
                    "parts": parts,
                }
            )
        self._sources[source.tape] = new

    def to_bytes(self) -> bytes:
        """The tape. Equal files make equal tapes.

        Raises:
            TapeError: ``limit``.
        """
        first = self._first
        assert first is not None
        coverage = self.coverage
        digest = blake2b(self.name.encode("utf-8", "surrogatepass"), digest_size=16)
        for file in sorted(self._files, key=lambda file: (file.recording, file.part)):
            digest.update(file.recording + file.part.to_bytes(8, "little"))
        digest.update(coverage.kept.to_bytes(8, "little"))
        tape = digest.digest()
        sources = self._sources_of(tape)
        options = (("files", str(self.files)), ("recordings", str(self.recordings)))
        step = Step(
            verb="survey", tool="calltape", version=__version__, tape=tape, options=options,
            sources=sources,
        )  # fmt: skip
        hosts = self.hosts
        producer = first.producer.model_copy(update={"host": hosts[0] if len(hosts) == 1 else None})
        manifest = first.model_copy(
            update={
                "minor": max(MINOR, first.minor), "tape": tape, "segment": None,
                "observed": None, "rank": None, "producer": producer, "history": (step,),
            }
        )  # fmt: skip
        facts = {
            "raised": sum(file.raised for file in self._files),
            "tensor_bytes": min(sum(file.tensor_bytes for file in self._files), MAX_COUNT),
        }
        if self.span_ns is not None:
            facts |= {"first_ns": self.span_ns[0], "last_ns": self.span_ns[1]}
        sink = BytesSink()
        writer = TapeWriter(sink, manifest)
        writer.table = self.table
        writer.seal(coverage, closed_ns=first.created_ns, elsewhere=facts)
        return bytes(sink.data)

    def _sources_of(self, tape: bytes) -> tuple[Source, ...]:
        """The recordings, in the order of their calls; of too many, the last ones together, with
        the id of the survey."""
        sources = sorted(self._sources.values(), key=lambda source: source.first)
        if len(sources) <= MAX_SOURCES:
            return tuple(sources)
        named, unnamed = sources[: MAX_SOURCES - 1], sources[MAX_SOURCES - 1 :]
        other_source = Source(
            tape=tape,
            other_files=sum(len(source.files) + source.other_files for source in unnamed),
            calls=sum(source.calls for source in unnamed),
            first=unnamed[0].first,
            redacted=redacted_of_all(source.redacted for source in unnamed),
        )
        return (*named, other_source)


def _identity(file: FileSurvey) -> Hashable:
    """Equal for copies of a file, and for a file and a later state of it."""
    return file.recording, file.part, file.last if file.is_ahead else None


def _renumber(table: InputsTable, firsts: Sequence[tuple[int, int]]) -> None:
    """Gives calls the numbers that they have in a survey.

    Args:
        table: of a file.
        firsts: for each of its recordings the lowest number that its calls can have there, and what
            is added to the numbers from there on, ascending.
    """
    lowest = [first for first, _ in firsts]

    def moved(number: int) -> int:
        return number + firsts[bisect_right(lowest, number) - 1][1]

    for row in table.rows.values():
        row.first, row.last = moved(row.first), moved(row.last)
        row.example = None if row.example is None else moved(row.example)
        if row.last < row.first:  # recordings have another order here
            row.first, row.last = row.last, row.first
        if row.example is not None:
            row.example = min(max(row.example, row.first), row.last)


def _steps(parts: Sequence[FileSurvey]) -> Steps:
    """What the tables of files count. Calls of a kind have no numbers."""
    steps = steps_of(row for file in parts for row in file.table.rows.values())
    for kind in (kind for file in parts for kind in file.table.kinds.values()):
        row = steps.setdefault(kind.key, Row(kind.structure, b"", b"", 0, 0))
        row.kept, row.raised = row.kept + kind.seen, row.raised + kind.raised
    return steps
