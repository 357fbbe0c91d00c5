"""The header of a call's safetensors blob: names, dtypes, shapes and offsets of its tensors.

Makes a header from the facts of leaves, or entries from the bytes of a header. The layout is that
of the safetensors format (see its README): a length N of 8 bytes, little-endian, then N bytes of
JSON, then the data. calltape pads the JSON with spaces so that the data start at a multiple of 64
bytes in the blob. Members start at multiples of 512, so the data do too in the tape.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from calltape_schema.bounds import (
    MAX_HEADER_BRACKETS,
    MAX_HEADER_BYTES,
    MAX_HEADER_NESTING,
    MAX_LEAVES,
    MAX_RANK,
    most,
)
from calltape_schema.errors import TapeError
from calltape_schema.packing import is_list, is_map
from calltape_schema.tree import Leaf

ALIGNMENT = 64

_LENGTH_BYTES = 8
_SURROGATES = re.compile("[\ud800-\udfff]")
_MAX_DTYPE = 64
"""Characters of the name of a dtype, known or not."""

DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Bits per element of every dtype name that the safetensors format knows."""

STORED_DTYPES: dict[str, tuple[str, tuple[int, ...]]] = {
    "bool": ("BOOL", ()), "uint8": ("U8", ()), "int8": ("I8", ()), "int16": ("I16", ()),
    "uint16": ("U16", ()), "int32": ("I32", ()), "uint32": ("U32", ()), "int64": ("I64", ()),
    "uint64": ("U64", ()), "float16": ("F16", ()), "bfloat16": ("BF16", ()),
    "float32": ("F32", ()), "float64": ("F64", ()), "complex64": ("C64", ()),
    "float8_e4m3fn": ("F8_E4M3", ()), "float8_e5m2": ("F8_E5M2", ()),
    "float8_e4m3fnuz": ("F8_E4M3FNUZ", ()), "float8_e5m2fnuz": ("F8_E5M2FNUZ", ()),
    # Dtypes that safetensors does not have are stored as their real and imaginary parts,
    "complex128": ("F64", (2,)), "complex32": ("F16", (2,)), "bcomplex32": ("BF16", (2,)),
    # as the bytes of each element,
    "float8_e8m0fnu": ("U8", (1,)), "float4_e2m1fn_x2": ("U8", (1,)), "bits8": ("U8", (1,)),
    "bits16": ("U8", (2,)), "bits1x8": ("U8", (1,)), "bits2x4": ("U8", (1,)),
    "bits4x2": ("U8", (1,)),
    **{f"{sign}int{bits}": ("U8", (1,)) for sign in ("", "u") for bits in range(1, 8)},
    # or as the integers of a quantized tensor.
    "qint8": ("I8", ()), "quint8": ("U8", ()), "qint32": ("I32", ()),
}  # fmt: skip
"""By dtype of torch the dtype of safetensors, and the trailing sizes that one element becomes."""


INTEGER_FORMATS: dict[str, Literal["B", "b", "H", "h", "I", "i", "Q", "q"]] = {
    "uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "uint32": "I", "int32": "i",
    "uint64": "Q", "int64": "q",
}  # fmt: skip
"""For the dtypes of torch whose leaves have ranges, the formats of a memoryview of their bytes."""


class Stored(NamedTuple):
    """How a tensor is stored in the blob: its safetensors dtype and shape, and its size in
    bytes."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


class Entry(NamedTuple):
    """One tensor of a blob; ``begin`` and ``end`` are relative to the start of the data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def is_known(dtype: str) -> bool:
    """Whether this is a dtype of safetensors that this reader knows."""
    return dtype in DTYPE_BITS


def stored_as(leaf: Leaf) -> Stored | None:
    """The blob entry for the value of this leaf; None if the format has no encoding for its dtype.

    The rule: an expanded axis (stride 0) is stored once, with size 1. Each element becomes the
    safetensors dtype of the table above, with the trailing sizes of the table. Elements are stored
    contiguously in the order of the logical indices, after conjugation and negation.
    """
    shape = leaf.shape
    if leaf.expanded:
        shape = tuple(1 if axis in leaf.expanded else size for axis, size in enumerate(shape))
    return contiguous(leaf.dtype, shape)


