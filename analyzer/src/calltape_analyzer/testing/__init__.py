"""Helpers for test suites: an assertion that a model reproduces a tape, and synthetic tapes.

The pytest plugin (:mod:`calltape_analyzer.pytest_plugin`) builds on them. They also work with other
test runners. Names are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calltape_analyzer.testing.assertion import assert_replays
    from calltape_analyzer.writing.synthetic import CallToWrite, call, write_tape

__all__ = ["CallToWrite", "assert_replays", "call", "write_tape"]

_MODULES = {
    "assert_replays": "calltape_analyzer.testing.assertion",
    "CallToWrite": "calltape_analyzer.writing.synthetic",
    "call": "calltape_analyzer.writing.synthetic",
    "write_tape": "calltape_analyzer.writing.synthetic",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
