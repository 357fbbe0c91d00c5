"""What came of running a check on a tape, and why it failed, in words that outlive other sizes."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path
from typing import Literal

from calltape_analyzer.comparison.reports import text_of
from calltape_analyzer.plain_data import PlainData

__all__ = ["Outcome", "normalised", "reason_of"]

_MAX_TEXT = 400
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"(?<![A-Za-z_])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_NUMBERS = re.compile(r"#(?:[\s,x]+#)+")


class Outcome(PlainData):
    """What came of one run.

    Attributes:
        end: ``failed`` or ``passed``; ``time`` or ``memory`` if the run took more than it may;
            ``unusable`` if the check could not be made at all.
        reasons: why it failed, one text for each failure that was found.
        calls: the numbers of the calls that failed, if the check tells.
        seconds: how long it took.
    """

    end: Literal["failed", "passed", "time", "memory", "unusable"]
    reasons: tuple[str, ...] = ()
    calls: tuple[int, ...] = ()
    seconds: float = 0.0

    @property
    def words(self) -> str:
        """It as a short text."""
        return f"{self.end}: {self.reasons[0]}" if self.reasons else self.end


def normalised(text: str) -> str:
    """A message without what depends on sizes, values and memory: each number, and each row of
    numbers, is ``#``."""
    valid = text[: 20 * _MAX_TEXT].encode("utf-8", "backslashreplace").decode()
    plain = _ADDRESS.sub("0x", _COLOURS.sub("", valid))
    plain = _NUMBERS.sub("#", _NUMBER.sub("#", " ".join(plain.split())))
    return plain[:_MAX_TEXT]


def reason_of(error: BaseException) -> str:
    """Class, message and place of an exception. The place is the innermost line that belongs
    neither to an installed package nor to Python."""
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    )
    message = normalised(text_of(error))
    place = _place_of(error)
    return f"{name}: {message}{place}" if message else f"{name}{place}"


def _place_of(error: BaseException) -> str:
    others = [str(Path(path)) for path in set(sysconfig.get_paths().values())]
    others.append(str(Path(__file__).parents[1]))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(("<", *others)):
            return f" (at {Path(frame.filename).name}:{frame.lineno}, in {frame.name})"
    return ""
