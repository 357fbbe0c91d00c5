"""Calls of open tapes, written to a new one: what every way of making a tape shares.

In come the calls that are wanted. They are copied one by one, with the numbers that they get, and
without the values that are not wanted. Out go a sealed tape and a report.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple, Protocol, TypeAlias

from pydantic import ValidationError

from calltape_analyzer.editing.accounts import closing_time, unkept_of
from calltape_analyzer.editing.edit_report import EditReport
from calltape_analyzer.editing.numbering import Numbering, numbering_of
from calltape_analyzer.editing.spare_calls import SpareCalls
from calltape_analyzer.progress import steps
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.reading.damage import RepeatedCallsError, is_damage
from calltape_analyzer.reading.recordings import recordings_of
from calltape_analyzer.reading.urls import shown
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted, some_of
from calltape_analyzer.writing.coverage import calls_in, coverage_for
from calltape_analyzer.writing.lineage import derived
from calltape_analyzer.writing.tape_writer import TapeWriter
from calltape_schema.bounds import MAX_GROUP_CALLS
from calltape_schema.end import Coverage, Dump
from calltape_schema.errors import LostCallsError, TapeError
from calltape_schema.inputs_table import InputsTable
from calltape_schema.records import CallRecord, Manifest
from calltape_schema.tar import blob_name

__all__ = ["Change", "Revision", "Rewriting", "rewrite"]

_MAX_NAMED = 8
_MAX_DUMPS = 1000


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

    def dump(self, dump: Dump) -> Dump:
        """A dump of a flight recorder."""
        return dump

    def moment(self, time_ns: int) -> int:
        """A time."""
        return time_ns


class Rewriting:
    """How a tape is made of another one.

    Args:
        verb, options: what is done, for the history.
        numbering: by default, calls of one recording stay as they are.
        change: what is done to each call; None for nothing.
        revision: what is done to the rest.
        thorough: whether each call is checked against the format before it is written.
        keeps_counters: whether the inputs of calls that are on no tape stay if no call is left
            out.
        spares: whether a damaged call is taken from another file that has it too.
        origin: the id of the only recording that is wanted, of those that were merged before.
        coverage: gives the coverage, of the number of calls that were written and the highest
            number among them; by default that of the tape that is read, with what is left out.
    """

    def __init__(
        self,
        verb: str,
        options: Mapping[str, Any],
        *,
        numbering: Numbering | None = None,
        change: Change | None = None,
        revision: Revision | None = None,
        thorough: bool = False,
        keeps_counters: bool = True,
        spares: bool = False,
        origin: bytes | None = None,
        coverage: Callable[[int, int], Coverage] | None = None,
    ) -> None:
        self.verb = verb
        self.options = dict(options)
        self.numbering = numbering
        self.change = change
        self.revision = revision or Revision()
        self.thorough = thorough
        self.keeps_counters = keeps_counters
        self.spares = spares
        self.origin = origin
        self.coverage = coverage


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
    numbering = how.numbering or numbering_of(segments)
    left_out = max(calls_in(segments) - wanted, 0)
    manifest = _manifest(tape, how, numbering, left_out)
    with TapeWriter(path, manifest, overwrite=overwrite, inputs=tape.paths) as writer:
        with closing(SpareCalls(tape)) as spares:
            found = steps(calls, "calls", wanted)
            copied = _copied(writer, found, numbering, how, spares if how.spares else None)
        _seal(writer, tape, how, left_out, copied.highest)
        count = writer.calls
    spared = list(_spared(tape, copied))
    return EditReport(
        path=os.fspath(path),
        tape=numbering.tape.hex(),
        calls=count,
        left_out=left_out,
        lost=tuple(_lost(tape, copied, spared)),
        notes=tuple(_notes(tape, copied, spared)),
        bytes_read=tape.nbytes,
        bytes_written=os.stat(path).st_size,
    )


def _manifest(tape: Tape, how: Rewriting, numbering: Numbering, left_out: int) -> Manifest:
    """The manifest of the new tape."""
    segments = tape.segments
    manifest = derived(
        segments, how.verb, how.options, tape=numbering.tape, firsts=numbering.firsts,
        left_out=_left_out_of_one(tape, left_out), origin=how.origin,
    )  # fmt: skip
    if numbering.changes and len(recordings_of(segments)) == 1:
        manifest = manifest.model_copy(update={"segment": None})
    return how.revision.manifest(manifest)


class _Copied(NamedTuple):
    """What became of the calls.

    Attributes:
        highest: the highest number of a call that was written, or -1.
        damaged: the damaged calls that were not written, each with its damage.
        saved: the damaged calls that were written all the same, each with its damage, and with the
            one of another file that was taken in its place.
    """

    highest: int
    damaged: list[tuple[Call, TapeError]]
    saved: list[tuple[Call, TapeError, Call]]


def _copied(
    writer: TapeWriter,
    calls: Iterable[Call],
    numbering: Numbering,
    how: Rewriting,
    spares: SpareCalls | None,
) -> _Copied:
    """Writes the calls, but for damaged ones of which no file has a whole copy."""
    damaged: list[tuple[Call, TapeError]] = []
    saved: list[tuple[Call, TapeError, Call]] = []
    highest = -1
    for call in calls:
        number = numbering.number_of(*call.ref)
        wrong = _written(writer, call, number, how)
        if wrong is not None:
            others = spares.of(call) if spares is not None else ()
            other = next((o for o in others if _written(writer, o, number, how) is None), None)
            if other is None:
                damaged.append((call, wrong))
                continue
            saved.append((call, wrong, other))
        highest = max(highest, number)
    return _Copied(highest, damaged, saved)


def _written(writer: TapeWriter, call: Call, number: int, how: Rewriting) -> TapeError | None:
    """Writes a call. If it is damaged, nothing of it is written, and what is wrong comes back."""
    try:
        _write(writer, call, number, how)
    except TapeError as error:
        if not is_damage(error) or error.kind not in ("damaged", "invalid", "limit"):
            raise
        return error
    return None


def _seal(writer: TapeWriter, tape: Tape, how: Rewriting, left_out: int, highest: int) -> None:
    """Writes the accounts of the new tape."""
    coverage = (
        coverage_for(tape.segments, writer.calls, left_out)
        if how.coverage is None
        else how.coverage(writer.calls, highest)
    )
    is_whole = not left_out and how.keeps_counters
    unkept = how.revision.unkept(unkept_of(tape.whole.segments)) if is_whole else None
    try:
        writer.seal(
            coverage,
            unkept=unkept,
            dumps=[how.revision.dump(dump) for dump in tape.dumps[-_MAX_DUMPS:]],
            closed_ns=how.revision.moment(closing_time(tape.segments)),
        )
    except ValidationError as error:
        raise TapeError("limit", f"the accounts break the format: {error}") from None


def _write(writer: TapeWriter, call: Call, number: int, how: Rewriting) -> None:
    if how.thorough:
        call.check(entries=True)
    if how.change is None:
        writer.copy(call, number=number)
        return
    record, values = how.change.apply(call)
    writer.write(record.model_copy(update={"call": number}), values)


def _left_out_of_one(tape: Tape, left_out: int) -> dict[bytes, int]:
    """How many calls of each recording are left out, if that is known: of one recording."""
    recordings = {segment.manifest.tape for segment in tape.segments}
    return dict.fromkeys(recordings, left_out) if len(recordings) == 1 else {}


_Spared: TypeAlias = tuple[TapeError, Call]
"""The damage of a call in one file, and the call as another file has it."""


def _lost(tape: Tape, copied: _Copied, spared: Sequence[_Spared]) -> Iterator[str]:
    """What is not on the new tape although nobody left it out."""
    wrong = [error for _, error, _ in copied.saved] + [error for error, _ in spared]
    saved = {str(error) for error in wrong}
    # Where a member is not there, a walk over the file finds no member, and does not know of which
    # call it was.
    places = {(error.path, error.offset) for error in wrong}
    places |= {(error.path, error.offset) for _, error in copied.damaged}
    told: set[str] = set()
    for error in tape.damage:
        is_known = error.member is None and (error.path, error.offset) in places
        if isinstance(error, RepeatedCallsError) or is_known or str(error) in saved:
            continue
        told.add(str(error))
        yield str(error)
    untold = [str(call.number) for call, error in copied.damaged if str(error) not in told]
    if untold:
        shown = some_of(untold, _MAX_NAMED)
        yield f"{counted(len(untold), 'call')} could not be copied: {shown}"
    if tape.unfinished:
        yield f"{tape.unfinished} bytes of calls that were being written"


def _spared(tape: Tape, copied: _Copied) -> Iterator[_Spared]:
    """The damage of calls that another file has too, whole, so that they count there."""
    recordings = {
        path: segment.manifest.tape
        for segment in tape.segments
        for path in (segment.path, *map(shown, segment.copies))
    }
    lost = {call.ref for call, _ in copied.damaged}
    for error in tape.damage:
        recording = recordings.get(error.path or "")
        found = [_at(tape, recording, number) for number in _numbers_of(error)]
        calls = [call for call in found if call is not None]
        if len(calls) == len(found) and all(
            call.path != error.path and call.ref not in lost for call in calls
        ):
            for call in calls:
                yield error, call


def _at(tape: Tape, recording: bytes | None, number: int) -> Call | None:
    """A call of a recording; None if no file has it."""
    try:
        return None if recording is None else tape.calls.at(CallRef(recording, number))
    except TapeError:
        return None


def _numbers_of(error: TapeError) -> Sequence[int]:
    """The numbers of the calls that damage hit; none if it is not known."""
    if isinstance(error, LostCallsError):
        is_known = error.calls == error.high + 1 - error.low <= MAX_GROUP_CALLS
        return range(error.low, error.high + 1) if is_known else ()
    member = error.member or ""
    found = "".join(filter(str.isdigit, member.removeprefix("blobs/").partition(".")[0]))
    return [int(found)] if found and member == blob_name(int(found)) else []


def _notes(tape: Tape, copied: _Copied, spared: Sequence[_Spared]) -> Iterator[str]:
    """What is to be known of calls that several files have."""
    yield from (str(error) for error in tape.damage if isinstance(error, RepeatedCallsError))
    pairs = [(call.number, call.path, other.path) for call, _, other in copied.saved]
    pairs += [(call.number, error.path or "", call.path) for error, call in spared]
    for number, damaged, whole in pairs[:_MAX_NAMED]:
        names = _names(damaged, whole)
        yield f"call {number} is damaged in {names[0]}; {names[1]} has it whole"
    if len(pairs) > _MAX_NAMED:
        more = counted(len(pairs) - _MAX_NAMED, "more damaged call")
        yield f"{more} that another file has whole"


def _names(path: str, other: str) -> tuple[str, str]:
    """The names of two files; if they are the same, the paths."""
    names = os.path.basename(path), os.path.basename(other)
    return names if names[0] != names[1] else (path, other)
