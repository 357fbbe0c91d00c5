"""Exports a model from its tape: the programs, how they came about, and which calls they serve."""

from __future__ import annotations

import contextlib
import mmap
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import torch

from calltape_analyzer import ExportOptions, export, open_tape
from calltape_analyzer.errors import ExportError, NoVariant
from calltape_analyzer.programs.attempts import Attempt, Candidate
from calltape_analyzer.programs.program import Program
from tests.answers.small import Small
from tests.zoo.case import Arguments, Case, fresh
from tests.zoo.comparing import difference, is_rounding, nudged

__all__ = ["exported"]

_ATTEMPT_SECONDS = 300.0
"""More than any attempt takes: how fast a machine is, is no part of an answer."""
_MEMORY = 2**28
"""What a run at other sizes may take by default where memory is not short."""
_MAX_REASON = 400


def exported(case: Case, tape: Path, target: str, without: Collection[int] = ()) -> dict[str, Any]:
    """What exporting a case gives.

    Args:
        case: its model and calls.
        tape: the recording of ``case.drive``.
        target: ``"torch"`` or ``"onnx"``.
        without: numbers of calls to leave out, as if they had not been recorded.
    """
    warnings.simplefilter("ignore")
    small = case if isinstance(case, Small) else None
    module = (small.exported or small.make)() if small else case.make()
    # The model is made before the tape is opened: then the classes that the tape names are loaded.
    with torch.no_grad(), open_tape(str(tape), classes=case.classes) as whole:
        some = [call for call in whole if call.number not in without]
        opened = whole.only(calls=some) if without else whole
        with _still_clock(), _made_by() as made, _runs(module) as runs:
            try:
                programs = export(
                    opened,
                    module,
                    to=target,
                    options=ExportOptions(attempt_seconds=_ATTEMPT_SECONDS, max_memory=_MEMORY),
                )
            except Exception as error:  # of any type, where an exporter is wrong: that is pinned
                attempts = error.attempts if isinstance(error, ExportError) else ()
                return {
                    "error": f"{type(error).__name__}: {error}",
                    "attempts": [_attempt(attempt) for attempt in attempts],
                    "model ran": runs(),
                }
            ran = runs()
            verified = [row.ok for row in programs.verify().rows]
        return {
            "programs": {
                name: _program(program, made[id(program)][1]) for name, program in programs.items()
            },
            "attempts": [_attempt(attempt) for attempt in programs.attempts],
            "missing": {name: str(why) for name, why in programs.missing.items()},
            "notes": [*map(str, programs.notes)],
            "model ran": ran,
            "verified": f"{sum(verified)} of {len(verified)} calls",
            "calls": _served(programs, case, small, opened, target),
        }


@contextlib.contextmanager
def _still_clock() -> Iterator[None]:
    """Lets no time pass for whoever measures how long a step took. A proof may take no longer than
    ``Probing.patience``, which on a busy machine would be fewer sizes."""
    clock = time.perf_counter
    time.perf_counter = lambda: 0.0
    try:
        yield
    finally:
        time.perf_counter = clock


@contextlib.contextmanager
def _made_by() -> Iterator[dict[int, tuple[Program, Attempt]]]:
    """By the id of a program: the attempt that made it, which no program knows. Nothing of this is
    on the stack while the model runs: notes quote the lines that are."""
    made: dict[int, tuple[Program, Attempt]] = {}

    def noting(candidate: Candidate, name: str, value: Any) -> None:
        object.__setattr__(candidate, name, value)
        if name == "program":
            made[id(value)] = value, candidate.attempt

    Candidate.__setattr__ = noting  # type: ignore[method-assign,assignment]
    try:
        yield made
    finally:
        del Candidate.__setattr__


@contextlib.contextmanager
def _runs(module: torch.nn.Module) -> Iterator[Callable[[], int]]:
    """Counts how often a model runs or is traced, in forks of this process too: what an export
    costs, on any machine. A hook of all modules, because one of the model's own would be part of
    what is exported."""
    counter = mmap.mmap(-1, 8)

    def count(called: torch.nn.Module, _: Any) -> None:
        if called is module:
            seen = int.from_bytes(counter[:], "little") + 1
            counter[:] = seen.to_bytes(8, "little")

    hook = torch.nn.modules.module.register_module_forward_pre_hook(count)
    try:
        yield lambda: int.from_bytes(counter[:], "little")
    finally:
        hook.remove()


