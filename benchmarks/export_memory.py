"""What it takes to export GPT-2 small from nine recorded calls, in bytes, and as a ratio to a bare
``torch.export`` of its decode step: each in a process of its own."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.report import Row

__all__ = ["rows"]

_PROMPTS = ((1, 24), (2, 80), (1, 160))
_TOKENS = 3  # that are generated for each prompt: one prefill and two decode steps


def rows(scale: float) -> Iterator[Row]:
    """One export; it is no shorter with less of a ``scale``."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "gpt2.tape")
        _run("record", path)
        (bare,) = _run("bare", path)
        exported, verified, reproduced, calls, used = _run("export", path)
    what = f"export of GPT-2 small from {calls:.0f} calls, one thread, processor time"
    yield Row(
        what, f"{exported:.1f} s + {verified:.1f} s to verify",
        f"bare torch.export of its decode step: {bare:.1f} s",
        f"{(exported + verified) / bare:.1f} ×",
    )  # fmt: skip
    yield Row(f"{what}: the most memory", f"{used / 2**30:.2f} GiB")
    yield Row(f"{what}: calls reproduced", f"{reproduced:.0f} of {calls:.0f}")


def _run(what: str, path: str) -> list[float]:
    """What a process of its own prints: the first export in a process loads what it needs."""
    command = [sys.executable, "-m", "benchmarks.export_memory", what, path]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [*map(float, done.stdout.split())]


def _main(what: str, path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    if what == "record":
        _record(model, path)
    elif what == "bare":
        print(_bare(model, path))
    else:
        print(*_export(model, path), _peak_bytes())


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
        begin = _begin()
        torch.export.export(
            model, arguments.args, arguments.kwargs, dynamic_shapes=shapes, strict=False
        )
        return _seconds() - begin


def _export(model: torch.nn.Module, path: Path) -> tuple[float, float, int, int]:
    """Seconds to export and to verify, calls that are reproduced, and all."""
    from calltape_analyzer import export, open_tape

    begin = _begin()
    with open_tape(path) as tape:
        programs = export(tape, model)
        exported = _seconds()
        report = programs.verify()
    verified = _seconds()
    return exported - begin, verified - exported, report.reproduced, len(report)


def _begin() -> float:
    """The seconds at which a contender begins, after a collection of all garbage: what was loaded
    before decides when the next one is due, and it looks at every object of the process."""
    gc.collect()
    return _seconds()


def _seconds() -> float:
    """What this process has used of the processor, with the forks that ended: a busy machine does
    not change it."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _peak_bytes() -> int:
    """The most memory that this process ever had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
