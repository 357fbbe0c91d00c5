"""What happens around one call: count, walk, decide, snapshot, hand over. Never an exception.

This is the path inside the host's call. Whatever goes wrong in it is counted, said once through
``logging`` and swallowed; only exceptions that are not the recorder's own (KeyboardInterrupt and
the like, which can arrive anywhere) pass through, with the accounts in order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from calltape_recorder.calltree import leave, node_of, set_innermost
from calltape_recorder.capture import Capture, capture_inputs, capture_output
from calltape_recorder.chunks import capture_chunk
from calltape_recorder.compilers import dispatch_modes, is_tracing
from calltape_recorder.encoding import Call, Side
from calltape_recorder.gate import Gate
from calltape_recorder.known_classes import type_name
from calltape_recorder.likeness import Familiar, look, see_as
from calltape_recorder.pipeline import Pipeline
from calltape_recorder.sight import Sight, row_of
from calltape_recorder.snapshot import release, take
from calltape_recorder.structures import Structure

__all__ = ["Tap"]

_MAX_MESSAGE = 64 * 1024
_SHORT_MESSAGE = 500
_SCALAR_BYTES = 64  # a rough cost of a captured Python value, so that the bound holds for them too

_Kept = Callable[[Structure, list[Any]], list[Any]]
_Tensor = torch.Tensor
_function_modes = torch._C._len_torch_function_stack


class _Full(Exception):  # noqa: N818 - a signal between two functions, not an error
    """The byte bound is reached."""


class Tap:
    """Turns calls into :class:`Call` objects for a pipeline, until it is closed.

    Args:
        pipeline: what they go to.
        renew: makes the pipeline of a forked child, at its first call; None where it cannot.
        outputs: whether what the model returns is kept.

    Attributes:
        active: whether it is not closed.
        pipeline: None in a forked child until its first call.
        gate: that of the pipeline, while calls go there.
    """

    __slots__ = ("_outputs", "_renew", "active", "gate", "pipeline")

    def __init__(
        self, pipeline: Pipeline, renew: Callable[[], Pipeline | None], *, outputs: bool
    ) -> None:
        self.active = True
        self._renew = renew
        self._outputs = outputs
        self.lead_to(pipeline)

    def lead_to(self, pipeline: Pipeline | None) -> None:
        """Calls go there from now on."""
        # Closed first and opened last, whatever interrupts it.
        self.gate: Gate | None = None
        self.pipeline = pipeline
        if pipeline is not None and self.active:
            self.gate = pipeline.gate
        if not self.active:  # a signal handler closed it meanwhile
            self.gate = None

    def close(self) -> None:
        """Calls go nowhere from now on."""
        self.active = False
        self.gate = None

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Counts a call and snapshots its inputs; None where it is not recorded."""
        # Most calls end here where few are kept, with cold caches: as little as can be is touched.
        gate = self.gate
        if gate is None:
            gate = self._renewed()
            if gate is None:
                return None
        ledger = gate.ledger
        number = ledger.see()
        if number is None:
            return None
        call: Call | None = None
        try:
            first, end = gate.passes_over[0]
            kept: bool | None = False
            if not first <= number < end:
                ask = gate.by_number
                kept = ask if ask is None or ask is True else ask(number, None)
            familiar = gate.familiar
            if familiar is not None and (
                dispatch_modes() or _function_modes() or not familiar.count(args, kwargs)
            ):
                familiar = None
            if familiar is None or kept is not False or gate.holds:
                call = Call(number, time.time_ns(), threading.get_ident())
        except BaseException as error:
            ledger.drop("internal" if isinstance(error, Exception) else "interrupted")
            raise
        if call is None:
            ledger.skip()
            return None
        pipeline = call.home = gate.pipeline
        return self._begun(pipeline, call, args, kwargs, kept, familiar)

    def _renewed(self) -> Gate | None:
        if not self.active:
            return None
        pipeline = self._renew() if self.pipeline is None else self.pipeline
        if pipeline is not None and self.gate is None:  # an interrupt came before it was opened
            self.lead_to(pipeline)
        return self.gate

    def _begun(
        self, pipeline: Pipeline, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any],
        kept: bool | None, familiar: Familiar | None,
    ) -> Call | None:  # fmt: skip
        try:
            if familiar is not None and kept:
                if pipeline.writer.is_full:
                    raise _Full
                leaves = [*args, *kwargs.values()]
                like = familiar.like
                if like is not None and like.side is not None and like.holds(leaves):
                    call.inputs = like.side
                else:
                    call.inputs = _snapshot(
                        pipeline, call, familiar.structure, leaves, [], familiar
                    )
            elif familiar is None and is_tracing():
                pipeline.forget(call, "tracing")
                return None
            elif not self._inputs(pipeline, call, args, kwargs, kept, familiar):
                call.is_settled = True
                pipeline.ledger.skip()
                return None
            if pipeline.ahead is not None:
                pipeline.ahead.write(call)
        except _Full:
            pipeline.forget(call, "queue_full")
            pipeline.writer.settle_soon()
            return None
        except Exception as error:
            self.fault(error)
            pipeline.forget(call, "internal")
            return None
        except BaseException:
            pipeline.forget(call, "interrupted")
            raise
        # In this order: whatever interrupts it, a node that others see is one that is left.
        node = call.node = node_of(pipeline.tape_id, call.number)
        set_innermost(node)
        call.started = time.perf_counter_ns()
        return call

    def finish(self, call: Call, result: Any) -> None:
        """Snapshots what the model returned and hands the call over."""
        call.duration_ns = time.perf_counter_ns() - call.started
        leave(call.node)
        pipeline: Pipeline = call.home
        if pipeline.gate is not self.gate:  # what _home() asks, a frame less
            return
        if call.outputs_missing is not None:  # it returned what will only run later
            pass
        elif not self._outputs:
            call.outputs_missing = "policy"
        else:
            try:
                like = pipeline.returned
                if like is not None and call.chunks is None and like.is_of(result):
                    call.outputs = like.side
                else:
                    self._outputs_of(pipeline, call, result)
            except _Full:
                call.outputs_missing = "queue_full"
                pipeline.writer.settle_soon()
            except Exception as error:
                self.fault(error)
                call.outputs_missing = "internal"
                _release_chunks(pipeline, call)
            except BaseException:
                pipeline.forget(call, "interrupted")
                raise
        pipeline.take(call)

    def chunk(self, call: Call, value: Any) -> None:
        """Snapshots a chunk that a generator yields, as it is at this moment."""
        pipeline, chunks = self._home(call), call.chunks
        if not chunks.next() or pipeline is None or not self._outputs:
            return
        try:
            captured = capture_chunk(value)
            # What is withheld of it is known once all are one list.
            chunks.add(captured.tokens, self._side(pipeline, call, captured, _as_it_is))
        except _Full:
            chunks.reason = "queue_full"
            pipeline.writer.settle_soon()
        except Exception as error:
            self.fault(error)
            chunks.reason = "internal"

    def fail(self, call: Call, error: BaseException | None) -> None:
        """Notes the exception that ended the call, and hands it over; None where it is unknown
        (an exception that is not an ``Exception`` passes hooks by)."""
        call.duration_ns = time.perf_counter_ns() - call.started
        leave(call.node)
        pipeline = self._home(call)
        if pipeline is None:
            return
        if error is None:
            call.duration_ns = None
            call.error = ("builtins:BaseException", "the call ended without returning")
        else:
            message = _message(error)
            if pipeline.withholds:  # it may quote what the model was given
                message = f"({len(message)} characters, not kept)"
            if not pipeline.ledger.reserve(call, len(message)):
                message = message[:_SHORT_MESSAGE]
            call.error = (type_name(type(error)), message)
        if call.chunks is not None:
            call.outputs_missing = call.chunks.raised()
            _release_chunks(pipeline, call)
        pipeline.take(call)

    def abandon(self, call: Call) -> None:
        """Nobody will tell how this call ends."""
        leave(call.node)
        pipeline = self._home(call)
        if pipeline is not None:
            pipeline.forget(call, "unfinished")

    def skip(self, *, said: bool) -> None:
        """Counts a call that something traces; ``said`` where its later calls will not be seen."""
        pipeline = self.pipeline
        if not self.active or pipeline is None:
            return
        if pipeline.ledger.see() is not None:
            pipeline.ledger.drop("tracing")
        if said:
            pipeline.writer.warn(
                "what is recorded is compiled with fullgraph=True, by itself or within something"
                " larger: its calls are not seen, only each compilation is counted, as 'tracing'."
                " Compile first, then attach the recorder to what was compiled"
            )

    def fault(self, error: BaseException) -> None:
        """Something went wrong in the recorder itself."""
        pipeline = self.pipeline
        if pipeline is not None:
            pipeline.writer.complain("a call could not be recorded", error)

    def _home(self, call: Call) -> Pipeline | None:
        """The pipeline of a call; None where it is another process's (the call began before a
        fork), or the recording is over: then calls lead nowhere, or through another gate."""
        pipeline: Pipeline = call.home
        return pipeline if pipeline.gate is self.gate else None

    def _inputs(
        self, pipeline: Pipeline, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any],
        kept: bool | None, familiar: Familiar | None,
    ) -> bool:  # fmt: skip
        """Counts what the call looks like, and snapshots it if it is one to keep."""
        if _function_modes():
            # Under `with torch.device(...)` and the like even reading a shape is intercepted.
            with torch._C.DisableTorchFunction():
                return self._seen_inputs(pipeline, call, args, kwargs, kept, familiar)
        return self._seen_inputs(pipeline, call, args, kwargs, kept, familiar)

    def _seen_inputs(
        self, pipeline: Pipeline, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any],
        kept: bool | None, familiar: Familiar | None,
    ) -> bool:  # fmt: skip
        if familiar is not None:
            leaves, scalars = [*args, *kwargs.values()], list[Any]()
            sight = Sight(call.number, args, kwargs, familiar.structure, familiar.row, scalars)
        else:
            tokens, leaves, scalars = capture_inputs(args, kwargs)
            structure = pipeline.structures.of(tokens)
            if structure.withheld is None:
                row = row_of(leaves, scalars)
            else:
                scalars = structure.kept(scalars)
                row = row_of(leaves, structure.numbers(scalars))
            sight = Sight(call.number, args, kwargs, structure, row, scalars)
            pipeline.traffic.count(sight)
        if kept is None:
            kept = pipeline.decide(sight)
        if not kept:
            if pipeline.flight is None:
                return False
            call.held = True
        if pipeline.writer.is_full:
            raise _Full
        call.inputs = _snapshot(pipeline, call, sight.structure, leaves, scalars, familiar)
        return True

    def _outputs_of(self, pipeline: Pipeline, call: Call, result: Any) -> None:
        chunks = call.chunks
        if chunks is not None:
            call.outputs = chunks.outputs(pipeline.structures)
            call.outputs_missing = chunks.missing()
            call.chunks = None
            return
        side = call.outputs = self._side(pipeline, call, capture_output(result))
        like = side.like
        is_bare = like is not None and like.side is side and type(result) is _Tensor
        pipeline.returned = like if is_bare else None

    def _side(
        self, pipeline: Pipeline, call: Call, captured: Capture, kept: _Kept = Structure.kept
    ) -> Side:
        if _function_modes():
            with torch._C.DisableTorchFunction():
                return _captured(pipeline, call, captured, kept)
        return _captured(pipeline, call, captured, kept)


