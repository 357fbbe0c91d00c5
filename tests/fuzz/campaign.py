"""A run: processes that fuzz, started again if a mutant ends one, and what they found."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.guidance import has_atheris
from tests.fuzz.mutator import seeds
from tests.fuzz.steps import Finding
from tests.fuzz.tally import Tally
from tests.fuzz.target import FAILURES, current, tally_file

__all__ = ["Campaign"]

_HOUR = 3600.0


@dataclass(frozen=True)
class Campaign:
    """What was asked for.

    Attributes:
        folder: corpus, failures and logs go there. A run goes on with the corpus of the last one.
        seconds, mutants: of all processes together, whichever comes first; 0 is no limit.
        jobs: how many processes.
        seed: of the first process; each one that is started has another.
        command: that begins a process.
    """

    folder: Path
    seconds: float = 0.0
    mutants: int = 0
    jobs: int = 1
    seed: int = 1
    command: Sequence[str] = (sys.executable, "-m", "tests.fuzz")

    def run(self) -> Tally:
        """What all processes found."""
        corpus = self.folder / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        (self.folder / FAILURES).mkdir(exist_ok=True)
        for number, data in enumerate(seeds()):
            (corpus / f"seed-{number:04d}").write_bytes(data)
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        tally, numbers = Tally(), itertools.count(self.seed)
        with (
            tempfile.TemporaryDirectory(dir=memory, prefix="calltape-fuzz-") as scratch,
            ThreadPoolExecutor(self.jobs) as pool,
        ):
            given = [(job, Path(scratch), numbers) for job in range(self.jobs)]
            for one in pool.map(lambda words: self._job(*words), given):
                tally.merge(one)
        return tally

    def turn(self, elapsed: float) -> tuple[bool, float]:
        """Whether a process that begins after so many seconds is guided, and for how long it runs.
        In the first ten minutes of each hour inputs are found; then mutants of them are read at
        full speed."""
        left = (self.seconds or float("inf")) - elapsed
        if not has_atheris():
            return False, left
        hour = min(self.seconds or _HOUR, _HOUR)
        at = elapsed % hour
        is_guided = at < hour / 6
        return is_guided, min((hour / 6 if is_guided else hour) - at, left)

    def _job(self, job: int, scratch: Path, numbers: Iterator[int]) -> Tally:
        """One process after another, until the time is over."""
        tally, began, share = Tally(), time.monotonic(), -(-self.mutants // self.jobs)
        log = self.folder / f"job-{job}.log"
        while True:
            guided, seconds = self.turn(time.monotonic() - began)
            if seconds <= 0 or tally.mutants >= (share or float("inf")):
                return tally
            words = [
                *self.command, "--job", str(job), "--folder", str(self.folder),
                "--scratch", str(scratch), "--seconds", str(seconds),
                "--mutants", str(share - tally.mutants if share else 0),
                "--seed", str(next(numbers)), "--guided", str(int(guided)),
            ]  # fmt: skip
            with log.open("ab") as output:
                code = subprocess.run(words, stdout=output, stderr=output, check=False).returncode
            told = Tally.read(tally_file(scratch, job))
            tally.merge(told)
            if code != 0:
                died = self._died(current(scratch, job), log, code)
                tally.findings.setdefault(died.kind, []).append((died.step, died))
                if told.mutants == 0:
                    return tally  # it does not even begin: the log says why

    def _died(self, mutant: Path, log: Path, code: int) -> Finding:
        """Keeps the mutant that a process died of."""
        kept = self.folder / FAILURES / f"died-{code}-{time.time_ns()}.tape"
        if mutant.exists():
            shutil.move(mutant, kept)
        tail = log.read_bytes()[-2000:].decode(errors="replace")
        return Finding(kept.name, f"the process ended with {code}", tail)
