"""msgpack with the limits that a stranger's bytes need, and the checksummed envelope around it.

Every msgpack member of a tape is an envelope: a two-element array ``[crc32, payload]`` where
``payload`` is a ``bin`` holding a msgpack document and ``crc32`` (zlib's CRC-32) covers exactly
those payload bytes.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgpack

from calltape_schema.errors import TapeError

__all__ = [
    "MAX_DOCUMENT_BYTES",
    "MAX_DOCUMENT_TOKENS",
    "MAX_STRING_BYTES",
    "open_envelope",
    "pack",
    "pack_int",
    "pack_text",
    "seal_envelope",
    "unpack",
]

MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
MAX_DOCUMENT_TOKENS = 1_000_000
MAX_STRING_BYTES = 1024 * 1024

# Below this size a document cannot hold enough tokens to hurt (one byte can cost a reader about
# 64 bytes of Python object), so its tokens are not counted before decoding.
_COUNT_FROM_BYTES = 256 * 1024

_EXT_BIG_INT = 1
_EXT_TEXT = 2


def pack(document: Any) -> bytes:
    """Encodes plain data; ints beyond 64 bits and text with lone surrogates must be wrapped by
    :func:`pack_int` and :func:`pack_text` first."""
    packed: bytes = msgpack.packb(document, use_bin_type=True)
    return packed


def pack_int(value: int) -> int | msgpack.ExtType:
    """An int as msgpack holds it: natively within 64 bits, else extension type 1 (big-endian
    two's complement)."""
    if -(2**63) <= value < 2**64:
        return value
    size = value.bit_length() // 8 + 1
    return msgpack.ExtType(_EXT_BIG_INT, value.to_bytes(size, "big", signed=True))


def pack_text(value: str) -> str | msgpack.ExtType:
    """A str as msgpack holds it: natively where it is valid UTF-8, else (lone surrogates)
    extension type 2 (UTF-8 with ``surrogatepass``)."""
    # isascii() is a flag test; only the rare rest pays for a trial encoding.
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return msgpack.ExtType(_EXT_TEXT, value.encode("utf-8", "surrogatepass"))
    return value


def _unpack_ext(code: int, data: bytes) -> Any:
    if code == _EXT_BIG_INT and 0 < len(data) <= 1024:
        return int.from_bytes(data, "big", signed=True)
    if code == _EXT_TEXT:
        return data.decode("utf-8", "surrogatepass")
    raise ValueError(f"extension type {code} of {len(data)} bytes is not part of the format")


def _unpack_pairs(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a map holds the same key twice")
    return document


def unpack(data: bytes) -> Any:
    """Decodes one msgpack document; arrays become tuples.

    Raises:
        TapeError: ``limit`` for a document too large or with too many values, ``damaged`` for
            bytes that are not one msgpack document, hold a key twice, or use an unknown extension.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise TapeError("limit", f"a document of {len(data)} bytes (at most {MAX_DOCUMENT_BYTES})")
    if len(data) > _COUNT_FROM_BYTES:
        _count_tokens(data)
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            use_list=False,
            strict_map_key=True,
            object_pairs_hook=_unpack_pairs,
            ext_hook=_unpack_ext,
            timestamp=0,
        )
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        # All of msgpack's own errors derive from these; its messages name the cause.
        raise TapeError("damaged", f"not a valid msgpack document: {str(error) or type(error).__name__}") from None


# Bytes that follow the first byte of a token, by that byte: sizes of fixed-width values, and for
# variable-width ones the width of the length field (negative).
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_FIXED |= {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}


def _count_tokens(data: bytes) -> None:
    """Refuses a large document of many tiny values before a decoder builds an object for each."""
    position, tokens, end = 0, 0, len(data)
    while position < end:
        tokens += 1
        if tokens > MAX_DOCUMENT_TOKENS:
            raise TapeError("limit", f"a document of more than {MAX_DOCUMENT_TOKENS} values")
        first = data[position]
        position += 1
        if 0xA0 <= first <= 0xBF:
            position += first & 0x1F
        elif first in _FIXED:
            position += _FIXED[first]
        elif first in _SIZED:
            width = _SIZED[first]
            length = int.from_bytes(data[position : position + width], "big")
            position += width + length + (1 if 0xC7 <= first <= 0xC9 else 0)


def seal_envelope(payload: bytes) -> bytes:
    """Wraps an encoded document with its checksum."""
    return pack([zlib.crc32(payload), payload])


def open_envelope(data: bytes) -> bytes:
    """The payload of an envelope whose checksum holds.

    Raises:
        TapeError: ``damaged`` when it does not.
    """
    envelope = unpack(data)
    if not (
        type(envelope) is tuple
        and len(envelope) >= 2
        and type(envelope[0]) is int
        and type(envelope[1]) is bytes
    ):
        raise TapeError("damaged", "not an envelope [crc32, payload]")
    payload: bytes = envelope[1]
    if zlib.crc32(payload) != envelope[0]:
        raise TapeError("damaged", "the checksum of the member does not match its bytes")
    return payload
