"""The files of tapes that are tried."""

from __future__ import annotations

import hashlib
import os

__all__ = ["digest_of", "remove_try", "size_of"]


def digest_of(path: str) -> str:
    """Tells whether two tapes are the same, byte by byte."""
    with open(path, "rb") as file:
        found = hashlib.blake2b(digest_size=16)
        while part := file.read(2**20):
            found.update(part)
    return found.hexdigest()


def size_of(path: str) -> int:
    """The bytes of a file."""
    return os.stat(path).st_size


def remove_try(path: str) -> None:
    """Removes a tape, and what its run left beside it."""
    for one in (path, f"{path}.answer", f"{path}.settled"):
        if os.path.exists(one):
            os.unlink(one)
