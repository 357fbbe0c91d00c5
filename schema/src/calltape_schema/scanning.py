"""What a walk over the members of a tape finds: which calls there are, and what is damaged.

In come bytes. Out goes a :class:`Scan`. Only the tables of groups are decoded. Of a sealed tape,
the groups are compared with the index, and the calls with the table of counted inputs.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from operator import lt

from calltape_schema.bounds import MAX_MEMBER_BYTES
from calltape_schema.end import End, IndexEntry, decode_end
from calltape_schema.errors import TapeError
from calltape_schema.groups import HAS_RANGES, RAISED, check_table, opened
from calltape_schema.inputs_table import InputsTable, u64s
from calltape_schema.storage import Source, Window
from calltape_schema.tar import BLOCK, END_MEMBER, Member, is_group, members

__all__ = ["Scan", "Walk", "Watch", "content_of", "of_another_tape"]

_ONE = struct.Struct("<QQQ")  # the table of a group of one call
_MAX_DAMAGE = 1000

Watch = Callable[[Iterable[Member], int], Iterable[Member]]
"""Goes between a walk and the members that it finds, with the size of the tape: shows how far it
is."""


class Scan:
    """What a walk over a tape found. The arrays have an element per call, in file order.

    Attributes:
        numbers, inputs, places: as those of a :class:`~calltape_schema.groups.Group`.
        groups: per call the position of its group.
        offsets: per group where its member begins.
        end: the end of a sealed tape; None if it is not sealed.
        table: the counted inputs, if the end has them and the calls do not contradict them.
        tensor_bytes: the size of all blobs.
        unfinished: how many bytes at the end belong to calls that were being written.
        damage: what was found wrong. The list is bounded: a file of nothing but damage must not
            fill the memory.
        more_damage: how much more there was.
    """

    def __init__(self) -> None:
        self.numbers, self.inputs, self.places = array("Q"), array("Q"), array("Q")
        self.groups = array("I")
        self.offsets = array("Q")
        self.end: End | None = None
        self.tensor_bytes = self.unfinished = 0
        self.table: InputsTable | None = None
        self.damage: list[TapeError] = []
        self.more_damage = 0
        self._positions: dict[int, int] | None = None
        self._highest = -1
        self._known: set[int] | None = None  # the numbers, as soon as one is not the highest so far

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def ascends(self) -> bool:
        """Whether the calls are in the order of their numbers, as nearly always."""
        return self._known is None

    def report(self, error: TapeError) -> None:
        """Adds damage."""
        if len(self.damage) < _MAX_DAMAGE:
            self.damage.append(error)
        else:
            self.more_damage += 1

    def raised(self, at: int) -> bool:
        """Whether a call raised."""
        return bool(self.places[at] >> 32 & RAISED)

    def has_ranges(self, at: int) -> bool:
        """Whether the inputs of a call have ranges."""
        return bool(self.places[at] >> 32 & HAS_RANGES)

    def add(self, table: bytes, found: Member) -> None:
        """Adds the calls of a group, whose table was checked.

        Raises:
            TapeError: ``damaged`` if one of them is there already: then none is added.
        """
        if len(table) == _ONE.size:  # nearly each group of a paced recording
            number, key, place = _ONE.unpack(table)
            if number <= self._highest or self._known is not None:
                self._expect_new(array("Q", [number]))
            self._highest = max(self._highest, number)
            self.groups.append(len(self.offsets))
            self.numbers.append(number)
            self.inputs.append(key)
            self.places.append(place)
        else:
            columns = u64s(table)
            numbers = columns[::3]
            self._expect_new(numbers)
            self._highest = max(self._highest, numbers[-1])
            self.groups.extend([len(self.offsets)] * len(numbers))
            self.numbers += numbers
            self.inputs += columns[1::3]
            self.places += columns[2::3]
        self.offsets.append(found.offset)

    def position(self, number: int) -> int | None:
        """The position of a call; None if there is none of this number."""
        if self.ascends:
            at = bisect_left(self.numbers, number)
            return at if at < len(self) and self.numbers[at] == number else None
        if self._positions is None:
            self._positions = {number: at for at, number in enumerate(self.numbers)}
        return self._positions.get(number)

    def extent(self, group: int) -> tuple[int, int, int]:
        """How many calls a group has, the lowest and the highest of their numbers."""
        first = bisect_left(self.groups, group)
        last = bisect_left(self.groups, group + 1, first) - 1
        if first == last:  # nearly each group of a paced recording
            return 1, self.numbers[first], self.numbers[first]
        numbers = self.numbers[first : last + 1]
        return len(numbers), min(numbers), max(numbers)

    def place(self, at: int) -> tuple[int, int]:
        """The offset of the group of a call, and the position of the call there."""
        group = self.groups[at]
        return self.offsets[group], at - bisect_left(self.groups, group)

    def remove(self, strangers: set[int]) -> None:
        """Removes the calls of these groups, and says so."""
        calls = Counter(group for group in self.groups if group in strangers)
        for group in sorted(strangers):
            self.report(_stranger(calls[group]).at(offset=self.offsets[group]))
        kept = [at for at, group in enumerate(self.groups) if group not in strangers]
        for column in (self.numbers, self.inputs, self.places, self.groups):
            column[:] = array(column.typecode, [column[at] for at in kept])

    def _expect_new(self, numbers: array[int]) -> None:
        # A set of all numbers takes longer than a walk: nearly always numbers ascend.
        if self._known is None:
            if numbers[0] > self._highest and all(map(lt, numbers, numbers[1:])):
                return
            self._known = set(self.numbers)
        new = set(numbers)
        if len(new) != len(numbers) or not new.isdisjoint(self._known):
            raise TapeError("damaged", "a call of the group has the number of another one")
        self._known |= new
        self._highest = max(self._highest, *new)


def content_of(read: Callable[[int, int], bytes], found: Member) -> bytes:
    """The content of a msgpack member."""
    if found.size > MAX_MEMBER_BYTES:
        reason = f"a member has {found.size} bytes (at most {MAX_MEMBER_BYTES})"
        raise TapeError("limit", reason)
    content = read(found.offset + BLOCK, found.size)
    if len(content) != found.size:
        raise TapeError("damaged", "the file is shorter now")
    return content


def of_another_tape() -> TapeError:
    return TapeError("damaged", "a group belongs to another tape")


def _stranger(calls: int) -> TapeError:
    told = "a call is skipped" if calls == 1 else f"{calls} calls are skipped"
    return TapeError("damaged", f"{told}: the index of the tape does not have this group here")


class Walk:
    """Walks over the members of one tape.

    Args:
        source: of its bytes.
        tape: its id.
        end: what its end says, if the tape is sealed: it tells groups from bytes inside a tensor.
    """

    def __init__(self, source: Source, tape: bytes, end: End | None) -> None:
        self._source = source
        self._tape = tape
        self._read = Window(source).read
        self._scan = Scan()
        self._held: TapeError | None = None  # the last damage, until a member follows it
        self._blob: int | None = None  # where blobs begin that wait for their group
        self._expected = _offsets_of(end)

    def run(self, start: int, watch: Watch) -> Scan:
        """Walks from the offset of a header to the end of the tape."""
        scan, source = self._scan, self._source
        walk = members(self._read, source.size, self._hold, start, source.next_data)
        for found in watch(walk, source.size):
            self._release()
            if found.name[:6] == "blobs/":
                scan.tensor_bytes += found.size
                if self._blob is None:
                    self._blob = found.offset
                continue
            try:
                self._add(found)
            except TapeError as error:
                if error.kind in ("closed", "io"):
                    raise  # it says nothing about the tape
                scan.report(error.at(member=found.name, offset=found.offset))
        if scan.end is None:
            self._end_unsealed()
        else:
            self._release()
            _compare(scan, scan.end)
        return scan

    def _add(self, found: Member) -> None:
        if is_group(found.name):
            self._blob = None
            tape, table, documents, size = opened(content_of(self._read, found))
            if tape != self._tape:
                raise of_another_tape()
            check_table(table, size or len(documents))
            if self._expected is not None and not _has(self._expected, found.offset):
                raise _stranger(len(table) // _ONE.size)
            self._scan.add(table, found)
        elif found.name == END_MEMBER:
            end = decode_end(content_of(self._read, found))
            if end.tape != self._tape:
                raise TapeError("damaged", "the end belongs to another tape")
            self._scan.end = end

    def _hold(self, error: TapeError) -> None:
        """Holds damage back until it is known whether a member follows: at the end of an unsealed
        tape, a member that is cut short is a call that was being written."""
        self._release()
        self._held = error

    def _release(self) -> None:
        if self._held is not None:
            self._scan.report(self._held)
            self._held = None

    def _end_unsealed(self) -> None:
        size, held = self._source.size, self._held
        if held is not None and not _is_cut_short(held, size):
            self._release()
            held = None
        torn = size if held is None else held.offset or 0
        self._scan.unfinished = size - min(torn, size if self._blob is None else self._blob)


def _is_cut_short(error: TapeError, size: int) -> bool:
    """Whether the file ends like one whose writer was interrupted: within a member of calls, or
    within a header."""
    if error.member == END_MEMBER:
        return False
    return error.member is not None or size - (error.offset or 0) < BLOCK


def _offsets_of(end: End | None) -> array[int] | None:
    """Where the groups of a sealed tape are, ascending; None if its end does not tell."""
    if end is None:
        return None
    try:
        return array("Q", sorted(end.columns()[::4]))
    except TapeError:
        return None  # the comparison with the index reports it


def _has(ascending: array[int], value: int) -> bool:
    at = bisect_left(ascending, value)
    return at < len(ascending) and ascending[at] == value


def _compare(scan: Scan, end: End) -> None:
    """Compares the groups that were found with the index of a sealed tape. A group that is not in
    the index is no part of the tape, but bytes inside a damaged tensor."""
    coverage = end.coverage
    accounted = coverage.kept + sum(coverage.dropped.values())
    if coverage.seen != accounted:
        reason = f"the end says that {coverage.seen} calls were seen, but accounts for {accounted}"
        scan.report(TapeError("damaged", reason, member=END_MEMBER))
    try:
        index = end.columns()
        end.check_index(index)
    except TapeError as error:
        scan.report(error.at(member=END_MEMBER))
        return
    known = {error.offset: error for error in scan.damage}
    place = dict(zip(scan.offsets, range(len(scan.offsets)), strict=True))
    for entry in map(IndexEntry, index[::4], index[1::4], index[2::4], index[3::4]):
        group = place.pop(entry.offset, None)
        if group is None:
            _lose(scan, entry, known.get(entry.offset))
        elif entry[1:] != scan.extent(group):
            reason = f"by the index of the tape, {entry.named} {entry.are} here"
            scan.report(TapeError("damaged", reason, offset=entry.offset))
    if place:
        scan.remove(set(place.values()))
    if not end.elsewhere:
        _compare_table(scan, end)


def _lose(scan: Scan, entry: IndexEntry, known: TapeError | None) -> None:
    """Says which calls were in a group that was not found. If it is known what is wrong there, that
    is told once."""
    if known is not None:
        known.reason = f"{entry.named} {entry.are} lost: {known.reason}"
    else:
        is_there = scan.position(entry.low) is not None
        what = "elsewhere" if is_there else "lost"
        reason = (
            f"{entry.named} {entry.are} {what}: by the index of the tape, the group begins here"
        )
        scan.report(TapeError("damaged", reason, offset=entry.offset))


def _compare_table(scan: Scan, end: End) -> None:
    """Compares the calls that were found with the table of inputs."""
    try:
        table = end.table()
        told = None if table is None else _difference(table, scan)
    except TapeError as error:
        told = error.reason
    if told is None:
        scan.table = table
    else:
        scan.report(
            TapeError(
                "damaged", f"forged or stale table of inputs: {told}", member=END_MEMBER,
                advice="the records are used; calltape recover writes a tape with a true one",
            )
        )  # fmt: skip


def _difference(table: InputsTable, scan: Scan) -> str | None:
    """In what a table differs from the calls that were found; None if it does not. Calls that are
    damaged are not found, which is told already."""
    found, is_whole = Counter(scan.inputs), not scan.damage
    others = sum([kind.kept for kind in table.kinds.values()]) + table.other.kept
    for key, row in table.rows.items():
        calls = found.pop(key, 0)
        if calls > row.kept:
            return "calls have inputs more often than it says"
        if is_whole and calls < row.kept:
            return "it has inputs that no call has, or more often than calls have them"
    if found.total() > others:
        return "it does not have the inputs of all calls"
    if is_whole and found.total() < others:
        return "it has calls without a row that are not there"
    return _misplaced(table, scan)


def _misplaced(table: InputsTable, scan: Scan) -> str | None:
    """Whether a row tells wrong numbers of calls, or which of them raised."""
    lowest: dict[int, int] = {}
    raised: Counter[int] = Counter()
    for number, key, place in zip(scan.numbers, scan.inputs, scan.places, strict=True):
        row = table.rows.get(key)
        if row is None:
            continue
        if not row.first <= number <= row.last:
            return "a call has a number that its row does not allow"
        if place >> 32 & RAISED:
            raised[key] += 1
        if number < lowest.get(key, number + 1):
            lowest[key] = number
    for key, number in lowest.items():
        row = table.rows[key]
        unkept = row.seen - row.kept
        is_raised = raised[key] <= row.raised and (
            scan.damage or row.raised <= raised[key] + unkept
        )
        if number != row.example and not (scan.damage and number > (row.example or 0)):
            return "a row names another call as the first"
        if not is_raised:
            return "other calls raised than it says"
    return None
