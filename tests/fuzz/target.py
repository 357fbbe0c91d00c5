"""What a fuzzer calls with each mutant: reads it, counts, keeps what should not have been."""

from __future__ import annotations

import gc
import hashlib
import os
import re
import tempfile
import time
from pathlib import Path

from tests.fixture_files import FIXTURES
from tests.fuzz.questions import chosen_for, read, read_a_copy, warm_up
from tests.fuzz.tally import Tallies, Tally

__all__ = ["CURRENT", "FAILURES", "OTHER", "TALLIES", "Target"]

OTHER = FIXTURES / "v1" / "calls-keywords.tape"
CURRENT, FAILURES, TALLIES = "current", "failures", "tallies"
"""The mutant that is being read, which is there if the process dies of it; those that failed; what
the processes found."""

_KEPT, _TOLD_EVERY = 3, 5.0
_GARBAGE = (200_000, 10, 10)
"""Objects between collections: by default there are several per mutant, a quarter of its time."""


class Target:
    """Reads mutants until time or number is reached, then ends the process: a fuzzer has no end.

    Args:
        folder: of the run; failures and tallies go there.
        scratch: where the mutant that is being read lies, in memory if the machine can.
        job: the number of the job that this process is of.
        seed: of this process; its tally goes by it.
        seconds, mutants: whichever comes first; 0 is for ever.
        known: how many inputs come first that are no mutants: they are read, and not counted.
    """

    def __init__(
        self,
        folder: Path,
        scratch: Path,
        job: int,
        seed: int,
        *,
        seconds: float,
        mutants: int,
        known: int = 0,
    ) -> None:
        self.folder = folder
        self.tally = Tally()
        self._seed = seed
        self._tallies = Tallies(folder / TALLIES)
        self._tallies.folder.mkdir(parents=True, exist_ok=True)
        self._current = scratch / f"{CURRENT}-{job}.tape"
        self._until = time.monotonic() + seconds if seconds else float("inf")
        self._mutants = mutants or float("inf")
        self._told = 0.0
        self._known = known
        (folder / FAILURES).mkdir(parents=True, exist_ok=True)
        self.warm_up()

    def warm_up(self) -> None:
        """Imports and caches are no mutant's: everything is asked once, in a folder of its own,
        since other jobs ask the same."""
        warm_up()
        with tempfile.TemporaryDirectory(dir=self._current.parent) as folder:
            for name in ("calls-nested-cache-outputs", "structures", "dtypes"):
                read_a_copy(FIXTURES / "v1" / f"{name}.tape", OTHER, Path(folder))
        gc.collect()
        gc.freeze()  # what was imported is no mutant's garbage to look through
        gc.set_threshold(*_GARBAGE)

    def __call__(self, data: bytes) -> None:
        self._current.write_bytes(data)
        label = hashlib.sha256(data).hexdigest()[:12]
        outcome = read(self._current, OTHER, chosen_for(data))
        self.tally.add(label, outcome, is_mutant=self._known <= 0)
        self._known -= 1
        for finding in outcome.findings:
            self._keep(label, finding.kind, data, f"{finding.step}\n{finding.text}\n")
        now = time.monotonic()
        over = now >= self._until or self.tally.mutants >= self._mutants
        if over or now - self._told > _TOLD_EVERY:
            self._told = now
            self._tell()
        if over:
            self._current.unlink(missing_ok=True)
            os._exit(0)

    def _keep(self, label: str, kind: str, data: bytes, text: str) -> None:
        """The mutant and what was wrong, of each kind a few."""
        if len(self.tally.findings[kind]) > _KEPT:
            return
        slug = re.sub(r"[^A-Za-z0-9]+", "-", kind).strip("-")[:60]
        path = self.folder / FAILURES / f"{slug}-{label}.tape"
        path.write_bytes(data)
        path.with_suffix(".txt").write_text(text, errors="backslashreplace")

    def _tell(self) -> None:
        self.tally.processor = time.process_time()
        self._tallies.write(self._seed, self.tally)
