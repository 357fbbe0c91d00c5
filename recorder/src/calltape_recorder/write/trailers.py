"""Encodes what a trailer says of all calls, cut to the room that there is for it."""

from __future__ import annotations

from collections.abc import Callable

from calltape_schema import TapeError
from calltape_schema.endings import Dump, decode_trailer
from calltape_schema.packing import pack
from calltape_schema.traffic import Axis, Group, Traffic

__all__ = ["calls_of", "fitted", "traffic_in"]

_LAST_DUMPS = 10
_HEADS = 32  # bytes of lengths around the groups


def calls_of(traffic: Traffic) -> int:
    """How many calls these counters have."""
    return sum(group.calls for group in traffic.groups) + traffic.other_calls


def traffic_in(trailer: bytes | None) -> Traffic | None:
    """The counters of a trailer; None if they cannot be read."""
    if trailer is None:
        return None
    try:
        return decode_trailer(trailer).traffic
    except TapeError:
        return None


def fitted(
    encode: Callable[[Traffic, tuple[Dump, ...]], bytes], traffic: Traffic,
    dumps: tuple[Dump, ...], fits: Callable[[int], bool], least: int,
) -> bytes:  # fmt: skip
    """A trailer with as many counters as there is room for. Other calls count without a structure.

    Args:
        encode: gives the trailer with these counters and dumps.
        fits: tells whether there is room for so many bytes.
        least: for so many bytes there is room in any case.

    Raises:
        TapeError: the trailer breaks the format even without counters.
    """
    nothing = Traffic(other_calls=calls_of(traffic))
    try:
        content = encode(traffic, dumps)
    except Exception:  # the index and the accounts are worth more than the counters
        return encode(nothing, ())
    if len(content) <= least or fits(len(content)):
        return content
    dumps = dumps[-_LAST_DUMPS:]
    bare = encode(nothing, dumps)
    if len(bare) > least:
        return encode(nothing, ())
    return encode(_cut(traffic, least - len(bare) - _HEADS), dumps)


def _cut(traffic: Traffic, left: int) -> Traffic:
    """The groups with the most calls that fit ``left`` bytes, without sizes if need be."""
    found: list[Group] = []
    other = traffic.other_calls
    for group in sorted(traffic.groups, key=lambda group: -group.calls):
        for form in (group, _without_sizes(group)):
            nbytes = len(pack(form.model_dump(exclude_none=True)))
            if nbytes <= left:
                left -= nbytes
                found.append(form)
                break
        else:
            other += group.calls
    return Traffic(groups=tuple(found), other_calls=other)


def _without_sizes(group: Group) -> Group:
    leaves = tuple(tuple(_range(axis) for axis in axes) for axes in group.leaves)
    scalars = tuple(None if axis is None else _range(axis) for axis in group.scalars)
    return group.model_copy(update={"leaves": leaves, "scalars": scalars})


def _range(axis: Axis) -> Axis:
    others = axis.other_calls + sum(calls for _, calls in axis.sizes)
    return Axis(min=axis.min, max=axis.max, other_calls=others)
