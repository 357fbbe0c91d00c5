"""Which groups of calls are similar to a given one, without comparing each with each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from calltape_analyzer.observing.groups import Group

__all__ = ["SimilarGroups"]

_MAX_COMPARED = 64


class SimilarGroups:
    """Groups by their arguments and tensors.

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

    def to(self, group: Group) -> list[Group]:
        """The groups that are worth a comparison with another one, in order: all if they are few,
        else the groups that share its rarest features."""
        if len(self._groups) <= _MAX_COMPARED:
            return list(self._groups)
        shared = [self._having.get(feature, []) for feature in dict.fromkeys(_features(group))]
        shares: Counter[int] = Counter()
        for having in sorted(shared, key=len):
            if len(shares) >= _MAX_COMPARED:
                break
            shares.update(having[:_MAX_COMPARED])
        # A group without rare features is compared with the first one.
        chosen = sorted({at for at, _ in shares.most_common(_MAX_COMPARED)} | {0})
        return [self._groups[at] for at in chosen]


def _features(group: Group) -> Iterator[Hashable]:
    yield from group.layout.keys
    for place, facts in zip(group.layout.tensors, group.facts, strict=True):
        yield str(place), facts
