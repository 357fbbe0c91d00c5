"""Which groups of calls are like a given one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from calltape_analyzer.observations import Group

__all__ = ["Nearby"]

_MAX_COMPARED = 64


class Nearby:
    """Groups by what they have, so that not each has to be compared with each.

    Args:
        groups: in order.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._having: dict[Hashable, list[int]] = {}
        if len(groups) > _MAX_COMPARED:
            for at, group in enumerate(groups):
                for feature in dict.fromkeys(_features(group)):
                    self._having.setdefault(feature, []).append(at)

    def like(self, group: Group) -> list[Group]:
        """The groups that are worth a comparison with another one, in order: all where they are
        few, else those that share what is rarest."""
        if len(self._groups) <= _MAX_COMPARED:
            return list(self._groups)
        shared = [self._having.get(feature, []) for feature in dict.fromkeys(_features(group))]
        common: Counter[int] = Counter()
        for having in sorted(shared, key=len):
            if len(common) >= _MAX_COMPARED:
                break
            common.update(having[:_MAX_COMPARED])
        # What is alike in nothing that is rare differs from the first as from any other.
        chosen = sorted({at for at, _ in common.most_common(_MAX_COMPARED)} | {0})
        return [self._groups[at] for at in chosen]


def _features(group: Group) -> Iterator[Hashable]:
    yield from group.layout.keys
    for place, facts in zip(group.layout.tensors, group.facts, strict=True):
        yield str(place), facts
