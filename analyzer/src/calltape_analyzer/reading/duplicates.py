"""Calls that were recorded, or stand in files, more than once: each counts once.

A recorder writes each call to one file. If two files have the same call, then one is a copy, or
both were extracted from one tape, or one is forged. Takes the files of a recording; returns files
in which each call stands once, and damage that names the files.

The ranks of a model that is split make every call together: such a step is one call of the model,
however many ranks there are. Takes recordings; those whose calls are the steps of another rank's
are left out, and their paths are given. Ranks with other data, as of data-parallel training, have
other calls, and all count.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from calltape_analyzer.errors import Damage, RepeatedCallsError, is_damage
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import row_of
from calltape_analyzer.reading.calls import Calls
from calltape_analyzer.reading.compressed import COMPRESSIONS
from calltape_analyzer.reading.recordings import CountedFile
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.text import some_of
from calltape_schema.errors import TapeError
from calltape_schema.inputs_table import Row
from calltape_schema.packing import pack

__all__ = [
    "Steps",
    "are_same_steps",
    "of_other_ranks",
    "repeated_numbers",
    "steps_of",
    "without_other_ranks",
    "without_repeats",
]

_MAX_NAMED = 5


def without_repeats(parts: Sequence[Segment], damage: Damage) -> list[Segment]:
    """The files of one recording, with each call in one file only. Files that are copies are closed
    and left out. A call that stands in a second file is reported as damage.

    Args:
        parts: all files with one tape id, in order.
        damage: gets what was left out.
    """
    if len(parts) == 1:
        return list(parts)
    # A copy that was made while the recorder was writing has fewer calls, and no end.
    preferred = sorted(parts, key=lambda file: (file.end is None, -len(file) - file.left_out))
    complete = [part for part in preferred if not part.is_ahead]
    ahead = [part for part in preferred if part.is_ahead]
    gone: list[Segment] = []
    empty: dict[tuple[int, str], Segment] = {}
    for file in complete:  # one without calls may say the same as another one
        if file.extent is None:
            original = empty.setdefault((file.part, repr(file.end)), file)
            if original is not file:
                gone.append(file)
                _drop(file, [original], damage)
    gone += _leave_out(complete, _in_several(complete), damage)
    gone += _leave_out(ahead, _in_several(ahead), damage)
    # A call that was written ahead, and ended, is complete in another file.
    waiting = {number for file in ahead for number in file.numbers}
    if waiting:
        whole = _others(complete, gone)
        ended = {number for file in whole for number in waiting.intersection(file.numbers)}
        for file in ahead:
            file.leave_out(ended)
    return _others(parts, gone)


def _others(parts: Sequence[Segment], gone: Sequence[Segment]) -> list[Segment]:
    left_out = {id(part) for part in gone}
    return [part for part in parts if id(part) not in left_out]


def _is_compressed(file: Segment, original: Segment) -> bool:
    """Whether one of two equal files beside each other is the other one compressed. What compresses
    files leaves both until it removes the plain one: no damage. If it does that while the directory
    is read, the compressed file is opened twice."""
    short, long = sorted((file.path, original.path), key=len)
    return long in (short, *(f"{short}{suffix}" for suffix in COMPRESSIONS))


def _drop(file: Segment, originals: Sequence[Segment], damage: Damage) -> None:
    """Closes a file that is a copy of others."""
    if all(_is_compressed(file, original) for original in originals):
        file.close()
        return
    for original in dict.fromkeys(originals):
        original.copies.append(file.location)
    calls = len(file.numbers)
    counted = "its call counts" if calls == 1 else f"its {calls} calls count"
    file.close()
    damage.add(
        RepeatedCallsError(
            "damaged", f"the file is a copy of {_names(originals, file)}, and {counted} once",
            path=file.path, advice="open only one of the files",
        )
    )  # fmt: skip


def _names(files: Iterable[Segment], other: Segment) -> str:
    """The names of files beside another one; if that has such a name too, their paths."""
    paths = list(dict.fromkeys(file.path for file in files))
    names = [os.path.basename(path) for path in paths]
    is_alike = os.path.basename(other.path) in names
    return some_of(paths if is_alike else names, _MAX_NAMED)


def _in_several(files: Sequence[Segment]) -> set[int]:
    """The numbers of calls that are in more than one file. The files of a recording follow each
    other, so that few, if any, have to be compared."""
    numbers: set[int] = set()
    together: list[Segment] = []
    end = -1
    for low, high, which in sorted(
        (*extent, i) for i, file in enumerate(files) if (extent := file.extent) is not None
    ):
        if low > end:
            numbers |= repeated_numbers(together)
            together = []
        together.append(files[which])
        end = max(end, high)
    return numbers | repeated_numbers(together)


def repeated_numbers(files: Sequence[Segment]) -> set[int]:
    repeated: set[int] = set()
    seen_numbers: set[int] = set()
    for file in files if len(files) > 1 else ():
        repeated |= seen_numbers.intersection(file.numbers)
        seen_numbers.update(file.numbers)
    return repeated


def _leave_out(files: Sequence[Segment], repeated: set[int], damage: Damage) -> list[Segment]:
    """Removes calls from all files but the first that has them. Returns the files that have nothing
    else; they are closed."""
    owners: dict[int, tuple[Segment, int]] = {}
    gone: list[Segment] = []
    ordered = sorted(repeated)
    for file in files:
        low, high = file.extent or (0, -1)
        if bisect_left(ordered, low) == bisect_right(ordered, high):
            continue  # nearly always so; then it is not scanned
        places = [(n, position) for position, n in enumerate(file.numbers) if n in repeated]
        repeats = [(n, position) for n, position in places if n in owners]
        changed = {n for n, position in repeats if _has_other_inputs(file, position, owners[n])}
        originals = [owners[n][0] for n, _ in repeats]
        if repeats and not changed and len(repeats) == len(file.numbers):
            gone.append(file)
            _drop(file, originals, damage)
            continue
        if repeats:
            file.leave_out({n for n, _ in repeats})
            names, advice = _names(originals, file), "open only one of the files"
            identical = [n for n, _ in repeats if n not in changed]
            if identical:
                reason = f"{_calls_named(identical)} in {names} too, and count"
                reason += "s once" if len(identical) == 1 else " once"
                damage.add(RepeatedCallsError("damaged", reason, path=file.path, advice=advice))
            if changed:
                which = _calls_named(sorted(changed))
                reason = f"{which} left out, because {names} has other calls with these numbers"
                advice += ", and find out which of them was changed"
                damage.add(TapeError("damaged", reason, path=file.path, advice=advice))
        for n, position in places:
            owners.setdefault(n, (file, position))
    return gone


def _has_other_inputs(file: Segment, position: int, owner: tuple[Segment, int]) -> bool:
    """Whether a call differs from the call with its number in another file. Of a corrupted call
    this is unknown; its corruption is reported when it is read."""
    call, original = (Call(part, at, 0, ClassIndex()) for part, at in ((file, position), owner))
    try:
        return not call.is_same(original)
    except TapeError as error:
        if not is_damage(error):
            raise
        return False


def _calls_named(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"call {numbers[0]} is"
    return f"calls {some_of([str(number) for number in numbers], _MAX_NAMED)} are"


F = TypeVar("F", bound=CountedFile)

Steps = dict[Hashable, Row]
"""What was counted of distinct inputs, by what ranks have in common of them."""


def without_other_ranks(
    recordings: Sequence[list[Segment]],
) -> tuple[list[list[Segment]], list[str]]:
    """The recordings that have steps of their own, and the paths of the files of other ranks, which
    are closed."""
    gone = of_other_ranks(recordings, _is_repeat)
    left_out = {id(parts) for parts in gone}
    paths = [part.path for parts in gone for part in parts]
    for parts in gone:
        for part in parts:
            part.close()
    return [parts for parts in recordings if id(parts) not in left_out], paths


def of_other_ranks(
    recordings: Iterable[Sequence[F]], is_repeat: Callable[[Sequence[F], Sequence[F]], bool]
) -> list[Sequence[F]]:
    """The recordings whose steps one of another rank has, which stays. That is the one with the
    most calls, else the lowest. A job has each rank once.

    Args:
        recordings: of any jobs, or of none.
        is_repeat: whether the steps of a recording are those of another one.
    """
    by_size: dict[int, list[Sequence[F]]] = {}
    for parts in recordings:
        rank = parts[0].manifest.rank
        if rank is not None:
            by_size.setdefault(rank.of, []).append(parts)
    gone: list[Sequence[F]] = []
    for ranks in by_size.values():
        kept_ranks: list[tuple[Sequence[F], set[int]]] = []
        numbered = [(rank.number, parts) for parts in ranks if (rank := parts[0].manifest.rank)]
        for number, parts in sorted(
            numbered, key=lambda numbered_rank: (-sum(map(len, numbered_rank[1])), numbered_rank[0])
        ):
            for kept_parts, numbers in kept_ranks:
                if number not in numbers and is_repeat(parts, kept_parts):
                    numbers.add(number)
                    gone.append(parts)
                    break
            else:
                kept_ranks.append((parts, {number}))
    return gone


def _is_repeat(parts: Sequence[Segment], steps: Sequence[Segment]) -> bool:
    if all(part.end is not None for part in (*parts, *steps)):
        return are_same_steps(_steps(parts), _steps(steps), is_whole=True)
    # One of the processes was killed, so that some of its last calls may be missing.
    calls, other_calls = _calls(parts), _calls(steps)
    return bool(calls) and all(other_calls.get(n) == inputs for n, inputs in calls.items())


def _calls(parts: Sequence[Segment]) -> dict[int, Hashable]:
    """By number what ranks have in common of the inputs of each call."""
    calls: dict[int, Hashable] = {}
    for call in Calls(parts, ClassIndex()):
        tree = call.record.inputs
        facts = tuple((leaf.dtype, leaf.shape) for leaf in tree.facts())
        ranges = tuple((range_.leaf, range_.min, range_.max) for range_ in tree.ranges)
        calls[call.number] = tree.structure, facts, pack(tree.scalars), ranges
    return calls


def _steps(parts: Sequence[Segment]) -> Steps:
    return steps_of(map(row_of, Calls(parts, ClassIndex()).by_inputs()))


def steps_of(rows: Iterable[Row]) -> Steps:
    """What was counted, with the inputs as ranks have them in common: each has them on a device of
    its own."""
    steps: Steps = {}
    for row in rows:
        facts = tuple((leaf.dtype, leaf.shape) for leaf in row.tree().facts())
        first_row = Row(row.structure, row.leaves, row.scalars, row.first, row.last)
        steps.setdefault((row.structure, facts, row.scalars), first_row).absorb(row)
    return steps


def are_same_steps(
    rows: Mapping[Hashable, Row], other_rows: Mapping[Hashable, Row], *, is_whole: bool
) -> bool:
    """Whether the calls of a recording are those of another rank's, as far as counts tell.

    Args:
        rows, other_rows: what was counted of both.
        is_whole: whether both have all calls. If one of the processes was killed, some of the last
            ones may be missing.
    """
    if is_whole and rows.keys() != other_rows.keys():
        return False
    for key, row in rows.items():
        other_row = other_rows.get(key)
        if other_row is None or row.first != other_row.first:
            return False
        counts = [
            (row.last, other_row.last),
            (row.kept, other_row.kept),
            (row.raised, other_row.raised),
        ]
        if is_whole and (row.spans() != other_row.spans() or any(a != b for a, b in counts)):
            return False
        if any(a > b for a, b in counts) or not row.ranges.keys() <= other_row.ranges.keys():
            return False
        for leaf, low, high in row.spans():
            if low < other_row.ranges[leaf][0] or high > other_row.ranges[leaf][1]:
                return False
    return is_whole or bool(rows)
