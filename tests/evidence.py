"""More evidence never makes a result worse: removing any one call never makes more unseen calls
right.

    python -m tests.evidence [CASE ...]

Each exported case of ``tests/answers`` (by default the small ones) is exported from all of its
recorded calls, and from all but one, for each of them. In come names of cases, as ``make answers``
has them. Out goes a line per case, and 1 as the exit code if a result is worse with more calls.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from calltape_analyzer import NoVariant, Tape, export, open_tape
from calltape_analyzer.errors import ExportError
from tests.answers.recording import record_case
from tests.answers.small.case import Small
from tests.answers.subjects import Subject, subjects
from tests.zoo.case import fresh
from tests.zoo.comparing import difference

__all__ = ["Worse", "without_each"]


class Worse(NamedTuple):
    """A call without which more unseen calls are right."""

    case: str
    without: int
    right: int
    right_with_all: int


def without_each(subject: Subject, folder: Path) -> Iterator[Worse]:
    """The calls of a case without which a result is better.

    Args:
        subject: an exported case.
        folder: for its tape.
    """
    case = subject.case
    assert case is not None
    path = folder / "case.tape"
    record_case(case, path)
    with open_tape(str(path), classes=case.classes) as tape:
        numbers = [call.number for call in tape]
        every = _right(subject, tape)
        for number in numbers if len(numbers) > 1 else ():
            others = tape.only(calls=[one for one in numbers if one != number])
            right = _right(subject, others)
            if right > every:
                yield Worse(subject.name, number, right, every)


def _right(subject: Subject, tape: Tape) -> int:
    """How many unseen calls are right."""
    case = subject.case
    assert case is not None
    small = case if isinstance(case, Small) else None
    module = (small.exported or small.make)() if small else case.make()
    try:
        with torch.no_grad():
            programs = export(tape, module)
    except ExportError:
        return 0
    return sum(
        _is_right(case, small, programs, number) for number in range(len(case.unseen(case.make())))
    )


def _is_right(case: object, small: Small | None, programs: object, number: int) -> bool:
    make = case.make  # type: ignore[attr-defined]
    arguments = case.unseen(make())[number]  # type: ignore[attr-defined]
    context = small.context if small else contextlib.nullcontext

    def answer(callee: object) -> object:
        args, kwargs = fresh(arguments)
        if small is not None and small.seed is not None:
            torch.manual_seed(small.seed)
        with context(), torch.no_grad():
            return callee(*args, **kwargs)  # type: ignore[operator]

    try:
        return difference(answer(make()), answer(programs)) is None
    except NoVariant:
        return False
    except Exception:  # of torch, of any type
        return False


def main(names: list[str]) -> int:
    """The command."""
    warnings.simplefilter("ignore")
    every = [
        one for one in subjects().values()
        if one.targets and (one.name in names if names else one.name.startswith("small/"))
    ]  # fmt: skip
    count = 0
    for subject in every:
        with tempfile.TemporaryDirectory() as folder:
            found = list(without_each(subject, Path(folder)))
        count += len(found)
        told = "; ".join(
            f"without call {one.without} {one.right} unseen calls are right, with it "
            f"{one.right_with_all}"
            for one in found
        )
        print(f"{subject.name}: {told or 'no call makes it worse'}", flush=True)
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
