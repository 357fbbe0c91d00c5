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
        if name.startswith(b"records/"):
            yield from _documents(content)
        elif name == b"end.msgpack":
            yield from _table(content)
        at = start + -(-size // _BLOCK) * _BLOCK


def _documents(content: bytes) -> Iterator[bytes]:
    found = _unpacked(content)
    for section in found[3:5] if found is not None else ():
        yield from _section(section)


def _table(content: bytes) -> Iterator[bytes]:
    found = _unpacked(content)
    end = {} if found is None else unpack(found[1])
    for name in ("index", "inputs"):
        if name in end:
            yield from _section(end[name])


def _section(section: Any) -> Iterator[bytes]:
    if section[0]:
        yield zlib.decompress(section[3])


def _unpacked(content: bytes) -> Any:
    """None if it is being written."""
    try:
        return unpack(content)
    except ValueError:
        return None
