"""What suites find, as JSON and side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.trial import Outcome


@dataclass
class Results:
    """What one suite finds.

    Attributes:
        suite: its name, or the arguments of pytest.
        hinted: whether only the hinted tests were run: what they do not find, others may.
        outcomes: by the name of the fault.
    """

    suite: str
    hinted: bool
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """The results in a file."""
        found = json.loads(path.read_text(encoding="utf-8"))
        outcomes = {name: Outcome(**one) for name, one in found["faults"].items()}
        return cls(found["suite"], found["hinted"], outcomes)

    def write(self, path: Path) -> None:
        """Writes them to a file."""
        faults = {name: asdict(self.outcomes[name]) for name in sorted(self.outcomes)}
        document: dict[str, Any] = {"suite": self.suite, "hinted": self.hinted, "faults": faults}
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    @property
    def found(self) -> set[str]:
        """The names of the faults that it finds."""
        return {name for name, one in self.outcomes.items() if one.found}


def line(name: str, one: Outcome) -> str:
    """A line for people."""
    what = f"found by {one.by}" if one.found else "NOT FOUND"
    return f"{name:36} {one.seconds:6.1f} s  {what}"


def summary(results: Results) -> str:
    """How many faults were found."""
    tests = "the hinted tests of " if results.hinted else ""
    return f"{tests}{results.suite}: {len(results.found)} of {len(results.outcomes)} found"


def compared(before: tuple[str, Results], after: tuple[str, Results]) -> tuple[list[str], bool]:
    """What one suite finds and another does not, in lines; and whether the second one finds all
    that the first one does, of the faults that both were tried with."""
    (one, first), (two, second) = before, after
    both = first.outcomes.keys() & second.outcomes.keys()
    lost = sorted((first.found - second.found) & both)
    gained = sorted((second.found - first.found) & both)
    said = [
        f"{one}: {summary(first)}",
        f"{two}: {summary(second)}",
        *_listed(f"found by {one} only", lost, first),
        *_listed(f"found by {two} only", gained, second),
        *_listed(f"not tried with {two}", sorted(first.outcomes.keys() - both), first),
        *_listed(f"not tried with {one}", sorted(second.outcomes.keys() - both), second),
    ]
    if not lost:
        said.append(f"{two} finds each of these {len(both)} faults that {one} finds")
    return said, not lost


def _listed(head: str, names: Sequence[str], results: Results) -> list[str]:
    return [f"{head}:", *(f"  {line(n, results.outcomes[n])}" for n in names)] if names else []
