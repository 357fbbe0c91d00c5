"""Records every call of a PyTorch model to a tape, from inside an inference server.

::

    from calltape_recorder import record

    with record(model, "runs/llm.tape") as recorder:
        model.generate(**inputs)
    print(recorder.stats())
"""

from __future__ import annotations

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
from calltape_schema.errors import TapeError

__all__ = [
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
