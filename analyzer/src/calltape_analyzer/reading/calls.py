"""The calls of a tape as one sequence over its files, with what the recorder said of them.

Takes segments; returns calls, found by position, by reference, by address or by their distinct
inputs; and facts: manifests, coverage, damage.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Literal, overload

from typing_extensions import Self

from calltape_analyzer.errors import Damage, NoCallError, UsageError, is_damage, no_single_call
from calltape_analyzer.limits import Allowance, bounded, metered
from calltape_analyzer.plain_data import Shown, Sketch
from calltape_analyzer.progress import steps
from calltape_analyzer.pytree.classes import Classes, ClassIndex
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef, SeenInputs
from calltape_analyzer.reading.recordings import (
    coverage_of,
    deleted_files,
    goes_on,
    missing_numbers,
    recordings_of,
)
from calltape_analyzer.reading.segment import UNDER_WAY_WORDS, Segment
from calltape_analyzer.reading.selection import common_target, no_call, ranges_of, target_name
from calltape_analyzer.text import counted, some_of
from calltape_schema.bounds import MAX_COUNT
from calltape_schema.end import Coverage, Dump, FileNumbers
from calltape_schema.errors import TapeError
from calltape_schema.records import (
    Manifest,
    Observed,
    Redacted,
    Target,
    Tree,
    redacted_of_all,
    redacted_of_steps,
)
from calltape_schema.remedies import Remedy

__all__ = ["Calls", "RecordedCalls"]

_MAX_NAMED = 4


class Calls(Sequence[Call]):
    """The calls of a tape: an immutable sequence that makes each :class:`Call` when it is asked
    for. Iterating skips the calls whose records break the format; the tape's ``damage`` names
    them."""

    def __init__(self, segments: Sequence[Segment], classes: ClassIndex) -> None:
        self._classes = classes
        self._recordings = {tape for segment in segments for tape in segment.recordings}
        self._segments = [segment for segment in segments if len(segment)]
        self._count()

    def _count(self) -> None:
        self._lengths = list(map(len, self._segments))
        self._ends = list(accumulate(self._lengths))
        self._is_known = all(segment.unscanned_end is None for segment in self._segments)
        self.__dict__.pop("_extents", None)

    def _recount(self) -> None:
        """Counts anew if files were scanned since: damage may have shown, and then there are fewer
        calls than the ends of the files said. Others may read these files too."""
        if not self._is_known:
            self._segments = [segment for segment in self._segments if len(segment)]
            self._count()

    def scan(self) -> None:
        """Reads the records of all files of which only the ends were read. Afterwards the number of
        calls is the one that the records show."""
        if not self._is_known:
            self._scan(self._segments)

    def _scan(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            if segment.unscanned_end is not None:
                segment.scan()
        self._recount()

    def __len__(self) -> int:
        self._recount()
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Call]:
        return self._metered(self.including_unsound())

    def including_unsound(self) -> Iterator[Call]:
        """The calls, also those whose records break the format: a look at the record raises."""
        self.scan()
        return iter(steps(self._each_call(self._placed()), "calls", len(self)))

    @property
    def _allowance(self) -> Allowance | None:
        return next((segment.allowance for segment in self._segments), None)

    def _metered(self, calls: Iterator[Call]) -> Iterator[Call]:
        allowances = [segment.allowance for segment in self._segments]
        return metered(_undamaged(calls, lambda call: call.record), allowances)

    @overload
    def __getitem__(self, index: int) -> Call: ...

    @overload
    def __getitem__(self, index: slice) -> list[Call]: ...

    def __getitem__(self, index: int | slice) -> Call | list[Call]:
        self.scan()
        if isinstance(index, slice):
            return [self._at(position) for position in range(*index.indices(len(self)))]
        position = index.__index__()
        if position < 0:
            position += len(self)
        if not 0 <= position < len(self):
            raise NoCallError(f"call {index} of a tape of {counted(len(self), 'call')}")
        return self._at(position)

    def by_inputs(self) -> Iterator[SeenInputs]:
        """The distinct inputs, with how many calls have them; per file in the order of the first
        call that does, with the ranges of all these calls. Most records are not decoded, and of a
        file with a table none is read. Calls that raised are counted apart from calls that did not,
        and have no ranges. Equal inputs come once per file.
        """
        for segment in list(self._segments):
            yield from segment.seen_inputs()

    @property
    def has_single_calls(self) -> bool:
        """Whether each call can be looked at. Of a survey, only calls with equal inputs are there,
        together."""
        return not any(segment.is_survey for segment in self._segments)

    def inputs_seen(self) -> Iterator[tuple[Tree, int, CallRef]]:
        """The inputs of each call that returned, the number 1, and the call. If no single call is
        at hand, equal inputs come together, with the ranges of all calls that have them, the number
        of these, and the first one.
        """
        if not self.has_single_calls:
            for seen in self.by_inputs():
                if not seen.raised:
                    yield seen.inputs, seen.calls, seen.first
            return
        for call in self:
            if call.record.error is None:
                yield call.record.inputs, 1, call.ref

    def by_recording(self) -> list[Iterator[Call]]:
        """The calls of each recording, in the order of their numbers; every call comes once, but
        for those that are skipped as by iterating."""
        self.scan()
        segments: dict[bytes, list[tuple[int, Segment]]] = {}
        for start, segment in self._placed():
            segments.setdefault(segment.manifest.tape, []).append((start, segment))
        return [self._metered(self._each_call(placed)) for placed in segments.values()]

    def _placed(self) -> list[tuple[int, Segment]]:
        """Each file with the index of its first call."""
        starts = (end - length for end, length in zip(self._ends, self._lengths, strict=True))
        return list(zip(starts, self._segments, strict=True))

    def _each_call(self, placed: Iterable[tuple[int, Segment]]) -> Iterator[Call]:
        for start, segment in placed:
            for index, position in enumerate(segment.order, start):
                yield Call(segment, position, index, self._classes)

    def label_of(self, ref: CallRef) -> str:
        """What people are told of a call: its number, or, of a tape of several recordings, its
        address."""
        return self.address_of(ref) or str(ref.number)

    def address_of(self, ref: CallRef) -> str | None:
        """The address of a call, if its number alone does not tell it: the tape is of several
        recordings."""
        return None if len(self._recordings) < 2 else str(ref)

    def at(self, ref: CallRef) -> Call:
        """The call that a reference refers to.

        Raises:
            TapeError: ``usage`` if the call is not here.
        """
        self._recount()
        files = self._may_have(ref)
        if not self._is_known:
            self._scan([self._segments[which] for which in files])
            files = self._may_have(ref)  # there may be fewer files now
        for which in files:
            segment = self._segments[which]
            i = bisect.bisect_left(segment.order, ref.number, key=segment.numbers.__getitem__)
            if i < len(segment) and segment.numbers[segment.order[i]] == ref.number:
                return self._at(self._ends[which] - self._lengths[which] + i)
        # The end of a file may have named it.
        self._scan([segment for segment in self._segments if ref.tape in segment.recordings])
        raise TapeError("usage", f"call {ref.number} is not on this tape")

    def inputs_at(self, ref: CallRef) -> Tree:
        """The inputs of a call. Those of the first call with them are in the table of its file,
        if it has one; else the record is read.

        Raises:
            TapeError: as :meth:`at`, and as :attr:`Call.record`; ``damaged`` if two inputs in the
                table begin with this call.
        """
        for which in self._may_have(ref):
            segment = self._segments[which]
            all_inputs = segment.summed_inputs() or ()
            inputs = [seen.inputs for seen in all_inputs if seen.first == ref]
            if len(inputs) > 1:
                reason = f"call {ref.number} begins two different inputs in the table at the end"
                advice = Remedy("open_tape(..., scan=True)", "--scan").after(
                    "read the records instead: "
                )
                raise TapeError("damaged", reason, path=segment.path, advice=advice)
            if inputs:
                return inputs[0]
        return self.at(ref).record.inputs

    def path(self, ref: CallRef) -> str:
        """The file that a call which is here is in."""
        files = self._may_have(ref)
        return self._segments[files[0]].path if len(files) == 1 else self.at(ref).path

    @cached_property
    def _extents(self) -> dict[bytes, list[tuple[int, int, int]]]:
        """Of each recording the lowest and the highest number in each of its files."""
        extents: dict[bytes, list[tuple[int, int, int]]] = {}
        for which, segment in enumerate(self._segments):
            low, high = segment.extent or (0, MAX_COUNT)
            for tape, first in segment.recordings.items():
                extents.setdefault(tape, []).append((0 if first else low, high, which))
        return extents

    def _may_have(self, ref: CallRef) -> list[int]:
        """The files that can have a call, by number and in order: those that begin before it and
        reach as far."""
        extents = self._extents.get(ref.tape, ())
        return [which for low, high, which in extents if low <= ref.number <= high]

    def _at(self, index: int) -> Call:
        which = bisect.bisect_right(self._ends, index)
        segment = self._segments[which]
        before = self._ends[which] - self._lengths[which]
        if index - before >= len(segment.order):  # damaged calls were left out meanwhile
            raise NoCallError(f"call {index} is corrupted, or follows a corrupted call")
        return Call(segment, segment.order[index - before], index, self._classes)


def whole_calls(calls: Iterable[Call], *, entries: bool = False) -> Iterator[Call]:
    """The calls whose tensors are as their checksums say. A call that is damaged is skipped, and
    its tape tells of it.

    Args:
        calls: of a tape.
        entries: as for :meth:`Call.check`.
    """
    return _undamaged(calls, lambda call: call.check(entries=entries))


def _undamaged(calls: Iterable[Call], look: Callable[[Call], object]) -> Iterator[Call]:
    """The calls at which a look finds no damage."""
    for call in calls:
        try:
            look(call)
        except TapeError as error:
            if not is_damage(error):
                raise
        else:
            yield call


class RecordedCalls(Shown):
    """The calls of one or several tape files.

    ``len()`` counts the calls whose records are whole, ``[i]`` is one of them (negative and slices
    too). Iterating also compares each call's tensors with their checksum and skips the calls that
    are damaged; :attr:`damage` then says which. :attr:`calls` is the same sequence without that
    look at the tensors.
    """

    def __init__(self, segments: Sequence[Segment], damage: Damage, classes: Classes) -> None:
        self._segments = tuple(segments)
        self._damage = damage
        self._classes = ClassIndex.of(classes)
        self._calls = Calls(self._segments, self._classes)
        self._target = common_target(self._segments)

    def __repr__(self) -> str:
        ahead = len(self.under_way)
        died = f", {ahead} of them {UNDER_WAY_WORDS}" if ahead else ""
        files, calls = ", ".join(self.paths[:3]), counted(len(self), "call")
        return f"<{type(self).__name__} {files}: {calls}{died}>"

    def _sketch(self) -> Sketch:
        """From what is known: no file is scanned for it."""
        coverage, damage = self.coverage, len(self._damage.list())
        at_least = "at least " if coverage.at_least else ""
        facts = [
            ("target", target_name(self._target)),
            ("files", f"{len(self.paths):,}: {some_of(self.paths, 2)}"),
            ("calls", f"{len(self):,} of {at_least}{coverage.seen:,} that were seen"),
            ("bytes", self.nbytes),
            ("sealed", "yes" if self.sealed and not self.continues else "no"),
            ("damage", f"{damage:,} places" if damage else "none found"),
        ]
        return Sketch(type(self).__name__, facts)

    def __len__(self) -> int:
        return len(self._calls)

    @overload
    def __getitem__(self, index: int) -> Call: ...

    @overload
    def __getitem__(self, index: slice) -> list[Call]: ...

    def __getitem__(self, index: int | slice) -> Call | list[Call]:
        return self._calls[index]

    def __iter__(self) -> Iterator[Call]:
        # Now, not at the first call: `list()` takes memory for as many calls as the end claims.
        return whole_calls(iter(self._calls))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the files. Values that were read stay valid; reading on is a ``closed``
        error."""
        for segment in self._segments:
            segment.close()

    @property
    def classes(self) -> tuple[type, ...]:
        """The classes that the caller of :func:`open_tape` allowed."""
        return self._classes.given

    @property
    def class_index(self) -> ClassIndex:
        """The same, with those that this process wants anyway."""
        return self._classes

    @property
    def calls(self) -> Calls:
        """The calls as a plain sequence, whose tensors are not looked at."""
        return self._calls

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The open files, in the order of the calls."""
        return self._segments

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, in the order of the calls."""
        return tuple(segment.path for segment in self._segments)

    @property
    def source(self) -> Literal["records", "end"]:
        """What answers are read from: ``records`` if every file was scanned, call by call, or
        ``end`` while what some files say of all their calls at their end is all that was read
        of these. It was not compared with their records; ``open_tape(..., scan=True)`` does
        that."""
        return (
            "end"
            if any(segment.unscanned_end is not None for segment in self._segments)
            else "records"
        )

    @property
    def records_read(self) -> int:
        """How many records were read so far, each compared with what its file says of it. Answers
        for all calls read one record for each of the distinct inputs, or none (:attr:`source`);
        ``open_tape(..., scan=True)`` reads all."""
        return sum(segment.records_read for segment in self._segments)

    @property
    def nbytes(self) -> int:
        """Size of the files in bytes, when they were opened."""
        return sum(segment.size for segment in self._segments)

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """The first member of each file: what wrote it, when, and with which policy."""
        return tuple(segment.manifest for segment in self._segments)

    @property
    def manifest(self) -> Manifest:
        """The manifest of the first file."""
        return self._segments[0].manifest

    @property
    def target(self) -> Target | None:
        """What was recorded: class, method and signature; None if the tape does not say."""
        return self._target

    @property
    def sealed(self) -> bool:
        """Whether every file ends as a closed recorder leaves it. An unsealed one is as readable;
        its process was killed, or is still recording."""
        return all(segment.end is not None for segment in self._segments)

    @property
    def continues(self) -> bool:
        """Whether a recording goes on after the last of its files here, although that is sealed:
        its recorder still runs or was killed, or later files were not opened."""
        return any(map(goes_on, recordings_of(self._segments)))

    @property
    def unfinished(self) -> int:
        """Bytes at the end of unsealed files that belong to a call which was being written."""
        return sum(segment.unfinished for segment in self._segments)

    @property
    def coverage(self) -> Coverage:
        """How much of the traffic is on the tape: calls seen, kept, and dropped by reason, those
        that were not to be kept (``unwanted``) among them. If the recorder still runs or was
        killed, at least so many were seen (``at_least``), until a time (``counted_ns``): as far as
        it had written what it counted, and as the numbers of the calls tell. What came before a
        recorder was attached, none saw (:attr:`observed`)."""
        return coverage_of(self._segments)

    @property
    def observed(self) -> dict[bytes, Observed]:
        """Of each recording (by its id) of what was running before: since when its calls were
        seen. How many came before that, nobody knows."""
        by_tape = ((s.manifest.tape, s.manifest.observed) for s in self._segments)
        return {tape: observed for tape, observed in by_tape if observed is not None}

    @property
    def under_way(self) -> tuple[Call, ...]:
        """The calls that were written ahead and had not ended when the process died (or have not
        ended yet): their inputs are known, and nothing else."""
        return tuple(
            self._calls.at(CallRef(segment.manifest.tape, segment.numbers[position]))
            for segment in self._segments
            if segment.is_ahead
            for position in segment.order
        )

    @property
    def missing_files(self) -> dict[bytes, tuple[int, ...]]:
        """Per recording (by its id) that lacks any, the numbers of its files that are not here,
        without those that the recorder deleted: somebody removed them, or they were not opened."""
        return missing_numbers(self._segments)

    @property
    def deleted_files(self) -> dict[bytes, FileNumbers]:
        """Per recording (by its id), the numbers of the files that the recorder deleted, because
        the disk was full or they were old, as runs: the first and the last number of each. Their
        calls are counted in :attr:`coverage`."""
        return deleted_files(self._segments)

    @property
    def redacted(self) -> Redacted | None:
        """How much of the tape was redacted, as its history says: ``all``, or ``part`` if it is
        made of redacted tapes and of others; None for nothing."""
        return redacted_of_all(redacted_of_steps(m.history or ()) for m in self.manifests)

    @property
    def dumps(self) -> tuple[Dump, ...]:
        """When the calls of a flight recorder were written, and why, in the order of time."""
        ends = (segment.end for segment in self._segments)
        dumps = (dump for end in ends if end is not None for dump in end.dumps)
        return tuple(sorted(dumps, key=lambda dump: dump.time_ns))

    @property
    def damage(self) -> list[TapeError]:
        """Everything that was found wrong so far, each with file, member and byte offset."""
        return self._damage.list()

    def find(self, address: int | str) -> Call:
        """The call of a number (:attr:`Call.number`) or an address (:attr:`Call.address`).

        Raises:
            UsageError: for anything else; no call, or calls of several recordings, have it.
        """
        ranges = ranges_of(address)
        if len(ranges) != 1 or ranges[0].first != ranges[0].last:
            raise UsageError(f"{address!r} is not one call", advice="write 12 or 3f9a01bc:12")
        calls: list[Call] = []
        for tape in dict.fromkeys(segment.manifest.tape for segment in self._segments):
            if ranges[0].is_of(tape):
                try:
                    calls.append(self._calls.at(CallRef(tape, ranges[0].first)))
                except TapeError as error:
                    if error.kind != "usage":
                        raise
        if not calls:
            raise no_call(str(ranges[0])) if self._calls.has_single_calls else no_single_call()
        if len(calls) > 1:
            named = some_of([f"{call.address} ({call.path})" for call in calls], _MAX_NAMED)
            reason = f"call {ranges[0]} is in several recordings: {named}"
            raise UsageError(reason, advice="write one of these addresses")
        return calls[0]

    @bounded()
    def verify(self) -> list[TapeError]:
        """Compares every tensor byte with its checksum, every tree with the format, and what the
        ends say of ranges with the records. A survey has no more than the trees of its table.

        Returns:
            All damage that is known now; empty for a clean tape.
        """
        if self._calls.has_single_calls:
            for _ in whole_calls(self._calls, entries=True):
                pass
        for segment in self._segments:
            segment.check_table()
        return self.damage

    def _leave_out_damaged(self) -> None:
        for segment in self._segments:
            segment.drop_damaged()
        self._calls = Calls(self._segments, self._classes)
