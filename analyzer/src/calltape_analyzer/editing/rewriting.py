"""Writing calls of open tapes to a new, sealed tape: the loop behind filter, merge, recover and
redact.

Calls are copied one by one and renumbered. A :class:`Rewrite` can rewrite each call and whatever
else the tape says.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import ValidationError

from calltape_analyzer.errors import Damage, RepeatedCallsError, is_damage
from calltape_analyzer.plain_data import PlainData, Text, Texts
from calltape_analyzer.progress import steps
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.reading.urls import displayed_url
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted, printable, some_of
from calltape_analyzer.writing.lineage import (
    closing_time,
    count_intact,
    coverage_for,
    derived_manifest,
    numbering_of,
    unkept_of,
)
from calltape_analyzer.writing.new_tape import NewTape
from calltape_schema.bounds import MAX_GROUP_CALLS
from calltape_schema.end import Coverage, Dump
from calltape_schema.errors import OF_CALLS, LostCallsError, TapeError
from calltape_schema.inputs_table import InputsTable
from calltape_schema.records import CallRecord, Manifest
from calltape_schema.tar import blob_name

__all__ = ["EditReport", "Rewrite", "Rewriting", "rewrite"]

_MAX_NAMED = 8
_MAX_DUMPS = 1000


class EditReport(PlainData):
    """The result of writing a tape. ``str()`` of it is text for people.

    Attributes:
        path: the new file.
        tape: its id, in hexadecimal digits.
        calls: how many calls it has.
        left_out: how many calls were left out because they were not selected.
        lost: what could not be copied, in words. Empty if nothing was lost.
        bytes_read, bytes_written: sizes of the files.
        notes: other things that you should know.
    """

    path: Text
    tape: str
    calls: int
    left_out: int = 0
    lost: Texts = ()
    bytes_read: int = 0
    bytes_written: int = 0
    notes: Texts = ()

    def noting(self, *notes: str) -> EditReport:
        """The same report, with more notes."""
        return self.model_copy(update={"notes": (*self.notes, *notes)})

    def __str__(self) -> str:
        size = f"{self.bytes_written:,} of {self.bytes_read:,} bytes"
        parts = [f"{printable(self.path)}: {counted(self.calls, 'call')}, {size}"]
        if self.left_out:
            parts.append(f"left out: {counted(self.left_out, 'call')}")
        parts += [f"lost: {printable(text)}" for text in self.lost]
        parts += [f"note: {printable(text)}" for text in self.notes]
        return "\n".join(parts)


class Rewrite:
    """Changes what is copied from one tape to another. This base class changes nothing; subclasses
    override the methods for the parts that they change."""

    def call(self, call: Call) -> tuple[CallRecord, dict[str, Any]] | None:
        """The new record of a call, and the bytes of its tensors by key. None copies the call as
        it is.

        Raises:
            TapeError: the call is corrupted.
        """
        return None

    def manifest(self, manifest: Manifest) -> Manifest:
        """The manifest of the new tape, which already has the new step in its history."""
        return manifest

    def unkept(self, table: InputsTable) -> InputsTable:
        """The counted inputs of calls that were seen but not kept."""
        return table

    def coverage(self, coverage: Coverage) -> Coverage:
        """How many calls were seen, kept and dropped."""
        return coverage

    def dump(self, dump: Dump) -> Dump:
        """A dump of a flight recorder."""
        return dump

    def time(self, time_ns: int) -> int:
        """A Unix time in nanoseconds."""
        return time_ns


@dataclass(frozen=True)
class Rewriting:
    """How to make a tape from another one.

    Attributes:
        verb, options: the new step in the history.
        change: rewrites calls and everything else.
        validate: whether to check each call against the format before it is written.
        allow_later_dtypes: whether ``validate`` accepts tensors of dtypes that only a later version
            knows; ``change`` must handle them.
        keeps_counters: whether counted inputs of calls that were not kept are copied, provided that
            no call is left out.
        use_copies: whether a corrupted call is replaced by an intact copy from another file.
    """

    verb: str
    options: Mapping[str, Any]
    change: Rewrite = field(default_factory=Rewrite)
    validate: bool = False
    allow_later_dtypes: bool = False
    keeps_counters: bool = True
    use_copies: bool = False


def rewrite(
    tape: Tape,
    path: str | os.PathLike[str],
    calls: Iterable[Call],
    count: int,
    how: Rewriting,
    *,
    overwrite: bool = False,
) -> EditReport:
    """Writes calls of a tape to a new one.

    Args:
        tape: the tape to read.
        path: the path of the new file.
        calls: the calls to write, in order.
        count: how many calls these are.
        how: what to change, and how to deal with corrupted calls.
        overwrite: whether to replace an existing file.

    Raises:
        UsageError: the path is one of the tape's files.
        TapeError: ``exists``, ``io``, ``limit``.
    """
    segments = tape.segments
    numbering = numbering_of(segments)
    left_out = max(count_intact(segments) - count, 0)
    recordings = {segment.manifest.tape for segment in segments}
    manifest = derived_manifest(
        segments, how.verb, how.options, numbering=numbering,
        # With several recordings, nobody knows which of them the calls were left out of.
        left_out=dict.fromkeys(recordings, left_out) if len(recordings) == 1 else {},
    )  # fmt: skip
    manifest = how.change.manifest(manifest)
    lost: list[_Lost] = []
    replaced: list[_Replaced] = []
    with NewTape(path, manifest, overwrite=overwrite, inputs=tape.paths) as writer:
        with contextlib.closing(_Copies(tape)) as copies:
            for call in steps(calls, "calls", count):
                number = numbering.number_of(call.ref.tape, call.ref.number)
                error = _write(writer, call, number, how)
                if error is None:
                    continue
                candidates = copies.of(call) if how.use_copies else ()
                copy = next((c for c in candidates if not _write(writer, c, number, how)), None)
                if copy is None:
                    lost.append(_Lost(error, call))
                else:
                    replaced.append(_Replaced(error, call.path, copy))
        _seal(writer, tape, how, left_out, lost)
        written = writer.calls
    replaced += _read_from_copies(tape, lost)
    return EditReport(
        path=os.fspath(path),
        tape=manifest.tape.hex(),
        calls=written,
        left_out=left_out,
        lost=tuple(_losses(tape, lost, replaced)),
        notes=tuple(_notes(tape, replaced)),
        bytes_read=tape.nbytes,
        bytes_written=os.stat(path).st_size,
    )


class _Lost(NamedTuple):
    """A corrupted call that was not written."""

    error: TapeError
    call: Call


class _Replaced(NamedTuple):
    """A call that is corrupted in the file at ``path``, and its intact copy from another file."""

    error: TapeError
    path: str
    call: Call


def _write(writer: NewTape, call: Call, number: int, how: Rewriting) -> TapeError | None:
    """Writes a call, or returns the error if it is corrupted; then nothing of it is written."""
    try:
        if how.validate:
            call.check(entries=True, later_dtypes=how.allow_later_dtypes)
        changed = how.change.call(call)
        if changed is None:
            writer.copy(call, number=number)
        else:
            record, values = changed
            writer.write(record.model_copy(update={"call": number}), values)
    except TapeError as error:
        if not is_damage(error) or error.kind not in OF_CALLS:
            raise
        return error
    return None


def _seal(
    writer: NewTape, tape: Tape, how: Rewriting, left_out: int, lost: Sequence[_Lost]
) -> None:
    segments, change = tape.segments, how.change
    # Calls that only a later version can read.
    later = {CallRef(s.manifest.tape, number) for s in segments for number in s.later}
    later |= {loss.call.ref for loss in lost if loss.error.kind == "unsupported"}
    later_calls = len(later) + sum(segment.later_in_groups for segment in segments)
    coverage = coverage_for(segments, writer.calls, left_out, later_calls)
    if coverage.counted_ns is not None:
        counted_ns = change.time(coverage.counted_ns)
        coverage = coverage.model_copy(update={"counted_ns": counted_ns})
    keeps_counters = how.keeps_counters and not left_out
    try:
        writer.seal(
            change.coverage(coverage),
            unkept=change.unkept(unkept_of(tape.whole.segments)) if keeps_counters else None,
            dumps=[change.dump(dump) for dump in tape.dumps[-_MAX_DUMPS:]],
            closed_ns=change.time(closing_time(segments)),
        )
    except ValidationError as error:
        raise TapeError("limit", f"the accounts break the format: {error}") from None


def _losses(tape: Tape, lost: Sequence[_Lost], replaced: Sequence[_Replaced]) -> Iterator[str]:
    """What the new tape lacks although it was selected, in words."""
    # The scan of a file reports a missing member without its call; the copy of the call, with it.
    errors = [*(loss.error for loss in lost), *(loss.error for loss in replaced)]
    places = {(error.path, error.offset) for error in errors}
    intact_elsewhere = {str(loss.error) for loss in replaced}
    corruption = {
        str(error): None
        for error in tape.damage
        if not isinstance(error, RepeatedCallsError)
        and not (error.member is None and (error.path, error.offset) in places)
        and str(error) not in intact_elsewhere
    }
    yield from corruption
    uncopied = [str(loss.call.number) for loss in lost if str(loss.error) not in corruption]
    if uncopied:
        shown = some_of(uncopied, _MAX_NAMED)
        yield f"{counted(len(uncopied), 'call')} could not be copied: {shown}"
    if tape.unfinished:
        yield f"{tape.unfinished} bytes of calls that were being written"


def _read_from_copies(tape: Tape, lost: Sequence[_Lost]) -> Iterator[_Replaced]:
    """The corrupted calls that the open tape itself reads from an intact copy in another file."""
    recordings = {
        path: segment.manifest.tape
        for segment in tape.segments
        for path in (segment.path, *map(displayed_url, segment.copies))
    }
    refs = {loss.call.ref for loss in lost}
    for error in tape.damage:
        path = error.path or ""
        numbers = _numbers_of(error) if path in recordings else ()
        try:
            calls = [tape.calls.at(CallRef(recordings[path], number)) for number in numbers]
        except TapeError:
            continue  # no file has it
        if all(call.path != path and call.ref not in refs for call in calls):
            yield from (_Replaced(error, path, call) for call in calls)


def _numbers_of(error: TapeError) -> Sequence[int]:
    """The numbers of the corrupted calls; empty if unknown."""
    if isinstance(error, LostCallsError):
        is_known = error.calls == error.high + 1 - error.low <= MAX_GROUP_CALLS
        return range(error.low, error.high + 1) if is_known else ()
    member = error.member or ""
    digits = "".join(filter(str.isdigit, member.removeprefix("blobs/").partition(".")[0]))
    return [int(digits)] if digits and member == blob_name(int(digits)) else []


def _notes(tape: Tape, replaced: Sequence[_Replaced]) -> Iterator[str]:
    """Notes on calls that several files have."""
    yield from (str(error) for error in tape.damage if isinstance(error, RepeatedCallsError))
    for _, path, call in replaced[:_MAX_NAMED]:
        names = os.path.basename(path), os.path.basename(call.path)
        corrupted, intact = names if names[0] != names[1] else (path, call.path)
        yield f"call {call.number} is corrupted in {corrupted}; {intact} has it whole"
    if len(replaced) > _MAX_NAMED:
        more = counted(len(replaced) - _MAX_NAMED, "more corrupted call")
        yield f"{more} that another file has whole"


class _Copies:
    """Copies of calls in other files of a tape. An open tape closes a file whose calls are all in
    another one; such files are opened again here, until :meth:`close`."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._reopened: dict[str, Segment | None] = {}

    def close(self) -> None:
        """Closes the files that were opened again."""
        for segment in self._reopened.values():
            if segment is not None:
                segment.close()

    def of(self, call: Call) -> Iterator[Call]:
        """The calls of other files with the same record. A record contains the checksum of its
        values, so these are equal too, or corrupted."""
        for segment in self._other_files(call):
            position = segment.position(call.number)
            if position is None:
                continue
            copy, is_same = Call(segment, position, call.index, self._tape.class_index), False
            with contextlib.suppress(TapeError):  # an unreadable record is no copy
                is_same = call.is_same(copy)
            if is_same:
                yield copy

    def _other_files(self, call: Call) -> Iterator[Segment]:
        for segment in self._tape.segments:
            if segment.manifest.tape != call.ref.tape:
                continue
            if segment.path != call.path:
                yield segment
            for location in segment.copies:
                reopened = self._reopen(location)
                if reopened is not None:
                    yield reopened

    def _reopen(self, location: str) -> Segment | None:
        if location not in self._reopened:
            self._reopened[location] = None  # the file may be gone by now
            with contextlib.suppress(TapeError):
                segment = Segment(location, Damage())
                try:
                    segment.scan()
                except TapeError:
                    segment.close()
                    raise
                self._reopened[location] = segment
        return self._reopened[location]
