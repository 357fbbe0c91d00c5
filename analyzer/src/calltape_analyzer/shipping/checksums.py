"""What tells whether two files have the same bytes, without both being at hand.

In comes a file. Out go its checksums: our own, and those that object stores tell.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

__all__ = ["Checksums", "checksums_of", "part_bytes"]

_PART = 16 * 1024 * 1024
_MOST_PARTS = 9_000  # S3 takes 10,000
_MEBIBYTE = 1024 * 1024


class Checksums(NamedTuple):
    """Of one file.

    Attributes:
        size: in bytes.
        sha256: hexadecimal.
        md5: hexadecimal; the ETag of an object that was sent in one piece.
        parts: the ETag of one that was sent in several.
    """

    size: int
    sha256: str
    md5: str
    parts: str

    def is_told_by(self, info: dict[str, Any]) -> bool:
        """Whether what a store tells of an object proves that it has these bytes. False if it
        tells too little, such as the ETag of an encrypted object."""
        if info.get("size") != self.size:
            return False
        etag = str(info.get("ETag", "")).strip('"').lower()
        if etag in (self.md5, self.parts):
            return True
        return info.get("md5Hash") == base64.b64encode(bytes.fromhex(self.md5)).decode()


def part_bytes(size: int) -> int:
    """In which parts a file of this size is sent, in bytes."""
    needed = -(-size // _MOST_PARTS)
    return max(_PART, -(-needed // _MEBIBYTE) * _MEBIBYTE)


def checksums_of(pieces: Iterable[bytes], size: int) -> Checksums:
    """The checksums of a file of this many bytes, from its pieces, none of which spans two parts.

    Args:
        pieces: all bytes, in order.
        size: in bytes, which decides on the parts.
    """
    step, done = part_bytes(size), 0
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    part = hashlib.md5(usedforsecurity=False)
    digests = []
    for piece in pieces:
        sha256.update(piece)
        md5.update(piece)
        part.update(piece)
        done += len(piece)
        if done % step == 0:
            digests.append(part.digest())
            part = hashlib.md5(usedforsecurity=False)
    if done % step:
        digests.append(part.digest())
    whole = hashlib.md5(b"".join(digests), usedforsecurity=False).hexdigest()
    return Checksums(done, sha256.hexdigest(), md5.hexdigest(), f"{whole}-{len(digests)}")
