"""What happens around one call: count, walk, reserve, snapshot, hand over. Never an exception.

This is the path inside the host's call. Whatever goes wrong in it is counted, said once through
``logging`` and swallowed; only exceptions that are not the recorder's own (KeyboardInterrupt and
the like, which can arrive anywhere) pass through, with the accounts in order.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch

from calltape_recorder.buffers import Buffers
from calltape_recorder.capture import Capture, capture_inputs, capture_output
from calltape_recorder.compilers import is_tracing
from calltape_recorder.encoding import Call, Side
from calltape_recorder.known_classes import type_name
from calltape_recorder.snapshot import release, see, take
from calltape_recorder.stats import Ledger
from calltape_recorder.structures import Structures
from calltape_recorder.writer import Writer

__all__ = ["Tap"]

_MAX_MESSAGE = 64 * 1024
_SCALAR_BYTES = 64  # a rough cost of a captured Python value, so that the bound holds for them too

_function_modes = torch._C._len_torch_function_stack


class _Full(Exception):  # noqa: N818 - a signal between two functions, not an error
    """The byte bound is reached."""


class Tap:
    """Turns calls into :class:`Call` objects for the writer while ``active``."""

    def __init__(
        self, ledger: Ledger, structures: Structures, buffers: Buffers, writer: Writer,
        *, outputs: bool, values: bool,
    ) -> None:  # fmt: skip
        self.active = True
        self._ledger = ledger
        self._structures = structures
        self._buffers = buffers
        self._writer = writer
        self._outputs = outputs
        self._values = values

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Counts a call and snapshots its inputs; None where it is not recorded."""
        if not self.active:
            return None
        number = self._ledger.see()
        if number is None:
            return None
        call = Call(number, time.time_ns(), threading.get_ident())
        try:
            if is_tracing():
                self._ledger.drop("tracing")
                return None
            call.inputs = self._side(call, capture_inputs(args, kwargs))
        except _Full:
            self._ledger.drop("queue_full")
            self._writer.settle_soon()
            return None
        except Exception as error:
            self.fault(error)
            self._forget(call, "internal")
            return None
        except BaseException:
            self._forget(call, "interrupted")
            raise
        call.started = time.perf_counter_ns()
        return call

    def finish(self, call: Call, result: Any) -> None:
        """Snapshots what the model returned and hands the call over."""
        call.duration_ns = time.perf_counter_ns() - call.started
        if not self.active:
            return
        if not self._outputs:
            call.outputs_missing = "policy"
        else:
            try:
                call.outputs = self._side(call, capture_output(result))
            except _Full:
                call.outputs_missing = "queue_full"
                self._writer.settle_soon()
            except Exception as error:
                self.fault(error)
                call.outputs_missing = "internal"
            except BaseException:
                self._forget(call, "interrupted")
                raise
        self._writer.put(call)

    def fail(self, call: Call, error: BaseException | None) -> None:
        """Notes the exception that ended the call, and hands it over; None where it is unknown
        (an exception that is not an ``Exception`` passes hooks by)."""
        call.duration_ns = time.perf_counter_ns() - call.started
        if not self.active:
            return
        if error is None:
            call.duration_ns = None
            call.error = ("builtins:BaseException", "the call ended without returning")
        else:
            call.error = (type_name(type(error)), _message(error))
        self._writer.put(call)

    def skip(self, *, said: bool) -> None:
        """Counts a call that something traces; ``said`` where its later calls will not be seen."""
        if not self.active:
            return
        if self._ledger.see() is not None:
            self._ledger.drop("tracing")
        if said:
            self._writer.warn(
                "what is recorded is compiled with fullgraph=True, by itself or within something"
                " larger: its calls are not seen, only each compilation is counted, as 'tracing'."
                " Compile first, then attach the recorder to what was compiled"
            )

    def fault(self, error: BaseException) -> None:
        """Something went wrong in the recorder itself."""
        self._writer.complain("a call could not be recorded", error)

    def _side(self, call: Call, captured: Capture) -> Side:
        if _function_modes():
            # Under `with torch.device(...)` and the like even reading a shape is intercepted.
            with torch._C.DisableTorchFunction():
                return self._snapshot(call, captured)
        return self._snapshot(call, captured)

    def _snapshot(self, call: Call, captured: Capture) -> Side:
        tokens, leaves, scalars = captured
        seen = see(leaves, self._values)
        facts, same, storages, sizes = seen
        nbytes = sum(sizes)
        if scalars:
            nbytes += _SCALAR_BYTES * len(scalars)
            nbytes += sum([len(value) for value in scalars if type(value) in (str, bytes)])
        structure = self._structures.of(tokens)
        if not self._ledger.reserve(nbytes):
            raise _Full
        call.nbytes += nbytes
        return Side(structure, scalars, facts, same, storages, take(leaves, seen, self._buffers))

    def _forget(self, call: Call, reason: str) -> None:
        for side in (call.inputs, call.outputs):
            if side is not None:
                release(side.pieces, self._buffers)
        self._ledger.drop(reason, call.nbytes)


def _message(error: BaseException) -> str:
    try:
        return str(error)[:_MAX_MESSAGE]
    except Exception as broken:  # the host's own __str__
        return f"(its text raised {type(broken).__name__})"
