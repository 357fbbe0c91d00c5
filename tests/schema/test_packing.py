"""msgpack under limits, and the envelope."""

from __future__ import annotations

import math
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calltape_schema.bounds import MAX_DOCUMENT_BYTES, MAX_DOCUMENT_TOKENS, MAX_INT_BYTES
from calltape_schema.errors import TapeError
from calltape_schema.packing import open_envelope, pack, pack_int, pack_text, seal_envelope, unpack
from tests.schema.raising import raises

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=()))
    | st.binary(),
    lambda inner: st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
)


@given(PLAIN)
def test_plain_data_comes_back(document: Any) -> None:
    assert unpack(pack(document)) == document


def test_nan_and_signed_zero_come_back_bit_by_bit() -> None:
    values = unpack(pack([math.nan, -0.0, math.inf]))
    assert struct.pack("<3d", *values) == struct.pack("<3d", math.nan, -0.0, math.inf)


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, -(2**63), 2**64, -(2**63) - 1, 10**300])
def test_wide_ints(value: int) -> None:
    assert unpack(pack(value)) == value
    assert unpack(msgpack.packb(pack_int(value))) == value


def test_an_int_that_no_reader_accepts_is_not_written() -> None:
    assert unpack(pack(2 ** (8 * MAX_INT_BYTES - 2))) > 0
    with raises("limit"):
        pack([2 ** (8 * MAX_INT_BYTES)])


@pytest.mark.parametrize("text", ["", "é漢", "\ud800", "a\udfff\ud800b"])
def test_any_text(text: str) -> None:
    assert unpack(msgpack.packb(pack_text(text))) == text
    assert unpack(pack({"nested": [text]})) == {"nested": (text,)}


def test_what_is_not_plain_data_is_refused_on_writing() -> None:
    with pytest.raises(TypeError, match="object is not plain data"):
        pack([object()])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x80\x80",
        b"\x92\x01",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\x82\xa1a\x01\xa1a\x02",
        b"\x81\x01\x02",
        b"\x81\x90\x02",
        b"\xa2\xff\xfe",
        b"\xc7\x00\x01",
        b"\xc8\x04\x01\x01" + b"\1" * 1025,
        b"\xd4\x02\xff",
        b"\x91" * 100_000 + b"\xc0",
    ],
    ids=lambda data: data[:6].hex() or "empty",
)
def test_damaged_documents(data: bytes) -> None:
    with raises("damaged"):
        unpack(data)


@pytest.mark.parametrize("data", [
    b"\xd4\x05\x00", b"\xd6\xff\0\0\0\1", b"\xc7\x0c\xff" + bytes(12), b"\x91\xd4\x7f\0",
])  # fmt: skip
def test_extension_types_of_a_later_version(data: bytes) -> None:
    with raises("unsupported"):
        unpack(data)


def test_bytes_that_look_like_a_timestamp_are_none() -> None:
    assert unpack(pack([b"\xd6\xff", "x"])) == (b"\xd6\xff", "x")


def memory_of(action: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refused(data: bytes, kind: str) -> None:
    with raises(kind):
        unpack(data)


@pytest.mark.parametrize("count", [500, 8000, 200_000])
def test_nested_arrays_that_announce_much_cost_nothing(count: int) -> None:
    # Each of 500 levels announces as many elements as there are bytes, which a decoder would
    # make room for: 8 bytes times 500 times count.
    data = (b"\xdd" + struct.pack(">I", count)) * 500 + bytes(count)
    assert memory_of(lambda: refused(data, "damaged")) < max(16_000_000, 4 * len(data))


def test_a_small_document_cannot_announce_much_either() -> None:
    data = (b"\xdd" + struct.pack(">I", 3000)) * 200 + bytes(3000)
    assert len(data) < 4096
    assert memory_of(lambda: refused(data, "damaged")) < 64_000_000


def test_too_many_values_are_refused_before_they_are_made() -> None:
    count = MAX_DOCUMENT_TOKENS + 1
    data = b"\xdd" + struct.pack(">I", count) + b"\x90" * count
    assert memory_of(lambda: refused(data, "limit")) < 1_000_000
    maps = b"\xdd" + struct.pack(">I", count // 2) + b"\x81\xa0\x01" * (count // 2)
    assert memory_of(lambda: refused(maps, "limit")) < 1_000_000


def test_values_up_to_the_limit_are_read() -> None:
    values = [0] * (MAX_DOCUMENT_TOKENS - 1)
    assert len(unpack(pack(values))) == len(values)


@given(PLAIN)
def test_the_count_of_values_agrees_with_the_decoder(document: Any) -> None:
    # Beyond the size from which values are counted, every valid document must still pass.
    padded = {"document": document, "padding": bytes(5000)}
    assert unpack(pack(padded)) == padded


@given(st.binary(max_size=64), st.integers(0, 5000))
def test_random_bytes_raise_nothing_else(data: bytes, padding: int) -> None:
    for candidate in (data, data + bytes(padding), b"\xdd\0\0\0\2" + data + bytes(padding)):
        with suppress(TapeError):  # nothing else may come out
            unpack(candidate)


def test_a_document_that_is_too_large() -> None:
    with raises("limit"):
        unpack(bytes(MAX_DOCUMENT_BYTES + 1))
    with raises("limit"):
        seal_envelope(bytes(MAX_DOCUMENT_BYTES))


def test_envelope() -> None:
    assert seal_envelope(pack({"a": 1})).hex() == "92cea7fa5365c40481a16101"
    assert open_envelope(seal_envelope(b"payload")) == b"payload"
    assert open_envelope(pack([zlib.crc32(b"x"), b"x", "a later field", {}])) == b"x"


@pytest.mark.parametrize(
    "envelope",
    [{}, [], [1], [0, b"x"], ["0", b""], [0.0, b""], [0, ""], [True, b""], b"x", None],
    ids=repr,
)
def test_damaged_envelopes(envelope: Any) -> None:
    with raises("damaged"):
        open_envelope(pack(envelope))


@given(st.binary(max_size=64), st.data())
def test_no_flipped_bit_passes(payload: bytes, data: st.DataObject) -> None:
    sealed = bytearray(seal_envelope(payload))
    position = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[position // 8] ^= 1 << position % 8
    with suppress(TapeError):
        assert open_envelope(bytes(sealed)) == payload


def test_no_byte_after_a_document_is_looked_at() -> None:
    """16 MiB of zeros are one value, and cost seconds: each was counted as another one."""

    class Looked(bytes):
        places: ClassVar[list[int]] = []

        def __getitem__(self, place: Any) -> Any:
            self.places.append(place)
            return super().__getitem__(place)

    with pytest.raises(TapeError, match="extra data"):
        unpack(Looked(bytes(2**16)))
    assert Looked.places == [0]
