"""What one call more costs the process: processor time of all its threads, in microseconds.

Each contender has a child process of its own, so that the thread of one burdens no other. A child
makes few calls or many; the difference, over that of a child that records nothing, is what a call
costs, with closing and the disk. The models do no work, whose noise would hide the rest.

"add" gets two tensors [4, 8]. "decode" gets the cache of 32 layers that the step before returned,
and appends a token to it. "8 threads" are eight that call "add" at once. The longest call of
theirs is found in a run of its own, in which all of them call for as long: of threads that never
run, one calls after the other, and none waits. Python lets one of them run at a time, for 5 ms or
more, and in no order, so that each waits for all others with no recorder, too.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import Question, Row

__all__ = ["rows"]

_CALLS = {"add": (5000, 25_000), "decode": (120, 480), "8 threads": (5000, 25_000)}
_OURS: dict[str, dict[str, Any]] = {
    "recorded whole": {},
    "recorded whole, via='method'": {"via": "method"},
    "shapes only": {"values": "none"},
    "shapes only, via='method'": {"values": "none", "via": "method"},
    "`Novelty()`, nothing new": {},
    "`Novelty()`, nothing new, via='method'": {"via": "method"},
}
_METHOD = ", via='method'"
_BARE, _PEER, _CLONES, _SAVED = (
    "bare",
    "InputObserver",
    "clones of the tensors",
    "safetensors.save_file",
)
_AGAINST = {"add": (_PEER, _CLONES), "decode": (_SAVED, _CLONES, _PEER), "8 threads": (_CLONES,)}
_SAYS = {
    "add": "add [4,8]",
    "decode": "decode step, 32 layers",
    "8 threads": "add [4,8] in 8 threads",
}
_SHOWN = {
    ("decode", "recorded whole", _SAVED): Question.RECORDED,
    ("decode", "recorded whole", _CLONES): Question.RECORDED,
    ("decode", "`Novelty()`, nothing new", _CLONES): Question.NOTHING_NEW,
}
_TOKENS = 60  # a generation of "decode"
_THREADS = 8
_AT_ONCE_SECONDS = 2
_Call = Callable[[int], object]


class Cost(NamedTuple):
    """Of one call, in microseconds: processor time of all threads, and of the host's own; and the
    longest call, in milliseconds."""

    all_threads: float
    own: float
    longest: float


def rows(scale: float) -> Iterator[Row]:
    """The rows of all contenders; ``scale`` shortens the run."""
    for work, against in _AGAINST.items():
        costs = costs_of(work, [*_OURS, *against], rounds=3 if scale >= 1 else 1)
        for name in _OURS:
            ours = costs[name]
            what = f"{_SAYS[work]}, {name}"
            for other in against:
                theirs = costs[other].all_threads
                yield Row(
                    f"{what}: processor time", f"+{ours.all_threads:.1f} µs",
                    f"{other}: +{theirs:.1f} µs", f"{ours.all_threads / theirs:.2f} ×",
                    _SHOWN.get((work, name, other)),
                )  # fmt: skip
            if work != "8 threads":
                yield Row(f"{what}: of it in the caller's thread", f"+{ours.own:.1f} µs")
            if work == "8 threads":
                for other in (_BARE, *against):
                    yield Row(
                        f"{what}: longest call",
                        f"{ours.longest:.0f} ms",
                        f"{other}: {costs[other].longest:.0f} ms",
                    )


def costs_of(work: str, names: list[str], rounds: int) -> dict[str, Cost]:
    """What each contender costs, over a process without any. They take turns."""
    found: dict[str, list[Cost]] = {name: [] for name in (_BARE, _BARE + _METHOD, *names)}
    few, many = _CALLS[work]
    for _ in range(rounds):
        for name, costs in found.items():
            less, more = _child(work, name, few), _child(work, name, many)
            longest = _child(work, name, 0)["longest"] if work == "8 threads" else 0.0
            costs.append(
                Cost(
                    (more["all"] - less["all"]) / (many - few) * 1e6,
                    (more["own"] - less["own"]) / (many - few) * 1e6,
                    longest * 1e3,
                )
            )
    medians = {
        name: Cost(*map(statistics.median, zip(*costs, strict=True)))
        for name, costs in found.items()
    }
    return {name: _over(cost, medians[_base_of(name)]) for name, cost in medians.items()}


def _base_of(name: str) -> str:
    """The contender that calls the model in the same way, and records nothing."""
    return _BARE + _METHOD if name.endswith(_METHOD) else _BARE


def _over(cost: Cost, bare: Cost) -> Cost:
    return Cost(cost.all_threads - bare.all_threads, cost.own - bare.own, cost.longest)


def _child(work: str, name: str, calls: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.cpu_total", work, name, str(calls)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _main(work: str, name: str, calls: int) -> None:
    import torch

    torch.set_num_threads(1)
    model, call = _decoder() if work == "decode" else _addition()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        run, warm, close = _contender(name, model, Path(folder))
        for number in range(2 * _TOKENS):
            call(run, number)
        warm()
        begun, own, longest = time.process_time(), time.thread_time(), 0.0
        if work == "8 threads":
            longest = _at_once(lambda number: call(run, number), calls)
        else:
            for number in range(calls):
                call(run, number)
        own = time.thread_time() - own
        close()
        print(json.dumps({"all": time.process_time() - begun, "own": own, "longest": longest}))


def _at_once(call: _Call, calls: int) -> float:
    """Makes these calls in threads; with ``calls`` 0, as many as they can for some seconds. Gives
    the time of the longest, in seconds."""
    longest = [0.0] * _THREADS
    barrier = threading.Barrier(_THREADS)

    def work(thread: int) -> None:
        barrier.wait()
        end = time.perf_counter() + _AT_ONCE_SECONDS
        for number in itertools.count() if not calls else range(calls // _THREADS):
            begun = time.perf_counter()
            if not calls and begun > end:
                break
            call(number)
            longest[thread] = max(longest[thread], time.perf_counter() - begun)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(longest)


def _addition() -> tuple[Any, Callable[[Any, int], object]]:
    import torch

    class Add(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x

    x, y = torch.rand(4, 8), torch.rand(4, 8)
    return Add(), lambda run, number: run(x, y)


def _decoder() -> tuple[Any, Callable[[Any, int], object]]:
    import torch
    from transformers import DynamicCache

    from benchmarks.bytes_per_step import Step

    ids, model = torch.ones(1, 1, dtype=torch.long), Step(grows=True)
    cache: list[Any] = [None]

    def call(run: Any, number: int) -> None:
        if number % _TOKENS == 0:
            cache[0] = DynamicCache()
            model(ids, past_key_values=cache[0], use_cache=True)  # a prompt that nobody records
        cache[0] = run(ids, past_key_values=cache[0], use_cache=True).past_key_values

    return model, call


def _contender(name: str, model: Any, folder: Path) -> tuple[Any, Callable[[], Any], Any]:
    """What is called in the place of the model, and what to do before and after the calls."""

    def nothing() -> None:
        pass

    if name in _OURS:
        from calltape_recorder import Novelty, Recorder

        options = _OURS[name] | ({"keep": Novelty()} if name.startswith("novelty") else {})
        recorder = Recorder(folder / "t.tape", max_queue_bytes=6 << 30, **options).attach(model)

        def close() -> None:
            recorder.close()
            lost = recorder.stats().lost
            assert not lost, lost

        return model.forward if name.endswith(_METHOD) else model, recorder.flush, close
    if name == _PEER:
        from torch.onnx import InputObserver
        from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model

        register_cache_pytrees_for_model(model)
        observing = InputObserver()(model, store_n_calls=10**9)
        observing.__enter__()
        return model, nothing, lambda: observing.__exit__(None, None, None)
    if name == _BARE + _METHOD:
        return model.forward, nothing, nothing
    if name == _BARE:
        return model, nothing, nothing
    return _copying(model, folder if name == _SAVED else None), nothing, nothing


def _copying(model: Any, folder: Path | None) -> Callable[..., Any]:
    """The model, with a copy made of all tensors, to files in a folder or in memory."""
    from safetensors.torch import save_file

    from benchmarks.models import leaves_of

    kept: list[Any] = []
    numbers = iter(range(10**9))

    def run(*args: Any, **kwargs: Any) -> Any:
        copies = [t.clone() for t in leaves_of([*args, *kwargs.values()])]
        result = model(*args, **kwargs)
        copies += [t.clone() for t in leaves_of(result)]
        if folder is None:
            kept.append(copies)
            if len(kept) > 200:
                kept.clear()
        else:
            tensors = {str(at): tensor for at, tensor in enumerate(copies)}
            save_file(tensors, folder / f"{next(numbers)}.safetensors")
        return result

    return run


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
