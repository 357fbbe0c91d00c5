"""Small records that wait for the member that they share.

In come encoded records. Out goes the member: a group, or for a single record one of its own.
"""

from __future__ import annotations

from calltape_schema.framing import record_name
from calltape_schema.gathered import (
    GROUP_BYTES,
    LARGEST_GATHERED,
    MAX_TIMES,
    entry,
    group_name,
    packed_entry,
)
from calltape_schema.packing import open_envelope

__all__ = ["Group"]


class Group:
    """Small records, in the order in which they came."""

    def __init__(self) -> None:
        self._first: tuple[int, bytes] | None = None
        self._entries = bytearray()
        self._count = 0
        self._payloads = 0
        self._others: dict[bytes, tuple[int, bytes]] = {}

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, number: int, content: bytes, structure: bytes) -> bool:
        """Adds the record of a call. False, and nothing changes, if there is no room for it.

        Args:
            number: of the call.
            content: the record.
            structure: of its inputs: records that share it differ little.

        Raises:
            TapeError: ``damaged`` for a record that is no envelope.
        """
        payload, at = open_envelope(content), len(self._entries)
        if len(payload) > LARGEST_GATHERED:
            return False
        other = self._others.get(structure)
        made = entry(content)
        if other is not None:
            made = packed_entry(payload, other[1], at - other[0])
        size = at + len(made)
        if at and (size > GROUP_BYTES or self._payloads + len(payload) > MAX_TIMES * size):
            return False
        self._others.setdefault(structure, (at, payload))
        self._first = self._first or (number, content)
        self._entries += made
        self._payloads += len(payload)
        self._count += 1
        return True

    def member(self) -> tuple[str, bytes]:
        """The name and the content of the member."""
        assert self._first is not None
        number, content = self._first
        if self._count == 1:
            return record_name(number), content
        return group_name(number), bytes(self._entries)
