"""CRC-32, as zlib computes it. With the extra ``fast`` zlib-ng computes the same sums several times
as fast."""

from __future__ import annotations

__all__ = ["crc32"]

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:
    from zlib import crc32
