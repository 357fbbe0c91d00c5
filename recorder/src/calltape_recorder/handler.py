"""Handles one call: counts it, looks at it, decides, copies, and hands it over.

This is the path inside the host's call. If something goes wrong in it, that is counted and logged
once, and not raised. Only exceptions that were sent to the host (``KeyboardInterrupt`` and similar
ones, which can arrive anywhere) pass through, and the counts are right even then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from calltape_recorder.bounds import QUEUED_CALL_BYTES
from calltape_recorder.capture.contexts import (
    Traced,
    dispatch_modes,
    function_modes,
    is_tracing,
)
from calltape_recorder.capture.names import type_name
from calltape_recorder.capture.structures import Structure
from calltape_recorder.capture.walk import Walked, capture_inputs, capture_output
from calltape_recorder.keep.admission import Admission
from calltape_recorder.keep.policies import EVIDENCE, CallView
from calltape_recorder.pipeline import Pipeline
from calltape_recorder.snapshot.buffers import SideCopies
from calltape_recorder.snapshot.call import OMITTED, Call
from calltape_recorder.snapshot.chunks import capture_chunk
from calltape_recorder.snapshot.copies import copy_leaves, joined_bytes, release
from calltape_recorder.snapshot.earlier_copies import FEWEST_BYTES
from calltape_recorder.snapshot.facts import Outline, outline_of, with_ints
from calltape_recorder.snapshot.known_calls import Alike, Known
from calltape_recorder.snapshot.look import Look, look_at
from calltape_recorder.snapshot.side import Side
from calltape_recorder.threads import get_ident, is_interrupt
from calltape_schema.drop_reasons import DropReason
from calltape_schema.objects import name_of
from calltape_schema.privacy import length_of_text
from calltape_schema.records import MAX_ERROR_CHARACTERS, MAX_UNHELD_ERROR_CHARACTERS

_MEASURED = 17  # of so many calls that are not recorded, one is measured: a prime, for any rhythm

_Tensor = torch.Tensor
clock = time.perf_counter_ns


class CallHandler:
    """Turns calls into :class:`Call` objects for a pipeline, until it is closed.

    Args:
        pipeline: where the calls go.
        renew: makes the pipeline of a forked child, at its first call. It returns None if it
            cannot.
        outputs: whether the outputs of the model are kept.

    Attributes:
        active: False once it is closed.
        pipeline: where the calls go; None in a forked child until its first call.
        admission: the admission of the pipeline; None if calls are not recorded at the moment.
    """

    __slots__ = ("_outputs", "_renew", "active", "admission", "pipeline")

    def __init__(
        self, pipeline: Pipeline, renew: Callable[[], Pipeline | None], *, outputs: bool
    ) -> None:
        self.active = True
        self._renew = renew
        self._outputs = outputs
        self.set_pipeline(pipeline)

    def set_pipeline(self, pipeline: Pipeline | None) -> None:
        """Sends calls to this pipeline from now on."""
        # The admission is taken away first and set last: an interrupt in between loses calls, and
        # never sends one to the wrong pipeline.
        self.admission: Admission[Pipeline] | None = None
        self.pipeline = pipeline
        if pipeline is not None and self.active:
            self.admission = pipeline.admission
        if not self.active:  # a signal handler closed it meanwhile
            self.admission = None

    def close(self) -> None:
        """Records no calls from now on."""
        self.active = False
        self.admission = None

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Counts a call and copies its inputs. The result is None if it is not recorded."""
        # If few calls are kept, most calls end in this function. The caches of the processor are
        # cold for it, so it touches as little memory as possible.
        admission = self.admission
        if admission is None:
            admission = self._renewed()
            if admission is None:
                return None
        ledger = admission.ledger
        number = ledger.see()
        if number is None:
            return None
        begun = clock()
        pipeline = admission.pipeline
        call: Call | None = None
        side: Seen | None = None
        try:
            first, end = admission.passes_over[0]
            kept: int | None = False
            if not first <= number < end:
                ask = admission.by_number
                kept = ask if ask is None or ask is True else ask(number, None)
            repeat = admission.known_calls.call
            names = pipeline.module_names
            is_training = names is not None and names.is_training()
            # The dispatch keys of the thread are a part of a look, and this one was learned from a
            # call that was not traced. So without a mode, a call like it is not traced either.
            if repeat is not None and (
                dispatch_modes()
                or function_modes()
                or not repeat.is_of_call(args, kwargs, is_training)
            ):
                repeat = None
            if repeat is not None and kept is False and not admission.holds:
                next(repeat.known.calls)  # the shortest way: it is only counted
            else:
                if repeat is None:
                    side = seen_inputs(pipeline, args, kwargs, is_training=is_training)
                else:
                    side = recognized(repeat, [*args, *kwargs.values()])
                if kept is None:
                    kept = self._decided(pipeline, number, args, kwargs, side)
                if kept or admission.holds:
                    # As now_ns(), which would be one more function in the way of each call.
                    call = Call(number, max(time.time_ns(), 0), get_ident())
                else:
                    side.count_unkept(pipeline)
        except Traced:
            ledger.drop(DropReason.TRACING)
            return None
        except BaseException as error:
            pipeline.evidence_lost()
            ledger.drop(DropReason.INTERRUPTED if is_interrupt(error) else DropReason.INTERNAL)
            raise
        if call is None or side is None:
            ledger.skip()
        else:
            call.home = pipeline
            call.held, call.is_evidence = not kept, kept == EVIDENCE
            if self._begun(pipeline, call, side):
                call.started = clock()
                call.cost_ns = call.started - begun
                return call
        if number % _MEASURED == 1:  # not the first call, which costs more than any other
            ledger.spend(_MEASURED * (clock() - begun))
        return None

    def _renewed(self) -> Admission[Pipeline] | None:
        if not self.active:
            return None
        pipeline = self._renew() if self.pipeline is None else self.pipeline
        # An interrupt may have come after the pipeline was set and before its admission was.
        if pipeline is not None and self.admission is None:
            self.set_pipeline(pipeline)
        return self.admission

    def _decided(
        self, pipeline: Pipeline, number: int, args: tuple[Any, ...], kwargs: dict[str, Any],
        side: Seen,
    ) -> int:  # fmt: skip
        """Whether the policy keeps a call with these inputs."""
        try:
            outline = side.outline if side.scalars else side.sizes
            return pipeline.decide(
                CallView(number, args, kwargs, side.structure, outline, side.scalars)
            )
        except BaseException:  # also of the host's predicate
            side.count_unkept(pipeline)
            raise

    def _begun(self, pipeline: Pipeline, call: Call, side: Seen) -> bool:
        """Copies the inputs; False if there is no memory for them, or if that failed. The call is
        counted as dropped then, and its inputs as those of a call that is not on the tape."""
        try:
            if pipeline.writer.queue.is_full:
                raise QueueFull
            if function_modes():
                with torch._C.DisableTorchFunction():  # see seen_inputs
                    call.inputs = copied(pipeline, call, side)
            else:
                call.inputs = copied(pipeline, call, side)
            if pipeline.write_ahead is not None:
                pipeline.write_ahead.write(call)
        except BaseException as error:
            if call.inputs is None:
                side.count_unkept(pipeline)
            if isinstance(error, QueueFull):
                pipeline.drop(call, DropReason.QUEUE_FULL)
            elif is_interrupt(error):
                pipeline.drop(call, DropReason.INTERRUPTED)
                raise
            else:
                self.fault(error)
                pipeline.drop(call, DropReason.INTERNAL)
            return False
        return True

    def finish(self, call: Call, result: Any) -> None:
        """Copies what the model returned, and hands the call over."""
        ended = clock()
        call.duration_ns = ended - call.started
        pipeline = self._home(call)
        if pipeline is None:
            return
        if call.outputs_missing is not None:
            pass  # it returned a coroutine or generator that had not run
        elif not self._outputs:
            call.outputs_missing = OMITTED
        else:
            try:
                alike = pipeline.known_calls.result
                if (
                    alike is not None
                    and call.chunks is None
                    and not function_modes()
                    and alike.is_like_single(result)
                ):
                    same = None if alike.look.nbytes else alike.side
                    call.outputs = same or copied(pipeline, call, recognized(alike, [result]))
                elif call.chunks is None:
                    captured = capture_output(result)
                    with torch._C.DisableTorchFunction():
                        found = seen(pipeline, captured)
                        side = call.outputs = copied(pipeline, call, found)
                    # One with attributes of its own has another structure.
                    if type(result) is _Tensor and not result.__dict__ and found.known is not None:
                        alike = found.known.alike
                        if alike is not None and alike.look is side.look:
                            pipeline.known_calls.result = alike
                else:
                    side = call.chunks.outputs(pipeline.structures)
                    _pay(pipeline, call, side.structure)
                    call.outputs = side
                    call.outputs_missing = call.chunks.missing()
                    call.outputs_lost = call.chunks.lost
                    call.chunks = None
            except QueueFull:
                call.outputs_missing = call.outputs_lost = DropReason.QUEUE_FULL
                _release_chunks(pipeline, call)
            except BaseException as error:
                if is_interrupt(error):
                    pipeline.drop(call, DropReason.INTERRUPTED)
                    raise
                self.fault(error)
                call.outputs_missing = call.outputs_lost = DropReason.INTERNAL
                _release_chunks(pipeline, call)
        call.cost_ns += clock() - ended
        pipeline.hand_over(call)

    def chunk(self, call: Call, value: Any) -> None:
        """Copies a chunk that a generator yields, as it is at this moment."""
        pipeline, chunks = self._home(call), call.chunks
        if chunks is None or not chunks.next() or pipeline is None or not self._outputs:
            return
        begun = clock()
        try:
            captured = capture_chunk(value)
            with torch._C.DisableTorchFunction():
                side = copied(pipeline, call, seen(pipeline, captured, is_chunk=True))
            chunks.add(captured[0], side)
        except QueueFull:
            chunks.lose(DropReason.QUEUE_FULL)
        except BaseException as error:
            if is_interrupt(error):
                raise
            self.fault(error)
            chunks.lose(DropReason.INTERNAL)
        call.cost_ns += clock() - begun

    def fail(self, call: Call, error: BaseException | None) -> None:
        """Notes the exception that ended the call, and hands the call over. ``error`` is None if it
        is unknown: hooks do not see an exception that is not an ``Exception``."""
        ended = clock()
        call.duration_ns = ended - call.started
        pipeline = self._home(call)
        if pipeline is None:
            return
        if error is not None and type(error) is _stop_of_recomputation():
            pipeline.drop(call, DropReason.TRACING)
            return
        if error is None:
            call.duration_ns = None
            call.error = ("builtins:BaseException", "the call ended without returning")
        else:
            message = _message(error)
            if pipeline.withholds:  # the message may quote an input of the model
                message = length_of_text(message)
            if not pipeline.ledger.reserve(call, len(message)):
                message = message[:MAX_UNHELD_ERROR_CHARACTERS]
            call.error = (type_name(type(error)), message)
        if call.chunks is not None:
            call.outputs_missing = call.chunks.raised()
            _release_chunks(pipeline, call)
        call.cost_ns += clock() - ended
        pipeline.hand_over(call)

    def abandon(self, call: Call) -> None:
        """Counts a call as unfinished, because nobody will tell how it ends."""
        pipeline = self._home(call)
        if pipeline is not None:
            pipeline.drop(call, DropReason.UNFINISHED)

    def skip(self, *, said: bool) -> None:
        """Counts a call that something traces. ``said`` is True if later calls of what is being
        compiled will not be seen: then the user is warned."""
        pipeline = self.pipeline
        if not self.active or pipeline is None:
            return
        if pipeline.ledger.see() is not None:
            pipeline.ledger.drop(DropReason.TRACING)
        if said:
            pipeline.notices.warn(
                "the recorded module is compiled with fullgraph=True, by itself or within something"
                " larger: its calls are not seen, and each compilation is counted as 'tracing'."
                " Compile first, then attach the recorder to what was compiled"
            )

    def fault(self, error: BaseException) -> None:
        """Logs an error of the recorder itself."""
        pipeline = self.pipeline
        if pipeline is not None:
            pipeline.notices.complain("a call could not be recorded", error)

    def _home(self, call: Call) -> Pipeline | None:
        """The pipeline of a call. None if the call began before a fork, so that the pipeline is the
        parent's, or if the recording is over."""
        admission = self.admission
        if admission is None or call.home is not admission.pipeline:
            return None
        return admission.pipeline


