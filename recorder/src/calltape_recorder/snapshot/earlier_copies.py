"""Finds tensors whose bytes an earlier call has, so that they are neither copied nor written again.

A decode step gets the cache that the step before returned, and returns a longer one. Takes the
leaves of one side of a call; returns the copies that were made of them before. If a tensor grew,
the earlier copy is its *prefix*, and the rest is its *tail*. The address and the first bytes of a
tensor only say where to look: all bytes are compared, because a kernel may have written to the
tensor without a trace.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from calltape_recorder.bounds import (
    EARLIER_SHARE,
    MAX_EARLIER_TENSORS,
    MAX_GROWING_TENSORS,
    MAX_TAILS,
)
from calltape_recorder.snapshot.buffers import (
    SPAN,
    Buffer,
    Buffers,
    SideCopies,
    Span,
    packed_numbers,
    source_of,
)
from calltape_recorder.snapshot.facts import LeafFacts, Shape, data_ptr, untyped_storage
from calltape_recorder.snapshot.grown_copies import (
    Strips,
    address_of_copy,
    are_equal,
    grown,
)
from calltape_recorder.snapshot.side_facts import SideFacts
from calltape_recorder.threads import RLock, new_count

FEWEST_BYTES = 8 * 1024
"""A smaller leaf is copied and written: measured, to find it takes longer
(docs/decisions/recording-cost.md)."""

_START = 64  # bytes


class EarlierCopy(NamedTuple):
    """A copy of a leaf.

    Attributes:
        size: in bytes.
        dtype, shape: of the leaf. Only a leaf of the same ones may refer to its bytes.
        place, span: where the copy lies: bytes, a pooled buffer, or strips.
        origin: a number that identifies its bytes. The writer knows by it where they are on the
            tape.
        prefix_origin: the origin of the prefix of a tensor that grew; else 0. It is 0 each 33rd
            time too, so that the tensor is written as a whole.
        tails: how many tails follow each other, from the copy that was written as a whole.
        start: how the tensor begins: see :func:`_start_of`.
    """

    size: int
    dtype: Any
    shape: tuple[int, ...]
    place: Any
    span: Span
    origin: int
    prefix_origin: int
    tails: int
    start: tuple[Any, ...]

    @property
    def memory_bytes(self) -> int:
        """How many bytes of memory it holds."""
        return len(self.place.memory) if type(self.place) is Strips else self.size

    @property
    def memory(self) -> Any:
        """What holds its bytes."""
        return self.place.memory if type(self.place) is Strips else self.place


class QueueMemory(Protocol):
    """The memory of the queue: of calls, and of copies that several calls share."""

    max_bytes: int
    shared_bytes: int

    def reserve(self, call: Any, nbytes: int) -> bool:
        """Reserves bytes for a call; False if there are not enough left."""
        ...

    def reserve_shared(self, nbytes: int) -> bool:
        """Reserves bytes for a copy that later calls may share; False if there are not enough
        left."""
        ...

    def free_shared(self, nbytes: int) -> None:
        """Frees them."""
        ...


class EarlierCopies:
    """The latest copies of host memory, by address. Any thread may use them.

    Args:
        buffers: the pool of the copies.
        memory: the memory of the queue. The copies leave when calls need it.
    """

    def __init__(self, buffers: Buffers, memory: QueueMemory) -> None:
        self.lock = RLock()  # reentrant: a signal handler may call the model in it
        self._buffers = buffers
        self._memory = memory
        self._by_address: dict[int, EarlierCopy] = {}  # the oldest first
        self._address_of: dict[tuple[Any, ...], int] = {}  # the latest address of each
        self._origins = new_count(1)
        self._most_bytes = memory.max_bytes // EARLIER_SHARE

    def find(self, leaves: Sequence[Any], facts: SideFacts) -> list[EarlierCopy | None] | None:
        """Per leaf the copy of the same bytes that was made before, or None; None if there is none
        for any. The caller gives a copy in a pooled buffer back, as any piece."""
        if not self._by_address:
            return None
        copies: list[EarlierCopy | None] = [None] * len(leaves)
        are_there, are_few = False, len(leaves) <= MAX_GROWING_TENSORS
        for at, (leaf, fact, shape, size) in enumerate(
            zip(leaves, facts.per_leaf, facts.shapes, facts.sizes, strict=True)
        ):
            if size < FEWEST_BYTES or fact.direct != "cpu":
                continue
            # We hold the storage while its bytes are compared: another thread may give the tensor
            # other memory.
            memory = untyped_storage(leaf)
            address, _ = source_of(leaf, memory, size)
            copy = self._equal(address, fact, shape, size)
            if copy is None and are_few:
                copy = self._grown(address, fact, shape, size)
            if copy is not None:
                copies[at], are_there = copy, True
        return copies if are_there else None

    def keep(
        self, leaves: Sequence[Any], facts: SideFacts, copies: SideCopies,
        earlier_copies: Sequence[EarlierCopy | None] | None,
    ) -> bytes:  # fmt: skip
        """Remembers the copies of one side, but for those that :meth:`find` found.

        Returns:
            Per leaf the origin of its bytes and that of its prefix, see :class:`EarlierCopy`, as
            :func:`packed_numbers` gives them. Both are 0 for what is not remembered.
        """
        places, spans = copies[0], memoryview(copies[1]).cast("q")
        origins = [0] * 2 * len(leaves)
        for at, (leaf, fact, shape, size) in enumerate(
            zip(leaves, facts.per_leaf, facts.shapes, facts.sizes, strict=True)
        ):
            earlier = None if earlier_copies is None else earlier_copies[at]
            if earlier is None:
                if size < FEWEST_BYTES or fact.direct != "cpu":
                    continue
                place, begin = places[at], spans[SPAN * at] if spans else 0
                span, origin = (begin, size, 0, 0, 0), next(self._origins)
                first_bytes = ctypes.string_at(address_of_copy(place, span), _START)
                start = _start_of(fact, shape, first_bytes)
                earlier = EarlierCopy(size, fact.dtype, shape, place, span, origin, 0, 0, start)
                self._add(data_ptr(leaf), earlier)
            origins[2 * at], origins[2 * at + 1] = earlier.origin, earlier.prefix_origin
        return packed_numbers(origins)

    def clear(self) -> None:
        """Forgets all copies."""
        with self.lock:
            while self._by_address:
                self._drop_one()
            self._memory.free_shared(
                self._memory.shared_bytes
            )  # an interrupt may have come between two steps

    def _equal(self, address: int, fact: LeafFacts, shape: Shape, size: int) -> EarlierCopy | None:
        """The copy that was made at this address, if the bytes there are the same."""
        copy = self._shared_at(address) if address in self._by_address else None
        if copy is None:
            return None
        if copy[:3] == (size, fact.dtype, shape) and are_equal(copy.place, copy.span, address):
            return copy
        self._give_back(copy)
        return None

    def _grown(self, address: int, fact: LeafFacts, shape: Shape, size: int) -> EarlierCopy | None:
        """A copy of a tensor that grew, if the copy of its prefix is known. It takes the place of
        that one."""
        if size > self._most_bytes:
            return None
        start = _start_of(fact, shape, ctypes.string_at(address, _START))
        prefix_address = self._address_of.get(start)
        prefix = None if prefix_address is None else self._shared_at(prefix_address)
        if prefix_address is None or prefix is None:
            return None
        try:
            if prefix.start != start:  # another thread put another tensor there meanwhile
                return None
            strips = grown(prefix.place, prefix.span, prefix.shape, address, shape, size)
        finally:
            self._give_back(prefix)
        if strips is None:
            return None
        has_tails = prefix.tails < MAX_TAILS
        copy = EarlierCopy(
            size, fact.dtype, shape, *strips, next(self._origins),
            prefix.origin if has_tails else 0, prefix.tails + 1 if has_tails else 0, start,
        )  # fmt: skip
        with self.lock:
            if self._by_address.get(prefix_address) is prefix:
                is_grown = type(prefix.place) is Strips and copy.memory_bytes == prefix.memory_bytes
                if is_grown and address not in self._by_address:
                    # It holds as much memory from now on.
                    self._by_address.pop(prefix_address, None)
                    self._by_address[address] = copy
                    self._address_of[start] = address
                    return copy
                self._drop(prefix_address)
            self._add(address, copy)
        return copy

    def _shared_at(self, address: int) -> EarlierCopy | None:
        with self.lock:
            copy = self._by_address.get(address)
            if copy is not None and type(copy.place) is Buffer:
                self._buffers.share(copy.place)
            return copy

    def _give_back(self, copy: EarlierCopy) -> None:
        if type(copy.place) is Buffer:
            self._buffers.give_back(copy.place)

    def _add(self, address: int, copy: EarlierCopy) -> None:
        with self.lock:
            if address in self._by_address:
                self._drop(address)
            nbytes = copy.memory_bytes
            if nbytes > self._most_bytes:
                return
            while (
                self._memory.shared_bytes + nbytes > self._most_bytes
                or len(self._by_address) >= MAX_EARLIER_TENSORS
            ):
                if not self._by_address:
                    self.clear()
                    break
                self._drop_one()
            if not self._memory.reserve_shared(nbytes):
                return
            self._by_address[address] = copy
            self._address_of[copy.start] = address
            if type(copy.place) is Buffer:
                self._buffers.share(copy.place)

    def _drop_one(self) -> None:
        self._drop(next(iter(self._by_address), 0))

    def _drop(self, address: int) -> None:
        copy = self._by_address.pop(address, None)
        if copy is None:  # a signal handler dropped it
            return
        if self._address_of.get(copy.start) == address:
            self._address_of.pop(copy.start, None)
        self._memory.free_shared(copy.memory_bytes)
        self._give_back(copy)


def _start_of(fact: LeafFacts, shape: Shape, first_bytes: bytes) -> tuple[Any, ...]:
    """What a tensor that grew has in common with its prefix, besides all bytes of that: dtype, rank
    and the first bytes. It says where to look."""
    return fact.dtype, len(shape), first_bytes
