"""Synthetic tapes for unit tests, from calls as Python values."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable
from contextlib import suppress
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
    """A call for :func:`write_tape`. Create it with :func:`call`; each method returns a new one.

    Attributes:
        args, kwargs: the arguments.
        outputs: what the call returned, unless the tape is to have no outputs.
        error: what it raised, or None.
        seconds: how long it took; None to leave that off the tape.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    outputs: Any = ABSENT
    error: BaseException | None = None
    seconds: float | None = None

    def returns(self, outputs: Any) -> CallToWrite:
        """The call with outputs, which may be None. Otherwise, the tape has no outputs."""
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
        path: the path of the new file, which must not exist yet.
        calls: the calls.
        model: the module or function that was called. The tape records its class, its signature,
            and whether it is in training mode now. It is not run.
        method: the method of a module that was called.
        values: ``"none"`` omits the values of tensors, like a recording of shapes.

    Returns:
        The path.

    Raises:
        UsageError: an item is not a call, or the module has no such method.
        TapeError: ``exists`` or ``io``; ``limit`` if the format cannot hold a call.
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
    signature: tuple[Parameter, ...] | None = None
    with suppress(TypeError, ValueError):
        signature = tuple(map(_parameter, inspect.signature(function).parameters.values()))
    return Target(type=kind, method=method, via="hook", signature=signature)


def _parameter(parameter: inspect.Parameter) -> Parameter:
    default = parameter.default
    has_default = default is not parameter.empty
    is_plain = type(default) in (str, int, float, bool, bytes)
    kind: Any = parameter.kind.name
    return Parameter(
        name=parameter.name,
        kind=kind,
        has_default=has_default,
        default=default if has_default and is_plain else None,
        default_missing=has_default and not is_plain and default is not None,
    )
