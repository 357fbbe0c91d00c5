"""What a fuzzer calls with each mutant: reads it, counts, keeps what should not have been."""

from __future__ import annotations

import gc
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.fixture_files import FIXTURES
from tests.fuzz.questions import chosen_for, read, read_a_copy, warm_up
from tests.fuzz.steps import Outcome
from tests.fuzz.tally import Tally

__all__ = ["FAILURES", "OTHER", "Target", "current", "ready", "tally_file"]

OTHER = FIXTURES / "v1" / "calls-keywords.tape"
FAILURES = "failures"
"""The folder of the mutants that failed."""

_KEPT, _TOLD_EVERY = 3, 5.0
_GARBAGE = (200_000, 10, 10)
"""Objects between collections: by default there are several per mutant, a quarter of its time."""


def current(scratch: Path, job: int) -> Path:
    """The mutant that a job is reading, which is there if its process dies of it."""
    return scratch / f"current-{job}.tape"


def tally_file(scratch: Path, job: int) -> Path:
    """What the latest process of a job found so far."""
    return scratch / f"{job}.json"


def ready(scratch: Path) -> None:
    """Imports and caches are no mutant's: everything is asked once, in a folder of its own, since
    other jobs ask the same."""
    warm_up()
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        for name in ("calls-nested-cache-outputs", "structures", "dtypes"):
            read_a_copy(FIXTURES / "v1" / f"{name}.tape", OTHER, Path(folder))
    gc.collect()
    gc.freeze()  # what was imported is no mutant's garbage to look through
    gc.set_threshold(*_GARBAGE)


class Target:
    """Reads mutants until time or number is reached, then ends the process: a fuzzer has no end.

    Args:
        folder: of the run; failures go there.
        scratch: where the mutant that is being read lies, in memory if the machine can.
        job: the number of the job that this process is of.
        seconds, mutants: whichever comes first; 0 mutants are no limit.
        known: how many inputs come first that are no mutants: they are read, and not counted.
        times: how many times as long a mutant may take: while branches are counted, all is slower.
        reads: gives the outcome of reading a mutant, from its file and its bytes.
        ends: the process.
    """

    def __init__(
        self,
        folder: Path,
        scratch: Path,
        job: int,
        *,
        seconds: float,
        mutants: int,
        known: int = 0,
        times: float = 1.0,
        reads: Callable[[Path, bytes], Outcome] | None = None,
        ends: Callable[[int], object] = os._exit,
    ) -> None:
        self._folder = folder / FAILURES
        self._tally, self._told_in = Tally(), tally_file(scratch, job)
        self._current = current(scratch, job)
        self._until = time.monotonic() + seconds
        self._mutants = mutants or float("inf")
        self._told = 0.0
        self._known = known
        self._reads = reads or (lambda path, data: read(path, OTHER, chosen_for(data), times))
        self._ends = ends

    def __call__(self, data: bytes) -> None:
        self._current.write_bytes(data)
        label = hashlib.sha256(data).hexdigest()[:12]
        outcome = self._reads(self._current, data)
        self._tally.add(label, outcome, is_mutant=self._known <= 0)
        self._known -= 1
        for finding in outcome.findings:
            self._keep(label, finding.kind, data, f"{finding.step}\n{finding.text}\n")
        now = time.monotonic()
        over = now >= self._until or self._tally.mutants >= self._mutants
        if over or now - self._told > _TOLD_EVERY:
            self._told = now
            self._tally.processor = time.process_time()
            self._tally.write(self._told_in)
        if over:
            self._current.unlink(missing_ok=True)
            self._ends(0)

    def _keep(self, label: str, kind: str, data: bytes, text: str) -> None:
        """The mutant and what was wrong, of each kind a few."""
        if len(self._tally.findings[kind]) > _KEPT:
            return
        slug = re.sub(r"[^A-Za-z0-9]+", "-", kind).strip("-")[:60]
        path = self._folder / f"{slug}-{label}.tape"
        path.write_bytes(data)
        path.with_suffix(".txt").write_text(text, errors="backslashreplace")
