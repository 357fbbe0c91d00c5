"""Everything that a recording is made of in one process: built when it begins, anew in a fork."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from calltape_recorder.ahead import Ahead
from calltape_recorder.buffers import Buffers
from calltape_recorder.calltree import leave
from calltape_recorder.encoding import Call, Encoder
from calltape_recorder.flight import Flight, FlightRecorder
from calltape_recorder.gate import Answer, Gate
from calltape_recorder.likeness import Likeness
from calltape_recorder.permissions import OWNER_ONLY
from calltape_recorder.policies import Every, Keep, Rate, forget
from calltape_recorder.segments import Bounds, Segments
from calltape_recorder.sight import Sight
from calltape_recorder.snapshot import release
from calltape_recorder.stats import Ledger
from calltape_recorder.structures import Structure, Structures
from calltape_recorder.target import describe_producer
from calltape_recorder.traffic import TrafficCounter
from calltape_recorder.withholding import Withholding
from calltape_recorder.writer import Writer
from calltape_schema.records import (
    MINOR,
    VERSION,
    Dump,
    FlightPolicy,
    Manifest,
    Observed,
    Parameter,
    Policy,
    Target,
)
from calltape_schema.traffic import Traffic

__all__ = ["Pipeline", "Settings", "child_path", "free_path"]

_LIVE_SEED = 0x5EED  # so that a rate set while recording samples others than Rate(seed=0)
# Evidence that is gathered anew may itself be what does not fit: not at every call that is lost.
_REMEMBER_SECONDS = 10.0


@dataclass(frozen=True)
class Settings:
    """What the recorder was asked for; see :class:`calltape_recorder.options.Options`."""

    outputs: bool
    values: tuple[tuple[str, str], ...]
    keep: Keep
    flight_recorder: FlightRecorder | None
    write_ahead: bool
    max_calls: int | None
    max_seconds: float | None
    max_queue_bytes: int
    bounds: Bounds
    file_mode: int = OWNER_ONLY

    def policy(self) -> Policy:
        """The same, as the manifest notes it."""
        flight, bounds = self.flight_recorder, self.bounds
        held = None if flight is None else FlightPolicy(calls=flight.calls, bytes=flight.bytes)
        is_plain = len(self.values) == 1 and self.values[0][0] == "*"
        return Policy(
            outputs=self.outputs,
            values="all" if any(kept == "all" for _, kept in self.values) else "none",
            leaf_values=() if is_plain else self.values,  # type: ignore[arg-type]
            keep=None if isinstance(self.keep, Every) else str(self.keep)[:4096],
            flight_recorder=held,
            write_ahead=self.write_ahead, max_calls=self.max_calls, max_seconds=self.max_seconds,
            max_queue_bytes=self.max_queue_bytes, max_disk_bytes=bounds.max_disk_bytes,
            min_free_bytes=bounds.min_free_bytes, segment_bytes=bounds.most_in_segment,
            segment_seconds=bounds.segment_seconds,
            when_full=bounds.when_full if bounds.max_disk_bytes is not None else None,
        )  # fmt: skip


class Pipeline:
    """Counters, queue, writer and files of one recording in one process.

    Args:
        settings: what was asked for.
        path: of the first file.
        overwrite: replaces a file that is there.
        on_new: is told of every new structure.
        settle: puts calls that ended unnoticed; None where there are none.
        look: is called about once a second, in the writer's thread.

    Attributes:
        gate: what every call passes first.
        returned: how the tensor looked that the model returned last, where it returned a tensor of
            which no bytes are kept.
        take: hands over a call that ended.
        withholds: whether something of a call is not to be on the tape although it could be.

    Raises:
        TapeError: ``exists`` or ``io``.
    """

    def __init__(
        self,
        settings: Settings,
        path: str,
        overwrite: bool,
        on_new: Callable[[Structure], None],
        settle: Callable[[], None] | None,
        look: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.tape_id = uuid.uuid4().bytes
        self.begun = False
        self._is_abandoned = False
        self._overwrite = overwrite
        self._on_new = on_new
        self._manifest: Manifest | None = None
        self._deadline: float | None = None
        self._look_more = look
        flight = settings.flight_recorder
        held = 0 if flight is None else flight.bytes
        self.ledger = Ledger(settings.max_queue_bytes + held, settings.max_calls)
        self.buffers = Buffers(settings.max_queue_bytes + held)
        self.gate = Gate(self, self.ledger, holds=flight is not None)
        withholding = Withholding(settings.values)
        self.withholds = withholding.withholds
        self.traffic = TrafficCounter(self.gate, written_only=self.withholds)
        self.segments = Segments(
            path, overwrite, settings.file_mode, settings.bounds, self.ledger, self._take_traffic,
            self._gone, lambda about, error: self.writer.complain(about, error),
        )  # fmt: skip
        self.writer = Writer(
            self.segments, Encoder(self.tape_id), self.ledger, self.buffers, self._look, settle,
            self.evidence_lost, self._written if self.withholds else None,
        )  # fmt: skip
        self.structures = Structures(on_new, withholding)
        self.flight = None if flight is None else Flight(flight, self.writer.put, self._unheld)
        self.ahead: Ahead | None = None
        self._decider = settings.keep.decider()
        # Where nothing else is to be asked it is the writer's own.
        is_plain = flight is None and not settings.write_ahead
        self.take: Callable[[Call], None] = self.writer.put if is_plain else self._take
        self._is_evidence_lost = False
        self._remembers_until = 0.0
        self.returned: Likeness | None = None
        self.set_rate(None)

    def begin(self, target: Target | None, observed: Observed | None = None) -> None:
        """Writes the manifest and starts the writer, once.

        Args:
            target: what is recorded.
            observed: since when, where calls may have come before.

        Raises:
            OSError: the file cannot be written.
        """
        if self.begun:
            return
        settings = self.settings
        parameters = () if target is None else target.signature or ()
        self._check_patterns(parameters)
        self.structures = Structures(self._on_new, Withholding(settings.values, parameters))
        self._manifest = Manifest(
            format="calltape", version=VERSION, minor=MINOR, tape=self.tape_id,
            created_ns=time.time_ns(), producer=describe_producer(), target=target,
            policy=settings.policy(), observed=observed,
        )  # fmt: skip
        self.segments.begin(self._manifest)
        if settings.write_ahead:
            stem = self.segments.first_path.removesuffix(".tape")
            self.ahead = Ahead(
                stem, self._fresh_manifest, self.writer.complain, self.segments.room,
                self._overwrite, settings.file_mode,
            )  # fmt: skip
        if settings.max_seconds is not None:
            self._deadline = time.monotonic() + settings.max_seconds
        self.begun = True
        self.writer.start()

    def _check_patterns(self, parameters: tuple[Parameter, ...]) -> None:
        """Says which patterns of ``values`` match nothing: whoever mistyped one expects values not
        to be on the tape."""
        if not parameters or any(p.kind.startswith("VAR_") for p in parameters):
            return
        known = {"args", "kwargs", "outputs", *(parameter.name for parameter in parameters)}
        for pattern, _ in self.settings.values:
            first = pattern.partition(".")[0]
            if not any(fnmatchcase(name, first) for name in known):
                self.writer.warn(f"values: no argument matches {pattern!r}")

    def set_rate(self, fraction: float | None) -> None:
        """Keeps only this share of what would be kept; None takes that back."""
        keep = self.settings.keep
        answer: Answer = self._decider if keep.by_number else None
        if isinstance(keep, Every):
            answer = True
        rate = None if fraction is None or fraction == 1 else Rate(fraction, _LIVE_SEED)
        self.gate.follow(answer, None if rate is None else rate.decider())

    def decide(self, sight: Sight) -> bool:
        """Whether a call is kept that the gate leaves open. What the host's predicate raises
        passes through; no lock is held while it runs."""
        if self._is_evidence_lost:
            self._forget_evidence()
        return self._decider(sight.number, sight)

    def evidence_lost(self) -> None:
        """A call that was kept will not be on the tape, or its file is gone: those like it are to
        be kept again. Takes no lock."""
        self._is_evidence_lost = True

    def _written(self, call: Call) -> None:
        """A call is on the tape, and what it looks like no secret."""
        if call.inputs is not None:
            self.traffic.may_tell(call.inputs.structure)

    def _forget_evidence(self) -> None:
        now = time.monotonic()
        if now >= self._remembers_until:
            self._remembers_until = now + _REMEMBER_SECONDS
            self._is_evidence_lost = False
            forget(self._decider)

    def _take(self, call: Call) -> None:
        if call.ahead is not None and self.ahead is not None:
            self.ahead.done(call)
        flight = self.flight
        if flight is None:
            self.writer.put(call)
        elif call.error is not None:
            flight.dump(f"a call raised {call.error[0]}", call)
        elif call.held:
            flight.hold(call)
        else:
            self.writer.put(call)

    def forget(self, call: Call, reason: str) -> None:
        """Counts a call as dropped, and gives its memory back."""
        if call.is_settled:
            return
        leave(call.node)
        self.ledger.settle(call, reason)
        if not call.held and reason not in ("tracing", "unfinished"):
            self.evidence_lost()
        for side in (call.inputs, call.outputs):
            if side is not None:
                release(side.pieces, self.buffers)
        chunks, call.chunks = call.chunks, None
        if chunks is not None:
            release(chunks.pieces, self.buffers)
        if call.ahead is not None and self.ahead is not None:
            self.ahead.done(call)

    def lost(self, call: Call) -> None:
        """Counts a call of which nobody knows any more."""
        if not self._is_abandoned:
            self.forget(call, "interrupted")

    def close(self) -> None:
        """Writes what is queued, and seals the last file. Interrupted, it can be called again."""
        path = self.segments.first_path
        try:
            if self.flight is not None:
                self.flight.clear()
            is_done = self.writer.stop()
            self.ledger.close("unfinished")
            if not is_done:  # in the middle of a write
                self.writer.warn(f"the disk does not answer: the tape {path} is not sealed")
                return
            self.segments.seal()
        except Exception as trouble:
            # The tape stays readable without its trailer.
            self.writer.complain(f"the tape {path} cannot be sealed", trouble)
        self.segments.close()
        self.buffers.clear()
        if self.ahead is not None:
            self.ahead.close()

    def abandon(self) -> None:
        """In a fork: everything belongs to the parent, and its locks may be held by threads that do
        not exist here."""
        self._is_abandoned = True
        self.segments.close()
        if self.ahead is not None:
            self.ahead.abandon()

    def _unheld(self, call: Call) -> None:
        self.forget(call, "flight_recorder")

    def _take_traffic(self) -> tuple[Traffic, tuple[Dump, ...]]:
        return self.traffic.take(), () if self.flight is None else self.flight.take_dumps()

    def _gone(self, traffic: Traffic) -> None:
        """A file is gone: what it counted is counted again, what it had can be kept again."""
        self.traffic.absorb(traffic)
        self.evidence_lost()

    def _fresh_manifest(self) -> Manifest:
        assert self._manifest is not None
        return self._manifest.model_copy(update={"created_ns": time.time_ns()})

    def _look(self) -> None:
        self.traffic.fold()
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self.ledger.stop("max_seconds")
        self.segments.look()
        self._look_more()


def child_path(path: str) -> str:
    """A free path for a fork of the process that records at ``path``: a process may have the number
    that another one had before."""
    return free_path(f"{path.removesuffix('.tape')}-p{os.getpid()}")


def free_path(stem: str) -> str:
    """``<stem>.tape``, or with a number where any file of such a recording is there: of one that
    crashed the first may be gone, and what its last call got be there."""
    folder, name = os.path.split(stem)
    try:
        there = os.listdir(folder or ".")
    except OSError:
        there = []
    found, number = name, 1
    while os.path.lexists(os.path.join(folder, f"{found}.tape")) or _has_files(found, there):
        number += 1
        found = f"{name}.{number}"
    return os.path.join(folder, f"{found}.tape")


def _has_files(name: str, there: list[str]) -> bool:
    file = re.compile(re.escape(name) + r"(-\d{5,}|\.ahead-\d+)?\.tape")
    return any(file.fullmatch(other) for other in there)
