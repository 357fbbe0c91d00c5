"""The files of a tape as one sequence of calls, with what the recorder said of them.

In come segments. Out go calls, in order, and facts: manifests, coverage, damage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Literal, overload

from typing_extensions import Self

from calltape_analyzer.limits import bounded
from calltape_analyzer.notebook import Shown, Sketch
from calltape_analyzer.pytree.classes import Classes, ClassIndex
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.reading.calls import Calls
from calltape_analyzer.reading.damage import Damage, is_damage
from calltape_analyzer.reading.recordings import (
    coverage_of,
    deleted_files,
    goes_on,
    missing_numbers,
    recordings_of,
)
from calltape_analyzer.reading.segment import UNDER_WAY_WORDS, Segment
from calltape_analyzer.reading.selection import call_at
from calltape_analyzer.reading.targets import common_target, target_name
from calltape_analyzer.text import counted, some_of
from calltape_schema.end import Coverage, Dump, FileNumbers
from calltape_schema.errors import TapeError
from calltape_schema.records import (
    Manifest,
    Observed,
    Redacted,
    Target,
    redacted_of_all,
    redacted_of_steps,
)

__all__ = ["RecordedCalls"]


def whole_calls(calls: Iterable[Call], *, entries: bool = False) -> Iterator[Call]:
    """The calls whose tensors are as their checksums say. A call that is damaged is skipped, and
    its tape tells of it.

    Args:
        calls: of a tape.
        entries: as for :meth:`Call.check`.
    """
    for call in calls:
        try:
            call.check(entries=entries)
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

    def __init__(self, segments: Sequence[Segment], damage: Damage, classes: Classes = ()) -> None:
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        return "end" if any(one.unscanned_end is not None for one in self._segments) else "records"

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
        found = ((s.manifest.tape, s.manifest.observed) for s in self._segments)
        return {tape: observed for tape, observed in found if observed is not None}

    @property
    def under_way(self) -> tuple[Call, ...]:
        """The calls that were written ahead and had not ended when the process died (or have not
        ended yet): their inputs are known, and nothing else."""
        return tuple(
            self._calls.at(CallRef(segment.manifest.tape, segment.number(position)))
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
        return redacted_of_all(redacted_of_steps(one.history or ()) for one in self.manifests)

    @property
    def dumps(self) -> tuple[Dump, ...]:
        """When the calls of a flight recorder were written, and why, in the order of time."""
        ends = (segment.end for segment in self._segments)
        every = (dump for end in ends if end is not None for dump in end.dumps)
        return tuple(sorted(every, key=lambda dump: dump.time_ns))

    @property
    def damage(self) -> list[TapeError]:
        """Everything that was found wrong so far, each with file, member and byte offset."""
        return self._damage.list()

    def find(self, address: int | str) -> Call:
        """The call of a number (:attr:`Call.number`) or an address (:attr:`Call.address`).

        Raises:
            UsageError: no call, or calls of several recordings, have it.
        """
        return call_at(self._calls, (s.manifest.tape for s in self._segments), address)

    @bounded()
    def verify(self) -> list[TapeError]:
        """Compares every tensor byte with its checksum, every tree with the format, and what the
        ends say of ranges with the records. A survey has no more than the trees of its table.

        Returns:
            All damage that is known now; empty for a clean tape.
        """
        if self._calls.are_single:
            for _ in whole_calls(self._calls, entries=True):
                pass
        for segment in self._segments:
            segment.check_table()
        return self.damage

    def _leave_out_damaged(self) -> None:
        for segment in self._segments:
            segment.drop_damaged()
        self._calls = Calls(self._segments, self._classes)
