"""Counts what became of the calls. Calls are counted in no other place.

If a call is not on the tape, its structure and the sizes of its axes are counted too. The call only
increments a counter, which it shares with calls that look the same. The writer's thread adds these
counters to a table of counted inputs, which stays small however long a server runs. The inputs of
the calls on a tape are counted where they are written.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from calltape_recorder.bounds import (
    MAX_CHARGE_NS,
    MAX_NAMEABLE_STRUCTURES,
    MAX_WAITING_CALLS,
    MAX_WAITING_WEIGHT,
    SHARE_CREDIT_NS,
)
from calltape_recorder.capture.structures import Structure
from calltape_recorder.snapshot.call import QueuedCall
from calltape_recorder.snapshot.side import Outline, Side, with_ints
from calltape_recorder.snapshot.side_cache import SideCache
from calltape_recorder.snapshot.snapshots import CapturedSide
from calltape_recorder.threads import Count, RLock, new_count, value_of
from calltape_schema.drop_reasons import DropReason, Reason, lost_of, unwanted_of
from calltape_schema.end import Coverage
from calltape_schema.inputs_table import Counts, InputsTable, Kind

DURATIONS = 15


class Share:
    """Limits the cost of recording to a share of the time of the calls, by recording fewer of them.
    Each call that is seen earns its share of the duration of a typical call, which pays for
    recording. Only one thread at a time may use it.

    Args:
        most: the share, above 0 and at most 1.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        # The median of the latest ones: the first call of a model may take a thousand times as
        # long.
        self._durations: deque[int] = deque(maxlen=DURATIONS)
        self._typical = 0
        self._earned = 0.0

    def note(self, duration_ns: int) -> None:
        """Notes how long a recorded call took."""
        self._durations.append(duration_ns)
        self._typical = sorted(self._durations)[len(self._durations) // 2]

    def affords(self, spent_ns: int) -> bool:
        """Whether a call that begins now is recorded, if recording has cost this much. Each call
        asks once."""
        if not self._durations:  # it is not known yet what a call earns
            return True
        most = spent_ns + self._most * SHARE_CREDIT_NS
        self._earned = min(self._earned + self._most * self._typical, most)
        return self._earned >= spent_ns


State = Literal["open", "recording", "closed", "forked"]


@dataclass(frozen=True)
class Stats:
    """The counts at one moment: ``seen == kept + sum(dropped.values()) + queued``.

    Attributes:
        seen: calls of the recorded method so far.
        kept: calls that are complete in a file, and survive the death of the process. The number
            falls when a file is deleted.
        dropped: calls that are not on the tape, by reason: ``policy`` (not selected), ``paused``,
            ``max_calls``, ``max_seconds``, ``max_share``, ``tracing`` (made by a tool that traces
            the model), ``queue_full`` (they did not fit into the memory limit), ``flight_recorder``
            (held in memory, but not dumped), ``max_disk_bytes``, ``disk_full`` (no space left on
            the disk, or only ``min_free_bytes=``), ``deleted`` (with an old file, because of
            ``when_full="delete_oldest"``), ``expired`` (``max_age_seconds=``), ``file_removed``
            (somebody deleted or truncated the file), ``io`` (the disk failed), ``internal`` (a bug
            in the recorder, or a predicate that raised), ``interrupted``, ``unfinished`` (still
            running when the recorder closed).
        outputs_lost: kept calls whose outputs should be on the tape but are missing, in full or in
            part, by reason: ``queue_full`` or ``internal``. The record of each call says so, too.
            Includes calls in files that no longer exist.
        queued: calls that are running, waiting to be written, or held in memory.
        queued_bytes: host memory that the queued calls take, in bytes.
        written: calls that were written to a file, including files that no longer exist.
        written_bytes: bytes that were written to tape files, including files that no longer exist.
            ``written_bytes / written`` is the size of a call.
        disk_bytes: size of the files that are on disk now, including those of running calls.
        segments: files on disk that this recorder wrote and did not delete.
        paused: whether :meth:`Recorder.pause` was called.
        state: ``open`` (nothing attached), ``recording``, ``closed``, or ``forked`` (this process
            is a fork of the one that records, and has not called the model yet).
        control: why the control file is not followed; None if it is, or if there is none.
        target: what is recorded, as ``module:Class.method``; None if nothing was attached.
        losing: why calls are being lost at present; None if the last call was written. Updated
            about once a second.
        path: the file that is being written, or was written last.
        last_write_ns: when a call was last written, as Unix time in nanoseconds; None before the
            first.
        last_error: the last problem, as it was logged; None if there was none.
        last_error_ns: when that was, as Unix time in nanoseconds.
        in_calls_ns: the time that the recorder added to calls, in nanoseconds of wall time. Of
            calls that are not recorded, every 17th is measured.
        in_thread_ns: processor time of the recorder's own thread, in nanoseconds.
        copies: how many copies (deep copies and pickles) were made of the recorded object. The
            calls of a copy are not seen.
    """

    seen: int
    kept: int
    dropped: dict[DropReason, int] = field(default_factory=dict)
    outputs_lost: dict[DropReason, int] = field(default_factory=dict)
    queued: int = 0
    queued_bytes: int = 0
    written_bytes: int = 0
    segments: int = 0
    paused: bool = False
    state: State = "open"
    control: str | None = None
    target: str | None = None
    losing: DropReason | None = None
    path: str | None = None
    last_write_ns: int | None = None
    last_error: str | None = None
    last_error_ns: int | None = None
    copies: int = 0
    in_calls_ns: int = 0
    in_thread_ns: int = 0
    written: int = 0
    disk_bytes: int = 0

    @property
    def unwanted(self) -> dict[DropReason, int]:
        """The dropped calls that were left out on purpose, because of ``policy`` or of other
        options (``paused``, ``max_calls``, ``max_seconds``, ``max_share``, ``flight_recorder``,
        ``tracing``, ``deleted``, ``expired``)."""
        return unwanted_of(self.dropped)

    @property
    def lost(self) -> dict[DropReason, int]:
        """The dropped calls that should have been kept. Find out why."""
        return lost_of(self.dropped)


_UNLOCKED = (
    DropReason.POLICY,
    DropReason.PAUSED,
    DropReason.MAX_CALLS,
    DropReason.MAX_SECONDS,
    DropReason.MAX_SHARE,
)
"""If a recorder counts one of these reasons at all, it does so for most calls. So their counters
take no lock."""


_Outcomes: TypeAlias = "Counter[Reason | None]"
"""Numbers of calls by the reason why they were dropped; None for kept calls."""


class Ledger:
    """Counts calls under one lock, which is held only for a few additions.

    What happens in every call, kept or not, is counted without the lock. The lock is reentrant: a
    signal handler may call the model while its thread is in here.

    Attributes:
        next_number: returns the number of a call that begins; None if the call is only counted.
        skip: counts a call that the policy does not keep.
        in_calls_ns, in_thread_ns: see :class:`Stats`.
        writing_ns: the part of ``in_thread_ns`` that calls caused. The rest does not count against
            ``max_share``: a server that idles all night would owe it.
    """

    def __init__(
        self, max_bytes: int, max_calls: int | None = None, max_share: float | None = None
    ) -> None:
        self.lock = RLock()
        self.max_bytes = max_bytes
        self._max_calls = max_calls
        self._share = None if max_share is None else Share(max_share)
        self.in_calls_ns = self.in_thread_ns = self.writing_ns = 0
        self._charged_ns = 0  # what the share pays of ``in_calls_ns``
        self._stopped: DropReason | None = None
        self._paused = False
        self._is_closed = False
        # One step of a counter is one step under the interpreter lock.
        self._numbers = new_count()
        self._skipped: dict[DropReason, Count] = {reason: new_count() for reason in _UNLOCKED}
        self._drained: dict[DropReason, int] = dict.fromkeys(
            _UNLOCKED, 0
        )  # counted in earlier segments
        self.accepted = 0
        self.kept = self.written = 0
        self.bytes = 0
        self.shared_bytes = 0  # bytes of copies that later calls may share
        self._dropped: dict[DropReason, int] = {}
        self._outputs_lost: dict[DropReason, int] = {}
        self._outcomes: _Outcomes = Counter()  # of the current segment
        # Every call runs these two. If there is nothing to check, they are the counters themselves.
        self.next_number: Callable[[], int | None]
        self.skip: Callable[[], object] = (
            self._skipped[DropReason.POLICY].__next__ if max_calls is None else self._skip_accepted
        )
        self._limit()

    @property
    def seen(self) -> int:
        """How many calls there were so far."""
        return value_of(self._numbers)

    @property
    def stopped(self) -> DropReason | None:
        """The limit that was reached, so that no further call is recorded; None if none was."""
        with self.lock:
            is_last = self._max_calls is not None and self.accepted >= self._max_calls
            return self._stopped or (DropReason.MAX_CALLS if is_last else None)

    def pause(self, paused: bool) -> None:
        """From now on, only counts calls, or records them again."""
        with self.lock:
            self._paused = paused
            self._limit()

    def stop(self, reason: DropReason) -> None:
        """From now on, only counts calls, as dropped for this reason."""
        with self.lock:
            self._stopped = reason
            self._limit()

    def _limit(self) -> None:
        limits = (self._max_calls, self._stopped, self._paused or None, self._share)
        if self._is_closed:  # a call that is seen only now belongs to no file
            self.next_number = _do_nothing
            return
        self.next_number = self._numbers.__next__ if limits == (None,) * 4 else self._admit

    def _admit(self) -> int | None:
        number = next(self._numbers)
        reason = DropReason.PAUSED if self._paused else self._stopped
        if reason is None:
            with self.lock:
                if self.accepted == self._max_calls:
                    reason = DropReason.MAX_CALLS
                elif self._share and not self._share.affords(self._charged_ns + self.writing_ns):
                    reason = DropReason.MAX_SHARE
                else:
                    self.accepted += 1
                    return number
        if not self._is_closed:
            next(self._skipped[reason])
        return None

    def _skip_accepted(self) -> None:
        if self._is_closed:
            return
        next(self._skipped[DropReason.POLICY])
        with self.lock:
            self.accepted -= 1

    def reserve(self, call: QueuedCall, nbytes: int) -> bool:
        """Reserves ``nbytes`` within the bound for a call; False if there are not enough left."""
        with self.lock:
            total = self.bytes + nbytes
            if total + self.shared_bytes > self.max_bytes or self._is_closed:
                return False
            self.bytes, call.nbytes = total, call.nbytes + nbytes  # no interrupt comes between
            return True

    def reserve_shared(self, nbytes: int) -> bool:
        """Reserves ``nbytes`` for a copy that later calls may share; False if there are not enough
        left."""
        with self.lock:
            if self.bytes + self.shared_bytes + nbytes > self.max_bytes or self._is_closed:
                return False
            self.shared_bytes += nbytes
            return True

    def free_shared(self, nbytes: int) -> None:
        """Frees bytes that were reserved for such a copy."""
        with self.lock:
            self.shared_bytes -= nbytes

    def spend(self, nanoseconds: int) -> None:
        """Counts the time that calls which are not recorded cost the application."""
        with self.lock:
            self.in_calls_ns += nanoseconds
            self._charged_ns += min(nanoseconds, MAX_CHARGE_NS)

    def note(self, call: QueuedCall) -> None:
        """Counts the cost and the duration of a call, once. A call that the flight recorder holds
        is noted before it is known what becomes of it."""
        with self.lock:
            if call.cost_ns and call.duration_ns is not None and self._share is not None:
                self._share.note(call.duration_ns)
            # Copying these bytes cannot take longer: the process was paused, as by a debugger.
            self._charged_ns += min(call.cost_ns, MAX_CHARGE_NS + call.nbytes)
            self.in_calls_ns, call.cost_ns = self.in_calls_ns + call.cost_ns, 0

    def drop(self, reason: DropReason) -> None:
        """Counts a call that was seen and will not be on the tape."""
        with self.lock:
            if not self._is_closed:
                self.accepted -= 1
                self._count(reason)

    def account(
        self, calls: Iterable[QueuedCall], reason: DropReason | None, *, written: bool = False
    ) -> None:
        """Counts calls as complete in the file (None) or as dropped, each once, and frees what they
        reserved. ``written`` says that they reached the writer."""
        with self.lock:
            for call in calls:
                if call.is_accounted or self._is_closed:
                    continue
                call.is_accounted = True
                self.bytes -= call.nbytes
                self.note(call)
                if reason is not None:
                    self.accepted -= not written
                    self._count(reason)
                    continue
                self.kept += 1
                self.written += 1
                self._outcomes[None] += 1
                if (lost := call.outputs_lost) is not None:
                    self._outputs_lost[lost] = self._outputs_lost.get(lost, 0) + 1

    def lose_file(self, coverage: Coverage, reason: DropReason) -> None:
        """Counts the kept calls of a file that is gone as dropped, in the current segment. The
        current segment also takes over what that file said of other calls."""
        with self.lock:
            _take_over(self._outcomes, coverage, reason)
            if coverage.kept:
                self.kept -= coverage.kept
                self._dropped[reason] = self._dropped.get(reason, 0) + coverage.kept

    def coverage(self, gone: Coverage | None = None, reason: DropReason | None = None) -> Coverage:
        """What became of the calls since :meth:`drain_coverage`.

        Args:
            gone, reason: the coverage of a file that is about to go, as for :meth:`lose_file`.
        """
        with self.lock:
            outcomes, _ = self._counted()
        if gone is not None:
            _take_over(outcomes, gone, reason)
        return _coverage_of(outcomes)

    def drain_coverage(self) -> Coverage:
        """What became of the calls since the last call of this method."""
        with self.lock:
            outcomes, self._drained = self._counted()
            self._outcomes = Counter()
        return _coverage_of(outcomes)

    def _counted(self) -> tuple[_Outcomes, dict[DropReason, int]]:
        """The account of the current segment, and the counters that are in it."""
        skipped = {reason: value_of(counter) for reason, counter in self._skipped.items()}
        outcomes = self._outcomes.copy()
        outcomes.update(
            {reason: calls - self._drained[reason] for reason, calls in skipped.items()}
        )
        return outcomes, skipped

    def close(self, reason: DropReason) -> None:
        """Counts calls that are neither kept nor dropped as dropped. Later calls are not
        counted."""
        with self.lock:
            self._is_closed = True
            self.skip = _do_nothing
            self._limit()
            unfinished = -self.kept - sum(self._all_dropped().values()) + self.seen
            if unfinished > 0:
                self._count(reason, unfinished)
            self.bytes = 0

    def snapshot(self, **others: Any) -> Stats:
        """All accounts at one moment, with ``others``, which are counted elsewhere."""
        with self.lock:
            dropped = self._all_dropped()
            seen = self.seen  # read last, as a call is seen before it is kept or dropped
            queued = seen - self.kept - sum(dropped.values())
            return Stats(
                seen, self.kept, dropped, dict(self._outputs_lost), queued, self.bytes,
                paused=self._paused, written=self.written,
                in_calls_ns=self.in_calls_ns, in_thread_ns=self.in_thread_ns, **others,
            )  # fmt: skip

    def _all_dropped(self) -> dict[DropReason, int]:
        dropped = dict(self._dropped)
        for reason, counter in self._skipped.items():
            if skipped := value_of(counter):
                dropped[reason] = dropped.get(reason, 0) + skipped
        return dropped

    def _count(self, reason: DropReason, calls: int = 1) -> None:
        self._dropped[reason] = self._dropped.get(reason, 0) + calls
        self._outcomes[reason] += calls


def _take_over(outcomes: _Outcomes, coverage: Coverage, reason: DropReason | None) -> None:
    """Adds the calls of a file that is gone: its kept ones were dropped for this reason."""
    outcomes.update(coverage.dropped)
    if coverage.kept:
        outcomes[reason] += coverage.kept


def _coverage_of(outcomes: _Outcomes) -> Coverage:
    kept = outcomes.pop(None, 0)
    dropped = {reason: calls for reason, calls in outcomes.items() if reason and calls}
    return Coverage(seen=kept + sum(dropped.values()), kept=kept, dropped=dropped)


def _do_nothing() -> None:
    pass


# The inputs of calls that are not on the tape.


class UnkeptCounter:
    """Counts calls from any thread. :meth:`fold` and :meth:`drain` are for the writer's thread.

    Args:
        cache: has a counter for calls of each structure and sizes.
        written_only: whether to name only structures of calls that are on the tape. The keys of
            other structures would reveal something about calls that must not be on it. Such calls
            are counted without a structure.
    """

    def __init__(self, cache: SideCache, *, written_only: bool = False) -> None:
        self._cache = cache
        # Hashes: a structure may have megabytes.
        self._nameable: set[int] | None = set() if written_only else None
        self.lock = RLock()
        self._other = 0
        self._table = InputsTable()

    def count_captured(self, side: CapturedSide) -> None:
        """Counts a call with these inputs, which were not copied."""
        if side.cached is not None and not side.scalars and side.structure.core is None:
            next(side.cached.calls)
        else:
            self.count(side.structure, side.outline)

    def count_side(self, side: Side) -> None:
        """Counts a call whose inputs were copied, but that is not written."""
        outline = (*[fact.dtype for fact in side.facts.per_leaf], *side.facts.shapes)
        self.count(side.structure, with_ints(outline, side.structure.numbers(side.scalars)))

    def count(self, structure: Structure, outline: Outline) -> None:
        """Counts a call. If keys in its structure are data, it is counted without its inputs."""
        cached = None
        if structure.core is None:
            cached = self._cache.of(structure, structure.counted(outline))
        if cached is not None:
            next(cached.calls)
            return
        with self.lock:
            self._other += 1

    def may_name(self, call: QueuedCall) -> None:
        """Allows the table to name the structure of a call that is on the tape."""
        nameable, inputs = self._nameable, call.inputs
        if nameable is not None and inputs and len(nameable) < MAX_NAMEABLE_STRUCTURES:
            nameable.add(hash(inputs.structure.encoded))

    def fold(self, *, always: bool = False) -> None:
        """Adds the counters to the table, if many were evicted, or if ``always``."""
        cache = self._cache
        is_due = (
            cache.evicted >= MAX_WAITING_CALLS or cache.evicted_weight >= MAX_WAITING_WEIGHT // 2
        )
        if not is_due and not always:
            return
        for structure, outline, calls in cache.counted():
            leaves = len(structure.keys)
            dtypes = [str(dtype).removeprefix("torch.")[:64] for dtype in outline[:leaves]]
            shapes, ints = outline[leaves : 2 * leaves], outline[2 * leaves :]
            self._table.add_kind(Kind.of(structure.encoded, dtypes, shapes, ints, Counts(calls)))

    def drain(self) -> InputsTable:
        """What was counted since the last call of this method."""
        self.fold(always=True)
        table, self._table = self._table, InputsTable()
        with self.lock:
            other, self._other = self._other, 0
        table.other.add(Counts(other))
        nameable = self._nameable
        if nameable is not None:
            table.forget(lambda structure: hash(structure) not in nameable)
        return table

    def absorb(self, table: InputsTable) -> None:
        """Counts the calls of a file that is gone again."""
        self._table.merge(table.unkept())
