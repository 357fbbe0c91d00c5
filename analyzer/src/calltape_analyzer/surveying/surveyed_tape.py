"""A survey as a tape without its calls: every analysis that needs no single call answers as it does
for a tape."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NoReturn, overload

from calltape_analyzer.errors import UsageError
from calltape_analyzer.observing.traffic_counters import TrafficCounters
from calltape_analyzer.pytree.classes import Classes, ClassIndex
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.reading.calls import Calls
from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.seen_inputs import Place, SeenInputs
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.reading.targets import target_name
from calltape_analyzer.surveying.file_facts import FileFacts, FileKey, manifest_of
from calltape_analyzer.surveying.file_survey import error_of
from calltape_analyzer.surveying.file_table import FileTable
from calltape_analyzer.surveying.inputs_table import InputsTable
from calltape_analyzer.surveying.target_survey import TargetSurvey
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted, some_of
from calltape_schema.endings import Coverage, Ending
from calltape_schema.errors import TapeError
from calltape_schema.records import Manifest, Tree, decode_manifest
from calltape_schema.summary import Summary

__all__ = ["SurveyedTape"]

_MOST_FILES = 3


class NoSingleCallError(UsageError):
    """A survey was asked for a single call."""


def _no_calls() -> NoReturn:
    raise NoSingleCallError(
        "a survey has counts and sizes, and no single call or value",
        advice="open the tapes themselves for this",
    )


class SurveyedFile(Segment):
    """A file as a survey knows it. Its calls are not at hand."""

    def __init__(self, files: FileTable, key: FileKey, head: Manifest, damage: Damage) -> None:
        # Nothing is opened: what the base class reads from the file is in the facts.
        self._files, self._key, self._head = files, key, head
        self.damage = damage
        self.left_out = 0
        self.copies = []

    @property
    def facts(self) -> FileFacts:
        return self._files[self._key]

    # Unpacked when asked for: of 100,000 files they take 300 MB.
    path: Any = property(lambda self: self.facts.path)
    location: Any = path
    manifest: Any = property(lambda self: manifest_of(self._head, self.facts))
    size: Any = property(lambda self: self.facts.nbytes)

    @property
    def disk_bytes(self) -> int:
        return self.facts.nbytes

    def __len__(self) -> int:
        return self.facts.calls

    def scan(self) -> None:
        _no_calls()

    def content(self, position: int) -> NoReturn:
        _no_calls()

    def contents(self) -> NoReturn:
        _no_calls()

    def payloads(self) -> NoReturn:
        _no_calls()

    @property
    def _scan(self) -> NoReturn:
        _no_calls()

    @property
    def order(self) -> NoReturn:
        _no_calls()

    @order.setter
    def order(self, positions: array[int]) -> None:
        _no_calls()

    @property
    def summary(self) -> Summary | None:
        """None: the rows of a survey are those of many files."""
        return None

    @property
    def is_scanned(self) -> bool:
        return self.facts.scanned

    @property
    def trailer(self) -> Ending | None:
        facts = self.facts
        if facts.closed_ns is None:
            return None
        return Ending.model_construct(
            tape=facts.key.tape,
            closed_ns=facts.closed_ns,
            coverage=facts.coverage,
            traffic=None,
            dumps=facts.dumps,
            continues=facts.continues,
        )

    @property
    def unfinished(self) -> int:
        return self.facts.unfinished

    @property
    def span_ns(self) -> tuple[int, int] | None:
        first, last = self.facts.first_ns, self.facts.last_ns
        return None if first is None or last is None else (first, last)

    @property
    def extent(self) -> tuple[int, int] | None:
        first, last = self.facts.first_call, self.facts.last_call
        return None if first is None or last is None else (first, last)

    @property
    def coverage(self) -> Coverage:
        return self.facts.coverage

    @cached_property
    def is_ahead(self) -> bool:
        return self.facts.is_ahead

    @property
    def closed(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open."""


class SurveyedCalls(Calls):
    """The calls of a survey: how many had which inputs, and no single one."""

    def __init__(
        self, files: Sequence[SurveyedFile], classes: ClassIndex, rows: InputsTable
    ) -> None:
        self._classes = classes
        self._recordings = {file.manifest.tape for file in files}
        self._files = files
        self._rows = rows
        self._total = sum(map(len, files))
        self._seen: list[SeenInputs] | None = None
        self._first: dict[CallRef, Tree] = {}

    def __len__(self) -> int:
        return self._total

    def __iter__(self) -> Iterator[Call]:
        if self._total:
            _no_calls()
        return iter(())

    def _scan_all(self) -> None:
        _no_calls()

    @overload
    def __getitem__(self, index: int) -> Call: ...

    @overload
    def __getitem__(self, index: slice) -> list[Call]: ...

    def __getitem__(self, index: int | slice) -> Call | list[Call]:
        _no_calls()

    def by_inputs(self, *, ranges: bool = False) -> Iterator[SeenInputs]:
        """The distinct inputs, in the order of the first call that has them. Ranges are those of
        all calls together in any case."""
        if self._seen is None:
            places = {tape: number for number, tape in enumerate(sorted(self._recordings))}

            def place(ref: CallRef) -> Place:
                return Place(places[ref.tape], ref.number, ref)

            self._seen = [
                SeenInputs(row.tree(), row.raised, row.calls, place(row.first), place(row.last))
                for row in self._rows.in_order()
            ]
        return iter(self._seen)

    @property
    def are_single(self) -> bool:
        return False

    def inputs_seen(self) -> Iterator[tuple[Tree, int, CallRef]]:
        for seen in self.by_inputs():
            yield seen.inputs, seen.calls, seen.first.ref

    def inputs_numbers(self) -> Iterator[tuple[int, int] | None]:
        _no_calls()

    def at(self, ref: CallRef) -> Call:
        _no_calls()

    def inputs_at(self, ref: CallRef) -> Tree:
        """The inputs of the first call that has them."""
        if not self._first:
            for seen in self.by_inputs():
                self._first.setdefault(seen.first.ref, seen.inputs)
        found = self._first.get(ref)
        if found is None:
            _no_calls()
        return found

    def path(self, ref: CallRef) -> str:
        """The file that a call is in, by its number. If several files of its recording can have
        it, all of these."""
        found = [
            file.path
            for file in self._files
            if file.manifest.tape == ref.tape
            and (extent := file.extent)
            and extent[0] <= ref.number <= extent[1]
        ]
        if not found:
            raise UsageError(f"call {ref.number} is not in this survey")
        return some_of(found, _MOST_FILES, " or ")

    def _recount(self) -> None:
        """Nothing changes."""


