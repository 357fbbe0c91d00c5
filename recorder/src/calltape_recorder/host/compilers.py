"""Keeps the recorder out of what others trace: torch.compile, export, jit, functorch.

The body of a hook must run beside a compiled model. It must not be compiled, and it must not break
the graph of the model. There are three means:

- Dynamo's frame evaluation skips the frame of the hook itself, so the frame runs as it is.
- The body runs with frame evaluation off, so nothing that it calls is compiled.
- Dynamo may *inline* the hook, if the module is inside a larger compiled one. Then the hook asks at
  trace time whether a graph break is allowed. If it is, the hook breaks the graph and the call is
  recorded. Under ``fullgraph=True`` a break would raise in the host, so the hook disappears.

``torch.compiler.disable`` does the same as the first two. But each call costs more, and Dynamo is
imported (for seconds) into servers that compile nothing. It is the fallback for versions of torch
that do not have the functions below.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

import torch
from torch.compiler import is_compiling

_C: Any = torch._C

F = TypeVar("F", bound=Callable[..., Any])


def _frame_evaluation() -> tuple[Callable[[Any], Any], Callable[[CodeType], None]] | None:
    """Two C functions of Dynamo, or None if this version of torch has others. The first one sets
    the callback of this thread. The second one excludes a code object from compilation."""
    frames: Any = getattr(_C._dynamo, "eval_frame", None)
    callback = getattr(frames, "set_eval_frame", None)
    skip: Callable[[CodeType], None] | None = getattr(frames, "skip_code", None)  # until torch 2.6
    strategy = getattr(frames, "set_code_exec_strategy", None)  # since torch 2.7
    if skip is None and strategy is not None:
        skipped = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        skip = functools.partial(_set_strategy, strategy, skipped)
    return (callback, skip) if callback is not None and skip is not None else None


def _set_strategy(set_it: Callable[..., None], strategy: Any, code: CodeType) -> None:
    set_it(code, strategy)


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


# Nothing compiles the code between ``previous = off(None)`` and ``off(previous)``.
if _functions is not None:
    off = _functions[0]
else:  # pragma: no cover - no known version of torch
    import torch._dynamo.eval_frame as dynamo

    off = dynamo.set_eval_frame  # type: ignore[attr-defined]  # pyright: ignore


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
dispatch_modes = _C._len_torch_dispatch_stack  # returns how many dispatch modes are active
_jit_state = _C._get_tracing_state
_functorch_level = getattr(_C._functorch, "peek_interpreter_stack", None)
_tracing_keys = tuple(
    getattr(_C._TorchDispatchModeKey, name)
    for name in ("FAKE", "PROXY", "FUNCTIONAL")
    if hasattr(_C._TorchDispatchModeKey, name)
)


def is_tracing() -> bool:
    """Whether this call runs with tracers in place of tensors: export, fake tensors, make_fx, jit,
    vmap.

    All that is asked here belongs to this thread. ``torch.compiler.is_compiling()`` does not: while
    one thread compiles, it is true in all threads, and the others go on serving.
    """
    if _jit_state() is not None:
        return True
    if _functorch_level is not None and _functorch_level() is not None:
        return True
    return dispatch_modes() > 0 and any(
        _C._get_dispatch_mode(key) is not None for key in _tracing_keys
    )