def contiguous(dtype: str, shape: tuple[int, ...]) -> Stored | None:
    """The blob entry of a contiguous tensor; None if the format has no encoding for its dtype."""
    known = STORED_DTYPES.get(dtype)
    if known is None:
        return None
    name, trailing = known
    whole = (*shape, *trailing)
    return Stored(name, whole, math.prod(whole) * DTYPE_BITS[name] // 8)


def by_width(entries: Mapping[str, Stored]) -> list[str]:
    """The names of entries in the order in which a writer stores them: those of the widest elements
    first, so that each tensor begins at a multiple of its elements."""
    return sorted(entries, key=lambda name: -DTYPE_BITS[entries[name].dtype])


def interleaved(parts: Sequence[Any], strips: int) -> bytearray:
    """The bytes of tensors one after another along an axis.

    Args:
        parts: the bytes of each.
        strips: the product of the sizes before the axis.
    """
    size = sum(map(len, parts))
    whole, width, begin = bytearray(size), size // max(strips, 1), 0
    for part in parts:
        strip_bytes = len(part) // max(strips, 1)
        # As few steps as possible: strips may have one byte each, and there may be millions.
        if strips <= strip_bytes:
            for strip in range(strips):
                at = strip * width + begin
                whole[at : at + strip_bytes] = part[strip * strip_bytes : (strip + 1) * strip_bytes]
        else:
            for at in range(strip_bytes):
                whole[begin + at :: width] = part[at::strip_bytes]
        begin += strip_bytes
    return whole


def build_header(entries: Mapping[str, Stored]) -> bytes:
    """The length field and the padded JSON of a blob whose data are the bytes of these entries, in
    this order."""
    header: dict[str, Any] = {}
    position = 0
    for name, stored in entries.items():
        end = position + stored.nbytes
        header[name] = {
            "dtype": stored.dtype,
            "shape": list(stored.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
    padded = -(-(_LENGTH_BYTES + len(text)) // ALIGNMENT) * ALIGNMENT - _LENGTH_BYTES
    return padded.to_bytes(_LENGTH_BYTES, "little") + text.ljust(padded)


def header_size(prefix: bytes, blob_bytes: int) -> int:
    """Where the data start in the blob, from its first 8 bytes.

    Raises:
        TapeError: ``damaged`` or ``limit``, before memory is allocated.
    """
    if min(len(prefix), blob_bytes) < _LENGTH_BYTES:
        raise TapeError("damaged", f"a blob of {blob_bytes} bytes is too short for a header")
    length = int.from_bytes(prefix[:_LENGTH_BYTES], "little")
    if length > most(MAX_HEADER_BYTES):
        reason = f"a safetensors header has {length} bytes (at most {most(MAX_HEADER_BYTES)})"
        raise TapeError("limit", reason)
    if _LENGTH_BYTES + length > blob_bytes:
        raise TapeError("damaged", f"a header has {length} bytes, but its blob has {blob_bytes}")
    return _LENGTH_BYTES + length


def parse_header(header: bytes, blob_bytes: int) -> dict[str, Entry]:
    """The entries of a blob, from the bytes of its header with the length field.

    The checks are those of the safetensors library: sizes match shapes, and tensors cover the data
    from the first to the last byte without gap or overlap. A dtype may be of a later version
    (:func:`is_known`).

    Raises:
        TapeError: ``invalid``, ``damaged`` or ``limit``, before any tensor memory is allocated.
    """
    start = header_size(header, blob_bytes)
    document = _parse_json(header[_LENGTH_BYTES:start])
    if not is_map(document):
        raise TapeError("invalid", "the safetensors header is not a JSON object")
    tensors: dict[str, Any] = document
    _check_nesting(tensors.pop("__metadata__", None), 1)
    if len(tensors) > most(MAX_LEAVES):
        raise TapeError("limit", f"a blob has {len(tensors)} tensors (at most {most(MAX_LEAVES)})")
    entries = {name: _entry(name, facts) for name, facts in tensors.items()}
    _check_coverage(entries, blob_bytes - start)
    return entries


def _parse_json(text: bytes) -> Any:
    # The three bytes "[]," become sixty bytes in a reader. A tensor needs three brackets, and its
    # name may have more.
    if text.count(b"[") + text.count(b"{") > most(MAX_HEADER_BRACKETS):
        raise TapeError("limit", f"a header has more than {most(MAX_HEADER_BRACKETS)} brackets")
    if text[:1] != b"{":
        raise TapeError("invalid", "the safetensors header does not start with a brace")
    # Python rejects an int of thousands of digits, which JSON allows. Short headers have none.
    parse_int = _int_of if len(text) > _MAX_DIGITS else None
    try:
        return json.loads(
            text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant,
            parse_int=parse_int,
        )  # fmt: skip
    except (ValueError, RecursionError) as error:
        raise TapeError("damaged", f"the safetensors header is not JSON: {error}") from None


_MAX_DIGITS = 640  # the lowest limit that an interpreter accepts for ints


def _int_of(text: str) -> int | float:
    """An int of JSON. One that is too large for any field becomes NaN, which no field allows."""
    return int(text) if len(text) <= 20 else math.nan


def _no_constant(name: str) -> None:
    """Rejects ``NaN`` and ``Infinity``, which Python accepts but JSON does not have."""
    raise ValueError(f"{name} is not valid JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise TapeError("invalid", "the safetensors header names a tensor twice")
    return document


def _entry(name: str, facts: Any) -> Entry:
    if not is_map(facts):
        raise TapeError("invalid", f"tensor {name[:80]!r} is not described by an object")
    dtype, shape = facts.get("dtype"), _naturals(facts.get("shape"))
    offsets = _naturals(facts.get("data_offsets"))
    if len(facts) > 3:
        _check_nesting(facts, 1)
    if not isinstance(dtype, str) or not 0 < len(dtype) <= _MAX_DTYPE or _SURROGATES.search(dtype):
        raise TapeError("invalid", f"tensor {name[:80]!r} has no valid dtype")
    # One axis more than a tensor may have: complex numbers are stored with a last axis of 2.
    if shape is None or len(shape) > MAX_RANK + 1:
        raise TapeError("invalid", f"tensor {name[:80]!r} has no valid shape")
    if offsets is None or len(offsets) != 2:
        raise TapeError("invalid", f"tensor {name[:80]!r} has no valid data_offsets")
    begin, end = offsets
    if dtype not in DTYPE_BITS:
        if end < begin:
            raise TapeError("invalid", f"tensor {name[:80]!r} ends before it begins")
        return Entry(dtype, shape, begin, end)  # of a later version: it costs this tensor only
    if math.prod(shape) * DTYPE_BITS[dtype] != (end - begin) * 8:
        shown = "x".join(map(str, shape))[:80]
        reason = f"tensor {name[:80]!r}: {end - begin} bytes for {dtype} of {shown}"
        raise TapeError("invalid", reason)
    return Entry(dtype, shape, begin, end)


def _check_nesting(value: Any, above: int) -> None:
    """Raises if a value that this reader skips is nested too deep for parsers that recurse."""
    level = [value]
    for _ in range(above, MAX_HEADER_NESTING + 1):
        below = [
            one.values() if is_map(one) else one for one in level if is_map(one) or is_list(one)
        ]
        if not below:
            return
        level = [item for items in below for item in items]
    raise TapeError("damaged", f"a header nests deeper than {MAX_HEADER_NESTING}")


def _naturals(value: Any) -> tuple[int, ...] | None:
    """The integers of a JSON array of unsigned 63-bit integers; None for anything else."""
    if not is_list(value):
        return None
    if not all(type(item) is int and 0 <= item <= 2**63 - 1 for item in value):
        return None
    return tuple(value)


def _check_coverage(entries: Mapping[str, Entry], data_bytes: int) -> None:
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != position:
            raise TapeError("invalid", f"tensor {name[:80]!r} overlaps another or leaves a gap")
        position = entry.end
    if position != data_bytes:
        reason = f"there are {data_bytes} bytes of tensor data, but {position} are described"
        raise TapeError("invalid", reason)
