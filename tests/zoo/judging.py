"""What an export of one case is worth: every recorded call, and calls at sizes never recorded."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from calltape_analyzer import open_tape
from tests.zoo.bare import Bare
from tests.zoo.case import Arguments, Case, fresh
from tests.zoo.comparing import difference, is_rounding, leaves, nudged
from tests.zoo.needless import needless

__all__ = ["Verdict", "judge"]


@dataclass
class Verdict:
    """One line of the table.

    Attributes:
        calls: on the tape, those that raised left out.
        reproduced: recorded calls whose outputs the program gives, by the zoo's own comparison.
        unseen: calls at sizes never recorded.
        unseen_reproduced: those of them where the program gives what the module gives.
        silent_wrong: values that are wrong and that nothing reported: a recorded call that
            ``verify()`` called ok, or an unseen call that a variant accepted.
        rounding: calls of another runtime that differ by more than the zoo's tolerance, and by
            little more than the model itself does if the last digit of its inputs changes. They
            count as reproduced (docs/decisions/onnx.md).
        mutations_lost: calls after which a tensor argument that the module changes in place was
            not changed alike by the program. Not part of the other counts.
        verified: rows that ``verify()`` called ok.
        refused: unseen calls that no variant accepted (``NoVariant``): honest, but missing.
        needless: of those, the ones where a program would have been right without what calltape
            keeps it from.
        needless_guards: the others where one would have been right without torch's guards as well.
        bare_right: calls that ours does not reproduce and that ``torch.onnx.export`` does, with the
            arguments and dynamic shapes of the tape: faults of ours.
        variants: how many programs.
        attempts: as the exporter tells them, if it does.
        details: the first reasons, in words.
    """

    case: str
    calls: int = 0
    reproduced: int = 0
    unseen: int = 0
    unseen_reproduced: int = 0
    silent_wrong: int = 0
    rounding: int = 0
    mutations_lost: int = 0
    verified: int = 0
    refused: int = 0
    needless: int = 0
    needless_guards: int = 0
    bare_right: int = 0
    variants: int = 0
    seconds: float = 0.0
    error: str | None = None
    attempts: Any = None
    details: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


@torch.no_grad()
def judge(case: Case, path: Path, target: str) -> Verdict:
    """Exports from the tape, and runs every recorded and every unseen call."""
    verdict = Verdict(case.name)
    begin = time.process_time()
    try:
        _judge(case, path, target, verdict)
    except Exception as error:  # whatever an exporter raises is a result
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        verdict.error = f"{type(error).__name__} at {place}: {error}"[:600]
    verdict.seconds = round(time.process_time() - begin, 2)
    return verdict


def _judge(case: Case, path: Path, target: str, verdict: Verdict) -> None:
    module = case.make()  # before the tape: the classes of transformers that it names are loaded
    with open_tape(path, classes=case.classes) as tape:
        calls = [call for call in tape if call.error is None]
        verdict.calls = len(calls)
        unseen = case.unseen(case.make())
        verdict.unseen = len(unseen)
        from calltape_analyzer import export  # type: ignore[attr-defined]

        programs = export(tape, module, to=target)
        rows = {_number(row.call): row for row in programs.verify().rows}
        verdict.verified = sum(row.ok for row in rows.values())
        verdict.variants = len({str(row.variant) for row in rows.values() if row.ok})
        attempts = getattr(programs, "attempts", None)
        verdict.attempts = attempts if isinstance(attempts, int | None) else str(attempts)[:300]

        def near(arguments: Arguments) -> Near | None:
            # A module built anew has another state, and would call more than rounding near.
            exact = target == "torch" or case.continues
            return None if exact else lambda: _near(case, arguments)

        bare = Bare(case, tape) if target == "onnx" else None
        for call in calls:
            before = verdict.reproduced
            _recorded(programs, call, rows.get(call.number), verdict, near(call.inputs))
            if verdict.reproduced == before and bare is not None:
                verdict.bare_right += bare.is_right(call.inputs, call.outputs)
        build = _continued(case) if case.continues else case.make
        for position, arguments in enumerate(unseen):
            keeps = not case.continues  # a run without restrictions would be one more call
            before = verdict.unseen_reproduced
            _unseen(
                programs, build, arguments, position, verdict, near(arguments), keeps_state=keeps
            )
            if verdict.unseen_reproduced == before and bare is not None and not case.continues:
                args, kwargs = fresh(arguments)
                verdict.bare_right += bare.is_right(arguments, case.make()(*args, **kwargs))


def _number(call: Any) -> int:
    """Rows name their call by its number, or hold it."""
    return call if isinstance(call, int) else int(call.number)


Near = Callable[[], Any]
"""What the model returns for inputs whose last digits are others."""


def _near(case: Case, arguments: Arguments) -> Any:
    args, kwargs = nudged(fresh(arguments))
    return case.make()(*args, **kwargs)


def _recorded(
    programs: Any, call: Any, row: Any, verdict: Verdict, near: Near | None = None
) -> None:
    args, kwargs = call.inputs
    try:
        got = programs(*args, **kwargs)
    except Exception as error:  # refused, or a program that fails
        reason = str(row.error) if row is not None and row.error else ""
        verdict.details.append(f"call {call.number}: {_said(error)} {reason}"[:300])
        return
    found = difference(call.outputs, got)
    if found is None:
        verdict.reproduced += 1
        return
    if near is not None and is_rounding(call.outputs, got, near()):
        verdict.reproduced += 1
        verdict.rounding += 1
        return
    verdict.details.append(f"call {call.number}: {found}")
    verdict.silent_wrong += row is not None and bool(row.ok)


def _continued(case: Case) -> Callable[[], torch.nn.Module]:
    """Gives one module each time, which got the recorded calls, and gets the unseen ones."""
    module = case.make()
    case.drive(module)
    return lambda: module


def _unseen(
    programs: Any, build: Callable[[], torch.nn.Module], arguments: Arguments, position: int,
    verdict: Verdict, near: Near | None = None, *, keeps_state: bool = True,
) -> None:  # fmt: skip
    """A module of its own for what is expected: nothing that exporting did to the other counts."""
    ours, theirs = fresh(arguments), fresh(arguments)
    held = _tensors(ours), _tensors(theirs)  # as the caller holds them, whatever a cache does next
    expected = build()(*ours[0], **ours[1])
    try:
        got = programs(*theirs[0], **theirs[1])
    except Exception as error:  # refused, or a program that fails
        verdict.refused += type(error).__name__ == "NoVariant"
        why = None
        if keeps_state:
            why = needless(programs, arguments, lambda got: difference(expected, got) is None)
        verdict.needless += why == "ours"
        verdict.needless_guards += why == "guards"
        said = f"needless ({why}): " if why else ""
        verdict.details.append(f"unseen {position}: {said}{_said(error)}"[:300])
        return
    found = difference(expected, got)
    if found is None:
        verdict.unseen_reproduced += 1
    elif near is not None and is_rounding(expected, got, near()):
        verdict.unseen_reproduced += 1
        verdict.rounding += 1
    else:
        verdict.silent_wrong += 1
        verdict.details.append(f"unseen {position}: {found}")
    if lost := _mutations_lost(_tensors(arguments), *held):
        verdict.mutations_lost += 1
        verdict.details.append(f"unseen {position}: not changed in place: {lost[:3]}")


def _tensors(arguments: Arguments) -> dict[str, torch.Tensor]:
    return {path: leaf for path, leaf in leaves(arguments) if isinstance(leaf, torch.Tensor)}


def _mutations_lost(
    before: dict[str, torch.Tensor], ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]
) -> list[str]:
    """Tensors that the module changed in place, and that the program left otherwise."""
    changed = [path for path, tensor in before.items() if difference(tensor, ours[path])]
    return [path for path in changed if difference(ours[path], theirs[path])]


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:240]
