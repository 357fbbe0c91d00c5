"""What a run of mutants gave: counts, extremes, and what should not have been."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from tests.fuzz.steps import Finding, Outcome

__all__ = ["Tally"]


@dataclass
class Tally:
    """Adds up outcomes; mutants go by a label, such as a file name.

    Attributes:
        processor: seconds of processor time of the processes.
        slowest: seconds of processor time, the label, the slowest step.
        largest: bytes by which memory rose, and the label.
    """

    mutants: int = 0
    processor: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    findings: dict[str, list[tuple[str, Finding]]] = field(default_factory=dict)
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
        yield f"largest: {self.largest[0] / 1e6:.0f} MB more than before ({self.largest[1]})"
        for kind, found in sorted(self.findings.items(), key=lambda item: -len(item[1])):
            labels = ", ".join(label for label, _ in found[:6])
            yield f"FOUND {len(found)} × {kind} ({labels}) at {found[0][1].step}"
            yield "    " + found[0][1].text.strip().replace("\n", "\n    ")

    def write(self, path: Path) -> None:
        """Writes it to a file, at once."""
        beside = path.with_suffix(".new")
        # In ASCII, because findings quote names that UTF-8 has no bytes for.
        beside.write_text(json.dumps(TypeAdapter(Tally).dump_python(self, mode="json")))
        beside.replace(path)

    @classmethod
    def read(cls, path: Path) -> Tally:
        """Takes what a process told; nothing if it did not get so far."""
        if not path.exists():
            return Tally()
        made = TypeAdapter(Tally).validate_python(json.loads(path.read_text()))
        path.unlink()
        return made
