"""Safetensors headers: what we write, what we refuse, and what the safetensors library says."""

from __future__ import annotations

import json
import math
import tracemalloc
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
from calltape_schema.bounds import CHECKED_BYTES, MAX_HEADER_BRACKETS, MAX_HEADER_BYTES, MAX_RANK
from calltape_schema.errors import TapeError
from calltape_schema.packing import u32s
from calltape_schema.sections import checksums_of, steps_of
from calltape_schema.tree import Leaf
from tests.schema.raising import raises

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


@pytest.mark.parametrize("dtype", sorted(blob._DTYPE_BITS))
def test_sizes_of_dtypes_are_those_of_safetensors(dtype: str) -> None:
    # 8 elements are whole bytes for every dtype.
    size = blob._DTYPE_BITS[dtype]
    header = build_header({"x": Stored(dtype, (8,), size)})
    assert parse_header(header, len(header) + size)["x"].end == size
    ((name, tensor),) = safetensors.deserialize(header + bytes(size))
    assert (name, tensor["dtype"], len(tensor["data"])) == ("x", dtype, size)


def header_of(document: Any) -> bytes:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return len(text).to_bytes(8, "little") + text


def described(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


GOOD = described()


@pytest.mark.parametrize(
    ("document", "data_bytes", "match"),
    [
        ({"a": GOOD, "b": GOOD}, 8, "overlaps"),
        ({"a": GOOD, "b": described(offsets=(4, 12))}, 12, "overlaps"),
        ({"a": described(offsets=(8, 16))}, 16, "gap"),
        ({"a": GOOD, "b": described(offsets=(12, 20))}, 20, "gap"),
        ({"a": GOOD}, 16, "there are 16 bytes of tensor data, but 8 are described"),
        ({"a": GOOD}, 4, "4 bytes of tensor data"),
        ({}, 1, "1 bytes of tensor data"),
        ({"a": described(offsets=(8, 0))}, 8, "-8 bytes"),
        ({"a": described(shape=(3,))}, 8, "8 bytes for F32 of 3"),
        ({"a": described(shape=(2**62 + 2**61, 4))}, 8, "8 bytes for F32"),
        ({"a": described(shape=(-1, -2))}, 8, "no valid shape"),
        ({"a": described(shape=(2.0,))}, 8, "no valid shape"),
        ({"a": described(shape=(True, 2))}, 8, "no valid shape"),
        ({"a": described(shape=(2**63,))}, 8, "no valid shape"),
        ({"a": described(shape="2")}, 8, "no valid shape"),
        ({"a": described(shape=[1] * (MAX_RANK + 2))}, 4, "no valid shape"),
        ({"a": described(offsets=(0,))}, 8, "no valid data_offsets"),
        ({"a": described(offsets=(-8, 0))}, 8, "no valid data_offsets"),
        ({"a": described(offsets=(2**70, 2**70 + 8))}, 8, "no valid data_offsets"),
        ({"a": described(offsets=None)}, 8, "no valid data_offsets"),
        ({"a": described(dtype="F" * 65)}, 8, "no valid dtype"),
        ({"a": described(dtype=["F32"])}, 8, "no valid dtype"),
        ({"a": described(dtype="F33", offsets=(8, 0))}, 8, "ends before it begins"),
        ({"a": 5}, 8, "not described by an object"),
        ([], 0, "does not start with a brace"),
        (b' {"a": 1}', 0, "does not start with a brace"),
        (b'{"a":{},"a":{}}', 0, "names a tensor twice"),
        (b'{"a":{"dtype":"F32","dtype":"F32"}}', 0, "twice"),
    ],
)
def test_headers_that_lie(document: Any, data_bytes: int, match: str) -> None:
    header = header_of(document)
    with raises("invalid", match):
        parse_header(header, len(header) + data_bytes)


@pytest.mark.parametrize(
    "text",
    [b"{", b"{oh no}", b'{"\xff":1}', b'{"a":' + b"[" * 60_000,
     b"{}{}", b'{"a":1,}', b'{"a":NaN}', b'{"a":-Infinity}'],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
def test_headers_that_are_not_json(text: bytes) -> None:
    with raises("damaged", "not JSON"):
        parse_header(header_of(text), 8 + len(text))


@pytest.mark.parametrize("digits", [20, 641, 5000, 100_000])
def test_an_int_of_any_length_is_json(digits: int) -> None:
    """Python makes no int of thousands of digits; other languages do not mind."""
    known = json.dumps(GOOD)[:-1].encode()
    header = header_of(b'{"a":' + known + b',"later":' + b"9" * digits + b"}}")
    assert [*parse_header(header, len(header) + 8)] == ["a"]
    header = header_of(
        known.replace(b"[0, 8]", b"[0, " + b"9" * digits + b"]").join((b'{"a":', b"}}"))
    )
    with raises("invalid", "data_offsets"):
        parse_header(header, len(header) + 8)


STEP = CHECKED_BYTES


@pytest.mark.parametrize("size", [0, 1, STEP - 1, STEP, STEP + 1, 2 * STEP, 3 * STEP + 7])
@pytest.mark.parametrize("cut", [1, STEP - 3, STEP, 2 * STEP + 5])
def test_checksums_of_parts(size: int, cut: int) -> None:
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


def test_header_sizes_are_checked_before_anything_is_read() -> None:
    with raises("limit"):
        header_size((MAX_HEADER_BYTES + 1).to_bytes(8, "little"), 2**60)
    with raises("limit"):
        header_size(b"\xff" * 8, 2**63)
    with raises("damaged", "too short"):
        header_size(b"abc", 3)
    with raises("damaged", "too short"):
        header_size(bytes(8), 0)
    with raises("damaged", "a header has 9 bytes, but its blob has 16"):
        header_size((9).to_bytes(8, "little"), 16)
    assert header_size((8).to_bytes(8, "little"), 16) == 16


def test_a_header_that_grows_in_memory_is_refused_first() -> None:
    text = b'{"a":[' + b"[]," * MAX_HEADER_BRACKETS + b"1]}"
    header = header_of(text)
    tracemalloc.start()
    try:
        with raises("limit"):
            parse_header(header, len(header))
        assert tracemalloc.get_traced_memory()[1] < 4 * len(header)
    finally:
        tracemalloc.stop()


def test_too_many_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calltape_schema.blob.MAX_LEAVES", most := 100)
    empty = described(shape=(0,), offsets=(0, 0))
    parse_header(full := header_of({str(i): empty for i in range(most)}), len(full))
    header = header_of({str(i): empty for i in range(most + 1)})
    with raises("limit"):
        parse_header(header, len(header))


def test_metadata_is_skipped() -> None:
    header = header_of({"__metadata__": {"format": "pt"}, "a": GOOD})
    assert [*parse_header(header, len(header) + 8)] == ["a"]


def test_names_of_strangers_are_cut_in_messages() -> None:
    header = header_of({"x" * 10_000: 5})
    with raises("invalid") as caught:
        parse_header(header, len(header))
    assert len(str(caught.value)) < 300


@given(st.binary(max_size=80), st.integers(0, 100))
def test_random_bytes_raise_nothing_else(text: bytes, more: int) -> None:
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


def test_a_tensor_of_64_complex_axes_fits_into_a_blob() -> None:
    entry = stored_of("complex128", (1,) * 64)
    assert entry is not None
    header = build_header({"x": entry})
    assert len(parse_header(header, len(header) + 16)["x"].shape) == 65


def test_every_dtype_of_torch_is_stored_in_full() -> None:
    torch = pytest.importorskip("torch")
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    without_encoding = {"quint4x2", "quint2x4"}
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        entry = stored_of(name, (3,))
        if name in without_encoding:
            assert entry is None
        else:
            assert entry is not None, f"{name} is new: say in FORMAT.md how it is stored"
            assert entry.nbytes == 3 * dtype.itemsize
