"""Calls with changed arguments: removed, resized or simplified.

Nobody knows what such a call would have returned, so it has neither outputs nor an exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from calltape_analyzer.editing.omission import leaf_document
from calltape_analyzer.reading.call import Call
from calltape_analyzer.writing.synthetic import BuiltCall
from calltape_schema.records import Range, Tree
from calltape_schema.tree import document_like, encode_leaves, encode_structure

__all__ = ["ChangedCall"]

_MISSING = "calltape minimise changed the arguments, or left the outcome out"

Document = dict[str, Any]


class ChangedCall:
    """The arguments of a call, which can be changed.

    Attributes:
        call: the original call.
        root: the structure of the inputs as plain data. ``children`` may be removed.
        leaves: the encoded facts of each tensor.
        scalars: the values of the scalars.
        values: new values of tensors by leaf number: a tensor, or bytes.
    """

    def __init__(self, call: Call) -> None:
        tree = call.record.inputs
        self.call = call
        self.root: Document = _mutable(tree.spec().root.model_dump(exclude_none=True))
        self.leaves = list(map(leaf_document, tree.facts()))
        self.scalars = list(tree.scalars)
        self.values: dict[int, Any] = {}

    @property
    def positional(self) -> Document:
        """The node of the positional arguments."""
        node: Document = self.root["children"][0]
        return node

    @property
    def named(self) -> Document:
        """The node of the keyword arguments."""
        node: Document = self.root["children"][1]
        return node

    def set_tensor(self, leaf: int, tensor: Any) -> None:
        """Replaces a tensor by a contiguous one of any shape."""
        facts = self.leaves[leaf]
        for name in ("strides", "expanded", "storage", "conj", "neg"):
            facts.pop(name, None)
        facts["shape"] = list(tensor.shape)
        self.values[leaf] = tensor

    def built(self) -> BuiltCall:
        """The new record and its values, without tensors and scalars that no node refers to.

        Raises:
            TapeError: the call is corrupted.
        """
        leaves: dict[int, int] = {}
        scalars: dict[int, int] = {}
        root = _mutable(self.root)
        for node in _nodes(root):
            for name, numbers in (("leaf", leaves), ("scalar", scalars), ("length", scalars)):
                if isinstance(node.get(name), int):
                    node[name] = numbers.setdefault(node[name], len(numbers))
        documents, values = self._stored(leaves)
        spec = self.call.record.inputs.spec()
        document = document_like(spec, root, len(leaves), len(scalars))
        ranges = tuple(
            Range(leaf=leaves[span.leaf], min=span.min, max=span.max)
            for span in self.call.record.inputs.ranges
            if span.leaf in leaves and span.leaf not in self.values
        )
        tree = Tree.model_construct(
            structure=encode_structure(document),
            leaves=encode_leaves(documents),
            scalars=tuple(self.scalars[old] for old in scalars),
            ranges=ranges,
        )
        outcome = {"outputs": None, "error": None, "outputs_missing": _MISSING, "blob": None}
        return BuiltCall(self.call.record.model_copy(update={"inputs": tree, **outcome}), values)

    def _stored(self, leaves: Iterable[int]) -> tuple[list[Document], dict[str, Any]]:
        """The facts of these tensors, and their values by key. Tensors that share a key have equal
        values, so one that changed gets a new key."""
        documents: list[Document] = []
        values: dict[str, Any] = {}
        keys = {facts.get("key") for facts in self.leaves}
        for number in leaves:
            facts = self.leaves[number]
            key = facts.get("key")
            if key is not None:
                value = self.values.get(number)
                if value is None:
                    value = self.call.stored("inputs", number)
                if key in values and not _are_equal(values[key], value):
                    key = next(name for n in count(number) if (name := f"t{n}") not in keys)
                    keys.add(key)
                    facts = {**facts, "key": key}
                values[key] = value
            documents.append(facts)
        return documents, values


def _are_equal(first: Any, second: Any) -> bool:
    if first is second:
        return True
    are_bytes = all(isinstance(value, bytes | bytearray | memoryview) for value in (first, second))
    return are_bytes and bytes(first) == bytes(second)


def _mutable(node: Any) -> Any:
    """A copy of nested plain data, with lists of nodes instead of tuples."""
    if isinstance(node, dict):
        return {name: _mutable(value) for name, value in node.items()}
    if isinstance(node, list | tuple) and node and isinstance(node[0], dict):
        return [_mutable(item) for item in node]
    return list(node) if isinstance(node, list) else node


def _nodes(root: Document) -> Iterator[Document]:
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.get("children", ())))
        if "context" in node:
            stack.append(node["context"])
