"""What it takes to export GPT-2 small from nine recorded calls, in a process of its own."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.report import Row

__all__ = ["rows"]

_PROMPTS = ((1, 24), (2, 80), (1, 160))
_TOKENS = 3  # that are generated for each prompt: one prefill and two decode steps
_THREADS = 2


def rows(scale: float) -> Iterator[Row]:
    """One export; it is no shorter with less of a ``scale``."""
    command = [sys.executable, "-m", "benchmarks.export_memory"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    exported, verified, reproduced, calls, used = map(float, done.stdout.split())
    yield Row(
        f"export of GPT-2 small from {calls:.0f} calls, {_THREADS} threads",
        f"{exported:.0f} s, verified in {verified:.0f} s, {used / 2**30:.2f} GiB at most",
        (f"{reproduced:.0f} of {calls:.0f} calls reproduced",),
    )


def _main() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(_THREADS)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpt2.tape"
        _record(model, path)
        print(*_export(model, path), _peak_bytes())


def _record(model: torch.nn.Module, path: Path) -> None:
    from calltape_recorder import record

    generate = getattr(model, "generate")  # noqa: B009 - of a mixin that is not typed
    with record(model, path), torch.no_grad():
        for size in _PROMPTS:
            ids = torch.randint(0, 50257, size)
            mask = torch.ones_like(ids)
            generate(ids, attention_mask=mask, max_new_tokens=_TOKENS, pad_token_id=50256)


def _export(model: torch.nn.Module, path: Path) -> tuple[float, float, int, int]:
    """Seconds to export and to verify, calls that are reproduced, and all."""
    from calltape_analyzer import export, open_tape

    begin = time.perf_counter()
    with open_tape(path) as tape:
        programs = export(tape, model)
        exported = time.perf_counter()
        report = programs.verify()
    verified = time.perf_counter()
    return exported - begin, verified - exported, report.reproduced, len(report)


def _peak_bytes() -> int:
    """The most memory that this process ever had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    _main()
