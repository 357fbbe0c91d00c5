"""msgpack documents with limits, and the envelope with a checksum around them.

Makes bytes from plain data, or the other way round. The bytes may come from a stranger, so limits
are checked before memory is allocated. Every msgpack member of a tape is an envelope: an array
``[crc32, payload]``. ``payload`` is a ``bin`` that holds a msgpack document, and ``crc32`` is
zlib's CRC-32 of exactly its bytes.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Callable
from typing import Any, TypeGuard

import msgpack  # pyright: ignore[reportMissingTypeStubs]

try:  # with the extra ``fast`` zlib-ng computes the same sums several times as fast
    from zlib_ng.zlib_ng import crc32 as crc32
except ImportError:
    from zlib import crc32 as crc32

from calltape_schema.bounds import (
    MAX_DOCUMENT_BYTES,
    MAX_DOCUMENT_TOKENS,
    MAX_INT_BYTES,
    MAX_MEMBER_BYTES,
    most,
)
from calltape_schema.errors import TapeError

# A larger document's values are counted before they are decoded. Below this size, no document can
# take much memory: one byte becomes at most about 64 bytes of Python objects; a decoder nests at
# most 1,000 arrays, and makes room in each for at most as many elements as the document has bytes
# (32 MB).
_COUNT_FROM_BYTES = 4 * 1024

_EXT_BIG_INT = 1
_EXT_TEXT = 2


# msgpack ships no types.
_Packer: Any = msgpack.Packer  # pyright: ignore
_unpackb: Callable[..., Any] = msgpack.unpackb  # pyright: ignore


def is_map(value: Any) -> TypeGuard[dict[Any, Any]]:
    """Whether a decoded value is a map."""
    return isinstance(value, dict)


def is_array(value: Any) -> TypeGuard[tuple[Any, ...]]:
    """Whether a decoded value is an array."""
    return isinstance(value, tuple)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    """Whether a value to be encoded, or one from JSON, is an array."""
    return isinstance(value, list)


def packing() -> Callable[[Any], bytes]:
    """A function that encodes plain data, for one thread and many documents. Ints and text that
    msgpack cannot hold become extension types (:func:`pack_int`, :func:`pack_text`).

    Its errors:
        TapeError: ``limit`` for an int of more bytes than :data:`MAX_INT_BYTES`, and for what nests
            deeper than msgpack packs.
    """
    packed: Callable[[Any], bytes] = _Packer(use_bin_type=True, default=_pack_wide).pack

    def pack(document: Any) -> bytes:
        try:
            return packed(document)
        except UnicodeEncodeError:
            return packing()(_with_wrapped_text(document))
        except ValueError as error:
            raise TapeError("limit", f"a document cannot be packed: {error}") from None

    return pack


def pack(document: Any) -> bytes:
    """Encodes one document, as :func:`packing` says."""
    return packing()(document)


def _with_wrapped_text(value: Any) -> Any:
    if isinstance(value, str):
        return pack_text(value)
    if is_map(value):
        return {key: _with_wrapped_text(item) for key, item in value.items()}
    if is_list(value) or is_array(value):
        return [_with_wrapped_text(item) for item in value]
    return value


def _pack_wide(value: Any) -> int | msgpack.ExtType:
    # msgpack calls this for values that it cannot encode. In plain data, only ints of more than 64
    # bits are such values.
    if type(value) is int:
        return pack_int(value)
    raise TypeError(f"a {type(value).__name__} is not plain data")


def pack_int(value: int) -> int | msgpack.ExtType:
    """An int for msgpack: itself within 64 bits, else extension type 1 (big-endian two's
    complement).

    Raises:
        TapeError: ``limit`` for more bytes than :data:`MAX_INT_BYTES`, which no reader accepts.
    """
    if -(2**63) <= value < 2**64:
        return value
    size = value.bit_length() // 8 + 1
    if size > MAX_INT_BYTES:
        raise TapeError("limit", f"an int has {size} bytes (at most {MAX_INT_BYTES})")
    return msgpack.ExtType(_EXT_BIG_INT, value.to_bytes(size, "big", signed=True))


def pack_text(value: str) -> str | msgpack.ExtType:
    """A str for msgpack: itself if it is valid UTF-8; if it has lone surrogates, extension type 2
    (UTF-8 with ``surrogatepass``)."""
    # isascii() reads a flag. Only other text, which is rare, is encoded to find out.
    if value.isascii() or _is_utf8(value):
        return value
    return msgpack.ExtType(_EXT_TEXT, value.encode("utf-8", "surrogatepass"))


_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class _LoneSurrogatesError(Exception):
    """A text of a document has them."""


def _unpack_ext(code: int, data: bytes) -> Any:
    found = _unpack_any_ext(code, data)
    if type(found) is str and not _is_utf8(found):
        raise _LoneSurrogatesError
    return found


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unpack_any_ext(code: int, data: bytes) -> Any:
    if code == _EXT_BIG_INT and 0 < len(data) <= MAX_INT_BYTES:
        return int.from_bytes(data, "big", signed=True)
    if code == _EXT_TEXT:
        text = data.decode("utf-8", "surrogatepass")
        if _PAIR.search(text):
            raise ValueError("a character that stands as two surrogates")
        return text
    if code in (_EXT_BIG_INT, _EXT_TEXT):
        raise ValueError(f"extension type {code} of {len(data)} bytes")
    raise TapeError("unsupported", f"a document has extension type {code}")


def _unpack_pairs(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    # A loop takes two thirds of the time of dict() and a look at the types of its keys.
    document: dict[str, Any] = {}
    for key, value in pairs:
        if type(key) is not str:
            raise ValueError("a key of a map is not text")
        document[key] = value
    if len(document) != len(pairs):
        raise ValueError("a map holds the same key twice")
    return document


def _unpack_utf8_keys(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    document = _unpack_pairs(pairs)
    if not all(map(_is_utf8, document)):
        raise ValueError("a key of a map has lone surrogates")
    return document


# The base classes of all errors of msgpack. Their messages name the cause.
_UNPACK_ERRORS = (
    ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException
)  # fmt: skip


def unpack(data: bytes | memoryview, bound: int = MAX_DOCUMENT_BYTES) -> Any:
    """Decodes one msgpack document of at most ``bound`` bytes. Arrays become tuples.

    Raises:
        TapeError: ``limit`` if the document is too large or has too many values; ``damaged`` if
            the bytes are not one msgpack document, announce more than they hold, nest too deep,
            or hold a key twice or one that is no text; ``unsupported`` for an unknown extension
            type.
    """
    if len(data) > bound and len(data) > most(bound):
        raise TapeError("limit", f"a document has {len(data)} bytes (at most {most(bound)})")
    if len(data) > _COUNT_FROM_BYTES or _TIMESTAMP.search(data):
        _count_values(data)
    try:
        try:
            return _decoded(data, _unpack_pairs, _unpack_ext)
        except _LoneSurrogatesError:  # which are rare: only then keys are looked at
            return _decoded(data, _unpack_utf8_keys, _unpack_any_ext)
    except _UNPACK_ERRORS as error:
        raise TapeError(
            "damaged",
            f"not a valid msgpack document: {(str(error) or type(error).__name__).rstrip('.')}",
        ) from None


def _decoded(data: bytes | memoryview, pairs: Any, ext: Any) -> Any:
    return _unpackb(
        data,
        raw=False,
        use_list=False,
        strict_map_key=True,  # so a hostile map has no keys of one hash
        object_pairs_hook=pairs,
        ext_hook=ext,
        timestamp=0,
    )


# By the first byte of a value. _FIXED: how many bytes follow. _SIZED: how wide the length field of
# text, binary data and extensions is. _COUNTED: how wide the count of an array or a map is, and how
# many values each counted element has.
_FIXED = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}
_COUNTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


_TIMESTAMP = re.compile(
    rb"\xff(?:(?<=[\xd4-\xd8].)|(?<=\xc7..)|(?<=\xc8...)|(?<=\xc9.....))", re.DOTALL
)
"""How extensions of the type -1 begin, of which a decoder makes timestamps without asking. The type
comes first, because there are few such bytes: each group is searched."""


def _count_values(data: bytes | memoryview) -> None:
    """Raises if a document has too many values, or announces more than it holds. A decoder would
    allocate memory for the announced values."""
    position, announced, found, end = 0, 1, 0, len(data)
    allowed = most(MAX_DOCUMENT_TOKENS)
    while position < end and found < announced:  # what follows the document is an error anyway
        first = data[position]
        position += 1
        found += 1
        if 0xA0 <= first <= 0xBF:
            position += first & 0x1F
        elif first in _FIXED:
            if first >= 0xD4:
                _expect_no_timestamp(data, position)
            position += _FIXED[first]
        elif first in _SIZED:
            width = _SIZED[first]
            length = int.from_bytes(data[position : position + width], "big")
            position += width
            if 0xC7 <= first <= 0xC9:
                _expect_no_timestamp(data, position)
                position += 1
            position += length
        elif 0x80 <= first <= 0x9F:
            announced += (first & 0xF) * (1 if first >= 0x90 else 2)
        elif first in _COUNTED:
            width, each = _COUNTED[first]
            announced += each * int.from_bytes(data[position : position + width], "big")
            position += width
        if announced > end:
            raise TapeError("damaged", f"a document of {end} bytes announces {announced} values")
        if announced > allowed:
            raise TapeError("limit", f"a document has more than {allowed} values")


def _expect_no_timestamp(data: bytes | memoryview, at: int) -> None:
    """Raises if the type of an extension, which is here, is that of a timestamp."""
    if at < len(data) and data[at] == 0xFF:
        raise TapeError("unsupported", "a document has extension type -1")


def seal_envelope(payload: bytes) -> bytes:
    """The envelope of an encoded document.

    Raises:
        TapeError: ``limit`` if it is longer than a reader accepts.
    """
    envelope = pack([crc32(payload), payload])
    if len(envelope) > MAX_DOCUMENT_BYTES:
        raise TapeError(
            "limit", f"a member has {len(envelope)} bytes (at most {MAX_DOCUMENT_BYTES})"
        )
    return envelope


def open_envelope(data: bytes) -> bytes:
    """The payload of an envelope.

    Raises:
        TapeError: ``damaged`` if this is no envelope, or if the checksum does not match.
    """
    return envelope_of(data)[0]


def envelope_of(data: bytes) -> tuple[bytes, Any]:
    """The payload of an envelope, and its last element.

    Raises:
        TapeError: as :func:`open_envelope`.
    """
    envelope = unpack(data, MAX_MEMBER_BYTES)
    if (
        not is_array(envelope)
        or len(envelope) < 2
        or type(envelope[0]) is not int
        or type(envelope[1]) is not bytes
    ):
        raise TapeError("damaged", "not an envelope [crc32, payload]")
    payload: bytes = envelope[1]
    if crc32(payload) != envelope[0]:
        raise TapeError("damaged", "the checksum of the member does not match its bytes")
    return payload, envelope[-1]


def u64s(data: bytes) -> array[int]:
    """The 64-bit ints of a column, little-endian."""
    return little_endian(array("Q", data))


def u32s(data: bytes) -> array[int]:
    """The 32-bit ints of a column, little-endian."""
    return little_endian(array("I", data))


def little_endian(values: array[int]) -> array[int]:
    if sys.byteorder != "little":
        values = values[:]
        values.byteswap()
    return values
