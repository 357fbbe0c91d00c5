"""Calls of open tapes, written to a new one: what every way of making a tape shares.

Takes the calls that are wanted. They are copied one by one, with the numbers that they get, and
without the values that are not wanted. Returns a sealed tape and a report.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

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
    Numbering,
    calls_in,
    closing_time,
    coverage_for,
    derived,
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

__all__ = ["Change", "EditReport", "Revision", "Rewriting", "rewrite"]

_MAX_NAMED = 8
_MAX_DUMPS = 1000


class EditReport(PlainData):
    """The result of writing a tape. ``str()`` of it is text for people.

    Attributes:
        path: the new file.
        tape: its id, in hexadecimal digits.
        calls: how many calls it has.
        left_out: how many calls were left out because they were not selected.
        lost: what the tapes that were read have, and the new one lacks although nobody left it out,
            in words. Empty if nothing was lost.
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


class Change(Protocol):
    """What is done to each call."""

    def apply(self, call: Call) -> tuple[CallRecord, dict[str, Any]]:
        """The record of a call on the new tape, and the bytes that its leaves have there."""
        ...


class Revision:
    """What is done to everything on a tape that is no call: nothing, unless a subclass does."""

    def manifest(self, manifest: Manifest) -> Manifest:
        """The manifest of the new tape, from what it would be."""
        return manifest

    def unkept(self, table: InputsTable) -> InputsTable:
        """The counted inputs of calls that are on no tape."""
        return table

    def coverage(self, coverage: Coverage) -> Coverage:
        """What became of the calls."""
        return coverage

    def dump(self, dump: Dump) -> Dump:
        """A dump of a flight recorder."""
        return dump

    def moment(self, time_ns: int) -> int:
        """A time."""
        return time_ns


@dataclass(frozen=True)
class Rewriting:
    """How a tape is made of another one.

    Attributes:
        verb, options: what is done, for the history.
        change: what is done to each call; None for nothing.
        revision: what is done to the rest.
        thorough: whether each call is checked against the format before it is written. What is
            done to each call then has to do with tensors of dtypes that nobody knows yet.
        keeps_counters: whether the inputs of calls that are on no tape stay if no call is left
            out.
        spares: whether a damaged call is taken from another file that has it too.
    """

    verb: str
    options: Mapping[str, Any]
    change: Change | None = None
    revision: Revision = field(default_factory=Revision)
    thorough: bool = False
    keeps_counters: bool = True
    spares: bool = False


def rewrite(
    tape: Tape,
    path: str | os.PathLike[str],
    calls: Iterable[Call],
    wanted: int,
    how: Rewriting,
    *,
    overwrite: bool = False,
) -> EditReport:
    """Writes calls of a tape to a new one.

    Args:
        tape: what is read.
        path: of the new file.
        calls: the wanted ones, in order.
        wanted: how many they are.
        how: the rest.
        overwrite: whether a file that is there already is replaced.

    Raises:
        UsageError: the path is one of the tape's files.
        TapeError: ``exists``, ``io``, ``limit``.
    """
    segments = tape.segments
    numbering = numbering_of(segments)
    left_out = max(calls_in(segments) - wanted, 0)
    recordings = {segment.manifest.tape for segment in segments}
    manifest = derived(
        segments, how.verb, how.options, numbering=numbering,
        # Of one recording it is known how many of its calls these are.
        left_out=dict.fromkeys(recordings, left_out) if len(recordings) == 1 else {},
    )  # fmt: skip
    manifest = how.revision.manifest(manifest)
    with NewTape(path, manifest, overwrite=overwrite, inputs=tape.paths) as writer:
        with contextlib.closing(_SpareCalls(tape)) as spares:
            found = steps(calls, "calls", wanted)
            lost, saved = _copied(writer, found, numbering, how, spares if how.spares else None)
        _seal(writer, tape, how, left_out, _later(segments, lost))
        count = writer.calls
    saved += _saved_elsewhere(tape, lost)
    return EditReport(
        path=os.fspath(path),
        tape=manifest.tape.hex(),
        calls=count,
        left_out=left_out,
        lost=tuple(_losses(tape, lost, saved)),
        notes=tuple(_notes(tape, saved)),
        bytes_read=tape.nbytes,
        bytes_written=os.stat(path).st_size,
    )


