"""The end of a sealed tape: what became of all calls, where their groups are, and the table of
counted inputs. And the interim counts that a recorder writes while there is no end.

The content is a msgpack array ``[crc32, payload, locator]``: an envelope, and the place of the end
itself, so that a reader that begins at the end of the file finds its beginning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from operator import le, lt
from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import AfterValidator, Field, TypeAdapter, model_validator
from typing_extensions import Self

from calltape_schema.bounds import (
    MAX_COUNT,
    MAX_DELETED_RUNS,
    MAX_INDEX_BYTES,
    MAX_MEMBER_BYTES,
    MAX_TABLE_BYTES,
    MAX_WIDTH,
    most,
)
from calltape_schema.drop_reasons import Reason, known_reasons, lost_of, unwanted_of
from calltape_schema.errors import TapeError
from calltape_schema.fields import (
    Count,
    Features,
    Many,
    ManyRuns,
    Maybe,
    Nanoseconds,
    Record,
    Runs,
    Short,
    TapeId,
    at_most,
    expect_known,
    merged_runs,
    validated,
)
from calltape_schema.inputs_document import unpack_inputs
from calltape_schema.inputs_table import InputsTable
from calltape_schema.packing import envelope_of, open_envelope, pack, seal_envelope, u64s, unpack
from calltape_schema.sections import section_of
from calltape_schema.tar import BLOCK, ZEROS_AT_END, padding

_ENTRY = struct.Struct("<QQQQQQ")
ENTRY_BYTES = _ENTRY.size
_LOCATOR = struct.Struct("<QQ8s")
_MAGIC = b"calltape"
_Section = Many[Any]
"""As :func:`~calltape_schema.sections.section_of` takes it."""
_ENVELOPE, _ENVELOPE_OF_THREE = b"\x92", b"\x93"
_BIN = b"\xc4" + bytes([_LOCATOR.size])


Dropped: TypeAlias = Annotated[dict[Short, Count], at_most(1000), AfterValidator(known_reasons)]


class Coverage(Record):
    """How many calls are on the tape: ``seen = kept + sum(dropped.values())``. Calls before the
    recorder was attached are not counted (:class:`Observed`).

    Attributes:
        at_least: whether there may have been more calls than ``seen``, because a file that was
            counted has no end, is missing or is not a tape, or because the recording continues.
            None means False.
        counted_ns: the time up to which calls are counted if there may have been more, as Unix time
            in nanoseconds; None if unknown.
    """

    seen: Count = 0
    kept: Count = 0
    dropped: Dropped = Field(default_factory=dict)
    at_least: Maybe[bool] = None
    counted_ns: Maybe[Nanoseconds] = None

    @property
    def unwanted(self) -> dict[Reason, int]:
        """The part of ``dropped`` that was left out on purpose."""
        return unwanted_of(self.dropped)

    @property
    def lost(self) -> dict[Reason, int]:
        """The part of ``dropped`` that should be, or may have been, on the tape."""
        return lost_of(self.dropped)


FileNumbers: TypeAlias = Runs
"""Numbers of files."""


def joined_runs(runs: Iterable[tuple[int, int]]) -> FileNumbers:
    """Runs in any order, which may overlap, in the form of a tape. If there are too many, the last
    ones."""
    return tuple(merged_runs(runs)[-MAX_DELETED_RUNS:])


_FileNumbers = Annotated[ManyRuns, Field(max_length=MAX_DELETED_RUNS)]


class Dump(Record):
    """When the calls of a flight recorder were written (Unix time in nanoseconds), why, and how
    many."""

    time_ns: Nanoseconds
    reason: Short
    calls: Count


class IndexEntry(NamedTuple):
    """A group: the offset of its header, how many calls it has, the lowest and the highest of their
    numbers, and when the first and the last of them began (Unix time in nanoseconds)."""

    offset: int
    calls: int
    low: int
    high: int
    first_ns: int
    last_ns: int

    def pack(self) -> bytes:
        return _ENTRY.pack(*self)

    @property
    def named(self) -> str:
        """Its calls, in words."""
        if self.calls == self.high - self.low + 1:
            return f"call {self.low}" if self.calls == 1 else f"calls {self.low} to {self.high}"
        return f"{self.calls} of the calls {self.low} to {self.high}"


class Index:
    """The places of the groups of a tape, in file order. It consists of columns, because a tape may
    have a million groups.

    Args:
        data: of the index, inflated.
        width: bytes of an entry, of which a later version may have more than this reader knows.

    Raises:
        TapeError: ``invalid``.
    """

    def __init__(self, data: bytes, width: int = _ENTRY.size) -> None:
        if len(data) % width:
            raise TapeError("invalid", f"an index of {len(data)} bytes")
        if width > _ENTRY.size:
            data = b"".join([data[at : at + _ENTRY.size] for at in range(0, len(data), width)])
        columns = u64s(data)
        self.offsets, self.calls = columns[::6], columns[1::6]
        self.lows, self.highs = columns[2::6], columns[3::6]
        self.firsts_ns, self.lasts_ns = columns[4::6], columns[5::6]
        if not (
            all(map(lt, self.offsets, self.offsets[1:])) and all(self.calls)
            and max(self.offsets[-1:], default=0) <= MAX_COUNT
            and all(map(le, self.lows, self.highs)) and max(self.highs, default=0) <= MAX_COUNT
            and all(map(le, self.firsts_ns, self.lasts_ns))
            and max(self.lasts_ns, default=0) <= MAX_COUNT
        ):  # fmt: skip
            raise TapeError("invalid", "the index has a group that cannot be")

    def __len__(self) -> int:
        return len(self.offsets)

    def entry(self, at: int) -> IndexEntry:
        """One of its groups."""
        return IndexEntry(
            self.offsets[at], self.calls[at], self.lows[at], self.highs[at],
            self.firsts_ns[at], self.lasts_ns[at],
        )  # fmt: skip


class End(Record):
    """The last member of a sealed tape. Its fields are those of FORMAT.md §8; :meth:`groups` and
    :meth:`table` decode its sections. None means False, or unknown."""

    tape: TapeId
    manifest: bytes
    requires: Features = ()
    closed_ns: Nanoseconds
    coverage: Coverage
    dumps: Annotated[Many[Dump], Field(max_length=1000)] = ()
    continues: Maybe[bool] = None
    next_call: Maybe[Count] = None
    deleted: Maybe[_FileNumbers] = None
    elsewhere: Maybe[bool] = None
    first_call: Maybe[Count] = None
    last_call: Maybe[Count] = None
    first_ns: Maybe[Nanoseconds] = None
    last_ns: Maybe[Nanoseconds] = None
    raised: Count = 0
    tensor_bytes: Count = 0
    index_width: Annotated[int, Field(ge=_ENTRY.size, le=MAX_WIDTH)] = _ENTRY.size
    index: _Section
    inputs: Maybe[_Section] = None

    @model_validator(mode="after")
    def _counts_fit(self) -> Self:
        if self.raised > self.coverage.kept:
            raise ValueError(f"{self.raised} of {self.coverage.kept} calls raised")
        has_calls = bool(self.coverage.kept) and not self.elsewhere
        if (has_calls, has_calls) != (self.first_call is not None, self.last_call is not None):
            raise ValueError("the first and the last call are not those of a tape with calls")
        has_times = self.first_ns is not None, self.last_ns is not None
        if not self.elsewhere and has_times != (has_calls, has_calls):  # a survey may not know them
            raise ValueError("the first and the last time are not those of a tape with calls")
        return self

    def groups(self) -> Index:
        """The index.

        Raises:
            TapeError: ``damaged``, ``invalid``, ``limit`` or ``unsupported``.
        """
        section = section_of(self.index, "the index")
        index = Index(section.content(most(MAX_INDEX_BYTES), "the index"), self.index_width)
        kept = 0 if self.elsewhere else self.coverage.kept
        if sum(index.calls) != kept:
            raise TapeError("invalid", f"the index does not have the {kept} calls that were kept")
        return index

    def table(self) -> InputsTable | None:
        """The counted inputs; None if the tape does not have them.

        Raises:
            TapeError: ``damaged``, ``invalid`` or ``limit``.
        """
        section = self.inputs
        if section is None:
            return None
        data = section_of(section, "the table of inputs").content(
            most(MAX_TABLE_BYTES), "the table of inputs"
        )
        table = unpack_inputs(data)
        totals = table.totals()
        if totals.kept != self.coverage.kept or totals.seen > self.coverage.seen:
            reason = f"the table of inputs has {totals.kept} kept calls of {totals.seen}"
            raise TapeError("invalid", reason)
        return table


class InterimCounts(Record):
    """What a recorder has counted so far, on a tape without an end (FORMAT.md §8).

    Attributes:
        tape: the manifest's ``tape``.
        number: the serial number of these counts in the file; the highest one is the latest.
        next_call: how many calls of the recording were seen, including those still under way: the
            next call gets this number.
        coverage: of the calls that this file accounts for, until ``coverage.counted_ns``.
        deleted: as in :class:`End`.
    """

    tape: TapeId
    number: Count
    next_call: Count
    coverage: Coverage
    deleted: Maybe[_FileNumbers] = None

    @model_validator(mode="after")
    def _are_dated(self) -> Self:
        if self.coverage.counted_ns is None:
            raise ValueError("counts that do not say until when")
        return self


_ends: TypeAdapter[End] = TypeAdapter(End)
_counts: TypeAdapter[InterimCounts] = TypeAdapter(InterimCounts)


def encode_counts(counts: InterimCounts) -> bytes:
    """The content of a member ``counts.msgpack``."""
    return seal_envelope(pack(counts.model_dump(exclude_none=True)))


def decode_counts(content: bytes) -> InterimCounts:
    """Counts that were written while the recorder ran.

    Raises:
        TapeError: ``damaged``, ``invalid`` or ``limit``.
    """
    counts = validated(_counts, unpack(open_envelope(content)), "counts")
    if counts.coverage.seen != counts.coverage.kept + sum(counts.coverage.dropped.values()):
        raise TapeError("damaged", "counts that do not add up")
    return counts


def encode_end(end: End, offset: int) -> bytes:
    """The content of the member ``end.msgpack``, of which the header is at this offset.

    Raises:
        TapeError: ``limit``.
    """
    plain = {"index_width"} if end.index_width == ENTRY_BYTES else set[str]()
    document = end.model_dump(exclude_none=True, exclude={"requires", *plain})
    envelope = seal_envelope(pack(document))
    size = len(envelope) + len(_BIN) + _LOCATOR.size
    locator = _LOCATOR.pack(offset, size, _MAGIC)
    return b"".join((_ENVELOPE_OF_THREE, envelope[1:], _BIN, locator))


def decode_end(content: bytes) -> End:
    """The end of a sealed tape. Index and table are not inflated yet.

    Raises:
        TapeError: ``unsupported``, ``damaged``, ``invalid`` or ``limit``.
    """
    payload, locator = envelope_of(content)
    if type(locator) is not bytes or len(locator) != _LOCATOR.size:
        raise TapeError("damaged", "an end without a locator")
    document = unpack(payload)
    expect_known(document, "the end of the tape")
    return validated(_ends, document, "end")


def end_offset(tail: bytes, size: int) -> int | None:
    """The offset of the header of the end, from the last bytes of a tape; None if it is not sealed.

    Args:
        tail: the last bytes, at least 2 KiB unless the tape is shorter.
        size: of the tape.
    """
    content = tail.rstrip(b"\0")
    zeros = len(tail) - len(content)
    if not content.endswith(_MAGIC) or len(content) < _LOCATOR.size:
        return None
    offset, length, _ = _LOCATOR.unpack(content[-_LOCATOR.size :])
    end = offset + BLOCK + length
    is_here = end == size - zeros and zeros == padding(length) + len(ZEROS_AT_END)
    return offset if is_here and offset % BLOCK == 0 and length <= most(MAX_MEMBER_BYTES) else None
