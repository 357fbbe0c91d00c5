"""One recording: the counters, queue, writer and files of a recorder in one process.

A :class:`~calltape_recorder.recorder.Recorder` builds it from checked options and a path. Each
forked child builds one of its own.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from typing import cast

from calltape_recorder.capture.names import ModuleNames
from calltape_recorder.capture.omissions import Omissions, strange_patterns, unmatched_words
from calltape_recorder.capture.structures import Structure, Structures
from calltape_recorder.host.target import describe_producer, rank_now
from calltape_recorder.keep.admission import Admission, Answer, Decisions
from calltape_recorder.keep.flight_recorder import FlightCalls
from calltape_recorder.keep.ledger import Ledger, State, Stats, UnkeptCounter
from calltape_recorder.keep.policies import Every, Rate
from calltape_recorder.options import Options
from calltape_recorder.snapshot.call import Call, QueuedCall
from calltape_recorder.snapshot.copies import release
from calltape_recorder.snapshot.device_copies import HostMemory
from calltape_recorder.snapshot.snapshots import Snapshots
from calltape_recorder.threads import HasLock
from calltape_recorder.write.encoding import Encoder
from calltape_recorder.write.notices import BEGINNING, AccountNews, Notices
from calltape_recorder.write.segments import Segments
from calltape_recorder.write.write_ahead import WriteAhead
from calltape_recorder.write.writer import Writer
from calltape_schema.drop_reasons import DropReason
from calltape_schema.end import Coverage, Dump
from calltape_schema.fields import now_ns
from calltape_schema.inputs_table import InputsTable
from calltape_schema.records import MINOR, VERSION, Manifest, Observed, Target

# A rate that is set while recording must not choose the same calls as Rate(seed=0).
_LIVE_SEED = 0x5EED


class Recording:
    """One process's tape while it is recorded: counters, queue, writer and files.

    Args:
        options: see :class:`~calltape_recorder.options.Options`.
        path: the path of the first file.
        overwrite: whether an existing file is replaced.
        module_names: the names of the recorded model's parts.
        on_new: is called with every new structure.
        each_second: is called about once a second, in the writer's thread.
        others: objects with locks that ``each_second`` takes.

    Attributes:
        begun: whether the manifest is written.
        admission: decides first, by the number of a call, whether it is kept.
        decisions: decides by the inputs of a call, if its number does not suffice.
        snapshots: copies what calls get and return.
        unkept: counts the inputs of calls that are not on the tape.
        flight_calls: the calls that a flight recorder holds; None without one.
        hand_over: takes a call that ended.
        omits_values: whether values are omitted.
        notices: logs what people should know.

    Raises:
        TapeError: ``exists`` if the path is taken, ``io`` if the file cannot be created.
    """

    def __init__(
        self,
        options: Options,
        path: str,
        overwrite: bool,
        module_names: ModuleNames,
        on_new: Callable[[Structure], None],
        each_second: Callable[[], None],
        *others: HasLock,
    ) -> None:
        self.options = options
        self.tape_id = uuid.uuid4().bytes
        self.begun = False
        self._is_abandoned = False
        self._overwrite = overwrite
        self._on_new = on_new
        self._deadline: float | None = None
        self._also_each_second = each_second
        self._target: str | None = None
        flight = options.flight_recorder
        max_bytes = options.max_queue_bytes + (0 if flight is None else flight.bytes)
        self.ledger = Ledger(max_bytes, options.max_calls, options.max_share)
        self.buffers = HostMemory(max_bytes)
        self._omissions = Omissions(options.patterns)
        self.omits_values = self._omissions.omits_values
        self.snapshots = Snapshots(
            self.ledger, self.buffers, Structures(on_new, self._omissions), module_names
        )
        cache = self.snapshots.cache
        self._decider = options.keep.decider()
        self.decisions = Decisions(self._decider)
        self.admission = Admission(self, self.ledger, cache, holds_unkept=flight is not None)
        self.set_rate(None)
        self.unkept = UnkeptCounter(cache, written_only=self.omits_values)
        self.notices = Notices(omits_values=self.omits_values)
        self._news = AccountNews(self.notices)
        self.segments = Segments(
            path, overwrite, options, self.ledger, self._drain_accounts, self._on_lost_file,
            self.notices,
        )  # fmt: skip
        self.writer = Writer(
            self.segments, Encoder(), self.ledger, self.buffers, self._each_second,
            self._on_unwritten, self.notices, self.unkept.may_name if self.omits_values else None,
        )  # fmt: skip
        self.writer.waits_with = [
            self.ledger, self.buffers, cache, self.unkept, self.segments.budget, *others,
        ]  # fmt: skip
        self.flight_calls: FlightCalls | None = None
        if flight is not None:
            self.flight_calls = FlightCalls(flight, self.writer.queue.put, self._drop_held)
            self.writer.waits_with.append(self.flight_calls)
        self.write_ahead: WriteAhead | None = None
        # If no option needs to see calls that ended, they go to the writer directly.
        goes_directly = flight is None and not options.write_ahead and options.max_share is None
        self.hand_over: Callable[[Call], None] = (
            self.writer.queue.put if goes_directly else self._hand_over_by_options
        )

    def begin(self, target: Target | None, observed: Observed | None = None) -> None:
        """Writes the manifest and starts the writer, once.

        Args:
            target: the class, method and signature that are recorded; None if nothing is.
            observed: since when calls are seen; None if there were no calls before.

        Raises:
            OSError: the file cannot be written.
        """
        if self.begun:
            return
        options = self.options
        parameters = () if target is None else target.signature or ()
        self._omissions = Omissions(options.patterns, parameters)
        for pattern in strange_patterns(options.patterns, parameters):
            self.notices.warn(f"values: no argument matches {pattern!r}")
            self._omissions.unmatched.discard(pattern)  # this warning is enough
        self.snapshots.structures = Structures(self._on_new, self._omissions)
        manifest = Manifest(
            format="calltape", version=VERSION, minor=MINOR, tape=self.tape_id,
            created_ns=now_ns(), producer=describe_producer(), target=target,
            policy=options.policy(), observed=observed, rank=rank_now(),
        )  # fmt: skip
        self.segments.begin(manifest)
        if options.write_ahead:
            stem = self.segments.first_path.removesuffix(".tape")
            self.write_ahead = WriteAhead(
                stem, lambda: manifest.model_copy(update={"created_ns": now_ns()}),
                self.notices.complain, self.segments.budget, self._overwrite, options.file_mode,
            )  # fmt: skip
        if options.max_seconds is not None:
            self._deadline = time.monotonic() + options.max_seconds
        self.begun = True
        if target is not None:
            self._target = target.name
            says = f"recording {target.name} to {self.segments.first_path}"
            self.notices.add_news(BEGINNING, says)
        self.writer.start()

    def set_rate(self, fraction: float | None) -> None:
        """Keeps only this share of the calls that would be kept. None means all of them again."""
        keep = self.options.keep
        answer: Answer = cast("Answer", self._decider) if keep.by_number else None
        if isinstance(keep, Every):
            answer = True
        rate = None if fraction is None or fraction == 1 else Rate(fraction, _LIVE_SEED)
        self.admission.follow(answer, None if rate is None else rate.decider())

    def _on_unwritten(self, call: QueuedCall) -> None:
        """Notes that the writer could not write a call."""
        if not call.is_provisional:
            self.decisions.lose_novelty()
        if call.inputs is not None:
            self.unkept.count_side(call.inputs)

    def _hand_over_by_options(self, call: Call) -> None:
        if call.ahead_file is not None and self.write_ahead is not None:
            self.write_ahead.done(call)
        if self.options.max_share is not None:  # the share must know what was spent at once
            self.ledger.note(call)
        flight_calls = self.flight_calls
        if flight_calls is None:
            self.writer.queue.put(call)
        elif call.error is not None:
            flight_calls.dump(f"a call raised {call.error[0]}", call)
        elif call.is_provisional:
            self.ledger.note(call)
            flight_calls.add(call)
        else:
            self.writer.queue.put(call)

    def drop(self, call: Call, reason: DropReason) -> None:
        """Counts a call as dropped, and releases its memory."""
        if call.is_accounted:
            return
        self.ledger.account((call,), reason)
        if not call.is_provisional and reason not in (DropReason.TRACING, DropReason.UNFINISHED):
            self.decisions.lose_novelty()
        if call.inputs is not None:
            self.unkept.count_side(call.inputs)
        for side in (call.inputs, call.outputs):
            if side is not None and side.joined is None:
                release(side.places, self.buffers)
        self.release_chunks(call)
        if call.ahead_file is not None and self.write_ahead is not None:
            self.write_ahead.done(call)

    def _drop_held(self, call: Call) -> None:
        """Drops a call that the flight recorder held, and that nothing asked for."""
        self.drop(call, DropReason.FLIGHT_RECORDER)

    def release_chunks(self, call: Call) -> None:
        """Releases the memory of the chunks of a call."""
        chunks, call.chunks = call.chunks, None
        if chunks is not None:
            release(chunks.places, self.buffers)

    def lost(self, call: Call) -> None:
        """Counts a call that was deleted before it was handed over."""
        if not self._is_abandoned:
            self.drop(call, DropReason.INTERRUPTED)

    def close(self) -> None:
        """Writes what is queued, and seals the last file. If an interrupt ends it, it can be called
        again."""
        path, is_sealed = self.segments.first_path, False
        try:
            if self.flight_calls is not None:
                self.flight_calls.clear()
            is_done = self.writer.stop()
            self.ledger.close(DropReason.UNFINISHED)
            if not is_done:  # the writer hangs within a write, so it says no news
                self.notices.warn(f"the disk does not answer: the tape {path} is not sealed")
                return
            self.segments.seal()
            is_sealed = True
        except Exception as trouble:
            # A tape is readable without its end, too.
            self.notices.complain(f"the tape {path} cannot be sealed", trouble)
        self._say_the_end(is_sealed)
        self.segments.close()
        self.snapshots.earlier.clear()
        self.buffers.clear()
        if self.write_ahead is not None:
            self.write_ahead.close()

    def _say_the_end(self, is_sealed: bool) -> None:
        stats = self.stats("closed")
        if is_sealed and self.begun:
            says = f"sealed {stats.path}: {stats.kept} of {stats.seen} calls are on the tape"
            self.notices.add_news("closed", says)
        if stats.kept and self.omits_values:
            patterns, unmatched = self.options.patterns, self._omissions.unmatched
            for says in unmatched_words(patterns, unmatched, outputs=self.options.outputs):
                self.notices.add_news(says, f"values: {says}", level=logging.WARNING)
        self.notices.log_news()

    def stats(self, state: State) -> Stats:
        """The accounts at this moment."""
        segments, notices = self.segments, self.notices
        return self.ledger.snapshot(
            state=state, target=self._target, losing=self._news.losing, path=segments.path,
            segments=segments.count, written_bytes=segments.written_bytes,
            disk_bytes=segments.disk_bytes, last_write_ns=self.writer.last_write_ns,
            last_error=notices.last_error, last_error_ns=notices.last_error_ns,
        )  # fmt: skip

    def abandon(self) -> None:
        """Lets go of all files in a fork: they are the parent's. It takes no lock, because a thread
        that does not exist here may hold it."""
        self._is_abandoned = True
        self.segments.close()
        if self.write_ahead is not None:
            self.write_ahead.abandon()

    def _drain_accounts(self) -> tuple[Coverage, InputsTable, tuple[Dump, ...]]:
        """What became of the calls since the last call of this method, the counted inputs of those
        that are not on the tape, and the dumps."""
        table = InputsTable()
        try:
            table = self.unkept.drain()
        except Exception as error:
            self.notices.complain("the calls of a file could not be counted", error)
        dumps = () if self.flight_calls is None else self.flight_calls.drain_dumps()
        coverage = self.ledger.drain_coverage()
        if coverage.kept + table.totals().seen > coverage.seen:
            # A thread has counted the inputs of its call, but not yet what became of it. A file
            # must not count more inputs than calls, so they are counted in the next one.
            self.unkept.absorb(table)
            table = InputsTable()
        return coverage, table, dumps

    def _on_lost_file(self, table: InputsTable, reason: DropReason, novel_calls: int) -> None:
        """Notes that a file is gone: its calls are counted in another one, and calls like its novel
        ones may be kept again."""
        self.unkept.absorb(table)
        if novel_calls:
            self.decisions.lose_novelty(made_room=reason is DropReason.DELETED)

    def _each_second(self) -> None:
        self.unkept.fold()
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self.ledger.stop(DropReason.MAX_SECONDS)
        self.segments.check()
        self._also_each_second()
        self._news.look(self.stats("recording"), self.writer.failure, self.ledger.stopped)