def _release_chunks(pipeline: Pipeline, call: Call) -> None:
    chunks, call.chunks = call.chunks, None
    if chunks is not None:
        release(chunks.places, pipeline.buffers)


def _stop_of_recomputation() -> Any:
    """The class of what ends a call that ``torch.utils.checkpoint`` makes once more for a gradient,
    as soon as it has what it needs; None if nobody uses that."""
    module = sys.modules.get("torch.utils.checkpoint")
    return getattr(module, "_StopRecomputationError", None)


def _message(error: BaseException) -> str:
    try:
        # A text of the host's own class may have methods of its own.
        return str.__getitem__(str(error), slice(MAX_ERROR_CHARACTERS)) + ""
    except BaseException as broken:  # the host's own __str__
        if is_interrupt(broken):
            raise
        return f"(its text raised {name_of(type(broken))})"


# One side of a call: what is known of it, and its copy. A call that looks like an earlier one takes
# fewer steps.

_SCALAR_BYTES = 64  # the rough memory of a captured Python value, which counts for the bound, too
_OF_STRUCTURE = 2  # a structure's rough memory, as a multiple of its bytes on the tape
_NO_SCALARS: list[Any] = []
_make = tuple.__new__  # makes a named tuple faster than its class does


class QueueFull(Exception):  # noqa: N818 - a signal between two functions, not an error
    """The call does not fit into the memory that the queue may use."""


