"""What importing the recorder adds to a process that has torch and pydantic already."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.report import Row
from benchmarks.rounds import measure

__all__ = ["rows"]

# pydantic loads its machinery with its first name, which whoever uses it has done
_BASE = "import torch; from pydantic import BaseModel, TypeAdapter"
_WITH = f"{_BASE}; import calltape_recorder"


def _run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def rows(scale: float) -> Iterator[Row]:
    """Whole processes, interleaved."""
    samples = measure(
        {"with": lambda: _run(_WITH), "base": lambda: _run(_BASE)}, max(int(9 * scale), 3)
    )
    base, added = samples.median("base"), samples.added("with", "base")
    yield Row(
        "import calltape_recorder",
        f"+{added * 1e3:.0f} ms",
        (f"{(base + added) / base:.2f} × import torch, pydantic ({base * 1e3:.0f} ms)",),
    )
