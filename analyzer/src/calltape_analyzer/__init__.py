"""Reads tapes: dynamic shapes and representative arguments for torch.export and torch.onnx.export.

Importing this package, reading records and inferring shapes as plain data do not import torch; the
names below are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calltape_analyzer.allowance import granted
    from calltape_analyzer.call import Call
    from calltape_analyzer.checking import check
    from calltape_analyzer.comparing import Tolerances
    from calltape_analyzer.difference import diff
    from calltape_analyzer.errors import ExportError, InferenceError, NoVariant, TapeError
    from calltape_analyzer.exporting.loading import load_programs
    from calltape_analyzer.exporting.procedure import export
    from calltape_analyzer.exporting.programs import Programs
    from calltape_analyzer.observer import InputObserver
    from calltape_analyzer.opening import open_tape
    from calltape_analyzer.placeholder import Placeholder
    from calltape_analyzer.registration import register_flattening_functions
    from calltape_analyzer.rendering import render
    from calltape_analyzer.replaying import replay
    from calltape_analyzer.reports import Report
    from calltape_analyzer.tape import Tape
    from calltape_analyzer.targets.onnx import dynamic_axes
    from calltape_analyzer.variant import Variant

__all__ = [
    "Call",
    "ExportError",
    "InferenceError",
    "InputObserver",
    "NoVariant",
    "Placeholder",
    "Programs",
    "Report",
    "Tape",
    "TapeError",
    "Tolerances",
    "Variant",
    "__version__",
    "check",
    "diff",
    "dynamic_axes",
    "export",
    "granted",
    "load_programs",
    "open_tape",
    "register_flattening_functions",
    "render",
    "replay",
]

__version__ = "0.1.0"

_HOMES = {
    "Call": "call",
    "ExportError": "errors",
    "InferenceError": "errors",
    "InputObserver": "observer",
    "NoVariant": "errors",
    "Placeholder": "placeholder",
    "Programs": "exporting.programs",
    "Report": "reports",
    "Tape": "tape",
    "TapeError": "errors",
    "Tolerances": "comparing",
    "Variant": "variant",
    "check": "checking",
    "diff": "difference",
    "dynamic_axes": "targets.onnx",
    "export": "exporting.procedure",
    "granted": "allowance",
    "load_programs": "exporting.loading",
    "open_tape": "opening",
    "register_flattening_functions": "registration",
    "render": "rendering",
    "replay": "replaying",
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
