"""How many bytes may be made for one call that are not on the tape.

A leaf of a few bytes may claim 2^63 elements: its value was not kept, or it is expanded. In come
shapes and the size of a file; before anything is made, a :class:`TapeError` goes out if it would be
too much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from calltape_analyzer.limits import advice_to_allow, limits
from calltape_schema.errors import TapeError

__all__ = ["LEAST_BYTES", "check_memory", "memory_limit_of"]

LEAST_BYTES = 192 * 1024 * 1024
"""The limit of a small tape, in bytes."""

_TIMES_TAPE = 4


def memory_limit_of(tape_bytes: int) -> int:
    """How many bytes may be made for one call of a tape of this size in bytes."""
    given = limits().nbytes
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
            advice=advice_to_allow(f"nbytes={wanted}", f"--max-memory {-(-wanted // 2**20)}"),
        )
