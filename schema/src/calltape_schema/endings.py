"""What a sealed tape says of what became of all calls."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from calltape_schema.fields import Count, Nanoseconds, Record, Short, at_most

__all__ = ["UNWANTED", "Coverage", "Dump"]

UNWANTED = frozenset(
    (
        "policy",
        "paused",
        "max_calls",
        "max_seconds",
        "max_share",
        "flight_recorder",
        "tracing",
        "deleted",
        "expired",
        "not extracted",
    )
)
"""The reasons of dropped calls that were not to be on the tape. A call with any other reason should
be there, and is lost."""


class Coverage(Record):
    """How many calls are on the tape: ``seen = kept + sum(dropped.values())``. Calls before the
    recorder was attached are not counted (:class:`Observed`).

    Attributes:
        at_least: whether there may have been more calls than ``seen``, because a file that this
            was counted from has no end, is not there, or is no tape. None for False.
    """

    seen: Count = 0
    kept: Count = 0
    dropped: Annotated[dict[Short, Count], at_most(1000)] = Field(default_factory=dict)
    at_least: bool | None = None

    @property
    def unwanted(self) -> dict[str, int]:
        """The part of ``dropped`` that was not to be kept."""
        return {reason: calls for reason, calls in self.dropped.items() if reason in UNWANTED}

    @property
    def lost(self) -> dict[str, int]:
        """The part of ``dropped`` that should be on the tape, or may have been."""
        return {reason: calls for reason, calls in self.dropped.items() if reason not in UNWANTED}


class Dump(Record):
    """When the calls of a flight recorder were written (Unix time in nanoseconds), why, and how
    many they were."""

    time_ns: Nanoseconds
    reason: Short
    calls: Count
