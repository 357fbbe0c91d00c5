"""Whether a call was refused for nothing: a program returns what the model returns, if what keeps
it from the call is left out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Literal

from calltape_analyzer.arguments.samples import LiveCall, Sample, in_variant
from calltape_analyzer.programs.program import Program
from tests.zoo.case import Arguments, fresh

__all__ = ["Needless", "needless"]

Needless = Literal["ours", "guards"]
"""What was left out: what calltape added to a program (sizes that it serves only, conditions of its
variant, sizes of 0), or the guards of torch as well."""


def needless(
    programs: Any, arguments: Arguments, is_right: Callable[[Any], bool]
) -> Needless | None:
    """What kept a program from a call for nothing; None if no program would have been right.

    Args:
        programs: refused the call.
        arguments: of the call.
        is_right: compares what the model returns with what a program returns.
    """
    for what in ("ours", "guards"):
        for program in programs.values():
            for got in _run(program, programs, arguments, guarded=what == "ours"):
                if is_right(got):
                    return what  # type: ignore[return-value]
    return None


def _run(program: Program, programs: Any, arguments: Arguments, *, guarded: bool) -> Iterator[Any]:
    """What a program returns, if it comes to its end."""
    args, kwargs = fresh(arguments)
    try:
        live = LiveCall(args, kwargs, programs.sorter)
        placed = live.placed
        if program.variant.row_in(placed.key, placed.row) is None:
            return  # of another structure
        own = in_variant(program.variant, live.sample, placed.key, placed.row, program.device)
        outputs = program.outputs(own) if guarded else _unguarded(program, own)
        yield program.value(outputs)
    except Exception:  # torch and runtimes raise errors of any type
        return


def _unguarded(program: Program, sample: Sample) -> list[Any]:
    """The outputs of a program of torch without the checks of its inputs.

    Raises:
        Exception: whatever torch raises.
    """
    model: Any = copy.copy(program.model)
    model.module = model.exported.module(check_guards=False)
    model.module._forward_pre_hooks.clear()
    return model.run(program.inputs(sample))
