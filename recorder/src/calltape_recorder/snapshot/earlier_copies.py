"""Finds tensors whose bytes an earlier call has, so that they are neither copied nor written again.

The cache that one decode step returns is what the next one gets, and the beginning of what that one
returns. In come the leaves of one side of a call; out go the copies that were made of them before,
or, of a tensor that grew, of its first part. Where a tensor lies, or with which bytes it begins,
says only where to look: all bytes are compared, because a kernel may have written to it without any
trace.
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
from calltape_recorder.snapshot.buffers import Buffer, Buffers, Piece, data_of, source_of
from calltape_recorder.snapshot.facts import Facts, data_ptr, untyped_storage
from calltape_recorder.snapshot.grown_copies import Grown, are_equal, can_compare, grown
from calltape_recorder.snapshot.look import Look
from calltape_recorder.threads import RLock

FEWEST_BYTES = 8 * 1024
"""A smaller leaf is copied and written: measured, to find it takes longer
(docs/decisions/recording-cost.md)."""

_START = 64  # bytes


class Origin:
    """Where the bytes of a copy are on a tape.

    Attributes:
        file: which file has them; None if none has.
        call, key: the call that has them, and their name there.
        first: where the first part of a tensor that grew is, or None. It is None of each 33rd too,
            so that few are remembered, and the tensor is written as a whole.
        taken: how many of them there are before this one.
    """

    __slots__ = ("call", "file", "first", "key", "taken")

    def __init__(self, first: Origin | None = None) -> None:
        self.file: int | None = None
        self.call = 0
        self.key = ""
        taken = 0 if first is None else first.taken + 1
        is_tail = taken <= MAX_TAILS
        self.first: Origin | None = first if is_tail else None
        self.taken: int = taken if is_tail else 0

    def is_before(self, call: int, file: int | None) -> bool:
        """Whether an earlier call of this file has them."""
        return file is not None and self.file == file and self.call < call


class Earlier(NamedTuple):
    """A copy of a leaf.

    Attributes:
        size: in bytes.
        dtype, shape: of the leaf. Only a leaf of the same ones may refer to its bytes.
        piece: the copy.
        buffer: the pooled buffer that the copy lies in, or None.
        origin: where the bytes are on the tape.
        start: with what it begins: see :func:`_start_of`.
    """

    size: int
    dtype: Any
    shape: tuple[int, ...]
    piece: Any
    buffer: Buffer | None
    origin: Origin
    start: tuple[Any, ...]

    @property
    def held(self) -> int:
        """How many bytes of memory it holds."""
        return len(self.piece.place.memory) if type(self.piece) is Grown else self.size

    def shared(self) -> Any:
        """The copy as a piece of another side, which gives the buffer back for itself."""
        return self.piece if self.buffer is None else self.piece._replace(owner=self.buffer)


class Room(Protocol):
    """Memory in bytes, of which copies hold a part."""

    max_bytes: int
    held: int

    def hold(self, nbytes: int) -> bool:
        """Reserves memory; False if there is not so much left."""
        ...

    def let_go(self, nbytes: int) -> None:
        """Frees it."""
        ...


class EarlierCopies:
    """The latest copies of host memory, by address. Any thread may use them.

    Args:
        buffers: the pool of the copies.
        room: the memory of the queue. The copies leave when calls need it.
    """

    def __init__(self, buffers: Buffers, room: Room) -> None:
        self.lock = RLock()  # reentrant: a signal handler may call the model in it
        self._buffers = buffers
        self._room = room
        self._known: dict[int, Earlier] = {}  # the oldest first
        self._starts: dict[tuple[Any, ...], int] = {}  # the last address of each
        self._most_bytes = room.max_bytes // EARLIER_SHARE if can_compare() else 0

    def find(self, leaves: Sequence[Any], look: Look) -> list[Earlier | None] | None:
        """Per leaf the copy of the same bytes that was made before, or None; None if there is none
        for any. Whoever gets a copy in a pooled buffer gives it back, as any piece."""
        if not self._known:
            return None
        found: list[Earlier | None] = [None] * len(leaves)
        are_there, are_few = False, len(leaves) <= MAX_GROWING_TENSORS
        for at, (leaf, fact, size) in enumerate(zip(leaves, look.facts, look.sizes, strict=True)):
            if size < FEWEST_BYTES or fact.direct != "cpu":
                continue
            # We hold the storage while its bytes are compared: another thread may give the tensor
            # other memory.
            memory = untyped_storage(leaf)
            address, _ = source_of(leaf, memory, size)
            known = self._equal(address, fact, size)
            if known is None and are_few:
                known = self._grown(address, fact, size)
            if known is not None:
                found[at], are_there = known, True
        return found if are_there else None

    def keep(
        self, leaves: Sequence[Any], look: Look, pieces: list[Any],
        found: Sequence[Earlier | None] | None,
    ) -> list[Origin | None]:  # fmt: skip
        """Remembers the copies of one side.

        Args:
            leaves, look: of the side.
            pieces: their copies.
            found: what :meth:`find` gave.

        Returns:
            Per leaf where its bytes are, or will be; None for what is not remembered.
        """
        origins: list[Origin | None] = [None] * len(leaves)
        buffer: Buffer | None = None
        for at, (leaf, fact, size) in enumerate(zip(leaves, look.facts, look.sizes, strict=True)):
            earlier = None if found is None else found[at]
            if earlier is not None:
                origins[at] = earlier.origin
                continue
            piece = pieces[at]
            if type(piece) is Piece and type(piece.owner) is Buffer:
                buffer = piece.owner  # it is the owner of those that follow, too
            if size < FEWEST_BYTES or fact.direct != "cpu":
                continue
            owner = buffer if type(piece) is Piece else None
            origin = origins[at] = Origin()
            start = _start_of(fact, data_of(piece)[:_START])
            made = Earlier(size, fact.dtype, fact.shape, piece, owner, origin, start)
            self._add(data_ptr(leaf), made)
        return origins

    def clear(self) -> None:
        """Forgets all copies."""
        with self.lock:
            while self._known:
                self._drop_one()
            self._room.let_go(self._room.held)  # an interrupt may have come between two steps

    def _equal(self, address: int, fact: Facts, size: int) -> Earlier | None:
        """The copy that was made at this address, if the bytes there are the same."""
        known = self._taken(address) if address in self._known else None
        if known is None:
            return None
        if known[:3] == (size, fact.dtype, fact.shape) and are_equal(known.piece, address):
            return known
        if known.buffer is not None:
            self._buffers.give_back(known.buffer)
        return None

    def _grown(self, address: int, fact: Facts, size: int) -> Earlier | None:
        """A copy of a tensor that grew, if the copy of its first part is known. It takes the place
        of that one."""
        if size > self._most_bytes:
            return None
        start = _start_of(fact, ctypes.string_at(address, _START))
        before = self._starts.get(start)
        known = None if before is None else self._taken(before)
        if before is None or known is None:
            return None
        try:
            if known.start != start:  # another thread put another tensor there meanwhile
                return None
            copy = grown(known.piece, known.shape, address, fact.shape, size)
        finally:
            if known.buffer is not None:
                self._buffers.give_back(known.buffer)
        if copy is None:
            return None
        origin = Origin(known.origin)
        made = Earlier(size, fact.dtype, fact.shape, copy, None, origin, start)
        with self.lock:
            if self._known.get(before) is known:
                is_grown = type(known.piece) is Grown
                if is_grown and made.held == known.held and address not in self._known:
                    # It holds as much memory from now on.
                    self._known.pop(before, None)
                    self._known[address] = made
                    self._starts[start] = address
                    return made
                self._drop(before)
            self._add(address, made)
        return made

    def _taken(self, address: int) -> Earlier | None:
        with self.lock:
            known = self._known.get(address)
            if known is not None and known.buffer is not None:
                self._buffers.share(known.buffer)
            return known

    def _add(self, address: int, made: Earlier) -> None:
        with self.lock:
            if address in self._known:
                self._drop(address)
            held = made.held
            if held > self._most_bytes:
                return
            while (
                self._room.held + held > self._most_bytes or len(self._known) >= MAX_EARLIER_TENSORS
            ):
                if not self._known:
                    self.clear()
                    break
                self._drop_one()
            if not self._room.hold(held):
                return
            self._known[address] = made
            self._starts[made.start] = address
            if made.buffer is not None:
                self._buffers.share(made.buffer)

    def _drop_one(self) -> None:
        self._drop(next(iter(self._known), 0))

    def _drop(self, address: int) -> None:
        known = self._known.pop(address, None)
        if known is None:  # a signal handler dropped it
            return
        if self._starts.get(known.start) == address:
            self._starts.pop(known.start, None)
        self._room.let_go(known.held)
        if known.buffer is not None:
            self._buffers.give_back(known.buffer)


def _start_of(fact: Facts, first: Any) -> tuple[Any, ...]:
    """What a tensor that grew has in common with its first part, besides all bytes of that: dtype,
    rank, and the first bytes. It says where to look."""
    return fact.dtype, len(fact.shape), bytes(first)
