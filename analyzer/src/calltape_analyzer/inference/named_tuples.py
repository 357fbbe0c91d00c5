"""The classes of the named tuples on a tape, as this process knows them.

In come call patterns. Out goes the class of a name, because ``torch.export`` wants the shapes of a
named tuple in its own class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from calltape_analyzer.inference.binding import Bound
from calltape_analyzer.inference.patterns import CallPattern, call_at, place_of
from calltape_analyzer.reading.call import Call
from calltape_schema.tree import FieldsNode, children_of, walk

__all__ = ["NamedTuples"]


class NamedTuples:
    """Finds the class of a named tuple by rebuilding one. It walks each structure once, for all
    names."""

    def __init__(self, calls: Sequence[Call], patterns: Iterable[CallPattern]) -> None:
        self._calls = calls
        self._found: dict[str, type | None] = {}
        self._places: dict[str, list[tuple[CallPattern, FieldsNode]]] = {}
        self._nothing: dict[int, dict[int, Any]] = {}
        first: dict[Bound, CallPattern] = {}
        for pattern in patterns:
            first.setdefault(pattern.bound, pattern)
        for pattern in first.values():
            for type_name, node in _classes_in(pattern.bound):
                self._places.setdefault(type_name, []).append((pattern, node))

    def class_of(self, type_name: str) -> type | None:
        """The class of a named tuple on the tape; None if this process does not know it."""
        if type_name not in self._found:
            made = (self._class_at(*place) for place in self._places.get(type_name, ()))
            self._found[type_name] = next((cls for cls in made if cls is not None), None)
        return self._found[type_name]

    def _class_at(self, pattern: CallPattern, node: FieldsNode) -> type | None:
        # It is built with None for its tensors, so that no tensor is read.
        if id(pattern) not in self._nothing:
            self._nothing[id(pattern)] = dict.fromkeys(range(len(pattern.facts)))
        nothing = self._nothing[id(pattern)]
        made = call_at(self._calls, place_of(pattern)).build("inputs", node, nothing)
        return type(made) if isinstance(made, tuple) and children_of(node) else None


def _classes_in(bound: Bound) -> Iterator[tuple[str, FieldsNode]]:
    """For each argument the first node of each class, with the name of the class."""
    for argument in bound.all:
        first: dict[str, FieldsNode] = {}
        for node in walk(argument.node) if argument.given is None else ():
            if isinstance(node, FieldsNode):
                first.setdefault(node.type, node)
        yield from first.items()
