"""Calls whose record is changed: arguments taken out, resized or made simpler.

Takes a call; returns a record with its values. What a call did with other arguments nobody
recorded, so that a call whose arguments are changed has neither outputs nor an exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from calltape_analyzer.reading.call import Call
from calltape_analyzer.writing.built_calls import BuiltCall
from calltape_schema.records import Range, Tree
from calltape_schema.tree import document_like, encode_leaves, encode_structure

__all__ = ["ChangedCall"]

_MISSING = "calltape minimise changed the arguments, or left the outcome out"

Document = dict[str, Any]


class ChangedCall:
    """The arguments of a call, open for changes.

    Attributes:
        call: as it was.
        root: the structure of the inputs as plain data: ``children`` may be taken out.
        leaves: the facts of each leaf.
        scalars: the values of the scalars.
        values: new values by leaf: a tensor, or bytes. The others stay.
    """

    def __init__(self, call: Call) -> None:
        tree = call.record.inputs
        self.call = call
        self.root: Document = _plain(tree.spec().root.model_dump(exclude_none=True))
        self.leaves = [
            leaf.model_dump(exclude_none=True, exclude_defaults=True) for leaf in tree.facts()
        ]
        self.scalars = list(tree.scalars)
        self.values: dict[int, Any] = {}

    @property
    def positional(self) -> Document:
        """The node of the positional arguments."""
        found: Document = self.root["children"][0]
        return found

    @property
    def named(self) -> Document:
        """The node of the arguments by name."""
        found: Document = self.root["children"][1]
        return found

    def set_tensor(self, leaf: int, tensor: Any) -> None:
        """Gives a leaf another, contiguous value, of any shape."""
        facts = self.leaves[leaf]
        for name in ("strides", "expanded", "storage", "conj", "neg"):
            facts.pop(name, None)
        facts["shape"] = list(tensor.shape)
        self.values[leaf] = tensor

    def built(self) -> BuiltCall:
        """The record, without leaves and scalars that nothing refers to any more, and its values.

        Raises:
            TapeError: the call is damaged.
        """
        leaves: dict[int, int] = {}
        scalars: dict[int, int] = {}
        root = _plain(self.root)
        for node in _nodes(root):
            for name, numbers in (("leaf", leaves), ("scalar", scalars), ("length", scalars)):
                if isinstance(node.get(name), int):
                    node[name] = numbers.setdefault(node[name], len(numbers))
        documents, values = self._stored(leaves)
        spec = self.call.record.inputs.spec()
        document = document_like(spec, root, len(leaves), len(scalars))
        ranges = tuple(
            Range(leaf=leaves[one.leaf], min=one.min, max=one.max)
            for one in self.call.record.inputs.ranges
            if one.leaf in leaves and one.leaf not in self.values
        )
        tree = Tree.model_construct(
            structure=encode_structure(document),
            leaves=encode_leaves(documents),
            scalars=tuple(self.scalars[old] for old in scalars),
            ranges=ranges,
        )
        changed = {"inputs": tree, "outputs": None, "error": None, "outputs_missing": _MISSING}
        return BuiltCall(self.call.record.model_copy(update={**changed, "blob": None}), values)

    def _stored(self, leaves: Iterable[int]) -> tuple[list[Document], dict[str, Any]]:
        """The facts of these leaves, and their values by key. Leaves that share a key have equal
        values: one whose value is another one now gets a key of its own."""
        documents: list[Document] = []
        values: dict[str, Any] = {}
        taken = {facts.get("key") for facts in self.leaves}
        for old in leaves:
            facts = self.leaves[old]
            key = facts.get("key")
            if key is not None:
                value = self._value(old)
                if key in values and not _is_same(values[key], value):
                    key = next(name for n in count(old) if (name := f"t{n}") not in taken)
                    taken.add(key)
                    facts = {**facts, "key": key}
                values[key] = value
            documents.append(facts)
        return documents, values

    def _value(self, leaf: int) -> Any:
        return self.values[leaf] if leaf in self.values else self.call.stored("inputs", leaf)


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    are_bytes = all(isinstance(value, bytes | bytearray | memoryview) for value in (one, other))
    return are_bytes and bytes(one) == bytes(other)


def _plain(node: Any) -> Any:
    """A copy of nested plain data, with lists for tuples that hold nodes."""
    if isinstance(node, dict):
        return {name: _plain(value) for name, value in node.items()}
    if isinstance(node, list | tuple) and node and isinstance(node[0], dict):
        return [_plain(one) for one in node]
    return list(node) if isinstance(node, list) else node


def _nodes(root: Document) -> Iterator[Document]:
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.get("children", ())))
        if "context" in node:
            stack.append(node["context"])
