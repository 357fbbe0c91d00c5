"""All bytes of a tape that somebody can read: those of the file, and what is deflated in it.

It follows schema/FORMAT.md alone, so that it knows nothing of the code that writes. The file may be
in the middle of being written.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from tests.schema.independent_reader import size_of, unpack

__all__ = ["readable"]

_BLOCK = 512


def readable(data: bytes) -> bytes:
    """The bytes of a file, and of everything that is deflated in it, with a zero between them. What
    is no tape comes as it is."""
    return b"\0".join((data, *_inflated(data)))


def _inflated(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + _BLOCK <= len(data):
        block, start = data[at : at + _BLOCK], at + _BLOCK
        size = size_of(block)
        if size is None:
            at += _BLOCK
            continue
        name, content = block[:100].rstrip(b"\0"), data[start : start + size]
        if name.endswith(b".records"):
            yield from _entries(content)
        elif name == b"summary.msgpack":
            yield from _rows(content)
        at = start + -(-size // _BLOCK) * _BLOCK


def _entries(content: bytes) -> Iterator[bytes]:
    plain: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(content) and (size := int.from_bytes(content[at : at + 4], "little")):
        found = _unpacked(content[at + 4 : at + 4 + size])
        if found is None:
            return  # it is being written
        if len(found) < 4:
            plain[at] = found[1]
        else:
            yield zlib.decompressobj(-15, plain[at - found[2]]).decompress(found[1])
        at += 4 + size


def _rows(content: bytes) -> Iterator[bytes]:
    found = _unpacked(content)
    inputs = None if found is None else unpack(found[1]).get("inputs")
    if inputs is not None:
        yield zlib.decompress(inputs["packed"])


def _unpacked(content: bytes) -> Any:
    try:
        return unpack(content)
    except ValueError:
        return None
