"""A run: processes that fuzz, started again if a mutant ends one, and what they found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.guidance import has_atheris
from tests.fuzz.mutator import seeds
from tests.fuzz.steps import Finding
from tests.fuzz.tally import Tallies, Tally
from tests.fuzz.target import CURRENT, FAILURES, TALLIES

__all__ = ["Campaign", "Turn"]


_LEAST, _HOUR = 60.0, 3600.0


class Turn(NamedTuple):
    """What one process does: whether it is guided, and for how many seconds; 0 is for ever."""

    guided: bool
    seconds: float


@dataclass(frozen=True)
class Campaign:
    """What was asked for.

    Attributes:
        folder: corpus, failures, tallies and logs go there. What is there is used further: a run
            goes on with the corpus of the last one, and with other seeds.
        seconds, mutants: of all processes together, whichever comes first; 0 is no limit.
        jobs: how many processes.
        seed: of the first process, if no earlier one into this folder had it.
        plain: whether no process is guided.
    """

    folder: Path
    seconds: float
    mutants: int = 0
    jobs: int = 1
    seed: int = 1
    plain: bool = False

    def run(self) -> tuple[Tally, float]:
        """What all processes found, and how many seconds they ran."""
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
        return tally, time.monotonic() - began

    @property
    def tallies(self) -> Tallies:
        """What the processes of all runs into this folder found."""
        return Tallies(self.folder / TALLIES)

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

    def turns(self) -> Iterator[Turn]:
        """The turns of a job. A process that is guided finds inputs for ten minutes of each hour,
        and at least for a minute; then another one reads mutants of them at full speed."""
        if self.plain or not has_atheris():
            yield Turn(False, self.seconds)
            return
        left = self.seconds or float("inf")
        while left > 0:
            hour = min(left, _HOUR)
            guided = hour if hour < 2 * _LEAST else max(_LEAST, hour / 6)
            yield Turn(True, guided)
            if hour > guided:
                yield Turn(False, hour - guided)
            left -= hour

    def _job(self, job: int, scratch: Path) -> Tally:
        """One process after another, until the time is over."""
        tally = Tally()
        share = -(-self.mutants // self.jobs)
        for turn in self.turns():
            began, starts = time.monotonic(), 0
            while True:
                left = turn.seconds - (time.monotonic() - began) if turn.seconds else 0
                rest = share - tally.mutants if share else 0
                if share and rest <= 0:
                    return tally
                if turn.seconds and left <= 0:
                    break
                seed = self.tallies.new_seed(self.seed)
                code = self._process(job, scratch, Turn(turn.guided, left), rest, seed)
                starts += 1
                told = self.tallies.read(seed)
                self._confirm(told)
                if code != 0:
                    died = self._died(job, scratch, code)
                    told.findings.setdefault(died.kind, []).append((died.step, died))
                self.tallies.write(seed, told)
                tally.merge(told)
                if code == 0:
                    break
                if told.mutants == 0 and starts > 2:
                    return tally  # it does not even begin: the log says why
        return tally

    def _process(self, job: int, scratch: Path, turn: Turn, mutants: int, seed: int) -> int:
        words = [sys.executable, "-m", "tests.fuzz", "--job", str(job), "--folder", self.folder,
                 "--scratch", scratch, "--seconds", str(turn.seconds), "--mutants", str(mutants),
                 "--seed", str(seed), *(["--guided"] if turn.guided else [])]  # fmt: skip
        with self._log(job).open("ab") as log:
            return subprocess.run(words, stdout=log, stderr=log, check=False).returncode

    def _log(self, job: int) -> Path:
        return self.folder / f"job-{job}.log"

    def _died(self, job: int, scratch: Path, code: int) -> Finding:
        """Keeps the mutant that a process died of."""
        current = scratch / f"{CURRENT}-{job}.tape"
        kept = self.folder / FAILURES / f"died-{code}-{time.time_ns()}.tape"
        kept.parent.mkdir(exist_ok=True)
        if current.exists():
            shutil.move(current, kept)
        tail = self._log(job).read_bytes()[-2000:].decode(errors="replace")
        return Finding(kept.name, f"the process ended with {code}", tail)
