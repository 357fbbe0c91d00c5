"""Copies of tensors that grow along an axis, as the cache of a decoder does.

The cache of one step is a prefix of the cache of the next one, in each *strip* (each element of the
axes before the one that grows). Takes the copy of the prefix and the address of a tensor; returns a
copy of the tensor that shares memory with the other one, so that only the tail was copied.
"""

from __future__ import annotations

import ctypes
import math
from itertools import repeat
from typing import Any, NamedTuple

from calltape_recorder.bounds import FEWEST_BYTES_OF_STRIP, MAX_STRIPS, MAX_TAILS
from calltape_recorder.snapshot.buffers import SMALL_BYTES, Span, address_of, mapped

_STEP = 1024 * 1024  # bytes compared or copied at once: the interpreter lock is held meanwhile


class Strips:
    """Memory for strips that become longer. What was written is never changed.

    Attributes:
        memory: of all strips.
        address: of the first strip.
        count: how many strips there are.
        width: from one strip to the next, in bytes.
        axis: along which the tensor grows.
        free: contains the length of the strips if more can be written after it. The thread that
            takes it out writes there: taking it out is one step, even if a signal handler runs.
    """

    __slots__ = ("address", "axis", "count", "free", "memory", "width")

    def __init__(self, count: int, width: int, axis: int) -> None:
        # To map a little memory, and to free it, takes longer than to clear it. To clear much of
        # it would stop all other threads: mapped memory comes page by page.
        size = count * width
        self.memory: Any = bytearray(size) if size <= SMALL_BYTES else mapped(size)
        self.address = address_of(self.memory)
        self.count = count
        self.width = width
        self.axis = axis
        self.free: dict[int, bool] = {}


class Grown(NamedTuple):
    """The copy of a tensor that grew.

    Attributes:
        memory: has its strips, which may be longer there.
        strip: how many bytes of each strip it has.
        prefix: how many of these an earlier copy has.
        width, strips, axis: the width, count and axis of :class:`Strips`.
    """

    memory: Any
    strip: int
    prefix: int
    width: int
    strips: int
    axis: int

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self.strips * self.strip

    @property
    def data(self) -> bytearray:
        """All its bytes, joined."""
        return self.tail(0)  # torch warns of bytes that cannot be changed

    def tail(self, begin: int) -> bytearray:
        """The bytes of each strip from this one on, joined."""
        return bytearray().join(self.strips_from(begin))

    def strips_from(self, begin: int) -> list[Any]:
        """The bytes of each strip from this one on."""
        memory = memoryview(self.memory)
        starts = range(0, self.strips * self.width, self.width)
        return [memory[at + begin : at + self.strip] for at in starts]


def axis_of_growth(before: tuple[int, ...], now: tuple[int, ...]) -> int | None:
    """The axis along which a tensor of one shape becomes one of the other; None if it does not."""
    if len(before) != len(now):
        return None
    axes = [axis for axis, size in enumerate(before) if size != now[axis]]
    if len(axes) != 1:
        return None
    (axis,) = axes
    has_few_strips = math.prod(now[:axis]) <= MAX_STRIPS
    return axis if has_few_strips and 0 < before[axis] < now[axis] else None


def grown(
    place: Any, span: Span, before: tuple[int, ...], address: int, now: tuple[int, ...], size: int
) -> tuple[Strips, Span] | None:
    """A copy of the bytes at this address, if they begin with those of an earlier copy.

    Args:
        place, span, before: where the earlier copy lies, and its shape.
        address: of a contiguous tensor. The caller keeps its memory.
        now, size: its shape, and its size in bytes.
    """
    axis = axis_of_growth(before, now)
    # The strips of a copy that grew are those of its axis.
    if axis is None or (type(place) is Strips and place.axis != axis):
        return None
    count = math.prod(now[:axis])
    strip = size // count
    if count > 1 and strip < FEWEST_BYTES_OF_STRIP:
        return None
    prefix = strip // now[axis] * before[axis]
    if not _begin_equal(place, span, address, count, strip, prefix):
        return None
    strips, begin = (place, prefix) if type(place) is Strips else (None, 0)
    if strips is None or strip > strips.width or strips.free.pop(prefix, None) is None:
        room = min(MAX_TAILS * (strip - prefix), strip)
        if count * (strip + room) <= SMALL_BYTES:  # plain memory is there at once
            room = min(room, strip // 8)
        strips, begin = Strips(count, strip + room, axis), 0
    target, source, new = strips.address + begin, address + begin, strip - begin
    _each_strip(_move, target, strips.width, source, strip, count, new)
    strips.free[strip] = True
    return strips, (strip, prefix, strips.width, count, axis)


def are_equal(place: Any, span: Span, address: int) -> bool:
    """Whether the memory at this address has the bytes of a copy. The lock is not given away within
    a step: beside a busy thread it would take 5 ms to come back."""
    if type(place) is Strips:
        return _begin_equal(place, span, address, place.count, span[0], span[0])
    return _begin_equal(place, span, address, 1, span[1], span[1])


def _begin_equal(
    place: Any, span: Span, address: int, count: int, strip: int, size: int
) -> bool:  # fmt: skip
    """Whether the strips at this address begin with those of a copy, of ``size`` bytes each."""
    start, width = address_of_copy(place, span), place.width if type(place) is Strips else size
    return _each_strip(_compare, start, width, address, strip, count, size)


def address_of_copy(place: Any, span: Span) -> int:
    """Where the first byte of a copy is."""
    if type(place) is bytearray:
        return address_of(place)
    return int(place.address if type(place) is Strips else place.address + span[0])


def _each_strip(
    function: Any, left: int, left_step: int, right: int, right_step: int, count: int, size: int
) -> bool:
    """Calls a function with the addresses of two strips and the size of both, for each
    strip. False, at once, if it gives anything but zero or None. Steps and size are above 0."""
    if count * size <= _STEP:
        lefts = range(left, left + count * left_step, left_step)
        rights = range(right, right + count * right_step, right_step)
        return not any(map(function, lefts, rights, repeat(size)))
    for _ in range(count):
        for at in range(0, size, _STEP):
            if function(left + at, right + at, min(_STEP, size - at)):
                return False
        left += left_step
        right += right_step
    return True


def _function(name: str, result: Any) -> Any:
    """A function of the C library, called under the interpreter lock."""
    function = getattr(ctypes.pythonapi, name)
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    function.restype = result
    return function


_compare = _function("memcmp", ctypes.c_int)
_move = _function("memcpy", None)
