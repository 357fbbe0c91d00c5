"""What was tried to export a variant, and what came of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from calltape_analyzer.comparing import Difference
from calltape_analyzer.exporting.program import Program
from calltape_analyzer.observations import Row
from calltape_analyzer.sizes import Sizing

__all__ = ["Attempt", "Outcome", "said"]

_MAX_TOLD = 5  # parts of an output that could not be compared


@dataclass
class Attempt:
    """What was tried, and what came of it.

    Attributes:
        variant: its name.
        what: how it was tried, for people.
        reproduced, tried: recorded sizes that the program reproduced, of those run through it.
        held, probed: the same of sizes that were never recorded, compared with the model itself.
        rows: what became of each recorded size: ``ok``, ``wrong`` or ``refused``.
        failed: at how many sizes that its conditions allow it broke while it ran.
        refused, wrong_at: the sizes that were never recorded and that it refused, or at which it
            returned other values.
        compared: how many values were compared in all of these runs.
        unverified: what could not be: where it is in the outputs, and why.
        untried: sizes that were never recorded and at which the model was not run, with the reason.
        error: why it failed, in the exporter's words, or of the first call that was not reproduced.
        seconds: how long it took.
    """

    variant: str
    what: str
    reproduced: int = 0
    tried: int = 0
    held: int = 0
    probed: int = 0
    error: str | None = None
    seconds: float = 0.0
    rows: dict[Row, str] = field(default_factory=dict, repr=False)
    failed: int = 0
    refused: list[Sizing] = field(default_factory=list, repr=False)
    wrong_at: list[Sizing] = field(default_factory=list, repr=False)
    untried: list[str] = field(default_factory=list)
    compared: int = 0
    unverified: tuple[str, ...] = ()

    def add(self, found: Difference) -> None:
        """Counts a comparison."""
        self.compared += found.compared
        self.unverified = tuple(dict.fromkeys((*self.unverified, *found.unverified)))[:_MAX_TOLD]

    @property
    def wrong(self) -> int:
        """At how many sizes that were never recorded it returned other values."""
        return len(self.wrong_at)

    @property
    def ok(self) -> bool:
        """Whether all recorded sizes were reproduced."""
        return self.tried > 0 and self.reproduced == self.tried

    @property
    def perfect(self) -> bool:
        """Whether it also held at all sizes that were never recorded."""
        return self.ok and self.held == self.probed


@dataclass
class Outcome:
    """The best program for a variant, if any, and the attempt that made it."""

    program: Program | None = None
    attempt: Attempt | None = None

    @property
    def score(self) -> tuple[int, ...]:
        """Greater is better."""
        if self.program is None or self.attempt is None:
            return (-1,)
        found = self.attempt
        return (found.ok, found.reproduced, -found.wrong, found.held)


def said(error: BaseException) -> str:
    """The first lines of an error, which say what happened; torch's go on with tracebacks."""
    while error.__cause__ is not None and type(error).__name__.endswith("ConversionError"):
        error = error.__cause__  # what it wraps says what it is about
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])[:400]}"
