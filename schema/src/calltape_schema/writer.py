"""Writes a tape: the manifest, groups of calls, and the end.

Each append is one write, front to back. If it fails half-way, the rest is cut off, now or before
the next append, so that a tape always ends with a whole group. Only the interim counts of a tape
without an end are overwritten: they have two places that take turns, so that one of them is always
whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from calltape_schema.bounds import MAX_COUNT, MAX_INDEX_BYTES
from calltape_schema.end import (
    ENTRY_BYTES,
    Coverage,
    Dump,
    End,
    FileNumbers,
    IndexEntry,
    InterimCounts,
    encode_counts,
    encode_end,
)
from calltape_schema.errors import TapeError
from calltape_schema.fields import now_ns
from calltape_schema.groups import Append, NewCall, member, planned
from calltape_schema.inputs_document import pack_inputs
from calltape_schema.inputs_table import InputsTable
from calltape_schema.records import Manifest, encode_manifest, manifest_document
from calltape_schema.sections import Section
from calltape_schema.storage import Sink
from calltape_schema.tar import COUNTS_MEMBER, END_MEMBER, MANIFEST, ZEROS_AT_END


def manifest_member(manifest: Manifest) -> bytes:
    """The first member of a tape."""
    content = encode_manifest(manifest)
    return b"".join(member(MANIFEST, [content], len(content)))


class _Place(NamedTuple):
    """The place of interim counts, and the size of their member in bytes."""

    offset: int
    size: int


class TapeWriter:
    """Writes one tape. Only one thread at a time may use it.

    Attributes:
        end: where the next append goes: after the last whole member.
        calls: how many calls the tape has.
        tensor_bytes: the size of all blobs.
        table: the counted inputs. The writer adds the kept calls, and its caller the others.
            None for a tape that has no table.

    Args:
        sink: takes the bytes.
        manifest: of the tape.
        level: of zlib; 0 deflates nothing, so that equal tapes have equal bytes with any zlib.

    Raises:
        OSError: the manifest cannot be written.
    """

    def __init__(self, sink: Sink, manifest: Manifest, *, level: int = 1) -> None:
        self._sink = sink
        self._tape = manifest.tape
        self._manifest = manifest_document(manifest)
        self._level = level
        self._is_torn = False
        self._head = manifest_member(manifest)
        self.end = 0
        self._write([self._head], len(self._head))
        self._forget()

    def _forget(self) -> None:
        self._index = bytearray()
        self._counts: list[_Place] = []  # the one that was written last comes last
        self._counted = 0
        self._first_call = self._first_ns = MAX_COUNT
        self._last_call = self._last_ns = 0
        self._raised = self.calls = self.tensor_bytes = 0
        self.table: InputsTable | None = InputsTable()

    @property
    def groups(self) -> int:
        """How many groups the tape has."""
        return len(self._index) // ENTRY_BYTES

    def plan(self, calls: Sequence[NewCall]) -> Append:
        """The bytes of an append, for :meth:`commit`. So the caller knows beforehand how much the
        tape will grow. The plan does not depend on what else is written.

        Raises:
            TapeError: ``limit``.
        """
        return planned(self._tape, calls, self._level)

    def commit(self, append: Append) -> None:
        """Writes the calls of a plan.

        Raises:
            OSError: none of them counts as written.
            TapeError: ``limit``: the tape has as many groups as an index holds.
        """
        begin = self.end
        if len(self._index) + ENTRY_BYTES * len(append.groups) > MAX_INDEX_BYTES:
            raise TapeError("limit", "the tape is full: the next calls belong to another file")
        places = [group.place(begin) for group in append.groups]
        self._write(append.parts, append.size)
        for offset, group in zip(places, append.groups, strict=True):
            numbers, times = group.numbers, group.times
            entry = IndexEntry(
                offset, len(numbers), min(numbers), max(numbers), min(times), max(times)
            )
            self._index += entry.pack()
        self._count(append.calls)
        self.tensor_bytes += append.blob_bytes

    def append(self, calls: Sequence[NewCall]) -> None:
        """Plans and commits."""
        self.commit(self.plan(calls))

    def count(
        self, coverage: Coverage, next_call: int, deleted: FileNumbers | None = None,
        fits: Callable[[int], bool] = lambda size: True,
    ) -> bool:  # fmt: skip
        """Writes :class:`InterimCounts`, which hold until the tape is sealed. They overwrite
        earlier ones, so that the tape does not grow however often this is called.

        Returns:
            Whether they are written. If the tape has to grow, ``fits`` says whether there is room
            for this many bytes.

        Raises:
            OSError: they are not written. The previous ones still hold.
        """
        counts = InterimCounts(
            tape=self._tape, number=self._counted, next_call=next_call,
            coverage=coverage, deleted=deleted,
        )  # fmt: skip
        content = encode_counts(counts)
        data = b"".join(member(COUNTS_MEMBER, [content], len(content)))
        # Never over the latest ones: they remain if the process is killed within the write.
        place = next((place for place in self._counts[:-1] if place.size == len(data)), None)
        if place is None:
            if not fits(len(data)):
                return False
            place = _Place(self.end, len(data))
            self._write([data], len(data))
        else:
            self._sink.write_at(place.offset, [data])
            self._counts.remove(place)
        self._counts.append(place)
        self._counted += 1
        return True

    def seal(
        self, coverage: Coverage, *, dumps: tuple[Dump, ...] = (), closed_ns: int | None = None,
        continues: bool = False, next_call: int | None = None,
        deleted: FileNumbers | None = None, elsewhere: Mapping[str, int] | None = None,
        fits: Callable[[int], bool] = lambda size: True,
    ) -> None:  # fmt: skip
        """Writes the end. Then the tape is complete.

        Args:
            coverage: what became of all calls.
            dumps: of a flight recorder.
            closed_ns: Unix time in nanoseconds; by default it is now.
            continues: whether the recording continues in another file.
            next_call: how many calls of the recording were seen by then, if it continues.
            deleted: the numbers of the files that the recorder deleted so far.
            elsewhere: facts about the kept calls, if these are on other tapes (fields of
                :class:`End`).
            fits: says whether there is room for this many bytes. If not, the table of inputs, which
                takes most of them, is made coarser. The end is written in any case.

        Raises:
            OSError: it is not written.
            TapeError: ``limit``: the end is larger than a reader takes.
            pydantic.ValidationError: the accounts break the format.
        """
        level = self._level and 6
        facts: dict[str, Any] = {
            "tape": self._tape,
            "closed_ns": now_ns() if closed_ns is None else closed_ns,
            "coverage": coverage,
            "dumps": dumps,
            "continues": continues or None,
            "next_call": next_call if continues else None,
            "deleted": deleted or None,
            "raised": self._raised,
            "tensor_bytes": self.tensor_bytes,
            "manifest": self._manifest,
            "index": Section.of(bytes(self._index), level),
        }
        if self.calls:
            facts |= {
                "first_call": self._first_call, "last_call": self._last_call,
                "first_ns": self._first_ns, "last_ns": self._last_ns,
            }  # fmt: skip
        if elsewhere is not None:
            facts |= {"elsewhere": True, **elsewhere}
        while True:
            if self.table is not None:
                facts["inputs"] = Section.of(pack_inputs(self.table), level)
            content = encode_end(End(**facts), self.end)
            parts = [*member(END_MEMBER, [content], len(content)), ZEROS_AT_END]
            size = sum(map(len, parts))
            if self.table is None or fits(size) or not self.table.coarsen():
                break
        self._write(parts, size)

    def rewind(self) -> None:
        """Removes all calls from the tape.

        Raises:
            OSError: it cannot be cut.
        """
        self._sink.cut(len(self._head))
        self.end = len(self._head)
        self._is_torn = False
        self._forget()

    def _count(self, calls: Sequence[NewCall]) -> None:
        numbers = [call.number for call in calls]
        begun = [call.record["time_ns"] for call in calls]
        ended = [call.record["time_ns"] + call.record.get("duration_ns", 0) for call in calls]
        self._first_call = min(self._first_call, *numbers)
        self._last_call = max(self._last_call, *numbers)
        self._first_ns = min(self._first_ns, *begun)
        self._last_ns = min(max(self._last_ns, *ended), MAX_COUNT)
        self.calls += len(calls)
        if self.table is None:
            self._raised += sum(["error" in call.record for call in calls])
            return
        alike: dict[int, tuple[NewCall, list[int]]] = {}
        for call in calls:
            tree = call.record["inputs"]
            raised, ranges = "error" in call.record, tree.get("ranges")
            if not raised and not ranges:
                alike.setdefault(call.signature, (call, []))[1].append(call.number)
                continue
            self._raised += raised
            self.table.add(
                tree["structure"], tree["leaves"], call.scalars, call.number, raised=raised,
                ranges=[(span["leaf"], span["min"], span["max"]) for span in ranges or ()],
                key=call.signature,
            )  # fmt: skip
        for key, (call, numbers_alike) in alike.items():
            tree = call.record["inputs"]
            self.table.add(tree["structure"], tree["leaves"], call.scalars, *numbers_alike, key=key)

    def _write(self, parts: Sequence[Any], size: int) -> None:
        if self._is_torn:
            self._sink.cut(self.end)
        self._is_torn = True
        try:
            self._sink.write_at(self.end, parts)
        except OSError:
            # If cutting fails as well, the tape is cut before the next append.
            with contextlib.suppress(OSError):
                self._sink.cut(self.end)
                self._is_torn = False
            raise
        self._is_torn = False
        self.end += size
