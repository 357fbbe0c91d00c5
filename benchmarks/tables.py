"""What ``calltape table`` takes for a tape of a million shapes-only calls, against the scan of the
same tape, which reads every record too."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.report import Question, Row
from benchmarks.rounds import measure
from calltape_recorder import Recorder

__all__ = ["rows"]

_SIZES = [(batch, length) for batch in (1, 2, 4, 8) for length in range(1, 250)]


class _Model(torch.nn.Module):
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return input_ids


def _record(path: Path, calls: int) -> None:
    model = _Model()
    sent = [(torch.zeros(size, dtype=torch.int64), torch.ones(size)) for size in _SIZES]
    recorder = Recorder(path, values="none").attach(model)
    for call in range(calls):
        model(*sent[call * 7919 % len(sent)])
        if call % 1000 == 999:
            recorder.flush()
    recorder.close()
    if recorder.stats().kept != calls:
        raise RuntimeError(f"recorded {recorder.stats()}")


def _run(*words: str) -> None:
    command = [sys.executable, "-m", "calltape_analyzer", *words]
    subprocess.run(command, check=True, capture_output=True)


def _peak(*words: str) -> int:
    """The most memory that a command had, in bytes; Linux counts it in KiB."""
    code = (
        "import resource, subprocess, sys; "
        "subprocess.run(sys.argv[1:], check=True, capture_output=True); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [sys.executable, "-m", "calltape_analyzer", *words]
    ran = subprocess.run(
        [sys.executable, "-c", code, *command], check=True, capture_output=True, text=True
    )
    return int(ran.stdout) * 1024


def rows(scale: float) -> Iterator[Row]:
    """Seconds of the whole command, its memory, and the ratio to the scan."""
    calls = max(int(1_000_000 * scale), 1000)
    with tempfile.TemporaryDirectory() as name:
        tape, out = str(Path(name) / "a.tape"), str(Path(name) / "calls.parquet")
        _record(Path(tape), calls)
        table = ("table", tape, "-o", out, "--force")
        samples = measure(
            {"scan": lambda: _run("variants", tape, "--scan"), "table": lambda: _run(*table)},
            3,
        )
        scan, seconds = samples.median("scan"), samples.median("table")
        nbytes = Path(tape).stat().st_size, Path(out).stat().st_size
        yield Row(
            f"`calltape table`, {calls:,} calls ({nbytes[0] / 2**20:.0f} MiB) to Parquet "
            f"({nbytes[1] / 2**20:.0f} MiB)",
            f"{seconds:.1f} s ({seconds / calls * 1e6:.0f} µs per call), "
            f"{_peak(*table) / 2**20:.0f} MiB",
            f"`variants --scan`: {scan:.1f} s, {_peak('variants', tape, '--scan') / 2**20:.0f} MiB",
            f"{seconds / scan:.1f} ×",
            Question.ANALYSIS,
        )