class _Lost(NamedTuple):
    """A damaged call that was not written."""

    error: TapeError
    call: Call


class _Saved(NamedTuple):
    """A call that is damaged in the file of this path, and was written as another file has it."""

    error: TapeError
    path: str
    call: Call


def _copied(
    writer: NewTape,
    calls: Iterable[Call],
    numbering: Numbering,
    how: Rewriting,
    spares: _SpareCalls | None,
) -> tuple[list[_Lost], list[_Saved]]:
    """Writes the calls, but for damaged ones of which no file has a whole copy."""
    lost, saved = list[_Lost](), list[_Saved]()
    for call in calls:
        number = numbering.number_of(call.ref.tape, call.ref.number)
        wrong = _written(writer, call, number, how)
        if wrong is not None:
            others = spares.of(call) if spares is not None else ()
            other = next((o for o in others if _written(writer, o, number, how) is None), None)
            if other is None:
                lost.append(_Lost(wrong, call))
            else:
                saved.append(_Saved(wrong, call.path, other))
    return lost, saved


def _written(writer: NewTape, call: Call, number: int, how: Rewriting) -> TapeError | None:
    """Writes a call. If it is damaged, nothing of it is written, and what is wrong comes back."""
    try:
        if how.thorough:
            call.check(entries=True, later_dtypes=how.change is not None)
        if how.change is None:
            writer.copy(call, number=number)
        else:
            record, values = how.change.apply(call)
            writer.write(record.model_copy(update={"call": number}), values)
    except TapeError as error:
        if not is_damage(error) or error.kind not in OF_CALLS:
            raise
        return error
    return None


def _later(segments: Sequence[Segment], lost: Sequence[_Lost]) -> int:
    """How many calls were not written because only a later version can read them."""
    calls = {CallRef(one.manifest.tape, number) for one in segments for number in one.later}
    calls |= {one.call.ref for one in lost if one.error.kind == "unsupported"}
    return len(calls) + sum(one.later_in_groups for one in segments)


def _seal(writer: NewTape, tape: Tape, how: Rewriting, left_out: int, later: int) -> None:
    """Writes the accounts of the new tape. ``later`` is how many calls need a later version."""
    is_whole = not left_out and how.keeps_counters
    unkept = how.revision.unkept(unkept_of(tape.whole.segments)) if is_whole else None
    coverage = coverage_for(tape.segments, writer.calls, left_out, later)
    if coverage.counted_ns is not None:
        until = how.revision.moment(coverage.counted_ns)
        coverage = coverage.model_copy(update={"counted_ns": until})
    try:
        writer.seal(
            how.revision.coverage(coverage),
            unkept=unkept,
            dumps=[how.revision.dump(dump) for dump in tape.dumps[-_MAX_DUMPS:]],
            closed_ns=how.revision.moment(closing_time(tape.segments)),
        )
    except ValidationError as error:
        raise TapeError("limit", f"the accounts break the format: {error}") from None


def _losses(tape: Tape, lost: Sequence[_Lost], saved: Sequence[_Saved]) -> Iterator[str]:
    """What is not on the new tape although nobody left it out."""
    # Where a member is not there, a walk over the file finds no member, and does not know of which
    # call it was.
    wrong = [*(one.error for one in lost), *(one.error for one in saved)]
    places = {(error.path, error.offset) for error in wrong}
    whole = {str(one.error) for one in saved}
    told = {
        str(error): None
        for error in tape.damage
        if not isinstance(error, RepeatedCallsError)
        and not (error.member is None and (error.path, error.offset) in places)
        and str(error) not in whole
    }
    yield from told
    untold = [str(one.call.number) for one in lost if str(one.error) not in told]
    if untold:
        shown = some_of(untold, _MAX_NAMED)
        yield f"{counted(len(untold), 'call')} could not be copied: {shown}"
    if tape.unfinished:
        yield f"{tape.unfinished} bytes of calls that were being written"


