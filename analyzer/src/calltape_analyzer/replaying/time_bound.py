"""How long a call may take: so many seconds, or so many times what it took when it was recorded."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from calltape_analyzer.errors import UsageError
from calltape_analyzer.reading.call import Call

__all__ = ["RUNS", "TimeBound"]

RUNS = 5
"""A call that is too slow is run so many times, and its fastest run counts: the first one also
allocates memory and chooses kernels, and other processes take their share."""

_FORM = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|s|x)", re.ASCII)


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
        """The bound of seconds, or of a text: ``"50ms"``, ``"2s"``, ``"3x"``.

        Raises:
            UsageError: it has another form.
        """
        if not isinstance(given, str):
            if isinstance(given, bool) or not (0 < given < math.inf):
                raise UsageError(f"{given!r} is no duration", advice="pass seconds above 0")
            return cls(float(given))
        found = _FORM.fullmatch(given.strip())
        if found is None or not float(found[1]):
            advice = "write it like 50ms, 2s, or 3x for three times the recorded duration"
            raise UsageError(f"{given!r:.100} is no duration", advice=advice)
        number, unit = float(found[1]), found[2]
        if unit == "x":
            return cls(times=number)
        return cls(number / 1000 if unit == "ms" else number)

    def of_call(self, call: Call) -> float | None:
        """How many seconds a call may take; None if its duration was not measured."""
        if self.seconds is not None:
            return self.seconds
        return None if call.duration is None else self.times * call.duration

    def exceeded(self, call: Call, seconds: float, runs: int) -> str | None:
        """What is wrong about a call that took so long, in the fastest of so many runs; None if
        nothing is."""
        most = self.of_call(call)
        if most is None or seconds <= most:
            return None
        allowed = f"at most {_shown(most)}"
        if self.seconds is None:
            allowed += f", which is {self.times:g} times the recorded duration"
        return f"took {_shown(seconds)} in the fastest of {runs} runs ({allowed})"


def _shown(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
