"""What ``benchmarks.commits`` asks of each of its processes: short measurements, called turns.

Reads the name of a turn per line, and prints as JSON what it took, in seconds: median of the turn,
over a call without a recorder.
"""

from __future__ import annotations

import contextlib
import json
import logging
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import Add, DecodeStep
from benchmarks.rounds import Samples, measure, measure_paced
from benchmarks.throughput import KeyValues, _caches, _Recorded, _seconds, longest_stall
from calltape_recorder import Rate, Recorder

__all__ = ["main"]

NO_RECORDER, EMPTY = "no recorder", "an empty forward hook"
_OPTIONS: dict[str, dict[str, Any]] = {
    "recorded": {}, "shapes only": {"values": "none"}, "skipped": {"keep": Rate(1e-9)},
}  # fmt: skip
_ADDS, _STEPS, _TIGHT, _LISTS = 200, 60, 30, 20

Turn = Callable[[], dict[str, float]]


def main() -> None:
    logging.disable(logging.WARNING)
    torch.set_grad_enabled(False)
    turns: dict[str, Turn] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for line in sys.stdin:
            name = line.strip()
            if name not in turns:
                inside = folder / str(len(turns))
                inside.mkdir()
                turns[name] = _KINDS[name](inside, stack)
            print(json.dumps(turns[name]()), flush=True)


def _twins(
    make: Callable[[], torch.nn.Module], folder: Path, stack: contextlib.ExitStack
) -> dict[str, torch.nn.Module]:
    twins = {name: make() for name in (NO_RECORDER, EMPTY, *_OPTIONS)}
    for name, options in _OPTIONS.items():
        recorder = Recorder(folder / f"{name}.tape", **options).attach(twins[name])
        stack.callback(recorder.close)
    twins[EMPTY].register_forward_hook(lambda module, args, result: None)
    return twins


def _found(what: str, samples: Samples) -> dict[str, float]:
    names = [name for name in samples.seconds if name != NO_RECORDER]
    return {f"{what}: {name}": samples.added(name, NO_RECORDER) for name in names}


def _paced_adds(folder: Path, stack: contextlib.ExitStack) -> Turn:
    contenders = _adds(folder, stack)
    return lambda: _found("add, paced", measure_paced(contenders, _ADDS))


def _tight_adds(folder: Path, stack: contextlib.ExitStack) -> Turn:
    contenders = _adds(folder, stack)
    return lambda: _found("add, tight", measure(contenders, _TIGHT, repeat=100))


def _adds(folder: Path, stack: contextlib.ExitStack) -> dict[str, Callable[[], object]]:
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    twins = _twins(Add, folder, stack)
    return {name: (lambda twin=twin: twin(x, y)) for name, twin in twins.items()}


def _tight_lists(folder: Path, stack: contextlib.ExitStack) -> Turn:
    tensors = [torch.randn(4, 8) for _ in range(32)]
    twins = _twins(KeyValues, folder, stack)
    runs = {name: (lambda twin=twin: twin(tensors)) for name, twin in twins.items()}
    return lambda: _found("32 tensors, tight", measure(runs, _LISTS, repeat=50))


def _paced_steps(folder: Path, stack: contextlib.ExitStack) -> Turn:
    contenders, prepare = _steps(folder, stack)
    return lambda: _found("step, paced", measure_paced(contenders, _STEPS, prepare=prepare))


def _tight_steps(folder: Path, stack: contextlib.ExitStack) -> Turn:
    contenders, prepare = _steps(folder, stack)
    return lambda: _found("step, back to back", measure(contenders, _STEPS, prepare=prepare))


def _steps(
    folder: Path, stack: contextlib.ExitStack
) -> tuple[dict[str, Callable[[], object]], Callable[[], object]]:
    step = DecodeStep()
    twins = _twins(step.twin, folder, stack)
    box: list[dict[str, Any]] = [{}]

    def prepare() -> None:
        box[0] = step.arguments()

    return {name: (lambda twin=twin: twin(**box[0])) for name, twin in twins.items()}, prepare


def _large(folder: Path, stack: contextlib.ExitStack) -> Turn:
    caches = _caches(64)

    def turn() -> dict[str, float]:
        recorded = _Recorded(folder, caches)
        found = {"64 MiB calls: to disk, each": _seconds(lambda: recorded.write(8)) / 8}
        recorded.seconds.clear()
        for _ in range(5):
            recorded.write(1)
        found["64 MiB calls: in the call"] = statistics.median(recorded.seconds)
        recorded.seconds.clear()
        stalls = [longest_stall(lambda: recorded.write(1)) for _ in range(5)]
        found["64 MiB calls: longest stall of another thread"] = statistics.median(stalls)
        found["64 MiB calls: in the call, beside it"] = statistics.median(recorded.seconds)
        recorded.close()
        return found

    return turn


_KINDS: dict[str, Callable[[Path, contextlib.ExitStack], Turn]] = {
    "add, paced": _paced_adds,
    "add, tight": _tight_adds,
    "32 tensors": _tight_lists,
    "step, paced": _paced_steps,
    "step, back to back": _tight_steps,
    "64 MiB": _large,
}

if __name__ == "__main__":
    main()