def _program(program: Program, made_by: Attempt) -> dict[str, Any]:
    conditions = program.conditions
    inputs = [
        f"{name}: {dtype or 'int'}{list(sizes)}" if sizes or dtype else f"{name}: constant"
        for name, dtype, sizes in conditions.inputs
    ]
    ranges = [f"{low} <= {name} <= {high}" for name, (low, high) in conditions.ranges.items()]
    found: dict[str, Any] = {
        "made by": made_by.what,
        "inputs": inputs,
        "ranges": sorted(ranges),
        "guards": sorted(text.strip() for text in conditions.guards),
        "assertions": _assertions(program),
        "notes": [*map(str, program.notes)],
    }
    if program.only_rows is not None:
        found["serves only"] = f"{len(program.only_rows)} recorded sizes"
    return found


def _assertions(program: Program) -> list[str]:
    """The conditions that a program of torch checks while it runs."""
    graph = getattr(getattr(program.exported, "graph_module", None), "graph", None)
    if graph is None:
        return []
    asserts = torch.ops.aten._assert_scalar.default
    return sorted(str(node.args[1]) for node in graph.nodes if node.target is asserts)


def _attempt(attempt: Attempt) -> str:
    """An attempt in one line, without how long it took."""
    parts = [f"{attempt.reproduced} of {attempt.tried} recorded sizes"]
    if attempt.probed:
        parts.append(f"{attempt.agreed} of {attempt.probed} others")
    counts = ("unrun", "declined", "wrong", "failed")
    parts += [f"{number} {name}" for name in counts if (number := getattr(attempt, name))]
    if attempt.untried:
        parts.append(f"untried: {'; '.join(map(str, attempt.untried))}")
    if attempt.summary:
        parts.append(str(attempt.summary))
    return f"{attempt.variant}: {attempt.what}: {'; '.join(parts)}"


def _served(
    programs: Any, case: Case, small: Small | None, tape: Any, target: str
) -> dict[str, str]:
    """What became of each recorded call, and of calls that nobody recorded."""
    context = small.context if small else contextlib.nullcontext
    seed = small.seed if small else None
    build = _continued(case) if case.continues else case.make
    is_exact = target == "torch" or case.continues

    def answer(callee: Callable[..., Any], arguments: Arguments) -> Any:
        args, kwargs = fresh(arguments)
        if seed is not None:
            torch.manual_seed(seed)
        with context():
            return callee(*args, **kwargs)

    def verdict(arguments: Arguments, expected: Any) -> str:
        try:
            got = answer(programs, arguments)
        except NoVariant as error:
            return f"rejected: {'; '.join(f'{k}: {v}' for k, v in error.reasons.items())}"
        except Exception as error:  # torch and runtimes raise errors of any type
            return f"failed: {type(error).__name__}: {error}"
        found = difference(expected, got)
        if found is None:
            return "right"
        if not is_exact and is_rounding(expected, got, answer(case.make(), nudged(arguments))):
            return "right up to rounding"
        return f"WRONG: {found}"

    said: dict[str, str] = {}
    for call in tape:
        if call.error is None:
            expected = call.outputs
            if seed is not None:  # drawn from one state of the generator, as the program's
                expected = answer(case.make(), call.inputs)
            said[f"recorded {call.number}"] = verdict(call.inputs, expected)
    for number, arguments in enumerate(case.unseen(case.make())):
        said[f"unseen {number}"] = verdict(arguments, answer(build(), arguments))
    return {name: " ".join(text.split())[:_MAX_REASON] for name, text in said.items()}


def _continued(case: Case) -> Callable[[], torch.nn.Module]:
    """Gives one module each time, which got the recorded calls, and gets the unseen ones."""
    module = case.make()
    case.drive(module)
    return lambda: module
