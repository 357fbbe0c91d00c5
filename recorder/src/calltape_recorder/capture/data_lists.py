"""Finds the lists of a call whose numbers are data, as those of a prompt of token ids are.

Tokens come in. Out go the places of such lists among them. A list has no names for its elements,
nor has a dict whose keys are numbers. So nothing tells a setting from what a user sent but that
there are few of them: the sizes of an image are two or three numbers.
"""

from __future__ import annotations

from typing import Any

from calltape_schema.privacy import FEW_NUMBERS, is_position

__all__ = ["data_lists"]

_NUMBERS = frozenset(("int", "float", "complex"))
_LISTS = frozenset(("list", "tuple", "set", "frozenset"))
_NAMED = frozenset(("dict", "namedtuple", "dataclass", "object", "nested"))


def data_lists(tokens: tuple[Any, ...], named: int) -> dict[int, bool]:
    """Per list whose numbers are data its place in ``tokens``, and whether its numbers are data
    within a cache too: they stand in the list itself, not in objects that are its elements.

    Args:
        tokens: of one side of a call.
        named: how many positional arguments have names. The others are a list.
    """
    walk = _Walk(tokens)
    if tokens[0] == "outputs":
        walk.node()
    else:  # the context of a call: its arguments follow
        walk.arguments(named)
    return walk.found


def _counts(key: Any) -> bool:
    """Whether a token of a key is a position, which names nothing: 7, or "7"."""
    return is_position(key[2] if type(key) is tuple and key[0] == "int" else key)


class _Walk:
    def __init__(self, tokens: tuple[Any, ...]) -> None:
        self._tokens = tokens
        self._at = 1  # after what tells the side
        self.found: dict[int, bool] = {}

    def arguments(self, named: int) -> None:
        place, count = self._at, self._tokens[self._at][1]
        self._at += 1
        for _ in range(min(named, count)):
            self.node()
        self._list(place, count - named)
        self.node()

    def node(self) -> tuple[int, int]:
        """Goes over a node and all below it. Returns how many numbers without names it has, and how
        many elements with names that have numbers."""
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
            return self._list(place, token[1])
        if kind == "custom":
            self.node()  # its context
            return self._list(place, token[1])
        if kind in ("size", "slice", "range"):
            has_number = self._has_number(token[1])
            return 0, int(has_number and kind != "size")
        if kind == "dict" and token[1] and all(map(_counts, token[1])):
            return self._list(place, len(token[1]))
        if kind in _NAMED:
            return 0, int(self._has_number(len(token[1])))
        return 0, 0

    def _has_number(self, count: int) -> bool:
        """Goes over so many nodes. Whether any has a number."""
        found = [self.node() for _ in range(count)]
        return any(plain or named for plain, named in found)

    def _list(self, place: int, count: int) -> tuple[int, int]:
        plain = named = 0
        for _ in range(count):
            more, others = self.node()
            plain, named = plain + more, named + others
        if plain + named > FEW_NUMBERS:
            self.found[place] = plain > FEW_NUMBERS
        return plain, named
