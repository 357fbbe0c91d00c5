"""How long a call may take: so many seconds, or so many times what it took when it was recorded."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from calltape_analyzer.comparison.verdicts import SlowCall
from calltape_analyzer.errors import UsageError
from calltape_analyzer.reading.call import Call

__all__ = ["RUNS", "TimeBound", "seconds_of"]

RUNS = 5
"""A call that is too slow is run so many times, and its fastest run counts: the first one also
allocates memory and chooses kernels, and other processes take their share."""

_FORM = re.compile(
    r"((?:\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(?:e[-+]?\d{1,2})?) ?(us|ms|s|x)?", re.ASCII
)
_PER_SECOND = {"us": 1_000_000, "ms": 1000, "s": 1, None: 1}


@dataclass(frozen=True)
class TimeBound:
    """A bound on the duration of calls.

    Attributes:
        seconds: that a call may take.
        times: how many times its recorded duration a call may take, if ``seconds`` is None.
    """

    seconds: float | None = None
    times: float = 1.0

    @classmethod
    def of(cls, given: float | str) -> TimeBound:
        """The bound of seconds, or of a text: ``"50ms"``, ``"2s"``, ``"0.05"``, ``"3x"``.

        Raises:
            UsageError: it has another form.
        """
        if not isinstance(given, str):
            if isinstance(given, bool) or not (0 < given < math.inf):
                raise UsageError(f"{given!r} is not a duration", advice="pass seconds above 0")
            return cls(float(given))
        found = _FORM.fullmatch(given.strip())
        if found is None or not float(found[1]):
            advice = "write it like 50ms, 2s, 0.05, or 3x for three times the recorded duration"
            raise UsageError(f"{given!r:.100} is not a duration", advice=advice)
        if found[2] == "x":
            return cls(times=float(found[1]))
        return cls(seconds_of(given))

    def of_call(self, call: Call) -> float | None:
        """How many seconds a call may take; None if its duration was not measured."""
        if self.seconds is not None:
            return self.seconds
        return None if call.duration is None else self.times * call.duration

    def exceeded(self, call: Call, seconds: float, runs: int) -> SlowCall | None:
        """What is wrong about a call that took so long, in the fastest of so many runs; None if
        nothing is."""
        most = self.of_call(call)
        if most is None or seconds <= most:
            return None
        return SlowCall(seconds, runs, most, self.times if self.seconds is None else None)


def seconds_of(text: str) -> float:
    """The seconds that a text says: ``"50ms"``, ``"1us"``, ``"2s"``; without a unit they are
    seconds.

    Raises:
        UsageError: it has another form.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None or found[2] == "x":
        raise UsageError(
            f"{text!r:.100} is not a duration", advice="write it like 50ms, 2s or 0.05"
        )
    return float(found[1]) / _PER_SECOND[found[2]]
