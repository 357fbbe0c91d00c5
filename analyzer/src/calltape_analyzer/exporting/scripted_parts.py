"""Modules of ``torch.jit.script`` and ``torch.jit.trace``, within a model that is traced.

torch.export refuses such a module, and its tracer fails when it meets one among the parts of
another. The interpreter of TorchScript runs operators through torch's dispatcher, where a trace
sees them. It must do no more: the optimizer looks at the sizes of every tensor, and each becomes a
constant. A size that the script reads itself becomes one all the same, with a condition in the
program.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.jit import _fuser

__all__ = ["is_scripted", "scripted_parts"]


def is_scripted(module: Any) -> bool:
    """Whether TorchScript runs a module."""
    return isinstance(module, torch.jit.ScriptModule)


@contextmanager
def scripted_parts(module: torch.nn.Module) -> Iterator[None]:
    """Lets a trace see what the scripted parts of a model compute within the block. Hooks on them
    do not run."""
    if not any(map(is_scripted, module.modules())):
        yield
        return
    scripted: Any = torch.jit.ScriptModule
    before = scripted.__dict__.get("__call__")
    scripted.__call__ = _run_forward
    try:
        with _fuser.optimized_execution(False):
            yield
    finally:
        if before is None:
            del scripted.__call__
        else:
            scripted.__call__ = before


def _run_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return self._c._get_method("forward")(*args, **kwargs)
    except RuntimeError as error:
        raise RuntimeError(_in_one_line(str(error))) from error


def _in_one_line(text: str) -> str:
    """What the interpreter says of an error, without its traceback: the error comes first, then the
    last line of the script that it shows."""
    reason = re.findall(r"^RuntimeError: (.+)$", text, re.MULTILINE)
    if not reason:
        return text
    place = re.findall(r'^  File "(.+)", line (\d+)', text, re.MULTILINE)
    shown = f" (TorchScript, {os.path.basename(place[-1][0])}:{place[-1][1]})" if place else ""
    return f"{reason[-1].rstrip()}{shown}"
