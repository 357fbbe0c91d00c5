"""Why a call was dropped: the reasons why calls that were seen are not on a tape."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias, TypeVar

from calltape_schema.errors import printable


class DropReason(str, Enum):
    """A reason. Its value is the text on a tape."""

    # Recorders count these.
    POLICY = "policy"
    PAUSED = "paused"
    MAX_CALLS = "max_calls"
    MAX_SECONDS = "max_seconds"
    MAX_SHARE = "max_share"
    FLIGHT_RECORDER = "flight_recorder"
    TRACING = "tracing"
    DELETED = "deleted"
    EXPIRED = "expired"
    QUEUE_FULL = "queue_full"
    MAX_DISK_BYTES = "max_disk_bytes"
    DISK_FULL = "disk_full"
    FILE_REMOVED = "file_removed"
    IO = "io"
    INTERNAL = "internal"
    INTERRUPTED = "interrupted"
    UNFINISHED = "unfinished"

    # Tools that make a tape from other tapes count these.
    NOT_EXTRACTED = "not extracted"
    DAMAGED = "damaged"
    LATER = "needs a later version"
    OTHER = "other reasons"
    NOT_SEALED = "unknown (the tape is not sealed)"
    WAS_NOT_SEALED = "unknown (the tape was not sealed)"
    ELSEWHERE = "unknown (not in these files)"
    NOT_GIVEN = "unknown (not in the files that the tape was made of)"
    CONTRADICTED = "unknown (the end contradicts itself)"

    __str__ = str.__str__
    __repr__ = str.__repr__  # a dict of counts reads as one of texts
    __format__ = str.__format__  # type: ignore[assignment]  # pyright: ignore


Reason: TypeAlias = "DropReason | str"
"""A text is a reason that this version does not know, of another writer: such calls are lost."""

UNWANTED = frozenset({
    DropReason.POLICY, DropReason.PAUSED, DropReason.MAX_CALLS, DropReason.MAX_SECONDS,
    DropReason.MAX_SHARE, DropReason.FLIGHT_RECORDER, DropReason.TRACING, DropReason.DELETED,
    DropReason.EXPIRED, DropReason.NOT_EXTRACTED,
})  # fmt: skip
"""Reasons of calls that were left out on purpose. A call with any other reason is lost."""

UNKNOWN = frozenset({
    DropReason.NOT_SEALED, DropReason.WAS_NOT_SEALED, DropReason.ELSEWHERE, DropReason.NOT_GIVEN,
    DropReason.CONTRADICTED,
})  # fmt: skip
"""Reasons that say only that it is unknown what became of the calls."""

R = TypeVar("R", bound=str)
_MOST_SHOWN = 100
_known = {reason.value: reason for reason in DropReason}


def known_reasons(dropped: Mapping[str, int]) -> dict[Reason, int]:
    """The counts of a tape, with the reasons that this version knows as :class:`DropReason`."""
    return {_known.get(reason, reason): calls for reason, calls in dropped.items()}


def unwanted_of(dropped: Mapping[R, int]) -> dict[R, int]:
    """The dropped calls that were left out on purpose."""
    return {reason: calls for reason, calls in dropped.items() if reason in UNWANTED}


def lost_of(dropped: Mapping[R, int]) -> dict[R, int]:
    """The dropped calls that should, or might, be on the tape."""
    return {reason: calls for reason, calls in dropped.items() if reason not in UNWANTED}


def reason_text(reason: Reason) -> str:
    """A reason as one short line for people. An unknown reason may be any text."""
    shown = reason if len(reason) <= _MOST_SHOWN else f"{reason[:_MOST_SHOWN]}..."
    return printable(shown)
