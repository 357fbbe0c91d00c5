"""The summary of a sealed tape: the distinct inputs of its calls, and how many calls had them.

A reader that wants to know what a model was called with reads this member, instead of a record for
every call. :mod:`calltape_schema.summing` makes it while calls are written.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter, model_validator
from typing_extensions import Self

from calltape_schema.endings import Ending
from calltape_schema.errors import TapeError
from calltape_schema.fields import Count, Int64, Many, Nanoseconds, Record
from calltape_schema.interning import MAX_NODES
from calltape_schema.packing import is_array, open_envelope, unpack
from calltape_schema.records import Tree, decode_record, encode_record

__all__ = [
    "LARGE_BYTES",
    "LEAST_CALLS",
    "LENGTH_BYTES",
    "MAX_COST",
    "MAX_INPUTS",
    "MAX_INPUT_BYTES",
    "MAX_RANGES",
    "SCALAR_COST",
    "Inputs",
    "InputsRow",
    "Summary",
    "counts_in",
    "decode_summary",
    "encode_summary",
]

MAX_INPUTS = 65_536
MAX_INPUT_BYTES = 16 * 1024 * 1024
MAX_RANGES = 65_536

LENGTH_BYTES = 4
LARGE_BYTES = 64 * 1024
"""A structure, or leaves, of more bytes count in each row: a reader may decode them for each."""
MAX_COST = 4 * MAX_INPUT_BYTES

LEAST_CALLS = 256
"""Fewer calls are read as fast as a summary of them."""

SCALAR_COST = 64
"""What an encoded scalar can cost as a Python object, per byte."""


class InputsRow(NamedTuple):
    """Inputs that calls had, with these calls.

    Attributes:
        structure, leaves, scalars: as in the ``inputs`` of their records.
        raised: whether the calls raised; calls that did not have a row of their own.
        calls: how many they are.
        first, last: the lowest and the highest of their numbers.
        ranges: per integer leaf the smallest and the largest element, in all these calls.
    """

    structure: bytes
    leaves: bytes
    scalars: tuple[Any, ...]
    raised: bool
    calls: int
    first: int
    last: int
    ranges: dict[int, tuple[int, int]]

    def tree(self) -> Tree:
        """The inputs as in a record.

        Raises:
            TapeError: ``invalid``.
        """
        return decode_record(
            _trees,
            {
                "structure": self.structure,
                "leaves": self.leaves,
                "scalars": self.scalars,
                "ranges": tuple(
                    {"leaf": leaf, "min": low, "max": high}
                    for leaf, (low, high) in self.ranges.items()
                ),
            },
            "a row of the summary",
        )


class Inputs(Record):
    """The distinct inputs of all calls: a table of which the columns are packed.

    Attributes:
        size: how many bytes ``packed`` has after it is inflated.
        packed: per row a length (4 bytes, little-endian) and a msgpack document of that length: an
            array of structure, leaves and scalars. In the place of a structure, or of leaves, that
            an earlier row has, stands the number of it, counted from 0. All rows together are
            deflated in the format of zlib.
        calls, firsts, lasts: per row 64-bit ints, little-endian: how many calls, and the lowest and
            the highest of their numbers.
        raised: per row a byte, 1 if the calls raised.
        ranges: the ranges of integer leaves, each as row, leaf, smallest, largest.
    """

    size: Annotated[int, Field(ge=0, le=MAX_INPUT_BYTES)]
    packed: bytes
    calls: bytes
    firsts: bytes
    lasts: bytes
    raised: Annotated[bytes, Field(max_length=MAX_INPUTS)]
    ranges: Annotated[
        Many[
            tuple[
                Annotated[int, Field(ge=0, lt=MAX_INPUTS)],
                Annotated[int, Field(ge=0, lt=MAX_NODES)],
                Int64,
                Int64,
            ]
        ],
        Field(max_length=MAX_RANGES),
    ] = ()

    @model_validator(mode="after")
    def _columns_fit(self) -> Self:
        rows = len(self.raised)
        if {len(self.calls), len(self.firsts), len(self.lasts)} != {8 * rows}:
            raise ValueError("columns of different lengths")
        if any(row >= rows or low > high for row, _, low, high in self.ranges):
            raise ValueError("a range of no row, or without an element")
        if not set(self.raised) <= {0, 1}:
            raise ValueError("a flag that is neither 0 nor 1")
        return self

    def __len__(self) -> int:
        return len(self.raised)

    def inflated(self) -> bytes:
        """The bytes of all rows.

        Raises:
            TapeError: ``damaged``.
        """
        return _inflated(self.packed, self.size)

    def rows(self) -> Iterator[InputsRow]:
        """The rows, in the order of the member. Trees are not validated yet.

        Raises:
            TapeError: ``damaged`` or ``limit``.
        """
        ranges: dict[int, dict[int, tuple[int, int]]] = {}
        for row, leaf, low, high in self.ranges:
            ranges.setdefault(row, {})[leaf] = low, high
        calls, firsts, lasts = map(counts_in, (self.calls, self.firsts, self.lasts))
        reader = _Rows(self.inflated())
        for row, raised in enumerate(self.raised):
            structure, leaves, scalars = reader.next()
            yield InputsRow(
                structure, leaves, scalars, bool(raised), calls[row], firsts[row], lasts[row],
                ranges.get(row, {}),
            )  # fmt: skip
        reader.expect_end()


class Summary(Ending):
    """What a sealed tape says of all its calls, without the place of each.

    Attributes:
        first_call, last_call: the lowest and the highest number of a kept call; None without calls.
        first_ns, last_ns: when the first call began and the last one ended, Unix time in
            nanoseconds.
        raised: how many kept calls raised.
        tensor_bytes: the size of all blobs.
        inputs: what the calls were called with; None if there were too many different inputs.
    """

    first_call: Count | None = None
    last_call: Count | None = None
    first_ns: Nanoseconds | None = None
    last_ns: Nanoseconds | None = None
    raised: Count = 0
    tensor_bytes: Count = 0
    inputs: Inputs | None = None

    @model_validator(mode="after")
    def _counts_fit(self) -> Self:
        kept = self.coverage.kept
        if self.raised > kept:
            raise ValueError(f"{self.raised} of {kept} calls raised")
        if self.inputs is not None:
            counted = counts_in(self.inputs.calls)
            if sum(counted) != kept or 0 in counted:
                raise ValueError(f"inputs of {sum(counted)} calls, and {kept} were kept")
            ends = list(zip(*map(counts_in, (self.inputs.firsts, self.inputs.lasts)), strict=True))
            if any(first > last for first, last in ends) or (
                min((first for first, _ in ends), default=None),
                max((last for _, last in ends), default=None),
            ) != (self.first_call, self.last_call):
                raise ValueError("numbers of calls that contradict each other")
            raised = sum(n for n, one in zip(counted, self.inputs.raised, strict=True) if one)
            if raised != self.raised:
                raise ValueError(f"inputs of {raised} calls that raised, and {self.raised} did")
        return self


def counts_in(data: bytes) -> array[int]:
    """The 64-bit ints of a column."""
    found = array("Q")
    found.frombytes(data)
    if sys.byteorder != "little":
        found.byteswap()
    return found


_summaries: TypeAdapter[Summary] = TypeAdapter(Summary)
_trees: TypeAdapter[Tree] = TypeAdapter(Tree)


def encode_summary(summary: Summary) -> bytes:
    """The content of the member ``summary.msgpack``.

    Raises:
        TapeError: ``limit``.
    """
    return encode_record(summary)


def decode_summary(data: bytes) -> Summary:
    """The summary of a sealed tape. Its rows are not unpacked yet.

    Raises:
        TapeError: ``damaged``, ``invalid`` or ``limit``.
    """
    return decode_record(_summaries, unpack(open_envelope(data)), "summary")


def _inflated(packed: bytes, size: int) -> bytes:
    """What was deflated. It is never more than was announced."""
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(packed, size + 1)
        if len(data) != size:
            raise _broken(f"they are not {size} bytes")
    except zlib.error as error:
        raise _broken(str(error)) from None
    if not inflater.eof or inflater.unused_data:
        raise _broken("something follows them")
    return data


class _Rows:
    """Reads one row after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._cost = 0
        self._structures: list[bytes] = []
        self._leaves: list[bytes] = []

    def next(self) -> tuple[bytes, bytes, tuple[Any, ...]]:
        start = self._at + LENGTH_BYTES
        end = start + int.from_bytes(self._data[self._at : start], "little")
        if end > len(self._data):
            raise _broken("a row is cut short")
        self._at = end
        document = unpack(self._data[start:end])
        if not is_array(document) or len(document) != 3 or not is_array(document[2]):
            raise _broken("a row is no array of three")
        before = self._cost
        structure = self._part(document[0], self._structures)
        leaves = self._part(document[1], self._leaves)
        self._cost += SCALAR_COST * (end - start - (self._cost - before))
        self._cost += sum(len(part) for part in (structure, leaves) if len(part) > LARGE_BYTES)
        if self._cost > MAX_COST:
            raise TapeError("limit", "the inputs of the summary take too much memory")
        return structure, leaves, document[2]

    def _part(self, part: Any, known: list[bytes]) -> bytes:
        if type(part) is bytes:
            known.append(part)
            self._cost += len(part)
            return part
        if type(part) is int and 0 <= part < len(known):
            return known[part]
        raise _broken("a row refers to no earlier row")

    def expect_end(self) -> None:
        if self._at != len(self._data):
            raise _broken("there are more rows than counts")


def _broken(why: str) -> TapeError:
    return TapeError("damaged", f"the inputs of the summary cannot be unpacked: {why}")
