"""Small records that wait for the member that they share.

In come encoded records. Out goes the member: a group, or for a single record one of its own.
"""

from __future__ import annotations

from zlib import crc32

from calltape_schema.framing import record_name
from calltape_schema.gathered import (
    GROUP_BYTES,
    Repeat,
    entry,
    group_name,
    repeating_entry,
)
from calltape_schema.packing import open_envelope

__all__ = ["Group"]

_INPUTS = b"\xa6inputs"  # the name of the first field that is equal in many records


class Group:
    """Small records, in the order in which they came."""

    def __init__(self) -> None:
        self._first: tuple[int, bytes] | None = None
        self._entries = bytearray()
        self._count = 0
        self._rests: dict[bytes, int] = {}

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, number: int, content: bytes) -> bool:
        """Adds the record of a call. False, and nothing changes, if there is no room for it.

        Raises:
            TapeError: ``damaged`` for a record that is no envelope.
        """
        repeat = _repeat_of(content)
        at = len(self._entries)
        base = self._rests.get(repeat.rest) if repeat.rest else None
        made = entry(content) if base is None else repeating_entry(repeat, at - base)
        if at and at + len(made) > GROUP_BYTES:
            return False
        if base is None and repeat.rest:
            self._rests[repeat.rest] = at
        self._first = self._first or (number, content)
        self._entries += made
        self._count += 1
        return True

    def member(self) -> tuple[str, bytes]:
        """The name and the content of the member."""
        assert self._first is not None
        number, content = self._first
        if self._count == 1:
            return record_name(number), content
        return group_name(number), bytes(self._entries)


def _repeat_of(content: bytes) -> Repeat:
    """A record in two parts. Where they are divided does not matter to a reader."""
    payload = open_envelope(content)
    place = payload.find(_INPUTS)
    place = len(payload) if place < 0 else place
    return Repeat(crc32(payload), payload[:place], payload[place:])