class Seen(NamedTuple):
    """One side of a call before anything of it is copied.

    Attributes:
        structure: of it.
        leaves: its tensors and arrays.
        scalars: what the tape gets of its scalars.
        sizes: the outline of its leaves, without scalars.
        known: what is known of sides with the same structure, dtypes and shapes.
        alike: has recognized the leaves, or None.
    """

    structure: Structure
    leaves: list[Any]
    scalars: list[Any]
    sizes: Outline
    known: Known | None
    alike: Alike | None = None

    @property
    def outline(self) -> Outline:
        """See :data:`Outline`."""
        return with_ints(self.sizes, self.structure.numbers(self.scalars))

    def count_unkept(self, pipeline: Pipeline) -> None:
        """Counts it as the inputs of a call that is not on the tape."""
        if self.known is not None and not self.scalars and self.structure.core is None:
            next(self.known.calls)
        else:
            pipeline.unkept.count(self.structure, self.outline)


def seen_inputs(
    pipeline: Pipeline, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_training: bool
) -> Seen:
    """What is known of the inputs of a call.

    Raises:
        Traced: the call does not run the model.
    """
    if is_tracing():
        raise Traced
    if function_modes():
        # A mode such as `with torch.device(...)` intercepts even the read of a shape. Without one,
        # functions that the host registered for its classes run as they do elsewhere.
        with torch._C.DisableTorchFunction():
            return seen(
                pipeline,
                capture_inputs(args, kwargs, pipeline.module_names, is_training=is_training),
            )
    captured = capture_inputs(args, kwargs, pipeline.module_names, is_training=is_training)
    side = seen(pipeline, captured)
    known, leaves, known_calls = side.known, side.leaves, pipeline.known_calls
    in_a_row, known_calls.latest = known is known_calls.latest, known
    is_flat = len(leaves) == len(args) + len(kwargs) and not side.scalars
    if known is not None and leaves and is_flat:
        alike = known.alike
        if alike is not None and not alike.recognizes(leaves, in_a_row=in_a_row):
            alike = None
        if alike is None and known.met_again():
            look = _looked(side.structure, leaves)
            alike = known.learn(leaves, look, in_a_row=in_a_row)
        if alike is not None and alike.learn_call(args, kwargs, leaves, is_training=is_training):
            known_calls.call = alike
        return side._replace(alike=alike)  # so that the leaves are not compared once more
    return side


