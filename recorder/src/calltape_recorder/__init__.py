"""Records every call of a PyTorch model to a tape, from inside an inference server.

::

    from calltape_recorder import record

    with record(model, "runs/llm.tape") as recorder:
        model.generate(**inputs)
    print(recorder.stats())

The names below are imported when they are first used. Most of them import torch, which the help of
``calltape-record`` does not need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calltape_recorder.keep.ledger import Stats
    from calltape_recorder.keep.novelty import Novelty
    from calltape_recorder.keep.policies import (
        Every,
        First,
        FlightRecorder,
        Keep,
        PerSecond,
        PerStructure,
        Rate,
        When,
    )
    from calltape_recorder.options import Keywords, Options
    from calltape_recorder.recorder import Recorder, record
    from calltape_schema.drop_reasons import DropReason
    from calltape_schema.errors import TapeError

__all__ = [
    "DropReason",
    "Every",
    "First",
    "FlightRecorder",
    "Keep",
    "Keywords",
    "Novelty",
    "Options",
    "PerSecond",
    "PerStructure",
    "Rate",
    "Recorder",
    "Stats",
    "TapeError",
    "When",
    "__version__",
    "record",
]

__version__ = "0.1.0"

_NAMES = {
    "calltape_recorder.keep.ledger": ("Stats",),
    "calltape_recorder.keep.novelty": ("Novelty",),
    "calltape_recorder.keep.policies": (
        "Every",
        "First",
        "FlightRecorder",
        "Keep",
        "PerSecond",
        "PerStructure",
        "Rate",
        "When",
    ),
    "calltape_recorder.options": ("Keywords", "Options"),
    "calltape_recorder.recorder": ("Recorder", "record"),
    "calltape_schema.drop_reasons": ("DropReason",),
    "calltape_schema.errors": ("TapeError",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
