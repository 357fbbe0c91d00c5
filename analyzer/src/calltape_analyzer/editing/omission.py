"""Omitting values from recorded calls, as ``filter --drop`` does.

The result is what a recorder with ``values={path: "none"}`` would have written: tensors keep their
shapes, and texts their lengths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from calltape_analyzer.editing.rewriting import Rewrite
from calltape_analyzer.errors import UsageError
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.pytree.nodes import ReferencedOnly, placed_nodes, with_children
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
    "Omission", "leaf_document", "names_of_path", "omitted_node", "omitted_scalar", "shown_path",
    "without_value",
]  # fmt: skip

_CHUNK = 4096  # elements


class Omission(Rewrite):
    """Omits values from the calls of one tape.

    Args:
        patterns: path patterns as in the recorder's ``values=``: ``mask``, ``past_key_values.*``,
            ``outputs.*``. A pattern without wildcards omits numbers too.
        signature: names the positional arguments.

    Raises:
        UsageError: a pattern is empty.
    """

    def __init__(self, patterns: Sequence[str], signature: Signature) -> None:
        if any(not pattern for pattern in patterns):
            raise UsageError("a path that is empty names no value")
        self._patterns = tuple(patterns)
        self._signature = signature
        self._matched: set[str] = set()
        self._omitted = Recent()  # by structure and side
        self._referenced = ReferencedOnly()

    @property
    def unmatched(self) -> list[str]:
        """The patterns that have matched no path so far."""
        return [pattern for pattern in self._patterns if pattern not in self._matched]

    def call(self, call: Call) -> tuple[CallRecord, dict[str, Any]]:
        record = call.record
        changes: dict[str, Any] = {}
        values: dict[str, Any] = {}
        sides: tuple[tuple[Side, Tree | None], ...] = (
            ("inputs", record.inputs), ("outputs", record.outputs)
        )  # fmt: skip
        for side, tree in sides:
            if tree is None:
                continue
            make = partial(self._omitted_from, tree.spec(), "" if side == "inputs" else side)
            omitted = self._omitted.once((tree.structure, side), make, len(tree.structure))
            changed = _without_leaves(tree, omitted, call, side)
            stored = {leaf.key for leaf in changed.facts()} - values.keys()
            for number, leaf in enumerate(tree.facts()):
                if leaf.key is not None and leaf.key in stored:
                    values[leaf.key] = call.stored(side, number)
            changes[side] = self._referenced.tree(changed)
        return record.model_copy(update=changes), values

    def _omitted_from(self, spec: Structure, side: str) -> _Omitted:
        leaves, scalars = set[int](), dict[int, str]()
        for placed in placed_nodes(spec.root, side, self._signature.positional):
            node, names = placed.node, list(names_of_path(placed.path, self._signature))
            matching = [pattern for pattern in self._patterns if matches_whole(pattern, names)]
            self._matched.update(matching)
            if isinstance(node, TensorNode) and matching:
                leaves.add(node.leaf)
            elif isinstance(node, ScalarNode) and matching:
                # The recorder's rule: a pattern with wildcards omits only data, which is a text, a
                # number that is returned, or one of many in a list.
                is_data = node.kind in ("str", "bytes") or (
                    not placed.in_cache and (placed.in_list or side != "")
                )
                if is_data or any(map(is_exact, matching)):
                    scalars[node.scalar] = node.kind
        return _Omitted(spec, leaves, scalars)


def names_of_path(path: str, signature: Signature) -> Iterator[str]:
    """All names of a path that the recorder's ``values=`` accepts: ``args.0.x`` is also
    ``input_ids.x``, and ``kwargs.bias`` is also ``bias``."""
    yield path
    side, _, remainder = path.partition(".")
    first, dot, below = remainder.partition(".")
    if side == "kwargs" and remainder:
        variadic = signature.complete.variadic_keyword
        if variadic is not None and first not in signature.by_name:
            yield f"{variadic}.{remainder}"
        yield remainder
    if side == "args" and first.isdecimal():
        yield f"{signature.complete.name_at(int(first))}{dot}{below}"


def shown_path(path: str, signature: Signature) -> str:
    """A path for people, which begins with the name of the parameter."""
    return list(names_of_path(path, signature))[-1]


class _Omitted(NamedTuple):
    """What to omit from all trees of one structure.

    Attributes:
        spec: the structure.
        leaves: numbers of the tensors.
        scalars: numbers and kinds of the scalars.
    """

    spec: Structure
    leaves: set[int]
    scalars: dict[int, str]


def _without_leaves(tree: Tree, omitted: _Omitted, call: Call, side: Side) -> Tree:
    changes: dict[str, Any] = {}
    spec, scalars = omitted.spec, omitted.scalars

    def without_scalars(node: Node) -> Node:
        if isinstance(node, ScalarNode):
            return omitted_node(node) if node.scalar in scalars else node
        return with_children(node, without_scalars)

    if scalars:
        root = without_scalars(spec.root).model_dump(exclude_none=True)
        document = document_like(spec, root, spec.leaves, spec.scalars)
        changes["structure"] = encode_structure(document)
        changes["scalars"] = tuple(
            omitted_scalar(scalars[i], value) if i in scalars else value
            for i, value in enumerate(tree.scalars)
        )
    if omitted.leaves:
        facts = tree.facts()
        changes["leaves"] = encode_leaves(
            [
                without_value(leaf) if i in omitted.leaves else leaf_document(leaf)
                for i, leaf in enumerate(facts)
            ]
        )
        changes["ranges"] = tuple(
            range_
            for range_ in tree.ranges
            if range_.leaf not in omitted.leaves
            or not _reveals_elements(range_, facts[range_.leaf], call, side)
        )
    return tree.model_copy(update=changes)


def omitted_node(node: ScalarNode) -> OpaqueNode:
    """The node that replaces the node of an omitted scalar."""
    length = node.scalar if node.kind in ("str", "bytes") else None
    name = node.type or f"builtins:{node.kind}"
    return OpaqueNode(kind="opaque", type=name, reason="policy", of=node.kind, length=length)


def omitted_scalar(kind: str, value: Any) -> int:
    """The scalar that replaces an omitted one: the length of a text, 0 for a number."""
    return len(value) if kind in ("str", "bytes") else 0


def without_value(leaf: Leaf) -> dict[str, Any]:
    """The encoded facts of a tensor without its bytes, and without its quantizer, because scale and
    zero point follow from the elements."""
    document = leaf_document(leaf)
    document.pop("quantizer", None)
    if document.pop("key", None) is not None:
        document["missing"] = "policy"
    return document


def leaf_document(leaf: Leaf) -> dict[str, Any]:
    """The encoded facts of a tensor."""
    return leaf.model_dump(exclude_none=True, exclude_defaults=True)


def _reveals_elements(span: Range, leaf: Leaf, call: Call, side: Side) -> bool:
    """Whether the range of a tensor reveals single elements. It does not if all of them are 0 or 1,
    or if there are many different ones."""
    if math.prod(leaf.shape) < FEWEST_RANGED:
        return True
    is_mask = span.min >= 0 and span.max <= 1
    if not is_mask and span.max - span.min < FEWEST_RANGED - 1:
        return True
    data = call.stored(side, span.leaf)
    if data is None:  # the recorder saw the values, and decided to write the range
        return False
    integer_format = INTEGER_FORMATS.get(leaf.dtype)
    if integer_format is None:  # a range that no recorder writes
        return True
    elements, distinct = memoryview(data).cast(integer_format), set[int]()
    for begin in range(0, len(elements), _CHUNK):
        distinct.update(elements[begin : begin + _CHUNK])
        if len(distinct) >= FEWEST_RANGED:
            return False
    return not distinct <= {0, 1}
