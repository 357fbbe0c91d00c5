"""Recordings of the ranks of one job: the ranks of a model that is split make every call together.

Such a step is one call of the model, however many ranks there are. In come the recordings of a
tape. Those whose calls are the steps of another rank's recording are left out, and their paths are
told. Ranks with other data, as of data-parallel training, have other calls, and all count.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.reading.calls import Calls
from calltape_analyzer.reading.segment import Segment
from calltape_schema.packing import pack
from calltape_schema.records import Tree

__all__ = ["of_other_ranks", "rank_key", "without_other_ranks"]


T = TypeVar("T")


def without_other_ranks(
    recordings: Sequence[list[Segment]],
) -> tuple[list[list[Segment]], list[str]]:
    """The recordings of which each has steps of its own, and the paths of the files of others,
    which are closed. Of ranks with the same steps, that with the most calls stays, else the lowest.
    """
    by_size: dict[int, list[list[Segment]]] = {}
    for parts in recordings:
        rank = parts[0].manifest.rank
        if rank is not None:
            by_size.setdefault(rank.of, []).append(parts)
    gone: list[list[Segment]] = []
    for ranks in by_size.values():
        gone += of_other_ranks(sorted(ranks, key=_preference), _number, _are_of)
    left_out = {id(parts) for parts in gone}
    paths = [part.path for parts in gone for part in parts]
    for parts in gone:
        for part in parts:
            part.close()
    return [parts for parts in recordings if id(parts) not in left_out], paths


def _preference(parts: Sequence[Segment]) -> tuple[int, int]:
    return -sum(map(len, parts)), _number(parts)


def _number(parts: Sequence[Segment]) -> int:
    rank = parts[0].manifest.rank
    return 0 if rank is None else rank.number


def of_other_ranks(
    ranks: Sequence[T], number_of: Callable[[T], int], are_of: Callable[[T, T], bool]
) -> list[T]:
    """The recordings whose steps an earlier one of another rank has. A job has each rank once.

    Args:
        ranks: recordings of jobs of one size.
        number_of: the rank of a recording.
        are_of: whether the steps of a recording are those of another one.
    """
    kept: list[tuple[T, set[int]]] = []
    gone: list[T] = []
    for one in ranks:
        number = number_of(one)
        for other, numbers in kept:
            if number not in numbers and are_of(one, other):
                numbers.add(number)
                gone.append(one)
                break
        else:
            kept.append((one, {number}))
    return gone


def _are_of(parts: Sequence[Segment], steps: Sequence[Segment]) -> bool:
    """Whether the calls of a recording are those of another one. If one of the processes was
    killed, some of the last calls may be missing."""
    every = (*parts, *steps)
    if all(part.end is not None for part in every):
        return _inputs(parts) == _inputs(steps)
    own, others = _calls(parts), _calls(steps)
    return bool(own) and all(others.get(number) == inputs for number, inputs in own.items())


def _inputs(parts: Sequence[Segment]) -> set[Hashable]:
    """The distinct inputs, with how many calls had them, and which one was the first and the
    last."""
    return {
        (
            rank_key(seen.inputs),
            seen.raised,
            seen.calls,
            seen.first.ref.number,
            seen.last.ref.number,
        )
        for seen in Calls(parts, ClassIndex()).by_inputs()
    }


def _calls(parts: Sequence[Segment]) -> dict[int, Hashable]:
    return {call.number: rank_key(call.record.inputs) for call in Calls(parts, ClassIndex())}


def rank_key(inputs: Tree) -> Hashable:
    """What ranks have in common of equal inputs. Each has them on a device of its own."""
    facts = tuple((leaf.dtype, leaf.shape) for leaf in inputs.facts())
    ranges = tuple((one.leaf, one.min, one.max) for one in inputs.ranges)
    return inputs.structure, facts, pack(inputs.scalars), ranges
