"""Handles one call: counts it, captures it, decides, copies, and hands it over.

This runs inside the application's call. If something goes wrong here, it is counted and logged
once, but not raised. Only exceptions that were sent to the application (``KeyboardInterrupt`` and
similar ones, which can arrive anywhere) pass through, and the counts are correct even then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from calltape_recorder.capture.contexts import Traced, function_modes
from calltape_recorder.capture.names import type_name
from calltape_recorder.keep.admission import Admission
from calltape_recorder.keep.policies import NOVEL, CallView
from calltape_recorder.recording import Recording
from calltape_recorder.snapshot.call import OMITTED, Call, capture_chunk
from calltape_recorder.snapshot.snapshots import CapturedSide, QueueFull, recognized
from calltape_recorder.threads import get_ident, is_interrupt
from calltape_schema.drop_reasons import DropReason
from calltape_schema.objects import name_of
from calltape_schema.privacy import length_of_text
from calltape_schema.records import MAX_ERROR_CHARACTERS, MAX_UNHELD_ERROR_CHARACTERS

# One in 17 calls that are not recorded is measured. A prime does not match the rhythm of the calls.
_MEASURED_EVERY = 17

clock = time.perf_counter_ns


class CallHandler:
    """Turns calls into :class:`Call` objects for a recording, until it is closed.

    Args:
        recording: where the calls go.
        renew: makes the recording of a forked child, at its first call. It returns None if it
            cannot.
        outputs: whether the outputs of the model are kept.

    Attributes:
        active: False once it is closed.
        recording: where the calls go; None in a forked child until its first call.
        admission: the admission of the recording; None if calls are not recorded at the moment.
    """

    __slots__ = ("_outputs", "_renew", "active", "admission", "recording")

    def __init__(
        self, recording: Recording, renew: Callable[[], Recording | None], *, outputs: bool
    ) -> None:
        self.active = True
        self._renew = renew
        self._outputs = outputs
        self.set_recording(recording)

    def set_recording(self, recording: Recording | None) -> None:
        """Sends calls to this recording from now on."""
        # The admission is removed first and set last: an interrupt in between loses calls, but
        # never sends one to the wrong recording.
        self.admission: Admission[Recording] | None = None
        self.recording = recording
        if recording is not None and self.active:
            self.admission = recording.admission
        if not self.active:  # a signal handler closed it meanwhile
            self.admission = None

    def close(self) -> None:
        """Records no calls from now on."""
        self.active = False
        self.admission = None

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Counts a call and copies its inputs. The result is None if it is not recorded.

        Every call takes the same steps: it gets a number, policies decide by the number, the inputs
        are captured, the other policies decide by them, and the inputs are copied. Two fast paths
        skip some of them:

        1. A call that looks like the latest one is *recognized*: its arguments are not walked, and
           the facts of its tensors are not read.
        2. A recognized call that no policy keeps is *only counted*: nothing is captured.
        """
        # If few calls are kept, most calls end in this function. The caches of the processor are
        # cold for it, so it touches as little memory as possible.
        admission = self.admission or self._renewed()
        number = None if admission is None else admission.ledger.next_number()
        if admission is None or number is None:
            return None
        begun = clock()
        recording, is_held = admission.recording, admission.holds_unkept
        call: Call | None = None
        inputs: CapturedSide | None = None
        try:
            # 1. The policies decide by the number. None means that they have to see the inputs.
            kept: int | None = False
            skipped_from, skipped_until = admission.gap[0]
            if not skipped_from <= number < skipped_until:
                decide = admission.by_number
                kept = decide if decide is None or decide is True else decide(number, None)

            # 2. The inputs are captured, unless they look like the latest ones.
            guards = admission.side_cache.latest_call
            is_training = recording.snapshots.module_names.is_training()
            if guards is None or not guards.accept_call(args, kwargs, is_training):
                inputs = recording.snapshots.inputs(args, kwargs, is_training=is_training)
            elif kept is not False or is_held:
                inputs = recognized(guards, [*args, *kwargs.values()])  # the first fast path
            else:
                next(guards.cached.calls)  # the second one

            # 3. The policies decide by the inputs.
            if kept is None and inputs is not None:
                outline = inputs.outline if inputs.scalars else inputs.sizes
                kept = recording.decisions.decide(
                    CallView(number, args, kwargs, inputs.structure, outline, inputs.scalars)
                )

            # 4. The inputs are copied, or counted.
            if inputs is not None and (kept or is_held):
                # As now_ns(), which would be one more function in the way of each call.
                call = Call(number, max(time.time_ns(), 0), get_ident())
                call.owner = recording
                call.is_provisional, call.is_novel = not kept, kept == NOVEL
                self._copy_inputs(recording, call, inputs)
            elif inputs is not None:
                unkept, inputs = inputs, None  # an interrupt that comes now must not count it again
                recording.unkept.count_captured(unkept)
        except BaseException as error:
            if self._is_only_dropped(error, admission, call, inputs):
                return None
            raise
        if call is not None:
            call.started = clock()
            call.cost_ns = call.started - begun
            return call
        admission.ledger.skip()
        if number % _MEASURED_EVERY == 1:  # not the first call, which costs more than any other
            admission.ledger.spend(_MEASURED_EVERY * (clock() - begun))
        return None

    def _is_only_dropped(
        self, error: BaseException, admission: Admission[Recording], call: Call | None,
        inputs: CapturedSide | None,
    ) -> bool:  # fmt: skip
        """Counts a call as dropped whose begin raised. False for an exception that must be raised:
        one that was sent to the application, or a bug of the recorder."""
        recording, reason = admission.recording, _reason_of(error)
        if inputs is not None and (call is None or call.inputs is None):
            recording.unkept.count_captured(inputs)
        if call is not None:
            recording.drop(call, reason)
        else:
            if reason is not DropReason.TRACING:
                recording.decisions.lose_novelty()
            admission.ledger.drop(reason)
        return reason in (DropReason.TRACING, DropReason.QUEUE_FULL)

    def _renewed(self) -> Admission[Recording] | None:
        if not self.active:
            return None
        recording = self._renew() if self.recording is None else self.recording
        # An interrupt may have come after the recording was set and before its admission was.
        if recording is not None and self.admission is None:
            self.set_recording(recording)
        return self.admission

    def _copy_inputs(self, recording: Recording, call: Call, side: CapturedSide) -> None:
        if recording.writer.queue.is_full:
            raise QueueFull
        if function_modes():
            with torch._C.DisableTorchFunction():  # see Snapshots.inputs
                call.inputs = recording.snapshots.copy(call, side)
        else:
            call.inputs = recording.snapshots.copy(call, side)
        if recording.write_ahead is not None:
            recording.write_ahead.write(call)

    def finish(self, call: Call, result: Any) -> None:
        """Copies what the model returned, and hands the call over."""
        ended = clock()
        call.duration_ns = ended - call.started
        recording = self._recording_of(call)
        if recording is None:
            return
        if call.outputs_missing is not None:
            pass  # it returned a coroutine or generator that had not run
        elif not self._outputs:
            call.outputs_missing = OMITTED
        else:
            snapshots = recording.snapshots
            try:
                guards, chunks = snapshots.cache.latest_result, call.chunks
                if chunks is not None:
                    side = chunks.outputs(snapshots.structures)
                    snapshots.pay(call, side.structure)
                    call.outputs = side
                    call.outputs_missing, call.outputs_lost = chunks.missing(), chunks.lost
                    call.chunks = None
                elif guards is None or function_modes() or not guards.accept_result(result):
                    call.outputs = snapshots.output(call, result)
                elif guards.template is not None and not guards.facts.nbytes:
                    call.outputs = guards.template  # nothing of it is copied
                else:
                    call.outputs = snapshots.copy(call, recognized(guards, [result]))
            except BaseException as error:
                reason = _reason_of(error)
                if reason is DropReason.INTERRUPTED:
                    recording.drop(call, reason)
                    raise
                if reason is DropReason.INTERNAL:
                    self.fault(error)
                call.outputs_missing = call.outputs_lost = reason
                recording.release_chunks(call)
        call.cost_ns += clock() - ended
        recording.hand_over(call)

    def chunk(self, call: Call, value: Any) -> None:
        """Copies a chunk that a generator yields, as it is at this moment."""
        recording, chunks = self._recording_of(call), call.chunks
        if chunks is None or not chunks.next() or recording is None or not self._outputs:
            return
        begun = clock()
        try:
            snapshots, walked = recording.snapshots, capture_chunk(value)
            with torch._C.DisableTorchFunction():
                side = snapshots.copy(call, snapshots.captured(walked, is_chunk=True))
            chunks.add(walked[0], side)
        except BaseException as error:
            reason = _reason_of(error)
            if reason is DropReason.INTERRUPTED:
                raise
            if reason is DropReason.INTERNAL:
                self.fault(error)
            chunks.lose(reason)
        call.cost_ns += clock() - begun

    def fail(self, call: Call, error: BaseException | None) -> None:
        """Notes the exception that ended the call, and hands the call over. ``error`` is None if it
        is unknown: hooks see no exception that is not an ``Exception``."""
        ended = clock()
        call.duration_ns = ended - call.started
        recording = self._recording_of(call)
        if recording is None:
            return
        # torch.utils.checkpoint repeats a call for a gradient, and ends it when it has enough.
        checkpoint = sys.modules.get("torch.utils.checkpoint")
        if type(error) is getattr(checkpoint, "_StopRecomputationError", object):
            recording.drop(call, DropReason.TRACING)
            return
        if error is None:
            call.duration_ns = None
            call.error = ("builtins:BaseException", "the call ended without returning")
        else:
            message = _message(error)
            if recording.omits_values:  # the message may quote an input of the model
                message = length_of_text(message)
            if not recording.ledger.reserve(call, len(message)):
                message = message[:MAX_UNHELD_ERROR_CHARACTERS]
            call.error = (type_name(type(error)), message)
        if call.chunks is not None:
            call.outputs_missing = call.chunks.raised()
            recording.release_chunks(call)
        call.cost_ns += clock() - ended
        recording.hand_over(call)

    def abandon(self, call: Call) -> None:
        """Counts a call as unfinished, because its end will not be seen."""
        recording = self._recording_of(call)
        if recording is not None:
            recording.drop(call, DropReason.UNFINISHED)

    def skip(self, *, warn: bool) -> None:
        """Counts a call that something traces. ``warn`` is True if later calls of what is being
        compiled will not be seen: then the user is warned."""
        recording = self.recording
        if not self.active or recording is None:
            return
        if recording.ledger.next_number() is not None:
            recording.ledger.drop(DropReason.TRACING)
        if warn:
            recording.notices.warn(
                "the recorded module is compiled with fullgraph=True, by itself or within something"
                " larger: its calls are not seen, and each compilation is counted as 'tracing'."
                " Compile first, then attach the recorder to what was compiled"
            )

    def fault(self, error: BaseException) -> None:
        """Logs an error of the recorder itself."""
        recording = self.recording
        if recording is not None:
            recording.notices.complain("a call could not be recorded", error)

    def _recording_of(self, call: Call) -> Recording | None:
        """The recording of a call. None if it is over, or if it is that of the parent process,
        because the call began before a fork."""
        admission = self.admission
        if admission is None or call.owner is not admission.recording:
            return None
        return admission.recording


def _reason_of(error: BaseException) -> DropReason:
    """The reason why a call, or its outputs, are dropped after this exception in the recorder."""
    if isinstance(error, Traced):
        return DropReason.TRACING
    if isinstance(error, QueueFull):
        return DropReason.QUEUE_FULL
    return DropReason.INTERRUPTED if is_interrupt(error) else DropReason.INTERNAL


def _message(error: BaseException) -> str:
    try:
        # A text may be of a class of the application, with methods of its own.
        return str.__getitem__(str(error), slice(MAX_ERROR_CHARACTERS)) + ""
    except BaseException as broken:  # the application's own __str__
        if is_interrupt(broken):
            raise
        return f"(its text raised {name_of(type(broken))})"
