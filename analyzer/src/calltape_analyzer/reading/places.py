"""Where and when calls were recorded: by host and day, and by files whose names differ.

In come files and times. Out go hosts, days, and the shortest paths that tell files apart.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from calltape_analyzer.reading.segment import Segment

__all__ = ["CallsOfDays", "Days", "day_of", "host_of", "short_paths"]

_NANOSECONDS = 10**9
_MOST_ROWS = 100_000


def host_of(segment: Segment) -> str:
    """The host that recorded a file. A tape says this only if it was asked to; otherwise the
    directory of the file stands for it."""
    return segment.manifest.producer.host or os.path.dirname(segment.path) or "."


def day_of(nanoseconds: int) -> str:
    """The day of a Unix time, in UTC; of a clock that was far off, the time itself."""
    try:
        return datetime.fromtimestamp(nanoseconds // _NANOSECONDS, timezone.utc).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return f"{nanoseconds} ns"


def short_paths(paths: Sequence[str]) -> dict[str, str]:
    """For each path the name of its file; if two have one name, their paths from the directory on
    that all have in common."""
    names = {path: os.path.basename(path) for path in paths}
    if len(set(names.values())) == len(names):
        return names
    try:
        common = os.path.commonpath(paths)
    except ValueError:  # absolute and relative paths
        return {path: path for path in paths}
    return {path: os.path.relpath(path, common) for path in paths}


class CallsOfDays(NamedTuple):
    """How many calls a host recorded from one day to another, which is the same day unless nobody
    looked at the single calls."""

    host: str
    first_day: str
    last_day: str
    calls: int


class Days:
    """Counts calls per host and day."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], int] = {}
        self._of_seconds: dict[int, str] = {}
        self.others = 0
        """Calls of further hosts and days, when there were 100,000."""

    def add(self, host: str, first_ns: int, last_ns: int, calls: int) -> None:
        """Adds calls that began within these times."""
        key = host, self._day(first_ns), self._day(last_ns)
        if key in self._counts or len(self._counts) < _MOST_ROWS:
            self._counts[key] = self._counts.get(key, 0) + calls
        else:
            self.others += calls

    def _day(self, nanoseconds: int) -> str:
        number = nanoseconds // (86_400 * _NANOSECONDS)
        found = self._of_seconds.get(number)
        if found is None:
            found = day_of(nanoseconds)
            if len(self._of_seconds) < _MOST_ROWS:
                self._of_seconds[number] = found
        return found

    def rows(self) -> list[CallsOfDays]:
        """By day, and on each day by host."""
        by_day = sorted(self._counts.items(), key=lambda item: (item[0][1], item[0][0], item[0][2]))
        return [CallsOfDays(*key, calls) for key, calls in by_day]


def unsealed_paths(segments: Iterable[Segment]) -> list[str]:
    """The files that a recorder did not close."""
    return [segment.path for segment in segments if segment.end is None]
