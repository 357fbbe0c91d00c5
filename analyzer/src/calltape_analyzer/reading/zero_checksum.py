"""The CRC-32 of very many zeros, without reading them.

A file of a few blocks may have a hole of terabytes, and a program that copies a tape may make holes
of its zeros. In come a CRC-32 and a number of zero bytes that follow; out goes the new CRC-32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

__all__ = ["crc32_after_zeros"]

_ALL = 0xFFFFFFFF
_POLYNOMIAL = 0xEDB88320


def crc32_after_zeros(crc32: int, count: int) -> int:
    """``zlib.crc32(bytes(count), crc32)``, in a time that grows with the logarithm of ``count``."""
    register = crc32 ^ _ALL
    for power in range(count.bit_length()):
        if count >> power & 1:
            register = _applied(_zeros(power), register)
    return register ^ _ALL


@cache
def _zeros(power: int) -> tuple[int, ...]:
    """What 2**power zero bytes do to a register. The map is linear, so it is given by the images of
    the 32 bits. Each map is the one before it, applied twice; the first is that of a single zero
    bit, at power -3."""
    if power == -3:
        return (_POLYNOMIAL, *(1 << bit for bit in range(31)))
    half = _zeros(power - 1)
    return tuple(_applied(half, image) for image in half)


def _applied(images: Sequence[int], register: int) -> int:
    found = 0
    for bit, image in enumerate(images):
        if register >> bit & 1:
            found ^= image
    return found