def _captured(pipeline: Pipeline, call: Call, captured: Capture, kept: _Kept) -> Side:
    tokens, leaves, scalars = captured
    structure = pipeline.structures.of(tokens)
    return _snapshot(pipeline, call, structure, leaves, kept(structure, scalars))


def _as_it_is(structure: Structure, scalars: list[Any]) -> list[Any]:
    return scalars


def _snapshot(
    pipeline: Pipeline, call: Call, structure: Structure, leaves: list[Any], scalars: list[Any],
    familiar: Familiar | None = None,
) -> Side:  # fmt: skip
    like = look(leaves, structure, familiar)
    if like is None:
        seen = see_as(leaves, structure)
    elif like.side is not None:
        side: Side = like.side
        return side
    else:
        seen = like.seen
    facts, same, storages, sizes = seen
    nbytes = sum(sizes)
    if scalars:
        nbytes += _SCALAR_BYTES * len(scalars)
        nbytes += sum([len(value) for value in scalars if type(value) in (str, bytes)])
    if nbytes and not pipeline.ledger.reserve(call, nbytes):
        raise _Full
    pieces = take(leaves, seen, pipeline.buffers)
    side = Side(structure, scalars, facts, same, storages, pieces, structure.wanted, like)
    if like is not None and not nbytes:
        like.side = side
    return side


def _release_chunks(pipeline: Pipeline, call: Call) -> None:
    chunks, call.chunks = call.chunks, None
    if chunks is not None:
        release(chunks.pieces, pipeline.buffers)


def _message(error: BaseException) -> str:
    try:
        return str(error)[:_MAX_MESSAGE]
    except Exception as broken:  # the host's own __str__
        return f"(its text raised {type(broken).__name__})"
