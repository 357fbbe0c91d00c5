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
    from calltape_recorder.keep.flight_recorder import FlightRecorder
    from calltape_recorder.keep.ledger import Stats
    from calltape_recorder.keep.novelty import Novelty
    from calltape_recorder.keep.policies import (
        Every,
        First,
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

_HOMES = (
    "keep.policies",
    "keep.flight_recorder",
    "keep.novelty",
    "options",
    "keep.ledger",
    "recorder",
)
"""Those that import torch come last."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = (importlib.import_module(f"{__name__}.{home}") for home in _HOMES)
    value = next(getattr(home, name) for home in homes if hasattr(home, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
