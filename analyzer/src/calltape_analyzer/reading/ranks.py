"""Recordings of the ranks of one job: the ranks of a model that is split make every call together.

Such a step is one call of the model, however many ranks there are. In come the recordings of a
tape. Those whose calls are the steps of another rank's recording are left out, and their paths are
told. Ranks with other data, as of data-parallel training, have other calls, and all count.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.reading.call_ref import row_of
from calltape_analyzer.reading.calls import Calls
from calltape_analyzer.reading.recordings import CountedFile
from calltape_analyzer.reading.segment import Segment
from calltape_schema.inputs_table import Row
from calltape_schema.packing import pack

__all__ = ["Steps", "are_of", "of_other_ranks", "steps_of", "without_other_ranks"]


F = TypeVar("F", bound=CountedFile)

Steps = dict[Hashable, Row]
"""What was counted of distinct inputs, by what ranks have in common of them."""


def without_other_ranks(
    recordings: Sequence[list[Segment]],
) -> tuple[list[list[Segment]], list[str]]:
    """The recordings of which each has steps of its own, and the paths of the files of others,
    which are closed."""
    gone = of_other_ranks(recordings, _are_of)
    left_out = {id(parts) for parts in gone}
    paths = [part.path for parts in gone for part in parts]
    for parts in gone:
        for part in parts:
            part.close()
    return [parts for parts in recordings if id(parts) not in left_out], paths


def of_other_ranks(
    recordings: Iterable[Sequence[F]], are_of: Callable[[Sequence[F], Sequence[F]], bool]
) -> list[Sequence[F]]:
    """The recordings whose steps one of another rank has, which stays. That is the one with the
    most calls, else the lowest. A job has each rank once.

    Args:
        recordings: of any jobs, or of none.
        are_of: whether the steps of a recording are those of another one.
    """
    by_size: dict[int, list[Sequence[F]]] = {}
    for parts in recordings:
        rank = parts[0].manifest.rank
        if rank is not None:
            by_size.setdefault(rank.of, []).append(parts)
    gone: list[Sequence[F]] = []
    for ranks in by_size.values():
        kept: list[tuple[Sequence[F], set[int]]] = []
        for parts in sorted(ranks, key=lambda parts: (-sum(map(len, parts)), _number(parts))):
            number = _number(parts)
            for other, numbers in kept:
                if number not in numbers and are_of(parts, other):
                    numbers.add(number)
                    gone.append(parts)
                    break
            else:
                kept.append((parts, {number}))
    return gone


def _number(parts: Sequence[CountedFile]) -> int:
    rank = parts[0].manifest.rank
    return 0 if rank is None else rank.number


def _are_of(parts: Sequence[Segment], steps: Sequence[Segment]) -> bool:
    if all(part.end is not None for part in (*parts, *steps)):
        return are_of(_steps(parts), _steps(steps), is_whole=True)
    # One of the processes was killed, so that some of its last calls may be missing.
    own, others = _calls(parts), _calls(steps)
    return bool(own) and all(others.get(number) == inputs for number, inputs in own.items())


def _calls(parts: Sequence[Segment]) -> dict[int, Hashable]:
    """By number what ranks have in common of the inputs of each call."""
    found: dict[int, Hashable] = {}
    for call in Calls(parts, ClassIndex()):
        tree = call.record.inputs
        facts = tuple((leaf.dtype, leaf.shape) for leaf in tree.facts())
        ranges = tuple((one.leaf, one.min, one.max) for one in tree.ranges)
        found[call.number] = tree.structure, facts, pack(tree.scalars), ranges
    return found


def _steps(parts: Sequence[Segment]) -> Steps:
    return steps_of(map(row_of, Calls(parts, ClassIndex()).by_inputs()))


def steps_of(rows: Iterable[Row]) -> Steps:
    """What was counted, with the inputs as ranks have them in common: each has them on a device of
    its own."""
    found: Steps = {}
    for row in rows:
        facts = tuple((leaf.dtype, leaf.shape) for leaf in row.tree().facts())
        own = Row(row.structure, row.leaves, row.scalars, row.first, row.last)
        found.setdefault((row.structure, facts, row.scalars), own).absorb(row)
    return found


def are_of(own: Mapping[Hashable, Row], others: Mapping[Hashable, Row], *, is_whole: bool) -> bool:
    """Whether the calls of a recording are those of another rank's, as far as counts tell.

    Args:
        own, others: what was counted of both.
        is_whole: whether both have all calls. If one of the processes was killed, some of the last
            ones may be missing.
    """
    if is_whole and own.keys() != others.keys():
        return False
    is_one = _is_equal if is_whole else _is_part
    return (is_whole or bool(own)) and all(
        key in others and is_one(row, others[key]) for key, row in own.items()
    )


def _is_equal(row: Row, other: Row) -> bool:
    return row.spans() == other.spans() and (
        (row.first, row.last, row.kept, row.raised)
        == (other.first, other.last, other.kept, other.raised)
    )


def _is_part(row: Row, other: Row) -> bool:
    return (
        row.first == other.first
        and row.last <= other.last
        and row.kept <= other.kept
        and row.raised <= other.raised
        and row.ranges.keys() <= other.ranges.keys()
        and all(
            other.ranges[leaf][0] <= low and high <= other.ranges[leaf][1]
            for leaf, low, high in row.spans()
        )
    )
