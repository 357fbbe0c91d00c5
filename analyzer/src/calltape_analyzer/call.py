"""One recorded call, read on demand."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, overload

from calltape_analyzer.allowance import check_room, room_of
from calltape_analyzer.classes import ClassIndex
from calltape_analyzer.damage import is_damage
from calltape_analyzer.inputs import Inputs, parts_of_inputs
from calltape_analyzer.segment import UNDER_WAY, Segment
from calltape_analyzer.tallies import CallRef
from calltape_schema.blob import Entry, header_size, parse_header, stored_as
from calltape_schema.errors import TapeError
from calltape_schema.leaves import Leaf
from calltape_schema.records import CallRecord, Manifest, ModelError, Tree
from calltape_schema.tree import Node

__all__ = ["Call", "Calls", "Side"]

Side = Literal["inputs", "outputs"]


class Call:
    """One call of a tape.

    Facts come from the call's record; tensor bytes are read, and first compared with their
    checksum, when a value is asked for.

    A call that streamed is one call. Of a generator, or an async one, :attr:`outputs` is the list
    of what it yielded, in order, each chunk as it was when it was yielded; of a coroutine, what it
    returned. Where chunks are missing the list has the first of them, and
    ``record.outputs_missing`` says why: ``256 of 300 chunks kept: more than 256 chunks``, or
    ``closed by its consumer after 2 chunks`` (then nobody knows what would have followed). A stream
    that raised has :attr:`error` and no chunks. Its :attr:`duration` is from the first step to the
    last, what it was suspended included. What a hook saw returned before it had run has no outputs:
    ``it returned a generator, which had not run``.

    Attributes:
        index: position on the tape, from 0 (over all files of it).
        number: the call's number among the calls that the recorder saw; numbers that are missing
            are calls that were dropped.
    """

    __slots__ = ("_classes", "_entries", "_position", "_record", "_segment", "index", "number")

    def __init__(self, segment: Segment, position: int, index: int, classes: ClassIndex) -> None:
        self._segment = segment
        self._position = position
        self._classes = classes
        self._record: CallRecord | None = None
        self._entries: tuple[int, dict[str, Entry]] | None = None
        self.index = index
        self.number = segment.number(position)

    def __repr__(self) -> str:
        return f"<Call {self.number} of {self.path}>"

    @property
    def path(self) -> str:
        """The file that the call is in."""
        return self._segment.path

    @property
    def tape_bytes(self) -> int:
        """The bytes that this file took on its disk when it was opened: holes are none."""
        return self._segment.disk_bytes

    @property
    def manifest(self) -> Manifest:
        """The manifest of the file that the call is in."""
        return self._segment.manifest

    def raw(self) -> tuple[bytes, bytes | None]:
        """The contents of the call's members as they are in the file: its record, and its blob."""
        return self._segment.raw(self._position)

    @property
    def ref(self) -> CallRef:
        """The call's tape and number, which tell it apart from all calls of all tapes."""
        return CallRef(self._segment.manifest.tape, self.number)

    @property
    def record(self) -> CallRecord:
        """Everything on the tape about this call but the tensor bytes; its trees fit the format.

        Raises:
            TapeError: ``invalid`` or ``limit`` for a tape that no recorder wrote, ``closed``.
        """
        if self._record is None:
            try:
                record = self._segment.record(self._position)
                if parts_of_inputs(record.inputs.spec().root) is None:
                    raise TapeError("invalid", "the inputs are not (args, kwargs)")
                if record.outputs is not None:
                    record.outputs.spec()
            except TapeError as error:
                raise self._reported(error) from None
            self._record = record
        return self._record

    @property
    def inputs(self) -> Inputs:
        """``(args, kwargs)``, built anew each time, with tensors of their own on the CPU.

        A tensor that the call was given twice is one tensor here as well. Values that the tape
        does not have come as meta tensors (or :class:`~calltape_analyzer.Placeholder`), objects
        of classes unknown to this process as placeholders.

        Raises:
            TapeError: ``damaged`` where the checksum of the tensors does not hold, ``invalid``
                or ``limit`` for a tape that no recorder wrote, ``closed``.
        """
        args, kwargs = self.build("inputs", self.record.inputs.spec().root)
        return Inputs(args, kwargs)

    @property
    def outputs(self) -> Any:
        """What the call returned, built like :attr:`inputs`; None also where it raised, or where
        the outputs were not recorded (``record.outputs`` is None then).

        Raises:
            TapeError: as :attr:`inputs`.
        """
        tree = self.record.outputs
        return None if tree is None else self.build("outputs", tree.spec().root)

    @property
    def duration(self) -> float | None:
        """Seconds that the call took, where they were measured."""
        nanoseconds = self.record.duration_ns
        return None if nanoseconds is None else nanoseconds / 1e9

    @property
    def time(self) -> float:
        """When the call began, in seconds since 1970 (UTC)."""
        return self.record.time_ns / 1e9

    @property
    def thread(self) -> int:
        """Python's identifier of the thread that called."""
        return self.record.thread

    @property
    def error(self) -> ModelError | None:
        """Type and message of the exception that the call raised, or None."""
        return self.record.error

    @property
    def tree(self) -> int | None:
        """Names the tree of recorded calls that this one is of: the same for all calls that ran
        within one, and for that one, over all tapes. None for a call that is alone."""
        return self.record.tree

    @property
    def parent(self) -> CallRef | None:
        """The nearest recorded call that this one ran within, on whichever tape; None for a call
        that ran within none. It need not have been kept (:meth:`Tape.call
        <calltape_analyzer.Tape.call>` raises then)."""
        parent = self.record.parent
        return None if parent is None else CallRef(parent.tape, parent.call)

    @property
    def under_way(self) -> bool:
        """Whether the call had not ended when its inputs were written ahead: the process died in
        it, or is still in it. There are no outputs then, and no duration."""
        return self.record.outputs_missing == UNDER_WAY

    def build(self, side: Side, node: Node, tensors: dict[int, Any] | None = None) -> Any:
        """The Python object of any node of this call's inputs or outputs.

        Args:
            side: which of the two trees the node is of.
            node: a node of ``call.record.inputs.spec().root`` or of that of the outputs.
            tensors: leaves built so far, by number; pass the same dict to several calls for
                tensors to be the same object across them.

        Raises:
            TapeError: as :attr:`inputs`.
        """
        from calltape_analyzer.rebuild import rebuild

        known: dict[int, Any] = {} if tensors is None else tensors

        def tensor(leaf: int) -> Any:
            if leaf not in known:
                known[leaf] = self.tensor(side, leaf)
            return known[leaf]

        tree = self._tree(side)
        try:
            return rebuild(node, tensor, tree.scalars, self._classes)
        except TapeError as error:
            raise self._segment.located(error, self._position) from None

    def tensor(self, side: Side, leaf: int) -> Any:
        """The tensor of one leaf, read anew: on the CPU, a leaf of autograd (``requires_grad`` as
        recorded), with memory of its own.

        Dense and expanded strides are as recorded, a view with gaps is contiguous; conjugation and
        negation are resolved. Without a value: a meta tensor of the leaf's dtype, shape and
        strides where values were not wanted, else a placeholder with the reason.

        Raises:
            TapeError: as :attr:`inputs`.
        """
        from calltape_analyzer.tensors import tensor_of, valueless

        facts = self._tree(side).facts()[leaf]
        if facts.key is None:
            return valueless(facts)
        try:
            return tensor_of(facts, self._bytes(facts, facts.key))
        except TapeError as error:
            raise self._segment.located(error, self._position) from None

    def check(self, *, entries: bool = False) -> None:
        """Checks the call's trees, and its tensors against their checksum.

        Args:
            entries: also whether the blob's header says of every tensor what the record says.
                Only a writer with a bug, or with ill intent, can make that differ under a valid
                checksum; reading a value notices it too.

        Raises:
            TapeError: as :attr:`inputs`; it also stands in the tape's ``damage`` then.
        """
        record = self.record
        try:
            self._segment.check_blob(self._position, record)
            if entries:
                self._check_entries(record)
        except TapeError as error:
            raise self._reported(error) from None

    def _reported(self, error: TapeError) -> TapeError:
        located = self._segment.located(error, self._position)
        if is_damage(located):
            self._segment.report(located, self._position)
        return located

    def _check_entries(self, record: CallRecord) -> None:
        for tree in (record.inputs, record.outputs):
            for leaf in tree.facts() if tree is not None else ():
                if leaf.key is not None:
                    self._entry(leaf, leaf.key)

    def _tree(self, side: Side) -> Tree:
        tree = self.record.inputs if side == "inputs" else self.record.outputs
        if tree is None:
            raise TapeError(
                "usage", f"call {self.number} has no outputs on the tape", path=self.path
            )
        return tree

    def _blob_entries(self) -> tuple[int, dict[str, Entry]]:
        """Where the tensor data start in the file, and the blob's entries."""
        if self._entries is None:
            record, start = self.record, self._segment.blob(self._position)
            if record.blob is None or start is None:
                raise TapeError("damaged", f"call {self.number} has no blob for its tensors")
            self._segment.check_blob(self._position, record)
            size = record.blob.size
            length = header_size(self._segment.read(start, 8), size)
            header = self._segment.read(start, length)
            self._entries = (start + length, parse_header(header, size))
        return self._entries

    def _entry(self, leaf: Leaf, key: str) -> Entry:
        entry = self._blob_entries()[1].get(key)
        stored = stored_as(leaf)
        if entry is None or stored is None or stored[:2] != entry[:2]:
            found = "nothing" if entry is None else f"{entry.dtype}{list(entry.shape)}"
            raise TapeError(
                "invalid",
                f"{key}: {leaf.dtype}{list(leaf.shape)} by the record, {found} in the blob",
            )
        return entry

    def _bytes(self, leaf: Leaf, key: str) -> bytearray:
        entry = self._entry(leaf, key)
        start = self._blob_entries()[0]
        check_room(room_of(self.tape_bytes), [((entry.end - entry.begin,), 1)], key)
        return self._segment.copy(start + entry.begin, entry.end - entry.begin)


