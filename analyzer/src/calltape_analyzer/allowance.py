"""How many bytes may be made that do not stand on a tape.

A leaf of a few bytes may claim 2^63 elements: its value was not kept, or it is expanded. Nothing of
that is made before it was compared with what the tape itself has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from calltape_schema.errors import TapeError

__all__ = ["LEAST_BYTES", "check_room", "granted", "room_of"]

LEAST_BYTES = 192 * 1024 * 1024
_TIMES_TAPE = 4

_granted: ContextVar[int | None] = ContextVar("granted", default=None)


@contextmanager
def granted(nbytes: int) -> Iterator[None]:
    """Lets values of this many bytes be made for one call, in this context, whatever the size of
    the tape."""
    token = _granted.set(nbytes)
    try:
        yield
    finally:
        _granted.reset(token)


def room_of(tape_bytes: int) -> int:
    """The bytes that may be made for one call of a tape of this size."""
    given = _granted.get()
    return max(LEAST_BYTES, _TIMES_TAPE * tape_bytes) if given is None else given


def check_room(room: int | None, shapes: Sequence[tuple[Sequence[int], int]], what: str) -> None:
    """Refuses to make tensors that take more than ``room`` bytes.

    Args:
        room: in bytes; None where nobody set one.
        shapes: of each tensor its sizes, and the bytes of an element.
        what: names them, for people.

    Raises:
        TapeError: ``limit``.
    """
    wanted = sum(math.prod(shape) * width for shape, width in shapes)
    if room is not None and wanted > room:
        raise TapeError(
            "limit",
            f"{what} would take {wanted:,} bytes, which are not on the tape (at most {room:,})",
            advice=f"if you trust the tape, ask within calltape_analyzer.granted({wanted})",
        )