def recognized(alike: Alike, leaves: list[Any]) -> Seen:
    """What is known of a side whose leaves look like these."""
    known = alike.known
    return _make(Seen, (known.structure, leaves, _NO_SCALARS, known.outline, known, alike))


def seen(pipeline: Pipeline, captured: Walked, *, is_chunk: bool = False) -> Seen:
    """What is known of a side that a walk went over. What is withheld of chunks is decided later,
    when they are one list."""
    tokens, leaves, scalars = captured
    structure = pipeline.structures.of(tokens)
    sizes = outline_of(leaves)
    known = pipeline.known_calls.of(structure, sizes)
    if scalars and not is_chunk:
        scalars = structure.kept(scalars)
    return _make(Seen, (structure, leaves, scalars, sizes, known, None))


def copied(pipeline: Pipeline, call: Call, side: Seen) -> Side:
    """The copy of one side.

    Raises:
        QueueFull: the bytes do not fit into the memory that the queue may use.
    """
    structure, leaves, scalars, _, known, alike = side
    if not structure.is_paid:
        _pay(pipeline, call, structure)
    if known is not None and not leaves and not scalars:
        return known.side_without_leaves()
    if alike is None and known is not None:
        alike = known.alike
        if alike is not None and not alike.is_like(leaves):
            alike = None
    if alike is not None and alike.has_memory_of(leaves):
        look = alike.look
        if alike.side is not None and not look.nbytes and not scalars:
            return alike.side
    else:
        look = _looked(structure, leaves)
        alike = known.learn(leaves, look) if leaves and known is not None else None
    nbytes = look.nbytes
    if scalars:
        nbytes += _SCALAR_BYTES * len(scalars)
        nbytes += sum([len(value) for value in scalars if type(value) in (str, bytes)])
    if look.nbytes >= FEWEST_BYTES and structure.wanted:
        copies, origins = _large(pipeline, call, leaves, look, nbytes)
        return Side(structure, scalars, look, copies, structure.wanted, origins)
    if nbytes and not pipeline.ledger.reserve(call, nbytes):
        _make_room(pipeline, call, nbytes)
    if alike is not None and alike.side is not None:
        few, shared = joined_bytes(leaves, alike.arrays), None if scalars else alike.side
        return Side(structure, scalars, look, wanted=structure.wanted, joined=few, shared=shared)
    copies = copy_leaves(leaves, look, pipeline.buffers)
    return Side(structure, scalars, look, copies, structure.wanted)