class Calls(Sequence[Call]):
    """The calls of a tape by index, without a look at their tensors. An immutable sequence that
    makes each :class:`Call` when it is asked for."""

    def __init__(self, segments: Sequence[Segment], classes: ClassIndex) -> None:
        self._classes = classes
        self._segments = [segment for segment in segments if len(segment)]
        self._ends: list[int] = []
        end = 0
        for segment in self._segments:
            end += len(segment)
            self._ends.append(end)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Call: ...

    @overload
    def __getitem__(self, index: slice) -> list[Call]: ...

    def __getitem__(self, index: int | slice) -> Call | list[Call]:
        if isinstance(index, slice):
            return [self._at(position) for position in range(*index.indices(len(self)))]
        position = index.__index__()
        if position < 0:
            position += len(self)
        if not 0 <= position < len(self):
            raise IndexError(f"call {index} of a tape of {len(self)} calls")
        return self._at(position)

    def by_inputs(self) -> Iterator[tuple[Call, int]]:
        """The calls whose inputs look alike as the first of them and their number, without
        decoding the records of the others. A call that raised is never with one that did not.
        One combination may come more than once."""
        for which, segment in enumerate(self._segments):
            before = self._ends[which] - len(segment)
            for place, count in segment.by_key():
                yield self._at(before + place), count

    def input_keys(self) -> Iterator[tuple[int, int] | None]:
        """For each call a key that is equal for calls whose inputs look alike (and that both
        raised, or both did not); None where that is not known without a look at its record."""
        for which, segment in enumerate(self._segments):
            for position in segment.order:
                key = segment.key_of(position)
                yield None if key is None else (which, key)

    def at(self, ref: CallRef) -> Call:
        """The call that a reference is to.

        Raises:
            TapeError: ``usage`` where it is not here.
        """
        parts, highest = self._parts.get(ref.tape, ((), ()))
        # The files that begin before the call, the last first; none further down ends behind it.
        place = bisect.bisect_right(parts, ref.number, key=lambda part: part[0]) - 1
        found: list[int] = []
        while place >= 0 and highest[place] >= ref.number:
            which = parts[place][1]
            segment = self._segments[which]
            at = bisect.bisect_left(segment.order, ref.number, key=segment.number)
            if at < len(segment) and segment.number(segment.order[at]) == ref.number:
                found.append(self._ends[which] - len(segment) + at)
            place -= 1
        if found:
            return self._at(min(found))
        raise TapeError("usage", f"call {ref.number} is not on this tape")

    @cached_property
    def _parts(self) -> dict[bytes, tuple[list[tuple[int, int]], list[int]]]:
        """By recording its files, as first number and place, in the order of these; and the highest
        number in each of them and those before it."""
        found: dict[bytes, list[tuple[int, int]]] = {}
        for which, segment in enumerate(self._segments):
            first = segment.number(segment.order[0])
            found.setdefault(segment.manifest.tape, []).append((first, which))
        made: dict[bytes, tuple[list[tuple[int, int]], list[int]]] = {}
        for tape, parts in found.items():
            parts.sort()
            segments = (self._segments[which] for _, which in parts)
            last = (segment.number(segment.order[-1]) for segment in segments)
            made[tape] = parts, list(accumulate(last, max))
        return made

    def _at(self, index: int) -> Call:
        which = bisect.bisect_right(self._ends, index)
        segment = self._segments[which]
        before = self._ends[which] - len(segment)
        return Call(segment, segment.order[index - before], index, self._classes)
