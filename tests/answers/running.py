"""Asks every subject, each step in a process of its own.

The processes are forks of one that has imported the libraries. So what one step leaves behind
cannot change the answers of the next, and a step that ends its process costs its own answers only.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.answers.normalising import RECORDED
from tests.answers.subjects import ROOT, Subject, subjects

__all__ = ["asked", "step"]

_TIMEOUT = 1800
"""Seconds that one step may take: far more than any does, also on a busy machine."""
_BATCH = 24
"""Tapes of the repository are asked together: each takes less than a fork."""
_ONE_THREAD = "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"
_LIBRARIES = (
    "torch", "torch._dynamo", "torch.onnx", "transformers", "diffusers", "timm", "torchvision",
    "torch_geometric",
)  # fmt: skip
_PRELOADED = (
    *_LIBRARIES, "pyarrow", "pyarrow.csv", "tests.answers.steps", "calltape_analyzer.cli.info",
    "calltape_analyzer.cli.calls", "calltape_analyzer.cli.variants",
    "calltape_analyzer.cli.surveys", "calltape_analyzer.cli.edits",
)  # fmt: skip

_forks = multiprocessing.get_context("forkserver")

_spent: dict[tuple[str, str], float] = {}
"""Seconds of processor time, by step and subject."""

Told = Callable[[str], None]


def asked(
    some: Sequence[Subject], jobs: int, tell: Told = lambda _: None
) -> dict[str, dict[str, Any]]:
    """The answers of some subjects, by name.

    Args:
        some: the subjects.
        jobs: how many processes work at once.
        tell: is told what is done, in words.
    """
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="answers-") as folder, ThreadPoolExecutor(jobs) as pool:
        place = Path(folder)
        recorded = {one.name: one for one in some if one.case}
        # What a recording is compared with is recorded as well.
        recorded |= {one.next: subjects()[one.next] for one in recorded.values()}
        failed = dict(pool.map(lambda name: (name, step(place, "record", [name])), recorded))
        failed = {name: found["error"] for name, found in failed.items() if "error" in found}
        tell(f"{len(recorded)} recordings after {time.monotonic() - begin:.0f} s")
        exports = [
            pool.submit(step, place, "export", [one.name, target])
            for one in some
            for target in one.targets
            if one.name not in failed
        ]
        kept = [one for one in some if one.case is None]
        batches = [kept[at : at + _BATCH] for at in range(0, len(kept), _BATCH)]
        batches += [[one] for one in some if one.case and one.name not in failed]
        questions = [
            pool.submit(step, place, "ask", [one.name for one in batch]) for batch in batches
        ]
        answers: dict[str, dict[str, Any]] = {one.name: {} for one in some}
        for name, why in failed.items():
            if name in answers:
                answers[name] = {"error": why}
        for batch, future in zip(batches, questions, strict=True):
            _add(answers, [one.name for one in batch], future.result())
        for future in exports:
            _add(answers, [], future.result())
        tell(f"{len(some)} subjects after {time.monotonic() - begin:.0f} s")
        tell(_dearest(_spent))
        return answers


def _dearest(spent: Mapping[tuple[str, str], float]) -> str:
    """The processor time of all steps, and of the kinds and subjects that took most of it."""
    kinds: Counter[str] = Counter()
    for (step, _), seconds in spent.items():
        kinds[step] += seconds
    most = sorted(spent.items(), key=lambda item: -item[1])[:_SHOWN]
    return "\n".join([
        f"processor time: {sum(kinds.values()):.0f} s ("
        + ", ".join(f"{step} {seconds:.0f}" for step, seconds in kinds.items()) + ")",
        *(f"  {seconds:6.1f} s {step} {name}" for (step, name), seconds in most),
    ])  # fmt: skip


_SHOWN = 12


def _add(answers: dict[str, dict[str, Any]], names: Iterable[str], found: dict[str, Any]) -> None:
    if "error" in found:  # of the step as a whole
        for name in names or [found["subject"]]:
            answers[name][f"error of {found['step']}"] = found["error"]
        return
    for name, own in found["answers"].items():
        answers[name] |= own


def step(folder: Path, name: str, words: list[str]) -> dict[str, Any]:
    """Does a step of ``tests.answers.steps`` in a process of its own.

    Args:
        folder: of the run.
        name: of the step.
        words: what the step takes.

    Returns:
        What it found, or the ``error`` that ended it.
    """
    for variable in _ONE_THREAD:
        os.environ[variable] = "1"
    _forks.set_forkserver_preload(list(_PRELOADED))
    with contextlib.ExitStack() as stack:
        said, trouble = (
            stack.enter_context(tempfile.NamedTemporaryFile("r", dir=folder)) for _ in range(2)
        )
        process = _forks.Process(
            target=_forked, args=(name, str(folder), words, said.name, trouble.name)
        )
        process.start()
        process.join(_TIMEOUT)
        # Not the exit code: another thread that starts a process may have taken it.
        if answer := Path(said.name).read_text():
            document: dict[str, Any] = json.loads(answer)
            _spent[name, words[0]] = document["seconds"]
            return document
        why = f"no end after {_TIMEOUT} s"
        if process.is_alive():
            process.kill()
        else:
            last = trouble.read().strip().splitlines()[-1:]
            why = RECORDED.text(" ".join(["ended without an answer:", *last]))
        return {"step": name, "subject": words[0], "error": why}


def _forked(step: str, folder: str, words: list[str], said: str, trouble: str) -> None:
    from tests.answers.steps import STEPS

    begun = sum(os.times()[:4])
    for path, stream in ((os.devnull, 1), (trouble, 2)):
        os.dup2(os.open(path, os.O_WRONLY), stream)
    os.chdir(ROOT)
    found = STEPS[step](Path(folder), words)
    found["seconds"] = sum(os.times()[:4]) - begun  # of this process, and of its own forks
    answer = Path(f"{said}.part")
    answer.write_text(json.dumps(found))
    answer.replace(said)  # in one step: what is read is whole
