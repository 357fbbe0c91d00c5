"""What stands on a tape for texts and threads that may not be told: equal where those were equal.

The key lives in this process only, so nobody can try texts until one fits.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

__all__ = ["of_thread", "of_value"]

_KEY = secrets.token_bytes(32)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_."
_LENGTH = 16


def of_value(value: Any) -> Any:
    """16 letters for a text, 16 bytes for bytes, whatever their length is; nothing for other
    values."""
    kind = type(value)
    if kind is str:
        found = _digest(b"text" + value.encode("utf-8", "surrogatepass"))
        return "".join([_LETTERS[byte % 64] for byte in found])
    return _digest(b"data" + value) if kind is bytes else value


def of_thread(thread: int) -> int:
    """A number for a thread; 0, which is an unknown one, stays."""
    if not thread:
        return 0
    return int.from_bytes(_digest(b"thread%d" % thread)[:4], "big") or 1


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, key=_KEY, digest_size=_LENGTH).digest()
