"""What stands on a tape for texts, numbers and threads that may not be told: equal where those were
equal.

The key lives in this process only, so nobody can try texts until one fits.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from typing import Any

from calltape_schema.privacy import may_be_size

__all__ = ["of_number", "of_thread", "of_value"]

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


def of_number(value: Any) -> Any:
    """A number that may be a setting or a size as it is; for another int one of the same sign and
    number of bits, for another float one from 0 to 1. A complex number is the pair of its parts."""
    if type(value) is tuple:
        return tuple(map(of_number, value))
    if may_be_size(value):
        return value
    if type(value) is int:
        return _integer(value)
    drawn = int.from_bytes(_digest(b"float" + struct.pack(">d", value))[:8], "big")
    return (drawn >> 11) / 2**53


def _integer(value: int) -> int:
    highest = 1 << (abs(value).bit_length() - 1)
    size = highest.bit_length() // 8 + 1
    drawn = hashlib.shake_128(_KEY + b"int%d" % value).digest(size + _LENGTH)
    found = highest + int.from_bytes(drawn, "big") % highest
    if found == abs(value):
        found ^= 1
    return found if value > 0 else -found


def of_thread(thread: int) -> int:
    """A number for a thread; 0, which is an unknown one, stays."""
    if not thread:
        return 0
    return int.from_bytes(_digest(b"thread%d" % thread)[:4], "big") or 1


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, key=_KEY, digest_size=_LENGTH).digest()
