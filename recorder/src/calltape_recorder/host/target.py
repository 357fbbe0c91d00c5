"""Describes for the manifest what is recorded (class, method, signature), and what records it."""

from __future__ import annotations

import inspect
import platform
import sys
from types import ModuleType
from typing import Any, Literal, cast

import torch

from calltape_recorder.capture.known_classes import type_name
from calltape_recorder.capture.withholding import is_public_default
from calltape_recorder.host.outside_state import outside_state
from calltape_schema import __version__
from calltape_schema.records import MAX_PARAMETERS, Parameter, Producer, Rank, Target

__all__ = ["describe_producer", "describe_target", "rank_now"]

_MAX_TEXT = 1000


def describe_target(
    module: Any, method: str, via: Literal["hook", "method"], *, withholds: bool
) -> Target:
    """The class, method and signature of what will be recorded.

    For a module that ``torch.compile`` made, they come from the module inside it.
    """
    parts = vars(module).get("_modules")
    # In a scripted module, _modules is not a dict.
    original = parts.get("_orig_mod", module) if isinstance(parts, dict) else module
    return Target(
        type=type_name(type(original)), method=method[:_MAX_TEXT], via=via,
        signature=_signature(getattr(original, method), withholds),
        module=str(module.__name__)[:_MAX_TEXT] if isinstance(module, ModuleType) else None,
        outside=outside_state(original, method) or None,
    )  # fmt: skip


def describe_producer() -> Producer:
    """The versions of the software that writes the tape. The name of the machine is never in it."""
    transformers = sys.modules.get("transformers")
    return Producer(
        calltape=__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
        platform=f"{platform.system()}-{platform.machine()}",
        transformers=None if transformers is None else _version(transformers),
    )


def rank_now() -> Rank | None:
    """Which process of a job of ``torch.distributed`` this is; None if it is in no such job yet."""
    try:
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return None
        every = torch.distributed.get_world_size()
        return Rank(number=torch.distributed.get_rank(), of=every) if every > 1 else None
    except Exception:  # the host may have ended the job meanwhile
        return None


def _version(library: Any) -> str:
    return str(getattr(library, "__version__", "unknown"))


def _signature(function: Any, withholds: bool) -> tuple[Parameter, ...] | None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except Exception:  # TypeError, ValueError, or anything that the host's __signature__ raises
        return None
    if len(parameters) > MAX_PARAMETERS:
        return None
    made = tuple(_parameter(parameter, withholds) for parameter in parameters)
    is_cut = len({parameter.name for parameter in made}) < len(made)
    return None if is_cut else made


def _parameter(parameter: inspect.Parameter, withholds: bool) -> Parameter:
    default = cast("Any", parameter.default)
    has_default = default is not inspect.Parameter.empty
    fits = has_default and is_public_default(default, parameter.name, withholds=withholds)
    return Parameter(
        name=parameter.name[:_MAX_TEXT],
        kind=parameter.kind.name,  # type: ignore[arg-type]
        has_default=has_default,
        default=default if fits else None,  # pyright: ignore[reportArgumentType]
        default_missing=has_default and not fits,
    )
