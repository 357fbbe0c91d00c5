"""The interface between what sees the calls of a module and what records them.

An :class:`Attachment` is put on the module, sees its calls, and notifies a :class:`Listener`. The
application does not change: signatures and compiled graphs are the same as without a recorder. If
the model is copied or saved, the attachment turns into objects of the standard library that do
nothing, so a saved model can be loaded without calltape. Exceptions of the listener do not reach
the application, and its code is not compiled.

The body of a hook must run next to a compiled model. It must not be compiled, and must not break
the graph of the model. Three mechanisms ensure this:

- Dynamo's frame evaluation skips the frame of the hook itself, so the frame runs as it is.
- The body runs with frame evaluation off, so nothing that it calls is compiled.
- Dynamo may *inline* the hook, if the module is inside a larger compiled one. Then the hook asks at
  trace time whether a graph break is allowed. If it is, the hook breaks the graph and the call is
  recorded. Under ``fullgraph=True``, a break would raise in the application, so the hook
  disappears.

``torch.compiler.disable`` does the same as the first two. But each call costs more, and it imports
Dynamo, which takes seconds, into servers that compile nothing. It is the fallback for versions of
torch without the functions below.
"""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, Protocol, TypeVar

import torch
from torch.compiler import is_compiling

from calltape_recorder.snapshot.call import Call
from calltape_recorder.threads import Count, is_interrupt, new_count

_C: Any = torch._C

F = TypeVar("F", bound=Callable[..., Any])


def _frame_evaluation() -> tuple[Callable[[Any], Any], Callable[[CodeType], None]] | None:
    """Two C functions of Dynamo, or None if this version of torch has others. The first one sets
    the callback of this thread. The second one excludes a code object from compilation."""
    frames: Any = getattr(_C._dynamo, "eval_frame", None)
    callback = getattr(frames, "set_eval_frame", None)
    skip: Callable[[CodeType], None] | None = getattr(frames, "skip_code", None)  # until torch 2.6
    strategy: Any = getattr(frames, "set_code_exec_strategy", None)  # since torch 2.7
    if skip is None and strategy is not None:
        skipped = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        skip = lambda code: strategy(code, skipped)  # noqa: E731
    return (callback, skip) if callback is not None and skip is not None else None


_functions = _frame_evaluation()


def skip_frame(function: F) -> F:
    """Makes frame evaluation skip the frame of the function. Dynamo may still inline the call."""
    if _functions is not None:
        _functions[1](function.__code__)
    return function


def breaks_graph(function: F) -> F:
    """Makes Dynamo end its graph before a call of this function, and call it as it is."""
    # torch.compiler.disable sets these attributes, too. But it imports Dynamo.
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = "calltape records this call"  # type: ignore[attr-defined]
    function._torchdynamo_disable_recursive = True  # type: ignore[attr-defined]
    return skip_frame(function)


def assumed_constant(function: F) -> F:
    """Does the same as torch._dynamo.assume_constant_result, but does not import Dynamo."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


# Sets the callback of frame evaluation of this thread, and returns the one before. Nothing is
# compiled while it is None.
if _functions is not None:
    set_frame_callback = _functions[0]
else:  # pragma: no cover - no known version of torch
    import torch._dynamo.eval_frame as dynamo

    set_frame_callback = dynamo.set_eval_frame  # type: ignore[attr-defined]  # pyright: ignore


def one_graph() -> bool:
    """Whether a graph break would be an error (``fullgraph=True``). Asked while Dynamo traces."""
    tracer = _tracer()
    return tracer is None or bool(
        tracer.one_graph or getattr(tracer, "error_on_graph_break", False) or tracer.export
    )


def is_full_graph() -> bool:
    """Whether Dynamo compiles under ``fullgraph=True`` and does not export. Asked while Dynamo
    traces."""
    tracer = _tracer()
    return tracer is not None and not tracer.export and not _is_exporting()


def _tracer() -> Any:
    convert = sys.modules.get("torch._dynamo.symbolic_convert")
    try:
        return convert.InstructionTranslator.current_tx() if convert is not None else None
    except Exception:  # nothing is being traced, or the class has moved
        return None


_is_exporting: Callable[[], bool] = getattr(
    torch.compiler, "is_exporting", is_compiling
)  # is_exporting exists since torch 2.7; without it, any compilation may be an export


class Listener(Protocol):
    """Handles the calls of one module.

    Attributes:
        active: whether it still handles calls.
    """

    active: bool

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """A call begins. The result is None if it is not recorded."""

    def chunk(self, call: Call, value: Any) -> None:
        """A call yields a chunk of its output."""

    def finish(self, call: Call, result: Any) -> None:
        """A call returned."""

    def fail(self, call: Call, error: BaseException | None) -> None:
        """A call raised."""

    def abandon(self, call: Call) -> None:
        """A call is under way, and its end will not be seen."""

    def skip(self, *, warn: bool) -> None:
        """A call is traced, not run. ``warn`` is True if later calls of what is being compiled will
        not be seen, so that the user must be warned."""

    def fault(self, error: BaseException) -> None:
        """Something went wrong in the recorder itself."""


class Attachment(abc.ABC):
    """Something that is put on a module to see its calls, and can be removed.

    Attributes:
        copies: counts the copies of it that were made with the module. Their calls are not seen.
    """

    def __init__(self) -> None:
        self.copies: Count = new_count()

    @abc.abstractmethod
    def trouble(self) -> str | None:
        """Why calls may not be seen, because the attachment was removed or replaced; None if it is
        in place."""

    @abc.abstractmethod
    def detach(self) -> None:
        """Removes it. What others put on top stays. It may be called twice."""

    def hand_over_ended(self, error: BaseException | None) -> None:  # noqa: B027
        """Notifies the listener of calls whose end was not seen, as far as this thread can know. A
        replaced method sees every end, so it does nothing here.

        Args:
            error: the exception that ends the recording, if there is one. It may have ended a call.
        """


def vanishing(listener: Listener, *, counts: bool) -> Callable[[], bool]:
    """Makes a function that says, while Dynamo traces, whether the hook must disappear from the
    graph.

    A graph break does not change the application's results, and every call can be recorded. If the
    application forbids graph breaks, or exports, the calls are not seen.

    Args:
        listener: is notified of the trace.
        counts: whether the function counts the trace as a call that was not recorded.
    """

    def vanishes() -> bool:
        try:
            if not one_graph():
                return False
            if counts:
                listener.skip(warn=is_full_graph())
        except Exception as error:  # otherwise, the application's compilation would fail
            listener.fault(error)
        return True

    return assumed_constant(vanishes)


# Frame evaluation is off only in the recorder's code, so the application's code stays compiled.


@skip_frame
def notify(method: Callable[[Any, Any], Any], listener: Listener, call: Any, value: Any) -> Any:
    """Notifies the listener: calls ``method``, one of its methods, with ``call`` and ``value``.
    Returns the result of the method; None if it raised."""
    callback = set_frame_callback(None)
    try:
        return method(call, value)
    except BaseException as error:
        try:
            if is_interrupt(error):
                raise
            listener.fault(error)
        except RecursionError:  # no frame is left to log it
            pass
        return None
    finally:
        set_frame_callback(callback)
