"""msgpack under limits, and the envelope."""

from __future__ import annotations

import math
import struct
import zlib
from contextlib import suppress
from typing import Any, ClassVar

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calltape_schema.bounds import MAX_DOCUMENT_BYTES, MAX_DOCUMENT_TOKENS, MAX_INT_BYTES
from calltape_schema.errors import TapeError
from calltape_schema.packing import open_envelope, pack, pack_int, pack_text, seal_envelope, unpack
from tests.raising import raises
from tests.schema.container.tapes import peak_of

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
    # From this size on values are counted, and every valid document must still pass.
    padded = {"document": document, "padding": bytes(5000)}
    assert unpack(pack(padded)) == padded


def test_nan_and_signed_zero_come_back_bit_by_bit() -> None:
    values = unpack(pack([math.nan, -0.0, math.inf]))
    assert struct.pack("<3d", *values) == struct.pack("<3d", math.nan, -0.0, math.inf)


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, -(2**63), 2**64, -(2**63) - 1, 10**300])
def test_wide_ints_are_unpacked_as_packed(value: int) -> None:
    assert unpack(pack(value)) == value
    assert unpack(msgpack.packb(pack_int(value))) == value


def test_the_bytes_of_wide_ints_are_no_values() -> None:
    padding = bytes(5000)  # from this size on values are counted
    for last in range(256):
        document = {"wide": 2**72 + last, "padding": padding}
        assert unpack(pack(document)) == document


def test_an_int_that_no_reader_accepts_is_not_written() -> None:
    assert unpack(pack(2 ** (8 * MAX_INT_BYTES - 2))) > 0
    with raises("limit"):
        pack([2 ** (8 * MAX_INT_BYTES)])


@pytest.mark.parametrize("text", ["", "é漢", "\ud800", "a\udfff\ud800b"])
def test_any_text_is_unpacked_as_packed(text: str) -> None:
    assert unpack(msgpack.packb(pack_text(text))) == text
    assert unpack(pack({"nested": [text]})) == {"nested": (text,)}


def test_what_is_not_plain_data_is_refused_on_writing() -> None:
    with pytest.raises(TypeError, match="object is not plain data"):
        pack([object()])


MORE = MAX_DOCUMENT_TOKENS + 1


@pytest.mark.parametrize(
    ("data", "kind", "most"),
    [
        # Each of 500 levels announces as many elements as there are bytes, which a decoder would
        # make room for: 8 bytes times 500 times the count.
        *(((b"\xdd" + struct.pack(">I", n)) * 500 + bytes(n), "damaged", max(16_000_000, 4 * n))
          for n in (500, 8000, 200_000)),
        ((b"\xdd" + struct.pack(">I", 3000)) * 200 + bytes(3000), "damaged", 64_000_000),
        (b"\xdd" + struct.pack(">I", MORE) + b"\x90" * MORE, "limit", 1_000_000),
    ],
    ids=range(5),
)  # fmt: skip
def test_what_a_document_announces_costs_little(data: bytes, kind: str, most: int) -> None:
    def ask() -> None:
        with raises(kind):
            unpack(data)

    assert peak_of(ask) < most


def test_values_up_to_the_limit_are_read() -> None:
    values = [0] * (MAX_DOCUMENT_TOKENS - 1)
    assert len(unpack(pack(values))) == len(values)


@given(st.binary(max_size=64), st.integers(0, 5000))
def test_random_documents_raise_only_tape_errors(data: bytes, padding: int) -> None:
    for candidate in (data, data + bytes(padding), b"\xdd\0\0\0\2" + data + bytes(padding)):
        with suppress(TapeError):  # nothing else may come out
            unpack(candidate)


def test_a_document_that_is_too_large_is_rejected() -> None:
    with raises("limit"):
        unpack(bytes(MAX_DOCUMENT_BYTES + 1))
    with raises("limit"):
        seal_envelope(bytes(MAX_DOCUMENT_BYTES))


def test_an_envelope_has_a_checksum_and_room_for_later_fields() -> None:
    assert seal_envelope(pack({"a": 1})).hex() == "92cea7fa5365c40481a16101"
    assert open_envelope(seal_envelope(b"payload")) == b"payload"
    assert open_envelope(pack([zlib.crc32(b"x"), b"x", "a later field", {}])) == b"x"


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
