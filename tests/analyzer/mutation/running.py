"""Runs of mutants, and what they found."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.analyzer.mutation.documents import TapeDocument, encoded, parsed
from tests.analyzer.mutation.grammar import mutate
from tests.analyzer.mutation.reading import Finding, Outcome, read
from tests.fixture_files import FIXTURES

__all__ = ["Tally", "mutant", "run", "subjects"]

SECONDS, BYTES = 2.0, 300 * 1000 * 1000
"""More than one mutant may take, all of its readings together."""


@cache
def subjects() -> tuple[TapeDocument, ...]:
    """The golden tapes, taken apart."""
    found = [parsed(path) for path in sorted((FIXTURES / "v1").glob("*.tape"))]
    return tuple(tape for tape in found if tape is not None)


def mutant(seed: int) -> tuple[bytes, list[str]]:
    """The bytes of a mutant, and what was changed in which tape."""
    rng = random.Random(seed)
    tapes = subjects()
    tape = rng.choice(tapes)
    made, names = mutate(rng, tape, tapes)
    data = encoded(made, fits=rng.random() < 0.9)
    return data, [tape.name, *names]


@dataclass
class Tally:
    """What a run of mutants gave."""

    mutants: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    findings: dict[str, list[tuple[int, Finding]]] = field(default_factory=dict)
    slowest: tuple[float, int, str] = (0.0, -1, "")
    largest: tuple[int, int] = (0, -1)
    skipped: int = 0

    def add(self, seed: int, outcome: Outcome) -> None:
        self.mutants += 1
        self.kinds.update(outcome.kinds)
        for finding in outcome.findings:
            self.findings.setdefault(finding.kind, []).append((seed, finding))
        step = outcome.seconds[1]
        self.slowest = max(self.slowest, (outcome.total, seed, step))
        self.largest = max(self.largest, (outcome.rise, seed))
        if outcome.total > SECONDS:
            finding = Finding(step, "slow", f"{outcome.total:.1f} s, {outcome.seconds}")
            self.findings.setdefault("slow", []).append((seed, finding))
        if outcome.rise > BYTES:
            finding = Finding("", "large", f"{outcome.rise / 1e6:.0f} MB")
            self.findings.setdefault("large", []).append((seed, finding))

    def merge(self, other: Tally) -> None:
        """Adds what another run gave."""
        self.mutants += other.mutants
        self.skipped += other.skipped
        self.kinds.update(other.kinds)
        for kind, found in other.findings.items():
            self.findings.setdefault(kind, []).extend(found)
        self.slowest = max(self.slowest, other.slowest)
        self.largest = max(self.largest, other.largest)

    def lines(self) -> Iterator[str]:
        yield f"{self.mutants} mutants, {self.skipped} that no encoder can write"
        yield "errors: " + ", ".join(f"{kind} {n}" for kind, n in self.kinds.most_common())
        yield f"slowest: {self.slowest[0]:.2f} s (seed {self.slowest[1]}, {self.slowest[2]})"
        yield f"largest: {self.largest[0] / 1e6:.0f} MB (seed {self.largest[1]})"
        for kind, found in sorted(self.findings.items(), key=lambda item: -len(item[1])):
            seeds = ", ".join(str(seed) for seed, _ in found[:6])
            yield f"FOUND {len(found)} × {kind} (seeds {seeds}) at {found[0][1].step}"
            yield "    " + found[0][1].text.strip().replace("\n", "\n    ")


def run(seeds: range, folder: Path, *, commands: int = 3) -> Tally:
    """Reads the mutants of these seeds."""
    tally = Tally()
    path, other = folder / "mutant.tape", FIXTURES / "v1" / "calls-keywords.tape"
    for seed in seeds:
        try:
            data, _ = mutant(seed)
        except Exception:  # what cannot be encoded is no mutant
            tally.skipped += 1
            continue
        path.write_bytes(data)
        tally.add(seed, read(path, other, random.Random(seed), commands=commands))
    return tally
