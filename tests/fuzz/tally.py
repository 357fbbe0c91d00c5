"""What a run of mutants gave: counts, extremes, and what should not have been."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from tests.fuzz.steps import Finding, Outcome

__all__ = ["Tallies", "Tally"]


@dataclass
class Tally:
    """Adds up outcomes; mutants go by a label, such as a file name.

    Attributes:
        processor: seconds of processor time of the processes.
        unconfirmed: how many were slow only while branches were counted.
        slowest: seconds of processor time, the label, the slowest step.
        largest: bytes by which memory rose, and the label.
    """

    mutants: int = 0
    processor: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    findings: dict[str, list[tuple[str, Finding]]] = field(default_factory=dict)
    unconfirmed: int = 0
    slowest: tuple[float, str, str] = (0.0, "", "")
    largest: tuple[int, str] = (0, "")

    def add(self, label: str, outcome: Outcome, *, is_mutant: bool = True) -> None:
        self.mutants += is_mutant
        self.kinds.update(outcome.kinds)
        self.steps.update(outcome.steps)
        for finding in outcome.findings:
            self.findings.setdefault(finding.kind, []).append((label, finding))
        self.slowest = max(self.slowest, (outcome.total, label, outcome.seconds[1]))
        self.largest = max(self.largest, (outcome.rise, label))

    def merge(self, other: Tally) -> None:
        """Adds what another process found."""
        self.mutants += other.mutants
        self.processor += other.processor
        self.unconfirmed += other.unconfirmed
        self.kinds.update(other.kinds)
        self.steps.update(other.steps)
        for kind, found in other.findings.items():
            self.findings.setdefault(kind, []).extend(found)
        self.slowest = max(self.slowest, other.slowest)
        self.largest = max(self.largest, other.largest)

    def lines(self) -> Iterator[str]:
        steps = sum(self.steps.values())
        yield f"{self.mutants:,} mutants, {steps:,} steps of {len(self.steps)} kinds"
        yield "errors: " + ", ".join(f"{kind} {n:,}" for kind, n in self.kinds.most_common())
        yield f"slowest: {self.slowest[0]:.2f} s of CPU ({self.slowest[1]}, {self.slowest[2]})"
        if self.unconfirmed:
            yield f"{self.unconfirmed} were slow while branches were counted, and not alone"
        yield f"largest: {self.largest[0] / 1e6:.0f} MB more than before ({self.largest[1]})"
        for kind, found in sorted(self.findings.items(), key=lambda item: -len(item[1])):
            labels = ", ".join(label for label, _ in found[:6])
            yield f"FOUND {len(found)} × {kind} ({labels}) at {found[0][1].step}"
            yield "    " + found[0][1].text.strip().replace("\n", "\n    ")


_FORM: TypeAdapter[Tally] = TypeAdapter(Tally)


@dataclass(frozen=True)
class Tallies:
    """What all processes of all runs into one folder found: a file for each, by its seed.

    A process writes its file again every few seconds. So a run that is ended by force loses only
    those, and no seed is used twice.
    """

    folder: Path

    def new_seed(self, first: int) -> int:
        """The next seed that no process had, from ``first`` on. It is taken from now on."""
        self.folder.mkdir(parents=True, exist_ok=True)
        seed = max((first - 1, *self._seeds())) + 1
        while True:
            try:
                self.path(seed).touch(exist_ok=False)
                return seed
            except FileExistsError:  # another job was faster
                seed += 1

    def write(self, seed: int, tally: Tally) -> None:
        path = self.path(seed)
        beside = path.with_suffix(".new")
        # In ASCII, because findings quote names that UTF-8 has no bytes for.
        beside.write_text(json.dumps(_FORM.dump_python(tally, mode="json")))
        beside.replace(path)

    def read(self, seed: int) -> Tally:
        """What a process found; nothing if it did not get so far."""
        path = self.path(seed)
        text = path.read_text() if path.exists() else ""
        return _FORM.validate_python(json.loads(text)) if text else Tally()

    def together(self) -> str:
        """How much all runs are together."""
        sum_, seeds = Tally(), sorted(self._seeds())
        for seed in seeds:
            sum_.merge(self.read(seed))
        return (
            f"together with earlier runs: {sum_.mutants:,} mutants of {len(seeds)} seeds, "
            f"{sum_.processor:,.0f} s of processor time, {len(sum_.findings)} kinds of findings; "
            f"slowest {sum_.slowest[0]:.2f} s, largest {sum_.largest[0] / 1e6:.0f} MB"
        )

    def path(self, seed: int) -> Path:
        return self.folder / f"{seed}.json"

    def _seeds(self) -> list[int]:
        return [int(path.stem) for path in self.folder.glob("*.json")]
