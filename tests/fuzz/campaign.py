"""A run: processes that fuzz, started again if a mutant ends one, and what they found."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.mutator import seeds
from tests.fuzz.steps import Finding
from tests.fuzz.tally import Tally
from tests.fuzz.target import CURRENT, FAILURES, tally_name

__all__ = ["Campaign"]


@dataclass(frozen=True)
class Campaign:
    """What was asked for.

    Attributes:
        folder: corpus, failures and logs go there; a corpus that is there is used further.
        seconds, mutants: of all processes together, whichever comes first; 0 is no limit.
        jobs: how many processes.
        seed: of the first process.
    """

    folder: Path
    seconds: float
    mutants: int = 0
    jobs: int = 1
    seed: int = 1

    def run(self) -> tuple[Tally, float, float]:
        """What all processes found, how many seconds they ran, and their processor time."""
        corpus = self.folder / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(seeds()):
            (corpus / f"seed-{number:04d}").write_bytes(data)
        began = time.monotonic()
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with (
            tempfile.TemporaryDirectory(dir=memory, prefix="calltape-fuzz-") as scratch,
            ThreadPoolExecutor(self.jobs) as pool,
        ):
            tallies = list(pool.map(lambda job: self._job(job, Path(scratch)), range(self.jobs)))
        tally = Tally()
        for one in tallies:
            tally.merge(one)
        self._confirm(tally)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return tally, time.monotonic() - began, used.ru_utime + used.ru_stime

    def _confirm(self, tally: Tally) -> None:
        """Takes out what was slow only because branches were counted: the files of such findings
        are read again in a process that counts none."""
        for kind in [kind for kind in tally.findings if kind.startswith("slow")]:
            kept = [
                path
                for label, _ in tally.findings[kind]
                for path in (self.folder / FAILURES).glob(f"slow-*-{label}.tape")
            ]
            words = [sys.executable, "-m", "tests.fuzz", *map(str, kept)]
            if kept and subprocess.run(words, capture_output=True, check=False).returncode == 0:
                tally.unconfirmed += len(tally.findings.pop(kind))
                for path in kept:
                    path.unlink()
                    path.with_suffix(".txt").unlink()

    def _job(self, job: int, scratch: Path) -> Tally:
        """One process after another, until the time is over."""
        tally, began, starts = Tally(), time.monotonic(), 0
        share = -(-self.mutants // self.jobs)
        while True:
            left = self.seconds - (time.monotonic() - began) if self.seconds else 0
            rest = share - tally.mutants if share else 0
            if (self.seconds and left <= 0) or (share and rest <= 0):
                return tally
            code = self._process(job, scratch, left, rest, self.seed + job + 1000 * starts)
            starts += 1
            tally.merge(self._told(job))
            if code == 0:
                return tally
            died = self._died(job, scratch, code)
            tally.findings.setdefault(died.kind, []).append((died.step, died))
            if tally.mutants == 0 and starts > 2:
                return tally  # it does not even begin: the log says why

    def _process(self, job: int, scratch: Path, seconds: float, mutants: int, seed: int) -> int:
        (self.folder / tally_name(job)).unlink(missing_ok=True)
        words = [sys.executable, "-m", "tests.fuzz", "--job", str(job), "--folder", self.folder,
                 "--scratch", scratch,                 "--seconds", str(seconds),
                 "--mutants", str(mutants), "--seed", str(seed)]  # fmt: skip
        with self._log(job).open("ab") as log:
            return subprocess.run(words, stdout=log, stderr=log, check=False).returncode

    def _log(self, job: int) -> Path:
        return self.folder / f"job-{job}.log"

    def _told(self, job: int) -> Tally:
        path = self.folder / tally_name(job)
        if not path.exists():
            return Tally()
        told: Tally = pickle.loads(path.read_bytes())  # of our own child
        return told

    def _died(self, job: int, scratch: Path, code: int) -> Finding:
        """Keeps the mutant that a process died of."""
        current = scratch / f"{CURRENT}-{job}.tape"
        kept = self.folder / FAILURES / f"died-{code}-{time.time_ns()}.tape"
        kept.parent.mkdir(exist_ok=True)
        if current.exists():
            shutil.move(current, kept)
        tail = self._log(job).read_bytes()[-2000:].decode(errors="replace")
        return Finding(kept.name, f"the process ended with {code}", tail)
