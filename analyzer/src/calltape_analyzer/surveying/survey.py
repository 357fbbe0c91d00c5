"""A survey: what many tapes say together, by recorded target. It is written as a tape without
calls, which every verb reads."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from hashlib import blake2b
from itertools import chain

from calltape_analyzer.errors import UsageError
from calltape_analyzer.notebook import Shown, Sketch
from calltape_analyzer.reading.duplicates import Steps, are_of, of_other_ranks, steps_of
from calltape_analyzer.reading.recordings import recordings_of
from calltape_analyzer.reading.selection import TargetsError, chosen_target, target_name
from calltape_analyzer.surveying.file_survey import FileSurvey
from calltape_analyzer.text import counted, some_of
from calltape_analyzer.writing.lineage import coverage_for
from calltape_analyzer.writing.output_file import write_file
from calltape_schema import __version__
from calltape_schema.bounds import MAX_COUNT, MAX_SOURCES
from calltape_schema.end import Coverage
from calltape_schema.errors import TapeError
from calltape_schema.inputs_table import InputsTable, Row
from calltape_schema.records import (
    MINOR,
    Manifest,
    Source,
    Step,
    joined_parts,
    redacted_of_all,
    redacted_of_steps,
)
from calltape_schema.remedies import Remedy
from calltape_schema.storage import BytesSink
from calltape_schema.writer import TapeWriter

__all__ = ["Survey", "TargetSurvey"]

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
        return sum(not one.sealed for one in self._files)

    @property
    def nbytes(self) -> int:
        """Their total size."""
        return sum(one.nbytes for one in self._files)

    @property
    def records(self) -> int:
        """How many calls have a record in one of the files; calls in surveys have none."""
        return sum(len(one) for one in self._files if not one.elsewhere)

    @property
    def records_read(self) -> int:
        """How many records were read and compared with what their file says about them; the others
        are counted by the ends of sealed files. ``survey(..., scan=True)`` reads all."""
        return sum(one.records_read for one in self._files)

    @property
    def recordings(self) -> int:
        """How many recordings there are."""
        return len(self._sources)

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """When the first call began and the last one ended; None if no file says."""
        spans = [one.span_ns for one in self._files if one.span_ns is not None]
        return (min(a for a, _ in spans), max(b for _, b in spans)) if spans else None

    @property
    def hosts(self) -> list[str]:
        """The hosts that the tapes name."""
        return sorted({one.host for one in self._sources.values() if one.host is not None})

    def add(self, one: FileSurvey) -> None:
        """Adds a file, or keeps it until all files are there. An unsealed file, or one that was
        made from others, has to wait, because there may be a file with more of its calls; a file of
        one rank, because another rank may have made the same calls.

        Raises:
            UsageError, TapeError: as :meth:`finish`.
        """
        is_made = one.manifest.history is not None and not one.elsewhere
        if one.sealed and one.manifest.rank is None and not is_made:
            self._count(one)
        else:
            self._waiting.append(one)

    def finish(self, told: Callable[[TapeError], None]) -> None:
        """Adds the files that had to wait.

        Args:
            told: is called for each file that a survey cannot hold.

        Raises:
            UsageError: a survey has calls of a file that is counted already, or the other way
                round, so it is unknown which calls they have in common.
        """
        waiting = sorted(self._waiting, key=lambda one: (-len(one), not one.sealed))
        self._waiting.clear()
        ahead = [one for one in waiting if one.is_ahead]
        whole = self._fresh(one for one in waiting if not one.is_ahead)
        for one in self._without_other_ranks(whole):
            self._try(one, told)
        recordings = {parts[0].recording: parts for parts in recordings_of(self._files)}
        for one in ahead:
            files = recordings.get(one.recording, ())
            if not any(_has(file, one.last) for file in files):
                self._try(one, told)
        for one in self._files:
            one.numbers = _NO_NUMBERS
        makers = Counter(chain.from_iterable(tapes for _, tapes in self._made))
        self.made_of_others += [
            path for path, tapes in self._made
            if any(tape in self._sources or makers[tape] > 1 for tape in tapes)
        ]  # fmt: skip

    def _try(self, one: FileSurvey, told: Callable[[TapeError], None]) -> None:
        try:
            self._count(one)
        except UsageError:
            raise
        except TapeError as error:
            told(error)

    def _fresh(self, files: Iterable[FileSurvey]) -> list[FileSurvey]:
        """The files without copies of better ones, which come first."""
        found: dict[Hashable, FileSurvey] = {}
        for one in files:
            key = _identity(one)
            better = self._known.get(key) or found.setdefault(key, one)
            if better is not one:
                self._note_copy(one, better)
        return list(found.values())

    def _without_other_ranks(self, files: Sequence[FileSurvey]) -> list[FileSurvey]:
        """The files without those whose calls another rank of the job has."""
        gone: set[int] = set()
        for parts in of_other_ranks(recordings_of(files), self._are_of):
            self.other_ranks += [one.path for one in parts]
            gone.update(map(id, parts))
        return [one for one in files if id(one) not in gone]

    def _are_of(self, parts: Sequence[FileSurvey], steps: Sequence[FileSurvey]) -> bool:
        if self._is_late():
            return False
        is_whole = all(one.sealed for one in (*parts, *steps))
        return are_of(_steps(parts), _steps(steps), is_whole=is_whole)

    def _count(self, one: FileSurvey) -> None:
        key = _identity(one)
        known = self._known.get(key)
        if known is not None:
            self._note_copy(one, known)
            return
        if self._is_late():
            self.left_out.append(one.path)
            return
        for source in one.sources:
            if self._counts_already(source, one):
                raise UsageError(
                    f"{one.path} and another survey or tape have calls of recording "
                    f"{source.tape.hex()[:8]}, which would count twice",
                    advice="survey the tapes themselves",
                )
        if one.coverage.seen > _MOST_SEEN or self._seen + one.coverage.seen > MAX_COUNT:
            reason = f"it claims to have seen {one.coverage.seen:,} calls, which cannot be added up"
            raise TapeError("limit", reason, path=one.path)
        begins = self._begins(one)
        self._seen += one.coverage.seen
        self._known[key] = one
        self.damage += one.damage
        self._files.append(one)
        if not one.elsewhere and one.manifest.history:
            read = {source.tape for step in one.manifest.history for source in step.sources}
            self._made.append((one.path, read - {one.recording}))
        for source in one.sources:
            self._note(source, begins[source.tape], one)
        _renumber(one.table, sorted((s.first, begins[s.tape] - s.first) for s in one.sources))
        self.table.merge(one.table)
        self._reduce(one)

    def _reduce(self, one: FileSurvey) -> None:
        """Drops what a file is not asked for any more: there may be a hundred thousand files."""
        mine = one.manifest
        if self._first is None or (mine.created_ns, mine.tape) < (
            self._first.created_ns, self._first.tape
        ):  # fmt: skip
            self._first = mine
        one.manifest = self._first
        one.table, one.damage, one.sources = _NO_TABLE, (), ()
        if one.sealed:
            one.numbers = _NO_NUMBERS

    def _note_copy(self, one: FileSurvey, known: FileSurvey) -> None:
        self.copies.append(one.path)
        is_part = one.manifest.history is not None and len(one) <= len(known)
        if one.sealed and known.sealed and one.coverage != known.coverage and not is_part:
            reason = f"it has other calls than {known.path}, and claims to be the same file"
            advice = "find out which of them was changed"
            self.damage.append(TapeError("damaged", reason, path=one.path, advice=advice))

    def _counts_already(self, source: Source, one: FileSurvey) -> bool:
        known = self._sources.get(source.tape)
        if known is None or not (one.elsewhere or source.tape in self._in_surveys):
            return False
        return known.shares(source.tape, source.parts)

    def _begins(self, one: FileSurvey) -> dict[bytes, int]:
        """What call 0 of each recording of a file is in this survey."""
        found: dict[bytes, int] = {}
        at = self._next
        firsts = sorted(source.first for source in one.sources)
        for source in one.sources:
            end = min((first for first in firsts if first > source.first), default=one.last + 1)
            known = self._sources.get(source.tape)
            found[source.tape] = at if known is None else known.first
            if known is None:
                at += max(-(-(end - source.first) // _STRIDE), 1) * _STRIDE
            elif end - source.first > _STRIDE:
                at = MAX_COUNT + 1
        lowest = min((row.first for row in one.table.rows.values()), default=firsts[0])
        if at > MAX_COUNT or not 0 <= firsts[0] <= lowest:
            raise TapeError("limit", "numbers of calls that a survey cannot hold", path=one.path)
        self._next = at
        return found

    def _note(self, source: Source, first: int, one: FileSurvey) -> None:
        """Notes a recording, or more files of it."""
        if one.elsewhere:
            self._in_surveys.add(source.tape)
            new = source.model_copy(update={"first": first})
        else:
            name = os.path.basename(one.path).encode("utf-8", "backslashreplace").decode()
            new = source.model_copy(
                update={
                    "first": first,
                    "files": (name[:_MAX_TEXT],),
                    "calls": len(one),
                    "redacted": redacted_of_steps(one.manifest.history or ()),
                    "host": one.manifest.producer.host,
                }
            )
        known = self._sources.get(source.tape)
        self._sources[source.tape] = new if known is None else _both(known, new)

    def to_bytes(self) -> bytes:
        """The tape. Equal files make equal tapes.

        Raises:
            TapeError: ``limit``.
        """
        first = self._first
        assert first is not None
        coverage = self.coverage
        tape = self._id(coverage)
        sources = self._told(tape)
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
            "raised": sum(one.raised for one in self._files),
            "tensor_bytes": min(sum(one.tensor_bytes for one in self._files), MAX_COUNT),
        }
        if self.span_ns is not None:
            facts |= {"first_ns": self.span_ns[0], "last_ns": self.span_ns[1]}
        sink = BytesSink()
        writer = TapeWriter(sink, manifest)
        writer.table = self.table
        writer.seal(coverage, closed_ns=first.created_ns, elsewhere=facts)
        return bytes(sink.data)

    def _id(self, coverage: Coverage) -> bytes:
        made = blake2b(self.name.encode("utf-8", "surrogatepass"), digest_size=16)
        for one in sorted(self._files, key=lambda one: (one.recording, one.part)):
            made.update(one.recording + one.part.to_bytes(8, "little"))
        made.update(coverage.kept.to_bytes(8, "little"))
        return made.digest()

    def _told(self, tape: bytes) -> tuple[Source, ...]:
        """The recordings, in the order of their calls; of too many, the last ones together, with
        the id of the survey."""
        every = sorted(self._sources.values(), key=lambda one: one.first)
        if len(every) <= MAX_SOURCES:
            return tuple(every)
        named, rest = every[: MAX_SOURCES - 1], every[MAX_SOURCES - 1 :]
        others = Source(
            tape=tape,
            other_files=sum(len(one.files) + one.other_files for one in rest),
            calls=sum(one.calls for one in rest),
            first=rest[0].first,
            redacted=redacted_of_all(one.redacted for one in rest),
        )
        return (*named, others)


def _identity(one: FileSurvey) -> Hashable:
    """Equal for copies of a file, and for a file and a later state of it."""
    return one.recording, one.part, one.last if one.is_ahead else None


def _has(file: FileSurvey, number: int) -> bool:
    """Whether a file has a call of its recording, or may have it."""
    if file.numbers or file.extent is None:
        return number in file.numbers
    return file.extent[0] <= number <= file.extent[1]


def _both(known: Source, new: Source) -> Source:
    """What is known of a recording by several files."""
    files = (*known.files, *new.files)
    both = None if known.parts is None or new.parts is None else (*known.parts, *new.parts)
    return known.model_copy(
        update={
            "files": files[:_MAX_FILES],
            "other_files": known.other_files + new.other_files + len(files[_MAX_FILES:]),
            "calls": known.calls + new.calls,
            "redacted": redacted_of_all((known.redacted, new.redacted)),
            "host": known.host or new.host,
            "parts": None if both is None else joined_parts(both),
        }
    )


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
    found = steps_of(row for one in parts for row in one.table.rows.values())
    for kind in (kind for one in parts for kind in one.table.kinds.values()):
        row = found.setdefault(kind.key, Row(kind.structure, b"", b"", 0, 0))
        row.kept, row.raised = row.kept + kind.seen, row.raised + kind.raised
    return found


class Survey(Shown):
    """A summary of many tapes; :func:`survey` makes it.

    Args:
        is_late: whether the time for adding up is over.

    Attributes:
        targets: the survey of each target, by name.
        unreadable: the files that could not be read. They do not affect the others.
        left_out: how many files were not reached in time.
    """

    def __init__(self, is_late: Callable[[], bool] = lambda: False) -> None:
        self._is_late = is_late
        self.left_out = 0
        self.targets: dict[str, TargetSurvey] = {}
        self.unreadable: list[TapeError] = []

    def __repr__(self) -> str:
        files = sum(one.files for one in self.targets.values())
        return f"<Survey of {counted(files, 'file')}, {counted(len(self.targets), 'target')}>"

    def _sketch(self) -> Sketch:
        rows = [(name, one.files, one.coverage.kept) for name, one in self.targets.items()]
        rows.sort(key=lambda row: -row[2])
        note = f"{len(self.unreadable):,} files could not be read" if self.unreadable else None
        return Sketch("Survey", head=("target", "files", "calls"), rows=rows, note=note)

    def add(self, one: FileSurvey) -> None:
        """Adds a file."""
        name = target_name(one.manifest.target)
        self.targets.setdefault(name, TargetSurvey(name, self._is_late)).add(one)

    def finish(self) -> None:
        """Adds the files that had to wait until all files were there."""
        for target in self.targets.values():
            target.finish(self.unreadable.append)
            self.left_out += len(target.left_out)
        self.targets = {name: one for name, one in self.targets.items() if one.files}

    def target(self, name: str | None = None) -> TargetSurvey:
        """The survey of one target.

        Args:
            name: its name, or a part of the name that no other target has; None if there is only
                one.

        Raises:
            UsageError: there is no such target.
            TapeError: ``usage``, there are several.
        """
        if not self.targets:
            raise UsageError("no tape could be read")
        if name is not None:
            return self.targets[chosen_target(self.targets, name)]
        if len(self.targets) > 1:
            raise TargetsError(
                "usage", f"the survey has several targets: {some_of(sorted(self.targets), 5)}",
                advice=Remedy("target=", "--target").after("name one of them: "),
            )  # fmt: skip
        return next(iter(self.targets.values()))

    def write(
        self, path: str | os.PathLike[str], *, target: str | None = None,
        overwrite: bool = False, inputs: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """Writes the survey of one target as a tape without calls, which ``open_tape`` can open.

        Raises:
            UsageError: as :meth:`target`; or the path is one of the inputs.
            TapeError: ``exists``, ``io``, ``limit``.
        """
        name = os.fspath(path)
        if os.path.exists(name) and any(
            os.path.exists(one) and os.path.samefile(one, name) for one in inputs
        ):
            raise UsageError(f"{name} is one of the tapes that are read")
        write_file(name, self.target(target).to_bytes(), overwrite=overwrite)
