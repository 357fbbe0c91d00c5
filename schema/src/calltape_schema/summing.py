"""Makes the summary of a tape while its calls are written, in bounded memory.

In come facts of each call that was written, in any order. Out goes what :class:`Summary
<calltape_schema.summary.Summary>` says of them. Equal inputs are found by a hash, so that memory
holds about 200 bytes for each, and the packed rows.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from hashlib import blake2b
from typing import NamedTuple

from calltape_schema.endings import Trailer
from calltape_schema.packing import pack
from calltape_schema.records import decode_call
from calltape_schema.summary import (
    LARGE_BYTES,
    LENGTH_BYTES,
    MAX_COST,
    MAX_INPUT_BYTES,
    MAX_INPUTS,
    MAX_RANGES,
    SCALAR_COST,
    Inputs,
    Summary,
)

__all__ = ["CallFacts", "SummaryBuilder", "facts_of"]

_MAX_RECENT, _MAX_RECENT_BYTES = 2048, 4 * 1024 * 1024
_LEVEL = 6


class CallFacts(NamedTuple):
    """What a summary needs of a call.

    Attributes:
        number, time_ns, end_ns: as in its record; the end is its time and its duration.
        raised: whether it raised.
        tensor_bytes: the size of its blob.
        structure, leaves: of its inputs, encoded.
        scalars: the encoded array of its scalars.
        ranges: of its integer leaves: leaf, smallest and largest element.
    """

    number: int
    time_ns: int
    end_ns: int
    raised: bool
    tensor_bytes: int
    structure: bytes
    leaves: bytes
    scalars: bytes
    ranges: tuple[tuple[int, int, int], ...] = ()


class SummaryBuilder:
    """Sums up the calls of one file."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets all calls."""
        self._rows: dict[tuple[int, int, bool, bytes], int] = {}
        self._recent: dict[tuple[bytes, bytes, bytes, bool], int] = {}
        self._recent_bytes = 0
        self._structures: dict[bytes, int] = {}
        self._leaves: dict[bytes, int] = {}
        self._calls = array("Q")
        self._firsts = array("Q")
        self._lasts = array("Q")
        self._raised_rows = bytearray()
        self._ranges: dict[tuple[int, int], tuple[int, int]] = {}
        self._deflater = zlib.compressobj(_LEVEL)
        self._packed: list[bytes] = []
        self._size = self._cost = 0
        self._is_whole = True
        self._kept = self._raised = self._tensor_bytes = 0
        self._first_call = self._last_call = self._first_ns = self._last_ns = 0

    def add(self, call: CallFacts) -> None:
        """Counts a call that is in the file."""
        number, time_ns, end_ns, raised, tensor_bytes, structure, leaves, scalars, ranges = call
        if not self._kept:
            self._first_call = self._last_call = number
            self._first_ns, self._last_ns = time_ns, end_ns
        self._kept += 1
        self._raised += raised
        self._tensor_bytes += tensor_bytes
        self._first_call = min(self._first_call, number)
        self._last_call = max(self._last_call, number)
        self._first_ns = min(self._first_ns, time_ns)
        self._last_ns = max(self._last_ns, end_ns)
        if not self._is_whole:
            return
        key = structure, leaves, scalars, raised
        row = self._recent.get(key)
        if row is None:
            row = self._row(*key)
            if row is None:
                return
            self._recent_bytes += len(structure) + len(leaves) + len(scalars)
            if len(self._recent) >= _MAX_RECENT or self._recent_bytes > _MAX_RECENT_BYTES:
                self._recent.clear()
                self._recent_bytes = 0
            self._recent[key] = row
        self._calls[row] += 1
        if number < self._firsts[row]:
            self._firsts[row] = number
        if number > self._lasts[row]:
            self._lasts[row] = number
        for leaf, low, high in ranges:
            self._widen(row, leaf, low, high)

    def summary(self, trailer: Trailer) -> Summary | None:
        """The summary for this trailer; None if it would say another number of calls."""
        if trailer.coverage.kept != self._kept:
            return None
        found = trailer.model_dump(exclude={"index"}, exclude_none=True)
        made = Summary.model_construct(
            **{name: getattr(trailer, name) for name in found},
            raised=self._raised, tensor_bytes=self._tensor_bytes, inputs=self._inputs(),
        )  # fmt: skip
        if self._kept:
            made = made.model_copy(
                update={
                    "first_call": self._first_call,
                    "last_call": self._last_call,
                    "first_ns": self._first_ns,
                    "last_ns": self._last_ns,
                }
            )
        return made

    def _inputs(self) -> Inputs | None:
        if not self._is_whole:
            return None
        packed = [*self._packed, self._deflater.copy().flush()]
        return Inputs(
            size=self._size,
            packed=b"".join(packed),
            calls=_column(self._calls),
            firsts=_column(self._firsts),
            lasts=_column(self._lasts),
            raised=bytes(self._raised_rows),
            ranges=tuple((*key, *span) for key, span in self._ranges.items()),
        )

    def _row(self, structure: bytes, leaves: bytes, scalars: bytes, raised: bool) -> int | None:
        """The number of a row, which is new or not; None if there is no room for it."""
        one, structure_number = _reference(structure, self._structures)
        two, leaves_number = _reference(leaves, self._leaves)
        key = (structure_number, leaves_number, raised, _short(scalars))
        row = self._rows.get(key)
        if row is not None:
            return row
        row = self._rows[key] = len(self._rows)
        document = b"".join((b"\x93", pack(one), pack(two), scalars))
        size = len(document)
        new = sum(len(part) for part in (one, two) if isinstance(part, bytes))
        self._size += LENGTH_BYTES + size
        self._cost += new + SCALAR_COST * (size - new)
        self._cost += sum(len(part) for part in (structure, leaves) if len(part) > LARGE_BYTES)
        if row >= MAX_INPUTS or self._size > MAX_INPUT_BYTES or self._cost > MAX_COST:
            self._drop()
            return None
        self._packed.append(
            self._deflater.compress(size.to_bytes(LENGTH_BYTES, "little") + document)
        )
        self._calls.append(0)
        self._firsts.append(2**63 - 1)
        self._lasts.append(0)
        self._raised_rows.append(raised)
        return row

    def _widen(self, row: int, leaf: int, low: int, high: int) -> None:
        known = self._ranges.get((row, leaf))
        if known is None:
            if len(self._ranges) >= MAX_RANGES:
                self._drop()
                return
            self._ranges[row, leaf] = low, high
        elif low < known[0] or high > known[1]:
            self._ranges[row, leaf] = min(low, known[0]), max(high, known[1])

    def _drop(self) -> None:
        """Lets go of the table. Calls are still counted."""
        counts = self._kept, self._raised, self._tensor_bytes
        times = self._first_call, self._last_call, self._first_ns, self._last_ns
        self.clear()
        self._is_whole = False
        self._kept, self._raised, self._tensor_bytes = counts
        self._first_call, self._last_call, self._first_ns, self._last_ns = times


def facts_of(content: bytes) -> CallFacts:
    """The facts of a call from the content of its record.

    Raises:
        TapeError: as :func:`calltape_schema.records.decode_call`.
    """
    record = decode_call(content)
    tree = record.inputs
    return CallFacts(
        record.call,
        record.time_ns,
        record.time_ns + (record.duration_ns or 0),
        record.error is not None,
        0 if record.blob is None else record.blob.size,
        tree.structure,
        tree.leaves,
        pack(tree.scalars),
        tuple((found.leaf, found.min, found.max) for found in tree.ranges),
    )


def _reference(part: bytes, known: dict[bytes, int]) -> tuple[bytes | int, int]:
    """What stands for a part in a row: itself the first time, and then its number; and the
    number."""
    digest = blake2b(part, digest_size=16).digest()
    number = known.get(digest)
    if number is not None:
        return number, number
    number = known[digest] = len(known)
    return part, number


def _short(scalars: bytes) -> bytes:
    return scalars if len(scalars) <= 32 else blake2b(scalars, digest_size=16).digest()


def _column(values: array[int]) -> bytes:
    if sys.byteorder == "little":
        return values.tobytes()
    swapped = values[:]
    swapped.byteswap()
    return swapped.tobytes()
