"""What the summary of a file says of its inputs, and whether the records say the same.

In come a summary, and a scan of the file. Out go the distinct inputs with their calls, and damage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import gt
from typing import Any, NamedTuple

from calltape_analyzer.pytree.inputs import parts_of_inputs
from calltape_analyzer.reading.distinct_inputs import NOT_NUMBERED
from calltape_analyzer.reading.recent import Recent
from calltape_analyzer.reading.scan import Scan
from calltape_analyzer.text import counted
from calltape_schema.errors import TapeError
from calltape_schema.packing import pack
from calltape_schema.records import Tree
from calltape_schema.summary import SCALAR_COST, InputsRow, Summary

__all__ = ["InputsOfCalls", "differences", "rows_of", "stale"]

_MOST_TOLD = 3


class InputsOfCalls(NamedTuple):
    """Equal inputs of calls of one file.

    Attributes:
        inputs: as in their records. The ranges are of all these calls if they come from a summary,
            else of the first call.
        raised: whether the calls raised.
        calls: how many they are.
        first, last: the lowest and the highest of their numbers.
    """

    inputs: Tree
    raised: bool
    calls: int
    first: int
    last: int


def rows_of(summary: Summary) -> list[InputsOfCalls]:
    """The rows of a summary, in the order of their first calls.

    Raises:
        TapeError: a row breaks the format.
    """
    assert summary.inputs is not None
    found = (
        InputsOfCalls(_tree_of(row), row.raised, row.calls, row.first, row.last)
        for row in summary.inputs.rows()
    )
    return sorted(found, key=lambda row: row.first)


def _tree_of(row: InputsRow) -> Tree:
    """The inputs of a row.

    Raises:
        TapeError: they break the format.
    """
    # As bytes, because 1 and 1.0 are equal.
    scalars = pack(row.scalars)
    key = row.structure, row.leaves, scalars, tuple(row.ranges.items())
    tree = _trees.get(key)
    if tree is None:
        tree = row.tree()
        if parts_of_inputs(tree.spec().root) is None:
            raise TapeError("invalid", "the inputs are not (args, kwargs)")
        size = len(row.structure) + len(row.leaves) + SCALAR_COST * len(scalars)
        _trees.keep(key, tree, size)
    return tree


_trees: Recent[Tree] = Recent(2048)


def stale(reason: str) -> TapeError:
    """The damage of a summary that is not that of the records."""
    return TapeError(
        "damaged", f"forged or stale summary: {reason}",
        advice="the records are used; calltape recover writes a tape with a true summary",
    )  # fmt: skip


def differences(summary: Summary, found: Scan) -> Iterator[TapeError]:
    """In what a summary differs from the trailer and the records of its file."""
    for reason in _differences(summary, found):
        yield stale(reason)


def _differences(summary: Summary, found: Scan) -> Iterator[str]:
    trailer, numbers = found.trailer, found.numbers
    if trailer is None:
        yield "there is no whole trailer after it"
        return
    for name in ("closed_ns", "coverage", "traffic", "dumps", "continues"):
        if getattr(summary, name) != getattr(trailer, name):
            yield f"its {name} is not that of the trailer"
    lost = summary.coverage.kept - len(numbers)  # calls that are damaged, which is told
    ends = (min(numbers), max(numbers)) if numbers else (None, None)
    if not lost and (summary.first_call, summary.last_call) != ends:
        yield f"its calls are not {ends[0]} to {ends[1]}"
    if summary.inputs is None:
        return
    if NOT_NUMBERED in found.inputs:  # the bounds are those of a summary
        yield "the records have more distinct inputs than a summary can have"
        return
    others = list(_other_inputs(summary, found, lost))
    yield from others
    if not others and not lost and found.ranges.complete:
        yield from _other_ranges(summary, found)


def _other_inputs(summary: Summary, found: Scan, lost: int) -> Iterator[str]:
    """In what the rows differ from the records. Those of lost calls are not known: so many calls
    may have any inputs, and each row at least the calls that are there."""
    assert summary.inputs is not None
    try:
        told = {
            (row.structure, row.leaves, pack(row.scalars), row.raised): row[4:7]
            for row in summary.inputs.rows()
        }
    except TapeError as error:
        yield str(error.reason)
        return
    counts = Counter(found.inputs)
    first, last = _ends(found)
    there: dict[Any, tuple[int, int, int]] = {
        (one.structure, one.leaves, pack(one.scalars), one.raised): (
            counts[number], first[number], last[number],
        )
        for number, one in enumerate(found.distinct_inputs.entries)
        if counts[number]
    }  # fmt: skip
    if told == there:
        return
    unknown = sum(calls for key, (calls, _, _) in told.items() if key not in there)
    missing = [first for key, (_, first, _) in there.items() if key not in told]
    other = [
        facts[1]
        for key, facts in there.items()
        if key in told and not (_covers(told[key], facts) if lost else told[key] == facts)
    ]
    if unknown > lost:
        yield f"it has {unknown} calls with inputs that no record has"
    if missing:
        records = counted(len(missing), "record")
        yield f"it lacks the inputs of {records}, such as call {min(missing)}"
    if other:
        yield f"it counts other calls with the inputs of call {min(other)}"


def _other_ranges(summary: Summary, found: Scan) -> Iterator[str]:
    """In what the ranges of integer tensors differ, if each of the inputs is in both."""
    assert summary.inputs is not None
    told = {
        (row.structure, row.leaves, pack(row.scalars), row.raised): row
        for row in summary.inputs.rows()
    }
    for number, one in enumerate(found.distinct_inputs.entries):
        row = told.get((one.structure, one.leaves, pack(one.scalars), one.raised))
        ranges = {leaf: (low, high) for leaf, low, high in found.ranges.of(number)}
        if row is not None and row.ranges != ranges:
            yield f"it has other ranges of the integers of call {row.first}"
            return


def _ends(found: Scan) -> tuple[dict[int, int], dict[int, int]]:
    """The lowest and the highest number of the calls with each of the inputs. Of a key that comes
    again, a dict keeps the last value."""
    numbers: Sequence[int] = found.numbers
    inputs: Sequence[int] = found.inputs
    if any(map(gt, numbers, islice(numbers, 1, None))):  # calls that ended in another order
        numbers, inputs = zip(*sorted(zip(numbers, inputs, strict=True)), strict=True)
    first = dict(zip(reversed(inputs), reversed(numbers), strict=True))
    return first, dict(zip(inputs, numbers, strict=True))


def _covers(told: tuple[int, int, int], there: tuple[int, int, int]) -> bool:
    """Whether a row has the calls that are there, and perhaps more."""
    return told[0] >= there[0] and told[1] <= there[1] and told[2] >= there[2]
