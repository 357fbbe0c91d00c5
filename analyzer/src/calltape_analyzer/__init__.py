"""Reads tapes: dynamic shapes and representative arguments for torch.export and torch.onnx.export.

Importing this package, reading records and inferring shapes as plain data do not import torch; the
names below are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calltape_analyzer.call import Call
    from calltape_analyzer.errors import InferenceError, TapeError
    from calltape_analyzer.observer import InputObserver
    from calltape_analyzer.placeholder import Placeholder
    from calltape_analyzer.registration import register_flattening_functions
    from calltape_analyzer.rendering import render
    from calltape_analyzer.tape import Tape, open_tape
    from calltape_analyzer.targets.onnx import dynamic_axes

__all__ = [
    "Call",
    "InferenceError",
    "InputObserver",
    "Placeholder",
    "Tape",
    "TapeError",
    "__version__",
    "dynamic_axes",
    "open_tape",
    "register_flattening_functions",
    "render",
]

__version__ = "0.1.0"

_HOMES = {
    "Call": "call",
    "InferenceError": "errors",
    "InputObserver": "observer",
    "Placeholder": "placeholder",
    "Tape": "tape",
    "TapeError": "errors",
    "dynamic_axes": "targets.onnx",
    "open_tape": "tape",
    "register_flattening_functions": "registration",
    "render": "rendering",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
