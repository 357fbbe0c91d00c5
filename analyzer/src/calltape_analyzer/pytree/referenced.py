"""What the nodes of a tree refer to.

A node refers to tensors and scalars by position. The recorder writes no others, but a tape may come
from somebody else: a scalar that no node uses is shown nowhere, and may be anything. In comes a
structure. Out go the positions that its nodes refer to; and trees and counted inputs without the
rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

from calltape_schema.errors import TapeError
from calltape_schema.inputs_table import Kind
from calltape_schema.records import Tree
from calltape_schema.tree import (
    CustomNode,
    Node,
    OpaqueNode,
    ScalarNode,
    Structure,
    TensorNode,
    children_of,
    decode_structure,
    document_like,
    encode_leaves,
    encode_structure,
    walk,
)

__all__ = ["ReferencedOnly", "unreferenced"]

_MAX_KNOWN = 1024


class _Referenced(NamedTuple):
    """What the nodes of a structure refer to: for each position the one without the rest.

    Attributes:
        leaves, scalars: of the tensors and scalars, ascending.
        structure: that has no others; None if there are none.
    """

    leaves: Mapping[int, int]
    scalars: Mapping[int, int]
    structure: bytes | None


def unreferenced(tree: Tree) -> tuple[int, int]:
    """How many tensors and how many scalars of a tree no node refers to.

    Raises:
        TapeError: the tree is damaged.
    """
    spec = tree.spec()
    leaves, scalars = _positions(spec)
    return spec.leaves - len(leaves), spec.scalars - len(scalars)


class ReferencedOnly:
    """Takes out of trees what their nodes do not refer to."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Referenced] = {}

    def tree(self, tree: Tree) -> Tree:
        """A tree without it. The remaining tensors and scalars stay in their order.

        Raises:
            TapeError: the tree is damaged.
        """
        known = self._of(tree.structure, tree.spec)
        if known.structure is None:
            return tree
        leaves, facts = known.leaves, tree.facts()
        return tree.model_copy(
            update={
                "structure": known.structure,
                "leaves": encode_leaves(
                    [
                        facts[at].model_dump(exclude_none=True, exclude_defaults=True)
                        for at in leaves
                    ]
                ),
                "scalars": tuple(tree.scalars[at] for at in known.scalars),
                "ranges": tuple(
                    one.model_copy(update={"leaf": leaves[one.leaf]})
                    for one in tree.ranges
                    if one.leaf in leaves
                ),
            }
        )

    def kind(self, kind: Kind) -> Kind:
        """Counted inputs without it.

        Raises:
            TapeError: ``invalid`` if they do not have the tensors and scalars that their structure
                says; ``damaged``, ``limit``.
        """
        spec = decode_structure(kind.structure)
        sizes = sum(kind.ranks)
        if (len(kind.dtypes), len(kind.axes) - sizes) != (spec.leaves, spec.scalars):
            raise TapeError(
                "invalid", "a kind does not have the leaves and scalars of its structure"
            )
        known = self._of(kind.structure, lambda: spec)
        if known.structure is None:
            return kind
        begins = list(accumulate(kind.ranks, initial=0))
        axes = [axis for at in known.leaves for axis in kind.axes[begins[at] : begins[at + 1]]]
        axes += [kind.axes[sizes + at] for at in known.scalars]
        dtypes = [kind.dtypes[at] for at in known.leaves]
        ranks = [kind.ranks[at] for at in known.leaves]
        return Kind(known.structure, dtypes, ranks, axes, kind)

    def _of(self, structure: bytes, spec_of: Any) -> _Referenced:
        found = self._known.get(structure)
        if found is None:
            if len(self._known) >= _MAX_KNOWN:
                del self._known[next(iter(self._known))]
            found = self._known[structure] = _referenced(spec_of())
        return found


def _positions(spec: Structure) -> tuple[list[int], list[int]]:
    leaves, scalars = set[int](), set[int]()
    for node in walk(spec.root):
        if isinstance(node, TensorNode):
            leaves.add(node.leaf)
        elif isinstance(node, ScalarNode):
            scalars.add(node.scalar)
        elif isinstance(node, OpaqueNode) and node.length is not None:
            scalars.add(node.length)
    return sorted(leaves), sorted(scalars)


def _referenced(spec: Structure) -> _Referenced:
    leaves, scalars = map(_numbered, _positions(spec))
    if (len(leaves), len(scalars)) == (spec.leaves, spec.scalars):
        return _Referenced(leaves, scalars, None)
    root = _renumbered(spec.root, leaves, scalars).model_dump(exclude_none=True)
    document = document_like(spec, root, len(leaves), len(scalars))
    return _Referenced(leaves, scalars, encode_structure(document))


def _numbered(positions: Iterable[int]) -> dict[int, int]:
    return {position: number for number, position in enumerate(positions)}


def _renumbered(node: Node, leaves: Mapping[int, int], scalars: Mapping[int, int]) -> Node:
    changes: dict[str, Any] = {}
    if isinstance(node, TensorNode):
        changes["leaf"] = leaves[node.leaf]
    elif isinstance(node, ScalarNode):
        changes["scalar"] = scalars[node.scalar]
    elif isinstance(node, OpaqueNode) and node.length is not None:
        changes["length"] = scalars[node.length]
    children = children_of(node)
    if children:
        changes["children"] = tuple(_renumbered(child, leaves, scalars) for child in children)
    if isinstance(node, CustomNode):
        changes["context"] = _renumbered(node.context, leaves, scalars)
    return node.model_copy(update=changes) if changes else node
