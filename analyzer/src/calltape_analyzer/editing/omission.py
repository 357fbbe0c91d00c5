"""Calls without some of their values.

Takes a record and patterns of paths; returns the record as a recorder would have written it that
was asked not to keep the values at these paths: tensors keep their shapes, texts their lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from calltape_analyzer.errors import UsageError
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.pytree.nodes import PlacedNode, ReferencedOnly, placed_nodes, with_children
from calltape_analyzer.reading.call import Call, Side
from calltape_schema.blob import INTEGER_FORMATS
from calltape_schema.privacy import FEWEST_RANGED, is_exact, matches_whole
from calltape_schema.recent import Recent
from calltape_schema.records import CallRecord, Range, Tree
from calltape_schema.tree import (
    Leaf,
    Node,
    OpaqueNode,
    ScalarNode,
    Structure,
    TensorNode,
    document_like,
    encode_leaves,
    encode_structure,
)

__all__ = [
    "Omission", "leaf_document", "left_of", "names_of_path", "opaque", "without_value",
]  # fmt: skip

_MAX_KNOWN = 4096
_CHUNK = 4096  # elements


class Omission:
    """Takes values out of the calls of one tape.

    Args:
        patterns: of paths, in the language of the recorder's ``values=``: ``mask``,
            ``past_key_values.*``, ``outputs.*``. A pattern without wildcards takes numbers too.
        signature: names the positional arguments.
    """

    def __init__(self, patterns: Sequence[str], signature: Signature) -> None:
        if any(not pattern for pattern in patterns):
            raise UsageError("a path that is empty names no value")
        self._patterns = tuple(patterns)
        self._signature = signature
        self._matched: set[str] = set()
        self._plans = Recent(_MAX_KNOWN, cost=1)
        self._referenced = ReferencedOnly()

    @property
    def unmatched(self) -> list[str]:
        """The patterns that named nothing so far."""
        return [pattern for pattern in self._patterns if pattern not in self._matched]

    def apply(self, call: Call) -> tuple[CallRecord, dict[str, Any]]:
        """The record of a call without these values, and the bytes that its leaves still have.

        Raises:
            TapeError: the call is damaged.
        """
        record = call.record
        changes: dict[str, Any] = {}
        values: dict[str, Any] = {}
        sides: tuple[tuple[Side, Tree | None], ...] = (
            ("inputs", record.inputs), ("outputs", record.outputs)
        )  # fmt: skip
        for side, tree in sides:
            if tree is None:
                continue
            spec, root = tree.spec(), "" if side == "inputs" else side
            plan = self._plans.once((tree.structure, side), partial(self._plan, spec, root))
            made = _applied(tree, plan, partial(_has_many, call, side))
            kept = {leaf.key for leaf in made.facts()} - values.keys()
            for place, leaf in enumerate(tree.facts()):
                if leaf.key is not None and leaf.key in kept:
                    values[leaf.key] = call.stored(side, place)
            changes[side] = self._referenced.tree(made)
        return record.model_copy(update=changes), values

    def _plan(self, spec: Structure, side: str) -> _Plan:
        """What is taken from all trees of one structure."""
        leaves, scalars = set[int](), dict[int, str]()
        for placed in placed_nodes(spec.root, side, self._signature.positional):
            node, names = placed.node, list(names_of_path(placed.path, self._signature))
            matching = [one for one in self._patterns if matches_whole(one, names)]
            self._matched.update(matching)
            is_taken = any(map(is_exact, matching)) or (matching and _is_data(placed, side))
            if isinstance(node, TensorNode) and matching:
                leaves.add(node.leaf)
            elif isinstance(node, ScalarNode) and is_taken:
                scalars[node.scalar] = node.kind
        return _Plan(spec, leaves, scalars)


def names_of_path(path: str, signature: Signature) -> Iterator[str]:
    """A path, and its other names, as the recorder's ``values=`` takes them. The last is the one
    that is shown: ``args.0.x`` is also ``input_ids.x``, and ``kwargs.bias`` is also ``bias``."""
    yield path
    side, _, rest = path.partition(".")
    first, dot, below = rest.partition(".")
    if side == "kwargs" and rest:
        others = signature.complete.variadic_keyword
        if others is not None and first not in signature.by_name:
            yield f"{others}.{rest}"
        yield rest
    if side == "args" and first.isdecimal():
        yield f"{signature.complete.name_at(int(first))}{dot}{below}"


class _Plan(NamedTuple):
    """What is taken from all trees of one structure.

    Attributes:
        spec: the structure.
        leaves: the tensors that lose their values.
        scalars: the kinds of the scalars that are taken.
    """

    spec: Structure
    leaves: set[int]
    scalars: dict[int, str]


def _applied(tree: Tree, plan: _Plan, has_many: Callable[[int], bool]) -> Tree:
    """The tree without them. ``has_many`` tells whether a leaf of integers has so many that its
    range says little of each."""
    changes: dict[str, Any] = {}
    if plan.scalars:
        spec = plan.spec
        plain = _without(spec.root, plan.scalars).model_dump(exclude_none=True)
        document = document_like(spec, plain, spec.leaves, spec.scalars)
        changes["structure"] = encode_structure(document)
        changes["scalars"] = tuple(
            left_of(plan.scalars[i], value) if i in plan.scalars else value
            for i, value in enumerate(tree.scalars)
        )
    if plan.leaves:
        facts = tree.facts()
        changes["leaves"] = encode_leaves(
            [
                without_value(leaf) if i in plan.leaves else leaf_document(leaf)
                for i, leaf in enumerate(facts)
            ]
        )
        changes["ranges"] = tuple(
            one
            for one in tree.ranges
            if one.leaf not in plan.leaves
            or (_may_stay(one, facts[one.leaf]) and has_many(one.leaf))
        )
    return tree.model_copy(update=changes)


def _without(node: Node, scalars: Container[int]) -> Node:
    if isinstance(node, ScalarNode):
        return opaque(node) if node.scalar in scalars else node
    return with_children(node, lambda child: _without(child, scalars))


def _is_data(placed: PlacedNode, side: str) -> bool:
    """Whether a scalar is data by the recorder's rule: a text, or a number that is returned, or one
    of many."""
    if isinstance(placed.node, ScalarNode) and placed.node.kind in ("str", "bytes"):
        return True
    return not placed.in_cache and (placed.in_list or side != "")


def opaque(node: ScalarNode) -> OpaqueNode:
    """What stands for a scalar that was not wanted."""
    length = node.scalar if node.kind in ("str", "bytes") else None
    name = node.type or f"builtins:{node.kind}"
    return OpaqueNode(kind="opaque", type=name, reason="policy", of=node.kind, length=length)


def left_of(kind: str, value: Any) -> Any:
    """What stays of a scalar: the length of a text, nothing of a number."""
    return len(value) if kind in ("str", "bytes") else 0


def without_value(leaf: Leaf) -> dict[str, Any]:
    """The facts of a tensor whose bytes are left out, as they are encoded. A quantizer is left out
    too: scale and zero point follow from the elements."""
    document = leaf_document(leaf)
    document.pop("quantizer", None)
    if document.pop("key", None) is not None:
        document["missing"] = "policy"
    return document


def leaf_document(leaf: Leaf) -> dict[str, Any]:
    """The facts of a tensor as they are encoded."""
    return leaf.model_dump(exclude_none=True, exclude_defaults=True)


def _may_stay(one: Range, leaf: Leaf) -> bool:
    """Whether a range may say little of each element."""
    if math.prod(leaf.shape) < FEWEST_RANGED:
        return False
    return (one.min >= 0 and one.max <= 1) or one.max - one.min >= FEWEST_RANGED - 1


def _has_many(call: Call, side: Side, leaf: int) -> bool:
    """Whether it has only zeros and ones, or so many different integers that its range says little
    of each. Of values that are not on the tape, the recorder knew."""
    data = call.stored(side, leaf)
    tree = call.record.inputs if side == "inputs" else call.record.outputs
    if data is None or tree is None:
        return True
    form = INTEGER_FORMATS.get(tree.facts()[leaf].dtype)
    if form is None:  # a stranger's tape says that it has a range
        return False
    elements, found = memoryview(data).cast(form), set[int]()
    for begin in range(0, len(elements), _CHUNK):
        found.update(elements[begin : begin + _CHUNK])
        if len(found) >= FEWEST_RANGED:
            return True
    return found <= {0, 1}
