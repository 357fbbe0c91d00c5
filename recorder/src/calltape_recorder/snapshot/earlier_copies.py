"""Finds tensors whose bytes an earlier call has, so that they are neither copied nor written again.

The cache that one decode step returns is what the next one gets. In come the leaves of one side of
a call; out go the copies that were made of them before. Where a tensor lies says only where to
look: its bytes are compared, because a kernel may have written to it without any trace.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from calltape_recorder.snapshot.buffers import Buffer, Buffers, Piece
from calltape_recorder.snapshot.facts import data_ptr, untyped_storage
from calltape_recorder.snapshot.large_copies import array_type, source_of
from calltape_recorder.snapshot.look import Look
from calltape_recorder.threads import RLock

__all__ = ["FEWEST_BYTES", "Earlier", "EarlierCopies", "Origin"]

FEWEST_BYTES = 4096
"""A smaller leaf is copied: a reference to it takes about 50 bytes and some steps in Python."""

_SHARE = 4
"""Copies are remembered in at most this part of the memory of the queue."""
_MOST = 4096
_STEP = 1024 * 1024  # bytes compared at once, since the interpreter lock is held meanwhile


class Origin:
    """Where the bytes of a copy are on a tape.

    Attributes:
        file: which file has them; None if none has.
        call, key: the call whose blob has them, and their name there.
    """

    __slots__ = ("call", "file", "key")

    def __init__(self) -> None:
        self.file: int | None = None
        self.call = 0
        self.key = ""


class Earlier(NamedTuple):
    """A copy of a leaf.

    Attributes:
        size: in bytes.
        dtype, shape: of the leaf. Only a leaf of the same ones may refer to its bytes.
        piece: the copy.
        buffer: the pooled buffer that the copy lies in, or None.
        origin: where the bytes are on the tape.
    """

    size: int
    dtype: Any
    shape: tuple[int, ...]
    piece: Any
    buffer: Buffer | None
    origin: Origin

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
        self._most_bytes = room.max_bytes // _SHARE if _compare is not None else 0

    def find(self, leaves: Sequence[Any], look: Look) -> list[Earlier | None] | None:
        """Per leaf the copy of the same bytes that was made before, or None; None if there is none
        for any. Whoever gets a copy in a pooled buffer gives it back, as any piece."""
        if not self._known:
            return None
        found: list[Earlier | None] = [None] * len(leaves)
        are_there = False
        for at, (leaf, fact, size) in enumerate(zip(leaves, look.facts, look.sizes, strict=True)):
            if size < FEWEST_BYTES or fact.direct != "cpu":
                continue
            if data_ptr(leaf) not in self._known:
                continue
            # We hold the storage while its bytes are compared: another thread may give the tensor
            # other memory.
            memory = untyped_storage(leaf)
            address, _ = source_of(leaf, memory, size)
            known = self._taken(address)
            if known is None:
                continue
            if known[:3] == (size, fact.dtype, fact.shape) and _are_equal(known.piece, address):
                found[at], are_there = known, True
            elif known.buffer is not None:
                self._buffers.give_back(known.buffer)
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
            self._add(data_ptr(leaf), Earlier(size, fact.dtype, fact.shape, piece, owner, origin))
        return origins

    def clear(self) -> None:
        """Forgets all copies."""
        with self.lock:
            while self._known:
                self._drop_one()
            self._room.let_go(self._room.held)  # an interrupt may have come between two steps

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
            if made.size > self._most_bytes:
                return
            while self._room.held + made.size > self._most_bytes or len(self._known) >= _MOST:
                if not self._known:
                    self.clear()
                    break
                self._drop_one()
            if not self._room.hold(made.size):
                return
            self._known[address] = made
            if made.buffer is not None:
                self._buffers.share(made.buffer)

    def _drop_one(self) -> None:
        self._drop(next(iter(self._known), 0))

    def _drop(self, address: int) -> None:
        known = self._known.pop(address, None)
        if known is None:  # a signal handler dropped it
            return
        self._room.let_go(known.size)
        if known.buffer is not None:
            self._buffers.give_back(known.buffer)


def _comparison() -> Any:
    """``memcmp`` of the C library, called under the interpreter lock; None if it is not found."""
    try:
        found = ctypes.pythonapi.memcmp
    except AttributeError:
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    found.restype = ctypes.c_int
    return found


_compare = _comparison()


def _are_equal(piece: Any, address: int) -> bool:
    """Whether the memory at this address has the bytes of a copy. The lock is not given away within
    a step: beside a busy thread it would take 5 ms to come back."""
    if type(piece) is bytearray:
        return bool(piece == array_type(len(piece)).from_address(address))
    data = piece.data
    own = ctypes.addressof(ctypes.c_char.from_buffer(data))
    return all(
        _compare(own + begin, address + begin, min(_STEP, len(data) - begin)) == 0
        for begin in range(0, len(data), _STEP)
    )
