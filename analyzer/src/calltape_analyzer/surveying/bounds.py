"""A bound on what is kept of many tapes, that does not depend on the order in which they come.

Items have digests, and those with the smallest digests are kept. An item that is kept of all tapes
is kept of each part of them too, so its counts are whole, whichever parts were added up before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TypeVar

__all__ = ["digest_of", "first_beyond"]

T = TypeVar("T")


def digest_of(*parts: bytes) -> bytes:
    """16 bytes that tell these parts from all others."""
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.digest()


def first_beyond(
    items: Mapping[bytes, T],
    most: int,
    most_bytes: int,
    cost_of: Callable[[T], tuple[int, tuple[bytes, ...]]],
) -> bytes | None:
    """The smallest digest that is not kept; None if all are.

    Args:
        items: by digest.
        most: how many are kept.
        most_bytes: how many bytes they may cost together.
        cost_of: what an item costs by itself, and its parts. Equal parts of several items cost
            their bytes once.
    """
    spent = 0
    known: set[bytes] = set()
    for count, digest in enumerate(sorted(items)):
        own, parts = cost_of(items[digest])
        new = {part for part in parts if part not in known}
        known |= new
        spent += own + sum(map(len, new))
        if count >= most or spent > most_bytes:
            return digest
    return None
