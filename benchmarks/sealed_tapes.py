"""What ``calltape variants`` takes on a sealed tape of a million calls, against one of a thousand
calls with the same structures: both answer from their ends. What the scan of all records takes, and
what the same takes over S3."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.remote_tapes import row_over_s3
from benchmarks.report import Question, Row
from benchmarks.rounds import measure
from calltape_recorder import Recorder

__all__ = ["record_calls", "rows"]

_FEW = 1000
_SIZES = [(batch, length) for batch in (1, 2, 4, 8) for length in range(1, 250)]


class _Model(torch.nn.Module):
    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *, keep: int = 1
    ) -> torch.Tensor:
        return input_ids


def record_calls(path: Path, calls: int, sizes: int = len(_SIZES)) -> None:
    """A sealed tape of so many calls with so many different inputs, without values."""
    model = _Model()
    sent = [(torch.zeros(size, dtype=torch.int64), torch.ones(size)) for size in _SIZES[:sizes]]
    recorder = Recorder(path, values="none").attach(model)
    for call in range(calls):
        model(*sent[call * 7919 % len(sent)], keep=call % 3)
        if call % 1000 == 999:
            recorder.flush()
    recorder.close()
    if recorder.stats().kept != calls:
        raise RuntimeError(f"recorded {recorder.stats()}")


def _variants(path: Path, *options: str) -> None:
    command = [sys.executable, "-m", "calltape_analyzer", "variants", str(path), *options]
    subprocess.run(command, check=True, capture_output=True)


def _peak(path: Path, *options: str) -> int:
    """The most memory that the command had, in bytes; Linux counts it in KiB."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], capture_output=True); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [sys.executable, "-m", "calltape_analyzer", "variants", str(path), *options]
    ran = subprocess.run(
        [sys.executable, "-c", code, *command], check=True, capture_output=True, text=True
    )
    return int(ran.stdout) * 1024


def rows(scale: float) -> Iterator[Row]:
    """Seconds of the whole command, its memory, and the ratio to the small tape."""
    many = max(int(1_000_000 * scale), 2 * _FEW)
    with tempfile.TemporaryDirectory() as name:
        small, large = Path(name) / "small.tape", Path(name) / "large.tape"
        record_calls(small, _FEW)
        record_calls(large, many)
        nbytes = large.stat().st_size
        samples = measure(
            {
                "small": lambda: _variants(small),
                "large": lambda: _variants(large),
                "scan": lambda: _variants(large, "--scan"),
            },
            max(int(5 * scale), 3),
        )
        few, seconds, scan = map(samples.median, ("small", "large", "scan"))
        yield Row(
            f"`calltape variants`, a sealed tape of {many:,} calls ({nbytes / 2**20:.0f} MiB)",
            f"{seconds:.2f} s, {_peak(large) / 2**20:.0f} MiB",
            f"{_FEW:,} calls: {few:.2f} s",
            f"{seconds / few:.2f} ×",
            Question.ANALYSIS,
        )
        yield Row(
            "the same with `--scan`",
            f"{scan:.1f} s, {_peak(large, '--scan') / 2**20:.0f} MiB",
            f"without `--scan`: {seconds:.2f} s",
            f"{scan / seconds:.0f} ×",
            Question.ANALYSIS,
        )
        yield row_over_s3(large, many, seconds)
