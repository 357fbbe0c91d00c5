"""Where and when calls were recorded: hosts, days, and files whose names differ.

In come files and times. Out go hosts, days, and the shortest paths that tell files apart.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from calltape_analyzer.reading.segment import Segment

__all__ = ["day_of", "host_of", "short_paths"]

_NANOSECONDS = 10**9


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


def unsealed_paths(segments: Iterable[Segment]) -> list[str]:
    """The files that a recorder did not close."""
    return [segment.path for segment in segments if segment.end is None]
