"""A survey: what many tapes say together, by recorded target. It is written as a tape without
calls, which every verb reads."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b

from calltape_analyzer.errors import UsageError
from calltape_analyzer.reading.targets import TargetsError, chosen_target, target_name
from calltape_analyzer.surveying.file_survey import FileSurvey
from calltape_analyzer.text import counted, some_of
from calltape_analyzer.writing.coverage import new_coverage
from calltape_analyzer.writing.output_file import write_file
from calltape_schema import __version__
from calltape_schema.endings import Coverage
from calltape_schema.errors import TapeError
from calltape_schema.history import MAX_SOURCES, Source, Step, redacted_of_steps
from calltape_schema.inputs_table import InputsTable
from calltape_schema.records import MINOR, Manifest
from calltape_schema.storage import BytesSink
from calltape_schema.writer import TapeWriter

__all__ = ["Survey", "TargetSurvey"]

_STRIDE = 2**40
"""The calls of each recording have numbers of their own in a survey, so many apart."""


class TargetSurvey:
    """What the tapes of one target say together.

    Attributes:
        name: of the target.
        table: the counted inputs of all calls.
        files: how many files count.
        nbytes: their size together.
        copies: the paths of files that are in another one of them.
        damage: what is wrong with some.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.table = InputsTable()
        self.files = self.nbytes = self.unsealed = 0
        self.copies: list[str] = []
        self.damage: list[TapeError] = []
        self._first: Manifest | None = None
        self._paths: dict[tuple[bytes, int], str] = {}
        self._sources: dict[bytes, Source] = {}
        self._in_surveys: set[bytes] = set()
        self._begins: dict[bytes, int] = {}
        self._next = 0
        self._seen = self._kept = 0
        self._dropped: Counter[str] = Counter()
        self._at_least = False

    @property
    def coverage(self) -> Coverage:
        """Of all calls.

        Raises:
            TapeError: ``limit`` if they are more than can be counted.
        """
        return new_coverage(self._kept, self._dropped, self._at_least or None)

    @property
    def recordings(self) -> int:
        """How many recordings there are."""
        return len(self._sources)

    def add(self, one: FileSurvey) -> None:
        """Adds a file. A copy of an earlier one counts once.

        Raises:
            UsageError: a survey has calls of a recording that counts already, or the other way
                round: nobody can tell which calls they have in common.
        """
        key = one.manifest.tape, one.part
        if key in self._paths:
            self.copies.append(one.path)
            return
        sources = _sources_of(one)
        both = [s.tape for s in sources if self._is_twice(s.tape, one.elsewhere)]
        if both:
            raise UsageError(
                f"{one.path} and another survey or tape have calls of recording "
                f"{both[0].hex()[:8]}, which would count twice",
                advice="survey the tapes themselves",
            )
        self._paths[key] = one.path
        self.damage += one.damage
        self._count(one)
        begin = self._begin(one)
        for source in sources:
            self._note(source, begin, one.elsewhere)
        _shift(one.table, begin)
        self.table.merge(one.table)

    def _is_twice(self, tape: bytes, is_survey: bool) -> bool:
        return tape in self._sources if is_survey else tape in self._in_surveys

    def _count(self, one: FileSurvey) -> None:
        self.files += 1
        self.nbytes += one.nbytes
        self.unsealed += not one.sealed
        self._seen += one.coverage.seen
        self._kept += one.coverage.kept
        self._dropped.update(one.coverage.dropped)
        self._at_least |= bool(one.coverage.at_least)
        mine = one.manifest
        if self._first is None or (mine.created_ns, mine.tape) < (
            self._first.created_ns, self._first.tape
        ):  # fmt: skip
            self._first = mine

    def _begin(self, one: FileSurvey) -> int:
        """What is added to the numbers of the calls of a file."""
        tape = one.manifest.tape
        begin = self._begins.setdefault(tape, self._next)
        if begin == self._next:
            self._next += (max(one.last, 0) // _STRIDE + 1) * _STRIDE
        is_within = begin + one.last < self._next if one.elsewhere else one.last < _STRIDE
        if self._next >= 2**63 or not is_within:
            raise TapeError("limit", "numbers of calls that a survey cannot hold", path=one.path)
        return begin

    def _note(self, source: Source, begin: int, is_survey: bool) -> None:
        known = self._sources.get(source.tape)
        if is_survey:
            self._in_surveys.add(source.tape)
        if known is None:
            self._sources[source.tape] = source.model_copy(update={"first": begin + source.first})
            return
        files = (*known.files, *source.files)
        redacted = known.redacted if known.redacted == source.redacted else "part"
        self._sources[source.tape] = known.model_copy(
            update={
                "files": files[:16],
                "other_files": known.other_files + len(files[16:]),
                "calls": known.calls + source.calls,
                "redacted": redacted,
            }
        )

    def to_bytes(self) -> bytes:
        """The tape. Equal files make equal tapes.

        Raises:
            TapeError: ``limit``.
        """
        assert self._first is not None
        made = blake2b(self.name.encode("utf-8", "surrogatepass"), digest_size=16)
        for tape, part in sorted(self._paths):
            made.update(tape + part.to_bytes(8, "little"))
        made.update(self._kept.to_bytes(8, "little"))
        tape = made.digest()
        # Those that are not redacted come first: what is told of redaction is then true of all.
        sources = sorted(self._sources.values(), key=lambda one: one.redacted == "all")
        told = sorted(sources[:MAX_SOURCES], key=lambda one: one.first)
        options = (("files", str(self.files)), ("recordings", str(len(sources))))
        step = Step(
            verb="survey", tool="calltape", version=__version__, tape=tape, options=options,
            sources=tuple(told),
        )  # fmt: skip
        manifest = self._first.model_copy(
            update={
                "minor": max(MINOR, self._first.minor), "tape": tape, "segment": None,
                "observed": None, "rank": None, "history": (step,),
            }
        )  # fmt: skip
        sink = BytesSink()
        writer = TapeWriter(sink, manifest)
        writer.table = self.table
        writer.seal(self.coverage, closed_ns=self._first.created_ns, elsewhere=True)
        return bytes(sink.data)


def _sources_of(one: FileSurvey) -> list[Source]:
    steps = one.manifest.history or ()
    if one.elsewhere and steps:
        return list(steps[-1].sources)
    name = os.path.basename(one.path).encode("utf-8", "backslashreplace").decode()[:1000]
    return [
        Source(
            tape=one.manifest.tape,
            files=(name,),
            calls=one.coverage.kept,
            redacted=redacted_of_steps(steps),
        )
    ]


def _shift(table: InputsTable, begin: int) -> None:
    for row in table.rows.values():
        row.first += begin
        row.last += begin
        row.example = None if row.example is None else row.example + begin


class Survey:
    """What many tapes say together; :func:`survey` makes it.

    Attributes:
        targets: by name.
        unreadable: the files that could not be read. They cost their own answer only.
    """

    def __init__(self) -> None:
        self.targets: dict[str, TargetSurvey] = {}
        self.unreadable: list[TapeError] = []

    def __repr__(self) -> str:
        files = sum(one.files for one in self.targets.values())
        return f"<Survey of {counted(files, 'file')}, {counted(len(self.targets), 'target')}>"

    def add(self, one: FileSurvey) -> None:
        """Adds a file."""
        name = target_name(one.manifest.target)
        target = self.targets.setdefault(name, TargetSurvey(name))
        try:
            target.add(one)
        finally:
            if not target.files:
                del self.targets[name]

    def target(self, name: str | None = None) -> TargetSurvey:
        """What was recorded of one target.

        Args:
            name: of it, or a part of the name that no other one has; None if there is only one.

        Raises:
            UsageError: there is none.
            TapeError: ``usage``, there are several.
        """
        if not self.targets:
            raise UsageError("no tape could be read")
        if name is not None:
            return self.targets[chosen_target(self.targets, name)]
        if len(self.targets) > 1:
            raise TargetsError(
                "usage", f"the survey has several targets: {some_of(sorted(self.targets), 5)}",
                advice="name one of them: target=, or --target at the prompt",
            )  # fmt: skip
        return next(iter(self.targets.values()))

    def write(
        self, path: str | os.PathLike[str], *, target: str | None = None,
        overwrite: bool = False, inputs: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """Writes what was recorded of one target as a tape without calls, which ``open_tape``
        opens.

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
