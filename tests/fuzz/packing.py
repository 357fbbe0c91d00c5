"""Compressed files of a mutant: a whole one, and hostile ones."""

from __future__ import annotations

import functools
import gzip
import importlib
import random
from collections.abc import Callable

__all__ = ["FORMS", "hostile"]

_ZEROS = 2**24
_BOMB = 2**29


def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


def _zstd(data: bytes) -> bytes:
    try:
        module = importlib.import_module("compression.zstd")
    except ImportError:
        module = importlib.import_module("backports.zstd")
    made: bytes = module.compress(data, 1)
    return made


FORMS: dict[str, Callable[[bytes], bytes]] = {".gz": _gzip, ".zst": _zstd}
"""By the end of the name."""


def hostile(data: bytes, form: str, rng: random.Random) -> bytes:
    """A compressed file that lies, from the bytes of a tape."""
    pack = FORMS[form]
    packed = bytearray(pack(data))
    at = rng.randrange(len(packed))
    way = rng.randrange(9)
    if way == 0:
        return bytes(packed[:at])
    if way == 1:
        return bytes(packed) + rng.choice((b"garbage", bytes(4096), bytes(packed[:at])))
    if way == 2:  # a second tape after the first, as `cat a.gz b.gz` makes it
        return bytes(packed) + pack(data)
    if way == 3:
        packed[at] ^= 1 << rng.randrange(8)
        return bytes(packed)
    if way == 4:  # flags and sizes stand in the first bytes
        packed[rng.randrange(2, min(16, len(packed)))] = rng.randrange(256)
        return bytes(packed)
    if way == 5:
        return pack(bytes(packed))
    if way == 6:  # the other form under this name
        return FORMS[rng.choice(sorted(FORMS))](data)
    if way == 7:
        return bytes(packed) + pack(bytes(_ZEROS))
    return bytes(packed) + _bomb(form) if rng.random() < 0.1 else pack(data[: rng.randrange(999)])


@functools.cache
def _bomb(form: str) -> bytes:
    """Few bytes that become many more than a reader allows."""
    part = FORMS[form](bytes(_ZEROS))
    return part * (_BOMB // _ZEROS)
