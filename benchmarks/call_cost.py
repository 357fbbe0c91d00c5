"""What a recorded call takes longer: against no recorder, against bare clones of the same tensors
(the least that keeping them can cost), and against ``torch.onnx.InputObserver`` while it stores.
And what a call takes of which only shapes are recorded, or nothing."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import Add, DecodeStep, leaves_of
from benchmarks.report import Question, Row
from benchmarks.rounds import Samples, measure, measure_paced
from calltape_recorder import Rate, Recorder

__all__ = [
    "CALLTAPE",
    "CONTENDERS",
    "EMPTY",
    "add_contenders",
    "decode_contenders",
    "rows",
    "rows_of",
]

NO_RECORDER, CALLTAPE, CLONES, PEER = (
    "no recorder",
    "calltape",
    "clones of the tensors",
    "InputObserver",
)
SHAPES, SKIPPED, EMPTY = "shapes only", "not kept", "an empty forward hook"
CONTENDERS = (NO_RECORDER, CALLTAPE, CLONES, PEER, SHAPES, SKIPPED, EMPTY)


def _peer() -> Any:
    try:
        from torch.onnx import InputObserver
    except ImportError:  # its home before it became public
        from torch.onnx._internal.exporter._input_observer import InputObserver
    return InputObserver()


def _clone_around(run: Callable[..., object]) -> Callable[..., object]:
    def cloned(*args: Any, **kwargs: Any) -> object:
        kept = [t.clone() for t in leaves_of((args, kwargs))]
        result = run(*args, **kwargs)
        kept += [t.clone() for t in leaves_of(result)]
        return result

    return cloned


def _hook(module: torch.nn.Module) -> None:
    def after(module: object, args: object, result: object) -> None:
        return None

    module.register_forward_hook(after)


@contextlib.contextmanager
def _attached(twins: dict[str, torch.nn.Module], calls: int) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        options: dict[str, dict[str, Any]] = {
            CALLTAPE: {}, SHAPES: {"values": "none"}, SKIPPED: {"keep": Rate(1e-9)},
        }  # fmt: skip
        for name, chosen in options.items():
            recorder = Recorder(Path(folder) / f"{name}.tape", **chosen).attach(twins[name])
            stack.callback(recorder.close)
        stack.enter_context(_peer()(twins[PEER], store_n_calls=calls))
        _hook(twins[EMPTY])
        yield


def add_contenders(
    calls: int, stack: contextlib.ExitStack, shape: Sequence[int] = (4, 8), device: str = "cpu"
) -> dict[str, Callable[[], object]]:
    """An addition, for each contender."""
    twins: dict[str, torch.nn.Module] = {name: Add() for name in CONTENDERS}
    stack.enter_context(_attached(twins, calls))
    x, y = torch.randn(*shape, device=device), torch.randn(*shape, device=device)
    runs: dict[str, Callable[..., object]] = {**twins, CLONES: _clone_around(twins[CLONES])}
    return {name: (lambda run=run: run(x, y)) for name, run in runs.items()}


def decode_contenders(
    calls: int, stack: contextlib.ExitStack, device: str = "cpu"
) -> tuple[dict[str, Callable[[], object]], Callable[[], object]]:
    """A decode step, for each contender, and what makes its arguments."""
    from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model

    step = DecodeStep(device)
    # The peer needs a registration to see into a cache; calltape does not care.
    register_cache_pytrees_for_model(step.module)
    twins = {name: step.twin() for name in CONTENDERS}
    stack.enter_context(_attached(twins, calls))
    box: list[dict[str, Any]] = [{}]

    def prepare() -> None:
        box[0] = step.arguments()

    def run(name: str) -> Callable[[], object]:
        target = _clone_around(twins[name]) if name == CLONES else twins[name]
        return lambda: target(**box[0])

    return {name: run(name) for name in twins}, prepare


def rows_of(
    what: str, samples: Samples, skipped_against: str, *, shown: bool = False
) -> Iterator[Row]:
    """The rows of one kind of call: recorded whole, shapes only, and not kept. Those that matter
    most are ``shown`` in docs/costs.md."""
    added = samples.added(CALLTAPE, NO_RECORDER)
    base = samples.median(NO_RECORDER)
    others = {other: samples.added(other, NO_RECORDER) for other in (PEER, CLONES)}
    whole = f"+{added * 1e6:.1f} µs"
    ratio = f"{(base + added) / base:.2f} ×"
    question = Question.RECORDED if shown else None
    yield Row(f"{what}, recorded whole", whole, NO_RECORDER, ratio, question)
    for other, theirs in others.items():
        ratio = f"{added / theirs:.2f} ×"
        yield Row(
            f"{what}, recorded whole", whole, f"{other}: +{theirs * 1e6:.1f} µs", ratio,
            question if other == PEER else None,
        )  # fmt: skip
    for less, other, question in (
        (SHAPES, CALLTAPE, None),
        (SKIPPED, skipped_against, Question.NOTHING_NEW if shown else None),
    ):
        ours, theirs = samples.added(less, NO_RECORDER), samples.added(other, NO_RECORDER)
        held = "recorded whole" if other == CALLTAPE else other
        yield Row(
            f"{what}, {less}", f"+{ours * 1e6:.1f} µs", f"{held}: +{theirs * 1e6:.1f} µs",
            f"{ours / theirs:.2f} ×", question,
        )  # fmt: skip


def rows(scale: float) -> Iterator[Row]:
    """Paced and tight-loop cost of both models; ``scale`` shortens the run."""
    with torch.no_grad():
        calls = max(int(1500 * scale), 20)
        with contextlib.ExitStack() as stack:
            contenders = add_contenders(10**9, stack)
            measure_paced(contenders, 50)
            samples = measure_paced(contenders, calls)
            yield from rows_of("add [4,8], paced", samples, EMPTY, shown=True)
        with contextlib.ExitStack() as stack:
            contenders = add_contenders(10**9, stack)
            yield from rows_of(
                "add [4,8], tight loop",
                measure(contenders, max(int(100 * scale), 5), repeat=100),
                EMPTY,
            )
        calls = max(int(500 * scale), 20)
        with contextlib.ExitStack() as stack:
            contenders, prepare = decode_contenders(10**9, stack)
            measure_paced(contenders, 20, prepare=prepare)
            yield from rows_of(
                "Llama decode step, 2 layers, paced",
                measure_paced(contenders, calls, prepare=prepare),
                CALLTAPE,  # of a call of milliseconds a hook is less than the noise
                shown=True,
            )
        with contextlib.ExitStack() as stack:
            contenders, prepare = decode_contenders(10**9, stack)
            yield from rows_of(
                "Llama decode step, 2 layers, back to back",
                measure(contenders, calls, prepare=prepare),
                CALLTAPE,
            )
