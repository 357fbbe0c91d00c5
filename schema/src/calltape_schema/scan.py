"""The walk over a tape, which finds every call of it.

It reads the tables of the groups, and no tensor bytes. It keeps 40 bytes for each call, and 12 for
each group: decoding a record again costs less than millions of small objects that the garbage
collector visits.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from calltape_schema.end import (
    End,
    Index,
    IndexEntry,
    InterimCounts,
    decode_counts,
    decode_end,
)
from calltape_schema.errors import ErrorKind, LostCallsError, TapeError
from calltape_schema.groups import (
    CALL_BYTES,
    HAS_RANGES,
    RAISED,
    columns_of,
    member_content,
    only_entry,
    opened,
)
from calltape_schema.inputs_table import InputsTable, Row
from calltape_schema.storage import Source, Window
from calltape_schema.tar import (
    BLOCK,
    COUNTS_MEMBER,
    END_MEMBER,
    Member,
    TornError,
    is_group,
    members,
    parse_header,
)

_MAX_DAMAGE = 1000
_LOW = 2**64 - 1
_BOTH = 1 << 128  # marks a key of both halves
_BLOCK = 1024

Watch = Callable[[Iterable[Member], int], Iterable[Member]]
"""Goes between a walk and the members that it finds, with the size of the tape: shows how far it
is."""


class Scan:
    """What a walk over a tape found. The arrays have an element per call, in file order.

    Attributes:
        numbers, times, places: as those of a :class:`~calltape_schema.groups.Group`.
        offsets: per group where its member begins.
        tensor_bytes: the size of all blobs whose group is there.
        unfinished: how many bytes at the end belong to calls that were being written.
        damage: what was found wrong. The list is bounded: a file of nothing but damage must not
            fill the memory.
        more_damage: how much more there was.
        table: the counted inputs, if the end has them and the calls do not contradict them.
        counts: the last ones that the recorder wrote, of a tape without an end; None if there are
            none.
        ascends: whether the calls are in the order of their numbers, as nearly always.

    Args:
        source: of the tape.
        tape: its id.
        start: where the member after the manifest begins.
        end: of the tape, if it is sealed. What it says is compared with what is found.
        end_at: where the member of the end begins; None without an end.
        watch: sees the members as the walk comes to them.
    """

    def __init__(
        self, source: Source, tape: bytes, start: int, end: End | None, end_at: int | None,
        watch: Watch = lambda found, size: found,
    ) -> None:  # fmt: skip
        self.numbers, self.times, self.places = array("Q"), array("Q"), array("Q")
        self._lows, self._highs = array("Q"), array("Q")  # halves of signatures
        self.offsets = array("Q")
        self._firsts = array("I")  # per group the position of its first call
        self.tensor_bytes = self.unfinished = 0
        self.damage: list[TapeError] = []
        self.more_damage = 0
        self.table: InputsTable | None = None
        self.counts: InterimCounts | None = None
        self._tape = tape
        self._end, self._end_at = end, end_at
        self._index: Index | None = None
        self._group_is_found = bytearray()  # per group of the index whether it was found
        self._passed = 0  # the groups of the index that the walk has come past
        self._read = Window(source).read
        self._blob: int | None = None  # where blobs begin that wait for their group
        self._blob_bytes = 0  # of these
        self._highest = -1
        self._numbers_before: Numbers | None = None  # as soon as a number is not the highest
        self.ascends = True
        self._raised: int | None = None  # how many calls, if that was counted
        self._walk(source, start, watch)
        self._numbers_before = None

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def order(self) -> array[int]:
        """The positions of the calls in the order of their numbers. Nearly always that of the file;
        threads may end in another order."""
        positions = range(len(self))
        return array(
            "Q", positions if self.ascends else sorted(positions, key=self.numbers.__getitem__)
        )

    def raised(self, at: int) -> bool:
        """Whether a call raised."""
        return bool(self.places[at] >> 32 & RAISED)

    def has_ranges(self, at: int) -> bool:
        """Whether the inputs of a call have ranges."""
        return bool(self.places[at] >> 32 & HAS_RANGES)

    def inputs_number(self, at: int) -> int:
        """A number that is equal for calls of equal inputs that both raised, or both did not: the
        signature of the inputs, and below it one bit."""
        raised = self.places[at] >> 32 & RAISED == RAISED
        return self._lows[at] << 1 | self._highs[at] << 65 | raised

    def position(self, number: int) -> int | None:
        """The position of a call; None if there is none of this number."""
        if self.ascends:
            at = bisect_left(self.numbers, number)
            return at if at < len(self) and self.numbers[at] == number else None
        at = bisect_left(self.order, number, key=self.numbers.__getitem__)
        found = self.order[at] if at < len(self) else None
        return found if found is not None and self.numbers[found] == number else None

    def place(self, at: int) -> tuple[int, int]:
        """The offset of the group of a call, and the position of the call there."""
        group = bisect_right(self._firsts, at) - 1
        return self.offsets[group], at - self._firsts[group]

    def report(self, error: TapeError) -> None:
        """Adds to the damage."""
        if len(self.damage) < _MAX_DAMAGE:
            self.damage.append(error)
        else:
            self.more_damage += 1

    def _walk(self, source: Source, start: int, watch: Watch) -> None:
        if self._end is not None:
            try:
                self._index = self._end.groups()
                self._group_is_found = bytearray(len(self._index))
            except TapeError as error:
                self.report(error.at(member=END_MEMBER))
                self._index = Index(b"") if self._end.elsewhere else None
        walk = members(
            self._read, source.size, self._on_damage, start, source.next_data, self._end_at
        )
        for found in watch(walk, source.size):
            try:
                if is_group(found.name):
                    waiting, self._blob, self._blob_bytes = self._blob_bytes, None, 0
                    self._add_group(found, self._add_hidden(found.offset))
                    self.tensor_bytes += waiting
                elif found.name[:6] == "blobs/":
                    self._blob_bytes += found.size
                    if self._blob is None:
                        self._blob = found.offset
                elif found.name == END_MEMBER:
                    if found.offset != self._end_at:
                        raise self._no_end(found)
                elif found.name == COUNTS_MEMBER and self._end is None:
                    self._add_counts(found)
            except TapeError as error:
                if error.kind in ("closed", "io"):
                    raise  # it says nothing about the tape
                self.report(error.at(member=found.name, offset=found.offset))
        self._add_hidden(source.size)
        if self._end is not None:
            self._end_sealed(self._end)
        elif self._blob is not None:
            self.unfinished = source.size - self._blob

    def _add_counts(self, member: Member) -> None:
        """Notes counts if they are the last ones. What cannot be read was being written when the
        process, or the machine, stopped: the ones before it stand in another place."""
        try:
            counts = decode_counts(member_content(self._read, member))
        except TapeError as error:
            if error.kind in ("closed", "io"):
                raise
            return
        known = -1 if self.counts is None else self.counts.number
        if counts.tape == self._tape and counts.number > known:
            self.counts = counts

    def _no_end(self, member: Member) -> TapeError:
        """Why an end does not seal the tape."""
        try:
            tape = decode_end(member_content(self._read, member)).tape
        except TapeError as error:
            kind: ErrorKind = "unsupported" if error.kind == "unsupported" else "damaged"
            return TapeError(kind, f"the end of the tape cannot be read: {error.reason}")
        if tape != self._tape:
            return TapeError("damaged", "the end of another tape")
        reason = "the end of the tape is not that of the file: bytes were added, or cut off"
        advice = "its calls are read without it; what it counts beside them is not believed"
        return TapeError("damaged", reason, advice=advice)

    def _on_damage(self, error: TapeError) -> None:
        """At the end of an unsealed tape, a member that is cut short is a call that was being
        written, with the blobs before it."""
        if not isinstance(error, TornError) or self._end is not None:
            self.report(error)
        elif self._blob is None:
            self._blob = error.offset

    def _add_group(self, member: Member, at: int | None) -> None:
        """Adds the calls of a group, which has this position in the index."""
        group = opened(member_content(self._read, member), member.offset, self._tape)
        if at is None and self._index is not None:
            # Bytes inside a damaged tensor that look like a group.
            raise TapeError("damaged", "the index of the tape does not have this group here")
        table, size = group.table, group.documents.size
        first = len(self.numbers)
        if len(table) == CALL_BYTES:  # nearly each group of a paced recording
            number, time, place, low, high = only_entry(table, size)
            self._compare(at, 1, (number, number, time, time))
            if self._numbers_before is None and number > self._highest:
                self._highest = number
            else:
                self._expect_new((number,), ascends=True)
            self.numbers.append(number)
            self.times.append(time)
            self.places.append(place)
            self._lows.append(low)
            self._highs.append(high)
        else:
            columns = columns_of(table, size, group.stored)
            numbers, times = columns.numbers, columns.times
            low, high = (
                (numbers[0], numbers[-1]) if columns.ascends else (min(numbers), max(numbers))
            )
            self._compare(at, len(numbers), (low, high, min(times), max(times)))
            self._expect_new(numbers, ascends=columns.ascends)
            self.numbers += numbers
            self.times += times
            self.places += columns.places
            self._lows += columns.lows
            self._highs += columns.highs
        self._firsts.append(first)
        self.offsets.append(member.offset)
        if at is not None:
            self._group_is_found[at] = 1

    def _expect_new(self, numbers: Sequence[int], *, ascends: bool) -> None:
        """Raises if the tape has one of these calls already."""
        if self._numbers_before is None:
            if ascends and numbers[0] > self._highest:
                self._highest = numbers[-1]
                return
            # To hold all numbers takes longer than a walk: nearly always they ascend.
            self._numbers_before, self.ascends = Numbers(self.numbers), False
        if any(number in self._numbers_before for number in numbers):
            raise TapeError("damaged", "a call of the group has the number of another one")
        for number in numbers:
            self._numbers_before.add(number)

    def _compare(self, at: int | None, calls: int, spans: tuple[int, int, int, int]) -> None:
        """Compares a group with what the index says of it.

        Args:
            at: its position in the index; None if there is no index.
            calls: how many it has.
            spans: the lowest and the highest of their numbers, and of the times when they began.
        """
        if at is None or self._index is None:
            return
        entry = self._index.entry(at)
        if entry[1:] != (calls, *spans):
            are = "is" if entry.calls == 1 else "are"
            reason = f"by the index of the tape, {entry.named} {are} here"
            self.report(TapeError("damaged", reason, offset=entry.offset))

    def _end_sealed(self, end: End) -> None:
        known = {error.offset: at for at, error in enumerate(self.damage)}
        for at, was_found in enumerate(self._group_is_found):
            if self._index is not None and not was_found:
                entry = self._index.entry(at)
                self._lose(entry, known.get(entry.offset))
        # What is damaged is told, and would explain any difference.
        is_whole = not self.damage
        if not end.elsewhere:
            self._compare_table(end, is_whole=is_whole)
        self._compare_counts(end, is_whole=is_whole)

    def _add_hidden(self, until: int) -> int | None:
        """Adds the groups before an offset that the index has and the walk did not come to: the
        member before them says that it is larger than it is. Whoever begins at the end finds them
        as well. None may reach into the next one, or all together could be read many times.

        Returns:
            The position in the index of the group at that offset; None if it has none.
        """
        index = self._index
        while index is not None and self._passed < len(index.offsets):
            at = self._passed
            offset = index.offsets[at]
            if offset > until:
                break
            self._passed += 1
            if offset == until:  # the walk is there
                return at
            if self._group_is_found[at]:
                continue
            if offset % BLOCK:  # no member begins there
                continue
            after = index.offsets[at + 1] if at + 1 < len(index) else self._end_at or until
            try:
                found = parse_header(self._read(offset, BLOCK), offset)
                if found is None or not is_group(found.name) or found.end > after:
                    continue
                self._add_group(found, at)
            except TapeError as error:
                if error.kind in ("closed", "io"):
                    raise
                self.report(error.at(offset=offset))
                continue
            named = index.entry(at).named
            reason = f"{named}: by the index of the tape here, within another member"
            self.report(TapeError("damaged", reason, member=found.name, offset=offset))
        return None

    def _lose(self, entry: IndexEntry, damage_at: int | None) -> None:
        """Says which calls were in a group that was not found. If damage is known there, which
        stands at this place of the list, it is told once."""
        lost = f"{entry.named} {'is' if entry.calls == 1 else 'are'} lost"
        if damage_at is None:
            reason = f"{lost}: by the index of the tape, a group was here"
            error = LostCallsError("damaged", reason, offset=entry.offset)
            self.report(error)
        else:
            old = self.damage[damage_at]
            error = LostCallsError(
                old.kind, f"{lost}: {old.reason}",
                member=old.member, offset=old.offset, advice=old.advice, problems=old.problems,
            )  # fmt: skip
            self.damage[damage_at] = error
        error.calls, error.low, error.high = entry.calls, entry.low, entry.high

    def _compare_counts(self, end: End, *, is_whole: bool) -> None:
        """Compares what the end says of all calls with those that were found, unless some are
        damaged."""
        coverage = end.coverage
        total = coverage.kept + sum(coverage.dropped.values())
        if coverage.seen != total:
            reason = f"the end says that {coverage.seen} calls were seen, but accounts for {total}"
            self.report(TapeError("damaged", reason, member=END_MEMBER))
        if not is_whole or end.elsewhere:
            return
        numbers = self.numbers
        ends = (numbers[0], numbers[-1]) if numbers and self.ascends else (
            min(numbers, default=None), max(numbers, default=None)
        )  # fmt: skip
        raised = self._raised
        if raised is None:
            raised = sum([place >> 32 & RAISED for place in self.places])
        if (*ends, raised) != (end.first_call, end.last_call, end.raised):
            reason = "the end says other first or last calls, or how many raised, than there are"
            self.report(TapeError("damaged", reason, member=END_MEMBER))

    def _compare_table(self, end: End, *, is_whole: bool) -> None:
        """Compares the calls that were found with the table of counted inputs."""
        table: InputsTable | None = None
        try:
            table = end.table()
            difference = None if table is None or not is_whole else self._difference(table)
        except TapeError as error:
            difference = error.reason
        if difference is None:
            self.table = table
        else:
            self.report(stale_table(difference))

    def _difference(self, table: InputsTable) -> str | None:
        """In what a table differs from the calls that were found; None if it does not."""
        # By signature: calls, the lowest number, the highest, how many raised, the high half. The
        # low half is the key nearly always: it is hashed in much less time than both.
        found: dict[int, list[int]] = {}
        for number, low, high, place in zip(
            self.numbers, self._lows, self._highs, self.places, strict=True
        ):
            key, raised = low, place >> 32 & RAISED
            known = found.get(key)
            if known is not None and known[4] != high:
                key = low | high << 64 | _BOTH
                known = found.get(key)
            if known is None:
                found[key] = [1, number, number, raised, high]
                continue
            known[0] += 1
            known[3] += raised
            if number > known[2]:
                known[2] = number
            elif number < known[1]:
                known[1] = number
        self._raised = sum([known[3] for known in found.values()])
        for signature, row in table.rows.items():
            low, high = signature & _LOW, signature >> 64
            key = low if low in found and found[low][4] == high else signature | _BOTH
            difference = _difference_of(row, found.pop(key, None))
            if difference is not None:
                return difference
        others = sum([kind.kept for kind in table.kinds.values()]) + table.other.kept
        if sum([known[0] for known in found.values()]) != others:
            return "its number of calls without a row is wrong"
        return None


def stale_table(difference: str) -> TapeError:
    """The damage of a table of counted inputs that is not that of the calls."""
    advice = "the records are used; calltape recover writes a tape with a true one"
    reason = f"forged or stale table of inputs: {difference}"
    return TapeError("damaged", reason, member=END_MEMBER, advice=advice)


def _difference_of(row: Row, counted: list[int] | None) -> str | None:
    """In what a row differs from the calls that were found with its inputs."""
    calls, lowest, highest, raised, _ = counted or (0, 0, 0, 0, 0)
    if calls != row.kept:
        return "calls have inputs more or less often than it says"
    if not calls:
        return None
    if lowest < row.first or highest > row.last:
        return "a call has a number that its row does not allow"
    if lowest != row.example:
        return "a row names another call as the first"
    if row.kept == row.seen and (row.first, row.last) != (lowest, highest):
        return "a row has other calls as the first and the last"
    if not raised <= row.raised <= raised + row.seen - row.kept:
        return "other calls raised than it says"
    return None


class Numbers:
    """Numbers that come in any order, in blocks that are sorted: they take eight bytes each.

    Args:
        ascending: the first of them, in order.
    """

    def __init__(self, ascending: array[int]) -> None:
        starts = range(0, max(len(ascending), 1), _BLOCK)
        self._blocks = [ascending[at : at + _BLOCK] for at in starts]
        self._lasts = [block[-1] for block in self._blocks if block] or [-1]

    def __contains__(self, number: int) -> bool:
        which = bisect_left(self._lasts, number)
        if which == len(self._lasts):
            return False
        block = self._blocks[which]
        return block[bisect_left(block, number)] == number

    def add(self, number: int) -> None:
        """Adds a number that is new."""
        which = min(bisect_left(self._lasts, number), len(self._lasts) - 1)
        block = self._blocks[which]
        insort(block, number)
        self._lasts[which] = block[-1]
        if len(block) == 2 * _BLOCK:
            self._blocks[which : which + 1] = block[:_BLOCK], block[_BLOCK:]
            self._lasts.insert(which, block[_BLOCK - 1])
