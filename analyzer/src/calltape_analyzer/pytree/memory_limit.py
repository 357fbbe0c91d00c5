"""How many bytes may be made for one call that are not on the tape.

A leaf of a few bytes may claim 2^63 elements: its value was not kept, or it is expanded. In come
shapes and the size of a file; before anything is made, a :class:`TapeError` goes out if it would be
too much.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from calltape_schema.errors import TapeError

__all__ = ["LEAST_BYTES", "check_memory", "granted", "granted_bytes", "memory_limit_of"]

LEAST_BYTES = 192 * 1024 * 1024
"""The limit of a small tape, in bytes."""

_TIMES_TAPE = 4

_granted: ContextVar[int | None] = ContextVar("granted", default=None)


@contextmanager
def granted(nbytes: int) -> Iterator[None]:
    """Sets the limit for one call to this many bytes while the ``with`` block runs, whatever the
    size of the tape is. It holds in this context (thread or task) only."""
    token = _granted.set(nbytes)
    try:
        yield
    finally:
        _granted.reset(token)


def granted_bytes() -> int | None:
    """What :func:`granted` allows here; None outside of it."""
    return _granted.get()


def memory_limit_of(tape_bytes: int) -> int:
    """How many bytes may be made for one call of a tape of this size in bytes."""
    given = _granted.get()
    return max(LEAST_BYTES, _TIMES_TAPE * tape_bytes) if given is None else given


def check_memory(limit: int | None, shapes: Sequence[tuple[Sequence[int], int]], what: str) -> None:
    """Raises if tensors would take more memory than the limit.

    Args:
        limit: in bytes; None if there is no limit.
        shapes: for each tensor its sizes, and the bytes of one element.
        what: names the tensors in the message.

    Raises:
        TapeError: ``limit``.
    """
    wanted = sum(math.prod(shape) * width for shape, width in shapes)
    if limit is not None and wanted > limit:
        raise TapeError(
            "limit",
            f"{what} would take {wanted:,} bytes, which are not on the tape (at most {limit:,})",
            advice=f"if you trust the tape, ask within calltape_analyzer.granted({wanted})",
        )