def _saved_elsewhere(tape: Tape, lost: Sequence[_Lost]) -> Iterator[_Saved]:
    """The damaged calls that another file has too, whole, so that they count there."""
    recordings = {
        path: segment.manifest.tape
        for segment in tape.segments
        for path in (segment.path, *map(displayed_url, segment.copies))
    }
    refs = {one.call.ref for one in lost}
    for error in tape.damage:
        path = error.path or ""
        numbers = _numbers_of(error) if path in recordings else ()
        try:
            calls = [tape.calls.at(CallRef(recordings[path], number)) for number in numbers]
        except TapeError:
            continue  # no file has it
        if all(call.path != path and call.ref not in refs for call in calls):
            yield from (_Saved(error, path, call) for call in calls)


def _numbers_of(error: TapeError) -> Sequence[int]:
    """The numbers of the calls that damage hit; none if it is not known."""
    if isinstance(error, LostCallsError):
        is_known = error.calls == error.high + 1 - error.low <= MAX_GROUP_CALLS
        return range(error.low, error.high + 1) if is_known else ()
    member = error.member or ""
    found = "".join(filter(str.isdigit, member.removeprefix("blobs/").partition(".")[0]))
    return [int(found)] if found and member == blob_name(int(found)) else []


def _notes(tape: Tape, saved: Sequence[_Saved]) -> Iterator[str]:
    """What is to be known of calls that several files have."""
    yield from (str(error) for error in tape.damage if isinstance(error, RepeatedCallsError))
    for _, path, call in saved[:_MAX_NAMED]:
        names = os.path.basename(path), os.path.basename(call.path)
        damaged, whole = names if names[0] != names[1] else (path, call.path)
        yield f"call {call.number} is corrupted in {damaged}; {whole} has it whole"
    if len(saved) > _MAX_NAMED:
        more = counted(len(saved) - _MAX_NAMED, "more corrupted call")
        yield f"{more} that another file has whole"


class _SpareCalls:
    """The calls of a tape that count in one file, as other files have them. Files that were closed
    as copies are opened again when they are needed, until :meth:`close`."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._opened: dict[str, Segment | None] = {}

    def close(self) -> None:
        """Closes what was opened."""
        for segment in self._opened.values():
            if segment is not None:
                segment.close()

    def of(self, call: Call) -> Iterator[Call]:
        """The calls of other files with the same record. It has the checksum of the values, so that
        they are the same too, or damaged."""
        for segment in self._others(call):
            position = segment.position(call.number)
            if position is None:
                continue
            spare, is_it = Call(segment, position, call.index, self._tape.class_index), False
            with contextlib.suppress(TapeError):  # then nothing tells
                is_it = call.is_same(spare)
            if is_it:
                yield spare

    def _others(self, call: Call) -> Iterator[Segment]:
        """The other files of its recording."""
        for segment in self._tape.segments:
            if segment.manifest.tape != call.ref.tape:
                continue
            if segment.path != call.path:
                yield segment
            for location in segment.copies:
                copied = self._copy(location)
                if copied is not None:
                    yield copied

    def _copy(self, location: str) -> Segment | None:
        if location not in self._opened:
            self._opened[location] = None  # it was read before, and may be gone
            with contextlib.suppress(TapeError):
                found = Segment(location, Damage())
                try:
                    found.scan()
                except TapeError:
                    found.close()
                    raise
                self._opened[location] = found
        return self._opened[location]
