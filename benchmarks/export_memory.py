"""What it takes to export GPT-2 small from nine recorded calls, in a process of its own: as a ratio
to a bare ``torch.export`` of its decode step, and in bytes."""

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


def rows(scale: float) -> Iterator[Row]:
    """One export; it is no shorter with less of a ``scale``."""
    command = [sys.executable, "-m", "benchmarks.export_memory"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    *measured, used = map(float, done.stdout.split())
    bare, exported, verified, reproduced, calls = measured
    what = f"export of GPT-2 small from {calls:.0f} calls, one thread"
    yield Row(
        what, f"{exported:.1f} s + {verified:.1f} s to verify",
        f"bare torch.export of its decode step: {bare:.1f} s",
        f"{(exported + verified) / bare:.1f} ×",
    )  # fmt: skip
    yield Row(f"{what}: the most memory", f"{used / 2**30:.2f} GiB")
    yield Row(f"{what}: calls reproduced", f"{reproduced:.0f} of {calls:.0f}")


def _main() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpt2.tape"
        _record(model, path)
        print(_bare(model, path), *_export(model, path), _peak_bytes())


def _record(model: torch.nn.Module, path: Path) -> None:
    from calltape_recorder import record

    generate = getattr(model, "generate")  # noqa: B009 - of a mixin that is not typed
    with record(model, path), torch.no_grad():
        for size in _PROMPTS:
            ids = torch.randint(0, 50257, size)
            mask = torch.ones_like(ids)
            generate(ids, attention_mask=mask, max_new_tokens=_TOKENS, pad_token_id=50256)


def _bare(model: torch.nn.Module, path: Path) -> float:
    """Seconds of one ``torch.export`` with the arguments and shapes that the tape gives."""
    from calltape_analyzer import open_tape, register_flattening_functions

    with open_tape(path) as tape, register_flattening_functions(tape=tape), torch.no_grad():
        decode = tape.variants()[-1]
        arguments, shapes = decode.infer_arguments(), decode.infer_dynamic_shapes()
        begin = time.perf_counter()
        torch.export.export(
            model, arguments.args, arguments.kwargs, dynamic_shapes=shapes, strict=False
        )
        return time.perf_counter() - begin


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
