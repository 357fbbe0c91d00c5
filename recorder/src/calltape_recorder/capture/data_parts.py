"""Finds the parts of a structure that are data: keys of dicts, such as request ids, and numbers in
lists, such as the tokens of a prompt.

Policies see a structure without the entries at such keys. Otherwise, each call with request ids as
keys would be novel. The tape has the whole structure.

A list has no names for its elements, nor has a dict whose keys are numbers. So a setting can be
distinguished from what a user sent only by count: an image has two or three sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from calltape_recorder.bounds import MAX_DATA_KEY_PLACES
from calltape_schema.data_keys import KeySets
from calltape_schema.privacy import FEW_NUMBERS, is_position

_NUMBERS = frozenset(("int", "float", "complex"))
_LISTS = frozenset(("list", "tuple", "set", "frozenset"))
_NAMED = frozenset(("dict", "namedtuple", "dataclass", "object", "nested"))


class Boundary(NamedTuple):
    """A place in a structure: how many tokens, leaves and scalars come before it."""

    tokens: int
    leaves: int
    scalars: int


class PlacedDict(NamedTuple):
    """A dict in the arguments of a call.

    Attributes:
        path: where it is.
        token: of the dict: its kind, the tokens of its keys, and its class.
        boundaries: where its first entry begins, and where each entry ends.
    """

    path: str
    token: tuple[Any, ...]
    boundaries: tuple[Boundary, ...]


class Core(NamedTuple):
    """A structure without the entries whose keys are data.

    Attributes:
        structure_hash: equal for structures that differ in such entries only.
        leaves, scalars: the numbers of those that are left.
    """

    structure_hash: int
    leaves: tuple[int, ...]
    scalars: tuple[int, ...]


class DataKeys:
    """Learns from the structures of calls which keys are data. It keeps hashes of keys only."""

    def __init__(self) -> None:
        # Per path the sets of keys so far; once the lasting keys are known, only these.
        self._places: dict[str, KeySets | frozenset[Any]] = {}

    def core_of(
        self, tokens: tuple[Any, ...], dicts: Sequence[PlacedDict], end: Boundary
    ) -> Core | None:
        """The core of a new structure, from its tokens, its dicts and its end; None if no key is
        data."""
        left = dict(enumerate(tokens))
        leaves, scalars = set(range(end.leaves)), set(range(end.scalars))
        is_whole = True
        for placed in sorted(dicts, key=lambda placed: placed.boundaries[0]):
            place = placed.boundaries[0].tokens - 1
            if place not in left:
                continue  # it is at a key that is data
            hashes = tuple(map(hash, placed.token[1]))
            lasting = self._lasting_at(placed.path, hashes)
            if lasting is None:
                continue
            is_whole = False
            names = tuple(
                n for n, hashed in zip(placed.token[1], hashes, strict=True) if hashed in lasting
            )
            left[place] = ("data keys", names, placed.token[2])
            for key, (begin, end_of_entry) in zip(hashes, pairwise(placed.boundaries), strict=True):
                if key not in lasting:
                    for token in range(begin.tokens, end_of_entry.tokens):
                        del left[token]
                    leaves.difference_update(range(begin.leaves, end_of_entry.leaves))
                    scalars.difference_update(range(begin.scalars, end_of_entry.scalars))
        if is_whole:
            return None
        return Core(hash(tuple(left.values())), tuple(sorted(leaves)), tuple(sorted(scalars)))

    def _lasting_at(self, path: str, hashes: tuple[int, ...]) -> frozenset[Any] | None:
        known = self._places.get(path)
        if known is None:
            if len(self._places) >= MAX_DATA_KEY_PLACES:
                return None
            known = self._places[path] = KeySets()
        if isinstance(known, frozenset):
            return known
        lasting = known.lasting() if known.add(hashes) else None
        if lasting is not None:
            self._places[path] = lasting
        return lasting


def data_lists(tokens: tuple[Any, ...], named: int) -> dict[int, bool]:
    """The lists whose numbers are data: the place of each in ``tokens``, and whether its numbers
    are data in a cache too, because they are in the list itself and not in objects in it.

    Args:
        tokens: of one side of a call.
        named: how many positional arguments have names. The others are a list.
    """
    walk = _Walk(tokens)
    if tokens[0] != "outputs":  # the context of a call: the positional arguments follow
        walk.node(named)
    walk.node()
    return walk.lists


class _Walk:
    def __init__(self, tokens: tuple[Any, ...]) -> None:
        self._tokens = tokens
        self._at = 1  # after the token of the side
        self.lists: dict[int, bool] = {}

    def node(self, named: int = 0) -> tuple[int, int]:
        """Goes over a node and all nodes below it. Returns how many numbers without names it has,
        and how many elements with names that have numbers. The first ``named`` elements of a list
        do not count, because they have names."""
        place, token = self._at, self._tokens[self._at]
        self._at += 1
        if type(token) is str:
            return int(token in _NUMBERS), 0
        kind = token[0]
        if kind == "beside":
            return self.node()
        if kind == "scalar":
            return int(token[1] in _NUMBERS), 0
        if kind in _LISTS:
            for _ in range(min(named, token[1])):
                self.node()
            return self._list(place, token[1] - named)
        if kind == "custom":
            self.node()  # its context
            return self._list(place, token[1])
        if kind in ("size", "slice", "range"):
            has_number = self._has_number(token[1])
            return 0, int(has_number and kind != "size")
        if kind == "dict" and token[1]:
            # Keys that are positions, 7 or "7", name nothing.
            keys = [k[2] if type(k) is tuple and k[0] == "int" else k for k in token[1]]
            if all(map(is_position, keys)):
                return self._list(place, len(keys))
        if kind in _NAMED:
            return 0, int(self._has_number(len(token[1])))
        return 0, 0

    def _has_number(self, count: int) -> bool:
        """Whether any of the next ``count`` nodes has a number. Goes past them."""
        counts = [self.node() for _ in range(count)]
        return any(plain or named for plain, named in counts)

    def _list(self, place: int, count: int) -> tuple[int, int]:
        plain = named = 0
        for _ in range(count):
            plain_below, named_below = self.node()
            plain, named = plain + plain_below, named + named_below
        if plain + named > FEW_NUMBERS:
            self.lists[place] = plain > FEW_NUMBERS
        return plain, named
