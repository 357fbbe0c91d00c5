"""Safetensors headers: what we write, what we refuse, and what the safetensors library says."""

from __future__ import annotations

import json
import math
import zlib
from contextlib import suppress
from typing import Any

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from calltape_schema import blob
from calltape_schema.blob import (
    ALIGNMENT,
    Stored,
    build_header,
    header_size,
    parse_header,
    stored_as,
)
from calltape_schema.bounds import CHECKED_BYTES, MAX_HEADER_BRACKETS
from calltape_schema.errors import TapeError
from calltape_schema.packing import u32s
from calltape_schema.sections import checksums_of, steps_of
from calltape_schema.tree import Leaf
from tests.raising import raises
from tests.schema.container.tapes import peak_of

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
DTYPES = {"U8": 1, "F16": 2, "F32": 4, "I64": 8, "C64": 8, "BOOL": 1, "F8_E4M3": 1}
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def stored(dtype: str, shape: tuple[int, ...]) -> Stored:
    return Stored(dtype, shape, math.prod(shape) * DTYPES[dtype])


ENTRIES = st.dictionaries(
    NAMES, st.builds(stored, st.sampled_from(sorted(DTYPES)), SHAPES), max_size=5
)


@given(ENTRIES)
def test_headers_come_back_and_safetensors_reads_them(entries: dict[str, Stored]) -> None:
    entries.pop("__metadata__", None)
    header = build_header(entries)
    size = sum(entry.nbytes for entry in entries.values())
    data = bytes(index % 2 for index in range(size))
    assert len(header) % ALIGNMENT == 0
    assert header_size(header[:8], len(header) + size) == len(header)
    parsed = parse_header(header, len(header) + size)
    assert [*parsed] == [*entries]
    theirs = dict(safetensors.deserialize(header + data))
    assert set(theirs) == set(entries)
    for name, entry in parsed.items():
        assert (entry.dtype, entry.shape) == entries[name][:2]
        assert theirs[name]["dtype"] == entry.dtype
        assert theirs[name]["shape"] == list(entry.shape)
        assert theirs[name]["data"] == data[entry.begin : entry.end]


@pytest.mark.parametrize("dtype", sorted(blob.DTYPE_BITS))
def test_sizes_of_dtypes_are_those_of_safetensors(dtype: str) -> None:
    # 8 elements are whole bytes for every dtype.
    size = blob.DTYPE_BITS[dtype]
    header = build_header({"x": Stored(dtype, (8,), size)})
    assert parse_header(header, len(header) + size)["x"].end == size
    ((name, tensor),) = safetensors.deserialize(header + bytes(size))
    assert (name, tensor["dtype"], len(tensor["data"])) == ("x", dtype, size)


def header_of(document: Any) -> bytes:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return len(text).to_bytes(8, "little") + text


STEP = CHECKED_BYTES


@pytest.mark.parametrize("size", [0, 1, STEP - 1, STEP, STEP + 1, 2 * STEP, 3 * STEP + 7])
@pytest.mark.parametrize("cut", [1, STEP - 3, STEP, 2 * STEP + 5])
def test_checksums_of_parts_are_those_of_the_whole(size: int, cut: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    cut = max(cut, size // 50 + 1)
    found = checksums_of([data[at : at + cut] for at in range(0, size, cut)])
    ends = range(STEP, size, STEP)
    assert found.whole == zlib.crc32(data)
    assert [*u32s(found.steps)] == [zlib.crc32(data[:end]) for end in ends]
    assert steps_of(size) == len(ends)
    for end, before in zip([*ends, size], [0, *u32s(found.steps)], strict=True):
        part = data[(end - 1) // STEP * STEP : end]
        assert zlib.crc32(part, before) == zlib.crc32(data[:end])


def test_a_header_that_grows_in_memory_is_refused_first() -> None:
    text = b'{"a":[' + b"[]," * MAX_HEADER_BRACKETS + b"1]}"
    header = header_of(text)

    def ask() -> None:
        with raises("limit"):
            parse_header(header, len(header))

    assert peak_of(ask) < 4 * len(header)


@given(st.binary(max_size=80), st.integers(0, 100))
def test_random_headers_raise_only_tape_errors(text: bytes, more: int) -> None:
    for candidate in (text, header_of(text), header_of(b"{" + text)):
        with suppress(TapeError):  # nothing else may come out
            parse_header(candidate, len(candidate) + more)


def test_how_a_leaf_is_stored() -> None:
    assert stored_of("float32", (2, 3)) == ("F32", (2, 3), 24)
    assert stored_of("float32", (4, 5, 6), expanded=(0, 2)) == ("F32", (1, 5, 1), 20)
    assert stored_of("float32", (0, 5), expanded=(0,)) == ("F32", (1, 5), 20)
    assert stored_of("complex128", (3,)) == ("F64", (3, 2), 48)
    assert stored_of("complex128", (1,) * 64) == ("F64", (1,) * 64 + (2,), 16)
    assert stored_of("bits16", ()) == ("U8", (2,), 2)
    assert stored_of("qint32", (2,)) == ("I32", (2,), 8)
    assert stored_of("uint4", (2,)) == ("U8", (2, 1), 2)
    assert stored_of("quint4x2", (2,)) is None
    assert stored_of("nonsense", (2,)) is None


def stored_of(dtype: str, shape: tuple[int, ...], **facts: Any) -> Stored | None:
    return stored_as(Leaf(dtype=dtype, shape=shape, missing="none", **facts))
