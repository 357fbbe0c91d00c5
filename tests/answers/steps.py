"""What one process of a run does: record a model, ask tapes, export a model, or judge an export."""

from __future__ import annotations

import os
import random
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

from calltape_recorder import record
from tests.answers.exports import exported
from tests.answers.normalising import FIXED, RECORDED
from tests.answers.questions import ask
from tests.answers.subjects import Subject, subjects
from tests.zoo.judging import judge

__all__ = ["STEPS"]


def _record(folder: Path, words: list[str]) -> dict[str, Any]:
    subject = subjects()[words[0]]
    assert subject.case is not None
    path = _tape(folder, subject.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    module = subject.case.make()
    with torch.no_grad(), record(module, path, overwrite=True) as recorder:
        subject.case.drive(module)
    stats = recorder.stats()
    assert stats.kept == stats.seen, f"{subject.name}: kept {stats.kept} of {stats.seen} calls"
    return {"answers": {}}


def _ask(folder: Path, words: list[str]) -> dict[str, Any]:
    return {"answers": {name: _asked(folder, subjects()[name]) for name in words}}


def _asked(folder: Path, subject: Subject) -> dict[str, Any]:
    normalising = FIXED if subject.case is None else RECORDED
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        os.chdir(Path("fixtures").absolute() if subject.case is None else folder)
        try:
            names = (f"{name}.tape" for name in (subject.name, subject.next))
            return ask(*names, normalising, Path(scratch))
        finally:
            os.chdir(_ROOT)


def _export(folder: Path, words: list[str]) -> dict[str, Any]:
    name, target, *without = words
    case = subjects()[name].case
    assert case is not None
    found = exported(case, _tape(folder, name), target, {*map(int, without)})
    return {"answers": {name: {f"export to {target}": RECORDED.value(found)}}}


def _judge(folder: Path, words: list[str]) -> dict[str, Any]:
    name, target = words
    case = subjects()[name].case
    assert case is not None
    warnings.simplefilter("ignore")
    return {"answers": {name: judge(case, _tape(folder, name), target).as_dict()}}


def _tape(folder: Path, name: str) -> Path:
    return folder / f"{name}.tape"


_ROOT = Path(__file__).resolve().parents[2]


def _settled(step: Callable[[Path, list[str]], dict[str, Any]]) -> Any:
    """The step with one thread, and from one state of the generators of random numbers."""

    def run(folder: Path, words: list[str]) -> dict[str, Any]:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        os.environ["COLUMNS"] = "100"
        return dict(step(folder, words))

    return run


STEPS = {
    "record": _settled(_record), "ask": _settled(_ask), "export": _settled(_export),
    "judge": _settled(_judge),
}  # fmt: skip
"""By name; each takes the folder of the run and words, and gives plain data."""
