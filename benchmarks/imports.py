"""What importing the recorder adds to a process that has torch and pydantic already, from bytecode
as an installed package has it, whether this process may write some or not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from benchmarks.report import Question, Row
from benchmarks.rounds import measure

__all__ = ["rows"]

# pydantic loads its machinery with its first name, which whoever uses it has done
_BASE = "import torch; from pydantic import BaseModel, TypeAdapter"
_WITH = f"{_BASE}; import calltape_recorder"


def _run(code: str, bytecode: str) -> None:
    env = os.environ | {"PYTHONPYCACHEPREFIX": bytecode}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


def rows(scale: float) -> Iterator[Row]:
    """Whole processes, interleaved."""
    with tempfile.TemporaryDirectory() as bytecode:
        _run(_WITH, bytecode)
        samples = measure(
            {"with": lambda: _run(_WITH, bytecode), "base": lambda: _run(_BASE, bytecode)},
            max(int(9 * scale), 3),
        )
    base, added = samples.median("base"), samples.added("with", "base")
    yield Row(
        "`import calltape_recorder`, once per process",
        f"+{added * 1e3:.0f} ms",
        f"`import torch, pydantic`: {base * 1e3:.0f} ms",
        f"{(base + added) / base:.2f} ×",
        Question.SERVER,
    )
