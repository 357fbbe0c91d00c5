"""Where the calls of a file go.

A call with tensors gets members of its own at the end of the file. Small records share a member, a
group: its header says from the beginning how long it is, and the rest of it is a hole that later
records fill, so that each record is on its way to the disk as soon as it is written, and nothing is
ever written twice. A record of a structure that the group has is packed: it says how it differs.

In come a position and calls. Out go the writes that they take, and the position after them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from calltape_recorder.write.encoded_call import EncodedCall
from calltape_schema.framing import BLOCK, member_header, padding
from calltape_schema.gathered import GROUP_BYTES, MAX_TIMES, entry, group_name, packed_entry

__all__ = ["Placement", "Position", "Write", "placed"]


_Others: TypeAlias = "Mapping[bytes, tuple[int, bytes]]"
_NONE: _Others = MappingProxyType({})


class Position(NamedTuple):
    """Where the next call goes.

    Attributes:
        end: of the file, in bytes.
        entry: where the next entry goes; ``end`` if no group has room.
        group: the offset of the group that takes entries.
        next_bytes: how many bytes the next group gets if its first record needs no more.
        spare: how many bytes of groups may be left empty: those that the small calls would take
            with members of their own, less those that closed groups left empty. So a file has at
            most twice the bytes that it would have without groups.
        room: how many bytes the payloads of later entries in the group may have.
        others: for each structure of inputs in the group the offset and the payload of a record,
            which later records of this structure refer to.
    """

    end: int
    entry: int
    group: int
    next_bytes: int = 0
    spare: int = 0
    room: int = 0
    others: _Others = _NONE

    @classmethod
    def at(cls, end: int) -> Position:
        """The position in a file without an open group."""
        return cls(end, end, end)

    def closed(self) -> Position:
        """The position after the group, if one is open. The next group gets as many bytes as this
        one used: calls with tensors that come as often again would leave the rest of it empty."""
        if self.entry == self.end:
            return self
        return self._without_group(_whole_blocks(self._used))

    def full(self) -> Position:
        """The position after a group that has no room left. The next group gets twice its bytes."""
        twice = 2 * (self.end - self.group - BLOCK)
        return self._without_group(min(twice, GROUP_BYTES))

    def _without_group(self, next_bytes: int) -> Position:
        spare = self.spare - (self.end - self.entry)
        return Position(self.end, self.end, self.end, next_bytes, spare)

    @property
    def _used(self) -> int:
        return self.entry - self.group - BLOCK


class Write(NamedTuple):
    """One write.

    Attributes:
        offset: in the file.
        parts: the bytes.
        end: how many bytes the file must have before; the rest of a group is a hole.
    """

    offset: int
    parts: list[Any]
    end: int


class Placement(NamedTuple):
    """Where some calls go.

    Attributes:
        writes: in this order.
        offsets: for each call that of the header of its first member, or of its group.
        position: after these calls.
    """

    writes: list[Write]
    offsets: list[int]
    position: Position


def placed(position: Position, calls: Sequence[EncodedCall], *, gathers: bool) -> Placement:
    """Places calls, in their order.

    Args:
        position: where the first of them goes.
        calls: some.
        gathers: whether small records share a member.
    """
    writes: list[Write] = []
    offsets: list[int] = []
    first = 0
    while first < len(calls):
        is_small, after = gathers and calls[first].is_small, first + 1
        while after < len(calls) and (gathers and calls[after].is_small) == is_small:
            after += 1
        place = _place_small if is_small else _place_large
        position = place(position, calls[first:after], writes, offsets)
        first = after
    return Placement(writes, offsets, position)


def _place_large(
    position: Position, calls: Sequence[EncodedCall], writes: list[Write], offsets: list[int]
) -> Position:
    start = end = position.end
    for call in calls:
        offsets.append(end)
        end += call.size
    writes.append(Write(start, [part for call in calls for part in call.members()], start))
    closed = position.closed()
    return Position(end, end, end, closed.next_bytes, closed.spare)


def _place_small(
    position: Position, calls: Sequence[EncodedCall], writes: list[Write], offsets: list[int]
) -> Position:
    parts: list[Any] = []
    start, others = position.entry, dict(position.others)
    for call in calls:
        assert call.payload is not None
        made, size = _entry_of(call, position.entry, others), len(call.payload)
        if position.entry + len(made) > position.end or size > position.room:
            if parts:
                writes.append(Write(start, parts, position.end))
            made = entry(call.record)
            position = _with_new_group(position, len(made))
            parts = [member_header(group_name(call.number), _content_bytes(position))]
            start, others = position.group, {}
        others.setdefault(call.facts.structure, (position.entry, call.payload))
        parts.append(made)
        offsets.append(position.group)
        position = position._replace(
            entry=position.entry + len(made),
            room=position.room - size,
            spare=position.spare + call.size,
        )
    writes.append(Write(start, parts, position.end))
    return position._replace(others=others)


def _entry_of(call: EncodedCall, at: int, others: _Others) -> bytes:
    """The entry of a call at an offset: packed, if the group has a record of its structure."""
    other = others.get(call.facts.structure)
    if other is None or call.payload is None:
        return entry(call.record)
    return packed_entry(call.payload, other[1], at - other[0])


def _with_new_group(position: Position, least: int) -> Position:
    """The position in a new group at the end of the file.

    Args:
        position: in a group without room for the next entry, or without a group.
        least: the bytes of this entry.
    """
    after = position if position.entry == position.end else position.full()
    size = _whole_blocks(max(least, min(after.next_bytes, least + after.spare)))
    group = after.end
    return Position(
        group + BLOCK + size,
        group + BLOCK,
        group,
        after.next_bytes,
        after.spare,
        MAX_TIMES * size,
    )


def _content_bytes(position: Position) -> int:
    return position.end - position.group - BLOCK


def _whole_blocks(size: int) -> int:
    return size + padding(size)