class SurveyedTape(Tape):
    """What a survey has of one recorded target, in the form of a :class:`Tape`.

    It answers whatever needs no single call and no value: ``variants``, ``infer_dynamic_shapes``,
    ``shape_findings``, ``explain``, ``observations``, ``counters``, ``coverage``, ``diff`` and the
    targets that take sizes, such as ``optimization_profile``. Everything else raises
    :class:`UsageError`.
    """

    def __init__(
        self,
        found: TargetSurvey,
        classes: Classes = (),
        *,
        unreadable: Sequence[TapeError] = (),
    ) -> None:
        found.settle()
        heads = {digest: decode_manifest(head) for digest, head in found.heads.items()}
        damage = Damage()
        rows = found.inputs()
        files = [
            SurveyedFile(found.files, key, heads[found.files[key].head], damage)
            for key in found.in_order()
        ]
        super().__init__(files, damage, classes)
        for one in found.damage():
            damage.add(error_of(one))
        self._files = files
        self._survey = found
        self._name: str | None = None
        self._calls = SurveyedCalls(files, self._classes, rows)
        self._add_notes(rows)
        self._note_unreadable(unreadable)

    def _note_unreadable(self, errors: Sequence[TapeError]) -> None:
        if errors:
            names = some_of([error.path or "?" for error in errors], _MOST_FILES)
            reason = f"{counted(len(errors), 'file')} could not be read for the survey: {names}"
            self._damage.add(TapeError("damaged", reason, advice="open one of them to see why"))

    def _add_notes(self, rows: InputsTable) -> None:
        left_out = len(self._calls) - rows.calls
        if rows.limit is not None:
            reason = (
                f"the inputs of {left_out:,} calls are left out: there are too many different ones"
            )
            self._damage.add(TapeError("limit", reason, advice="survey fewer tapes at once"))

    @property
    def name(self) -> str:
        """The name of the target, as ``module:Class.method``; ``unknown`` if the tapes do not say.
        If the survey has other targets of this name, the parameters of this one follow."""
        return self._name or target_name(self.target)

    def tell_apart(self, mark: str) -> None:
        """Adds a mark to the name, because another target has this name too."""
        self._name = f"{self.name}{mark}"

    @property
    def files(self) -> tuple[FileFacts, ...]:
        """The facts of each file whose calls count."""
        return tuple(file.facts for file in self._files)

    @property
    def copies(self) -> tuple[str, ...]:
        """The paths of files whose calls are counted in another file."""
        return tuple(self._survey.told_copies())

    @property
    def producers(self) -> tuple[dict[str, Any], ...]:
        """The distinct producers of the files: versions, platform, and the host if it is there."""
        heads = [decode_manifest(self._survey.heads[one]) for one in sorted(self._survey.heads)]
        found = {
            manifest.producer.model_dump_json(): manifest.producer.model_dump(exclude_none=True)
            for manifest in heads
        }
        return tuple(found[key] for key in sorted(found))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that are named by the files."""
        return tuple(sorted({one["host"] for one in self.producers if "host" in one}))

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of the files that name no host: often there is one for each."""
        heads = self._survey.heads.items()
        named = {digest for digest, head in heads if decode_manifest(head).producer.host}
        paths = (one.path for one in self.files if one.head not in named)
        return tuple(sorted({os.path.dirname(path) or "." for path in paths}))

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """When the first call began and the last one ended, Unix time in nanoseconds. Of a file
        that was scanned, only the call with the lowest number and that with the highest count."""
        spans = (one.span_ns for one in self._files)
        found = [span for span in spans if span is not None]
        return (min(first for first, _ in found), max(last for _, last in found)) if found else None

    @property
    def under_way(self) -> tuple[Call, ...]:
        """Empty: a survey has no single call. How many files have one that was under way, their
        facts tell (:attr:`files`)."""
        return ()

    @property
    def counters(self) -> TrafficCounters:
        """As :attr:`Tape.counters`."""
        if self._counters is None:
            missing = (one.path for one in self._files if not one.facts.counted)
            self._counters = self._survey.kinds.counters(missing)
        return self._counters

    def find(self, address: int | str) -> NoReturn:
        _no_calls()

    def _part(self, segments: Sequence[Segment]) -> Tape:
        """The same calls, for whoever leaves arguments out. No calls can be chosen."""
        if segments is not self._segments:
            _no_calls()
        calls = self._calls
        made = super()._part(segments)
        made._calls = calls
        return made
