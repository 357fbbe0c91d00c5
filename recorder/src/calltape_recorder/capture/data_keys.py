"""Dicts whose keys are data: what is left of a structure without their entries.

Policies look at what is left. Otherwise each call with the ids of its requests as keys would be
like none before. The tape has the structures as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from calltape_schema.data_keys import KeySets

__all__ = ["Core", "DataKeys", "End", "PlacedDict"]

_MAX_PLACES = 256


class End(NamedTuple):
    """A place in a structure: behind so many tokens, leaves and scalars."""

    tokens: int
    leaves: int
    scalars: int


class PlacedDict(NamedTuple):
    """A dict in the arguments of a call.

    Attributes:
        path: where it is.
        token: of the dict: its kind, the tokens of its keys, and its class.
        ends: where its first entry begins, and where each entry ends.
    """

    path: str
    token: tuple[Any, ...]
    ends: tuple[End, ...]


class Core(NamedTuple):
    """A structure without the entries whose keys are data.

    Attributes:
        likeness: equal for structures that differ in such entries only.
        leaves, scalars: the numbers of those that are left.
    """

    likeness: int
    leaves: tuple[int, ...]
    scalars: tuple[int, ...]


class DataKeys:
    """Learns from the structures of calls which keys are data. It keeps hashes of keys only."""

    def __init__(self) -> None:
        self._seen: dict[str, KeySets] = {}
        self._lasting: dict[str, frozenset[Any]] = {}

    def core_of(
        self, tokens: tuple[Any, ...], dicts: Sequence[PlacedDict], end: End
    ) -> Core | None:
        """What is left of a structure that was not met before; None if all of it is.

        Args:
            tokens: of the structure.
            dicts: in it.
            end: of the structure.
        """
        left = dict(enumerate(tokens))
        leaves, scalars = set(range(end.leaves)), set(range(end.scalars))
        is_whole = True
        for found in sorted(dicts, key=lambda one: one.ends[0]):
            place = found.ends[0].tokens - 1
            if place not in left:
                continue  # it stands at a key that is data
            hashes = tuple(map(hash, found.token[1]))
            lasting = self._lasting_at(found.path, hashes)
            if lasting is None:
                continue
            is_whole = False
            names = tuple(
                n for n, one in zip(found.token[1], hashes, strict=True) if one in lasting
            )
            left[place] = ("data keys", names, found.token[2])
            for key, begin, behind in zip(hashes, found.ends, found.ends[1:], strict=False):
                if key not in lasting:
                    for token in range(begin.tokens, behind.tokens):
                        del left[token]
                    leaves.difference_update(range(begin.leaves, behind.leaves))
                    scalars.difference_update(range(begin.scalars, behind.scalars))
        if is_whole:
            return None
        return Core(hash(tuple(left.values())), tuple(sorted(leaves)), tuple(sorted(scalars)))

    def _lasting_at(self, path: str, hashes: tuple[int, ...]) -> frozenset[Any] | None:
        known = self._lasting.get(path)
        if known is not None:
            return known
        seen = self._seen.get(path)
        if seen is None:
            if len(self._seen) >= _MAX_PLACES:
                return None
            seen = self._seen[path] = KeySets()
        lasting = seen.lasting() if seen.add(hashes) else None
        if lasting is not None:
            self._lasting[path] = lasting
            self._seen[path] = KeySets()  # forgets what is not asked for any more
        return lasting
