"""The classes of the named tuples on a tape, as this process knows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from calltape_analyzer.binding import Bound
from calltape_analyzer.call import Call
from calltape_analyzer.patterns import Pattern
from calltape_schema.tree import FieldsNode, children_of, walk

__all__ = ["NamedTuples"]


class NamedTuples:
    """Finds classes by what a call is rebuilt to. Every structure is walked once, for all names."""

    def __init__(self, calls: Sequence[Call], patterns: Iterable[Pattern]) -> None:
        self._calls = calls
        self._found: dict[str, type | None] = {}
        self._places: dict[str, list[tuple[Pattern, FieldsNode]]] = {}
        self._nothing: dict[int, dict[int, Any]] = {}
        first: dict[Bound, Pattern] = {}
        for pattern in patterns:
            first.setdefault(pattern.bound, pattern)
        for pattern in first.values():
            for type_name, node in _classes_in(pattern.bound):
                self._places.setdefault(type_name, []).append((pattern, node))

    def class_of(self, type_name: str) -> type | None:
        """The class of a named tuple on the tape, where this process knows it."""
        if type_name not in self._found:
            made = (self._class_at(*place) for place in self._places.get(type_name, ()))
            self._found[type_name] = next((cls for cls in made if cls is not None), None)
        return self._found[type_name]

    def _class_at(self, pattern: Pattern, node: FieldsNode) -> type | None:
        # With nothing for its tensors, so that none is read.
        if id(pattern) not in self._nothing:
            self._nothing[id(pattern)] = dict.fromkeys(range(len(pattern.facts)))
        nothing = self._nothing[id(pattern)]
        made = self._calls[pattern.first].build("inputs", node, nothing)
        return type(made) if isinstance(made, tuple) and children_of(node) else None


def _classes_in(bound: Bound) -> Iterator[tuple[str, FieldsNode]]:
    """Of each argument the first node of each class."""
    for argument in bound.all:
        first: dict[str, FieldsNode] = {}
        for node in walk(argument.node) if argument.given is None else ():
            if isinstance(node, FieldsNode):
                first.setdefault(node.type, node)
        yield from first.items()