def _looked(structure: Structure, leaves: list[Any]) -> Look:
    look = look_at(leaves, structure.wanted, structure.facts)
    structure.facts = look.facts
    return look


def _large(
    pipeline: Pipeline, call: Call, leaves: list[Any], look: Look, nbytes: int
) -> tuple[SideCopies, bytes]:
    """Copies of leaves, and their origins. What an earlier call has is not
    copied again. Its bytes count for this call too, which may be the last to hold them.

    Raises:
        QueueFull: the bytes do not fit into the memory that the queue may use.
    """
    earlier = pipeline.earlier_copies
    if not pipeline.ledger.reserve(call, nbytes):
        _make_room(pipeline, call, nbytes)
    found = earlier.find(leaves, look)
    copies = copy_leaves(leaves, look, pipeline.buffers, found)
    return copies, earlier.keep(leaves, look, copies, found)


def _pay(pipeline: Pipeline, call: Call, structure: Structure) -> None:
    """Reserves memory for a structure, which the call may be the first to have. Those that wait
    share it; when this call is written, others are remembered within bounds of their own.

    Raises:
        QueueFull: there is none.
    """
    nbytes = _OF_STRUCTURE * len(structure.encoded) - QUEUED_CALL_BYTES
    if nbytes > 0 and not structure.is_paid and not pipeline.ledger.reserve(call, nbytes):
        _make_room(pipeline, call, nbytes)
    structure.is_paid = True


def _make_room(pipeline: Pipeline, call: Call, nbytes: int) -> None:
    """Reserves memory for a call in the place of what is remembered of earlier calls.

    Raises:
        QueueFull: that is not enough.
    """
    pipeline.earlier_copies.clear()
    if not pipeline.ledger.reserve(call, nbytes):
        raise QueueFull
