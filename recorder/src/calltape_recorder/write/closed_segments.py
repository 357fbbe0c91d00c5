"""Segments that take no more calls, and what their trailers say or will say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from calltape_recorder.write.tape_writer import TapeWriter
from calltape_recorder.write.trailers import traffic_in
from calltape_schema.endings import Coverage, Dump
from calltape_schema.traffic import Traffic

__all__ = ["Closed", "Unsealed", "traffic_of"]


class Closed(NamedTuple):
    """A segment that takes no more calls; its traffic counters have ``counted`` calls."""

    tape: TapeWriter
    coverage: Coverage
    counted: int


class Unsealed(NamedTuple):
    """A closed segment whose trailer the disk did not take yet."""

    closed: Closed
    traffic: Traffic
    dumps: tuple[Dump, ...]


def traffic_of(closed: Closed, unsealed: Iterable[Unsealed]) -> Traffic:
    """The traffic counters that a closed segment's trailer has, or will have.

    They are read from the file if it is sealed: in memory, they would grow with every segment.
    """
    for other in unsealed:
        if other.closed is closed:
            return other.traffic
    return traffic_in(closed.tape.read_trailer()) or Traffic(other_calls=closed.counted)
