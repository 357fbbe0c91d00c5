"""Tapes of calls that nobody recorded, for unit tests.

Takes calls as Python values; returns a sealed tape, which reads like a recorded one.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from calltape_analyzer.errors import UsageError
from calltape_analyzer.pytree.classes import name_of
from calltape_analyzer.writing.built_calls import ABSENT, build_call
from calltape_analyzer.writing.lineage import new_manifest
from calltape_analyzer.writing.new_tape import NewTape
from calltape_schema.records import Parameter, Policy, Target

__all__ = ["CallToWrite", "call", "write_tape"]


@dataclass(frozen=True)
class CallToWrite:
    """A call for :func:`write_tape`. :func:`call` makes it; each method gives a new one.

    Attributes:
        args, kwargs: what was passed.
        outputs: what was returned, if it was given.
        error: what was raised instead, or None.
        seconds: how long it took; None if that is not to be on the tape.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    outputs: Any = ABSENT
    error: BaseException | None = None
    seconds: float | None = None

    def returns(self, outputs: Any) -> CallToWrite:
        """The call with what it returned, which may be None. Without it, the outputs are not on the
        tape."""
        return replace(self, outputs=outputs, error=None)

    def raises(self, error: BaseException) -> CallToWrite:
        """The call with the exception that it raised."""
        return replace(self, outputs=ABSENT, error=error)

    def takes(self, seconds: float) -> CallToWrite:
        """The call with its duration in seconds."""
        return replace(self, seconds=seconds)


def call(*args: Any, **kwargs: Any) -> CallToWrite:
    """A call with these arguments: ``call(x, mask=m).returns(y)``."""
    return CallToWrite(args, kwargs)


def write_tape(
    path: str | os.PathLike[str],
    calls: Iterable[CallToWrite],
    model: Any = None,
    *,
    method: str = "forward",
    values: Literal["all", "none"] = "all",
) -> Path:
    """Writes a sealed tape of calls, numbered from 0.

    Args:
        path: of the new file, which must not exist yet.
        calls: what is on it.
        model: the module, or the function, that the calls are of: the tape says its class and its
            signature, and the mode (training or evaluation) that it is in now. Nothing is called.
            Without it, the tape says none of that.
        method: the method of a module that was called.
        values: ``"none"`` leaves the values of tensors out, like a recording of shapes.

    Returns:
        The path.

    Raises:
        UsageError: something else than a call, or a module without such a method.
        TapeError: ``exists`` or ``io``; ``limit`` for more than the format can hold.
    """
    target = None if model is None else _target(model, method)
    manifest = new_manifest(target, Policy(values=values))
    with NewTape(path, manifest) as writer:
        for number, one in enumerate(calls):
            if not isinstance(one, CallToWrite):
                advice = "write testing.call(x).returns(y)"
                raise UsageError(f"a {type(one).__name__} is not a call", advice=advice)
            built = build_call(
                number,
                one.args,
                one.kwargs,
                one.outputs,
                error=one.error,
                time_ns=manifest.created_ns + number,
                duration_ns=None if one.seconds is None else round(one.seconds * 1e9),
                values=values,
                training=getattr(model, "training", False) is True,
            )
            writer.write(built.record, built.values)
        writer.seal()
    return Path(path)


def _target(model: Any, method: str) -> Target:
    import torch

    if isinstance(model, torch.nn.Module):
        function = getattr(model, method, None)
        if not callable(function):
            raise UsageError(f"{type(model).__name__} has no method {method!r}")
        kind = name_of(type(model))
    else:
        function, kind, method = model, name_of(type(model)), "__call__"
    return Target(type=kind, method=method, via="hook", signature=_parameters(function))


def _parameters(function: Callable[..., Any]) -> tuple[Parameter, ...] | None:
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return tuple(_parameter(one) for one in given)


def _parameter(given: inspect.Parameter) -> Parameter:
    has_default = given.default is not given.empty
    is_plain = type(given.default) in (str, int, float, bool, bytes)
    kind: Any = given.kind.name
    return Parameter(
        name=given.name,
        kind=kind,
        has_default=has_default,
        default=given.default if has_default and is_plain else None,
        default_missing=has_default and not is_plain and given.default is not None,
    )
