"""Whether the zoo itself is sound: ``python -m tests.zoo.check [CASE ...]``.

For every case: two builds agree, every call is on the tape, a replay of the tape through a module
built anew gives what was recorded, the unseen calls run, twice with the same result, and they ask
for nothing that the recording does not show to vary.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from calltape_analyzer import open_tape
from calltape_recorder import record
from tests.zoo import CASES
from tests.zoo.case import Arguments, Case, fresh
from tests.zoo.comparing import difference, leaves

__all__ = ["problems"]


@torch.no_grad()
def problems(case: Case, path: Path) -> Iterator[str]:
    """What is wrong with a case; writes its tape to ``path``."""
    module, again = case.make(), case.make()
    if module.training:
        yield "in training mode"
    with record(module, path, overwrite=True) as recorder:
        case.drive(module)
    stats = recorder.stats()
    if stats.kept != stats.seen or stats.dropped:
        yield f"kept {stats.kept} of {stats.seen}: {stats.dropped}"
    if not 3 <= stats.kept <= 12:
        yield f"{stats.kept} calls"
    recorded: list[dict[str, Any]] = []
    with open_tape(path, classes=case.classes) as tape:
        for call in tape:
            if call.error is not None:
                yield f"call {call.number} raised {call.error}"
                continue
            args, kwargs = call.inputs
            recorded.append(_bound(module, fresh((args, kwargs))))
            if found := difference(call.outputs, again(*args, **kwargs)):
                yield f"call {call.number}, replayed: {found}"
    yield from _unseen_problems(case, again)
    unseen = [_bound(module, arguments) for arguments in case.unseen(again)]
    yield from _unfair(unseen, recorded)


def _unseen_problems(case: Case, module: torch.nn.Module) -> Iterator[str]:
    calls = case.unseen(module)
    if not 2 <= len(calls) <= 6:
        yield f"{len(calls)} unseen calls"
    other = case.make()
    if case.continues:
        case.drive(other)
    for position, (args, kwargs) in enumerate(calls):
        args_again, kwargs_again = fresh((args, kwargs))
        expected = module(*args, **kwargs)
        if found := difference(expected, other(*args_again, **kwargs_again)):
            yield f"unseen call {position}, repeated: {found}"


def _bound(module: torch.nn.Module, arguments: Arguments) -> dict[str, Any]:
    """Arguments by the parameter that takes them, however they were passed."""
    args, kwargs = arguments
    return dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)


Shapes = dict[str, tuple[int, ...]]


def _unfair(unseen: list[dict[str, Any]], recorded: list[dict[str, Any]]) -> Iterator[str]:
    """Unseen calls that nobody could ask for: of a structure that was never recorded, at a size
    that never varied; and those that were recorded already."""
    known: dict[tuple[Any, ...], list[Shapes]] = {}
    sizes: dict[tuple[str, int], list[int]] = {}
    for arguments in recorded:
        structure, shapes = _outline(arguments)
        known.setdefault(structure, []).append(shapes)
        for path, shape in shapes.items():
            for axis, size in enumerate(shape):
                sizes.setdefault((path, axis), []).append(size)
    for position, arguments in enumerate(unseen):
        structure, shapes = _outline(arguments)
        if structure not in known:
            yield f"unseen call {position} has a structure of its own"
        elif shapes in known[structure]:
            yield f"unseen call {position} was recorded"
        for path, shape in shapes.items():
            for axis, size in enumerate(shape):
                found = sizes.get((path, axis), [size])
                # What was recorded once tells nothing; its neighbours may.
                if len(found) > 1 and set(found) != {size} and len(set(found)) == 1:
                    yield f"unseen call {position}: {path}, axis {axis}: {size}, not {found[0]}"


def _outline(arguments: dict[str, Any]) -> tuple[tuple[Any, ...], Shapes]:
    """What cannot vary within a program, and the sizes that can (an int is one)."""
    structure: list[Any] = []
    shapes: Shapes = {}
    for path, leaf in leaves(arguments):
        if isinstance(leaf, torch.Tensor):
            structure.append((path, leaf.dtype, leaf.ndim))
            shapes[path] = tuple(leaf.shape)
        elif type(leaf) is int:
            structure.append((path, int))
            shapes[path] = (leaf,)
        else:
            structure.append((path, repr(leaf)))
    return tuple(sorted(structure, key=repr)), shapes


def main(names: list[str]) -> int:
    """Prints one line per case, and its problems below it."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names or list(CASES):
            begin = time.perf_counter()
            try:
                found = list(problems(CASES[name], Path(folder) / f"{name}.tape"))
            except Exception:  # one case must not end the walk
                found = [traceback.format_exc(limit=-4)]
            bad += bool(found)
            print(f"{'bad' if found else 'ok ':4}{name:32}{time.perf_counter() - begin:6.1f} s")
            for line in found:
                print("     ", line)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
