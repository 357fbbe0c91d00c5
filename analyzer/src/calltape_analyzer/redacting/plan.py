"""The redaction plan for a tape: per structure of arguments or outputs, the redacted structure and
the fate of each scalar and tensor.

The plan reads all records first, because a place has the same fate in all calls: if its number
looks like data in one call, it is omitted from all of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from calltape_analyzer.editing.omission import omitted_node, omitted_scalar
from calltape_analyzer.observing.groups import looks_like_name
from calltape_analyzer.pytree.nodes import PlacedNode, placed_nodes, with_children
from calltape_analyzer.redacting.policy import (
    Fate,
    Ordinals,
    Policy,
    PrivateFact,
    most_private,
    number_fact,
)
from calltape_analyzer.redacting.vocabulary import is_field, plain_reason
from calltape_analyzer.tape import Tape
from calltape_analyzer.writing.lineage import unkept_of
from calltape_schema.blob import INTEGER_FORMATS
from calltape_schema.bounds import MAX_DOCUMENT_BYTES
from calltape_schema.errors import TapeError
from calltape_schema.privacy import is_name, is_setting
from calltape_schema.recent import Recent
from calltape_schema.records import Tree
from calltape_schema.tree import (
    DictNode,
    EnumNode,
    FieldsNode,
    Node,
    OpaqueNode,
    ScalarNode,
    SequenceNode,
    Structure,
    TensorNode,
    decode_structure,
    document_like,
    encode_structure,
)

__all__ = ["ElementRange", "RedactionPlan", "TensorFate", "TreePlan"]

_NUMBERS: tuple[PrivateFact, ...] = ("setting", "size", "number")
"""From open to private."""
_MOST_OPEN: tuple[Fate, Fate] = ("kept", "kept")
_MEMORY_FACTOR = 20
"""Roughly how many bytes of memory a plan takes per byte of its encoded structure."""


@dataclass
class ElementRange:
    """The range of the integer tensors at a place over all calls, and how many elements these
    tensors have in total."""

    min: int
    max: int
    elements: int = 0


class TensorFate(NamedTuple):
    """The fates of a tensor's elements and range. ``name`` is its path for people."""

    name: str
    elements: Fate
    range: Fate


class RedactionPlan:
    """The plan for one tape.

    Args:
        tape: the tape, of which all records are read.
        policy: decides the fate of each fact.

    Attributes:
        policy: as given.
        ordinals: the ordinals for the tape's texts, keys and threads.
        omitted_numbers: places whose numbers look like data and are omitted.
        replaced_names: places with texts that look like names and became ordinals.

    Raises:
        TapeError: the tape cannot be read.
    """

    def __init__(self, tape: Tape, policy: Policy) -> None:
        self.policy = policy
        self.ordinals = Ordinals([default for _, default in policy.defaults])
        self.omitted_numbers: set[str] = set()
        self.replaced_names: set[str] = set()
        self._numbers: dict[str, PrivateFact] = {}  # by name of the place
        self._ranges: dict[tuple[str, str], ElementRange] = {}  # by name of the place and dtype
        self._places = Recent()
        self._trees = Recent()
        for call in tape.calls:
            with suppress(TapeError):  # the tape's damage lists it
                self._add_inputs(call.record.inputs)
        table = unkept_of(tape.whole.segments)
        for kind in (*table.kinds.values(), *(row.kind() for row in table.rows.values())):
            with suppress(TapeError):  # the new tape will not have it
                first = sum(kind.ranks)
                sizes = {s for axis in kind.axes[:first] if axis for s in (*axis.sizes, axis.max)}
                places = self._places_in(kind.structure, decode_structure(kind.structure))
                for number, name in places.numbers:
                    if axis := kind.axes[first + number]:
                        self._add_numbers(name, (*axis.sizes, axis.max), sizes)

    def of(self, structure: bytes, spec: Structure, side: str) -> TreePlan:
        """The plan for all trees of one structure.

        Args:
            structure: the structure, encoded.
            spec: the same structure, decoded.
            side: ``""`` for inputs, ``outputs`` for outputs.
        """
        size = _MEMORY_FACTOR * len(structure)
        return self._trees.once((structure, side), lambda: TreePlan(spec, side, self), size)

    def number_fact(self, placed: PlacedNode) -> PrivateFact:
        """The kind of the numbers at a place of the inputs, over all calls."""
        if placed.in_list:
            return "number"
        name = self.policy.name(placed.pattern)
        return "setting" if placed.in_cache else self._numbers.get(name, "setting")

    def range(self, name: str, dtype: str) -> ElementRange | None:
        """The range of the integer tensors at a place; None if no call has one."""
        return self._ranges.get((name, dtype))

    def _add_inputs(self, tree: Tree) -> None:
        places = self._places_in(tree.structure, tree.spec())
        not_settings = [
            (name, tree.scalars[number])
            for number, name in places.numbers
            if type(tree.scalars[number]) is not int or not is_setting(tree.scalars[number])
        ]
        facts = tree.facts() if not_settings or tree.ranges else ()
        sizes = {s for leaf in places.tensors for s in facts[leaf].shape} if not_settings else set()
        for name, value in not_settings:
            self._add_numbers(name, (value,), sizes)
        for span in tree.ranges:
            leaf, place = facts[span.leaf], places.tensors.get(span.leaf)
            if place is not None and leaf.dtype in INTEGER_FORMATS:
                whole = self._ranges.setdefault(
                    (place, leaf.dtype), ElementRange(span.min, span.max)
                )
                whole.min, whole.max = min(whole.min, span.min), max(whole.max, span.max)
                whole.elements += math.prod(leaf.shape)

    def _add_numbers(self, name: str, values: Sequence[Any], sizes: Collection[int]) -> None:
        facts = [number_fact(value, sizes, self.policy.defaults) for value in values]
        ranks = map(_NUMBERS.index, (self._numbers.get(name, "setting"), *facts))
        self._numbers[name] = _NUMBERS[max(ranks)]

    def _places_in(self, structure: bytes, spec: Structure) -> _Places:
        places: _Places | None = self._places.get(structure)
        if places is None:
            places = _Places([], {})
            for placed in placed_nodes(spec.root, named=self.policy.signature.positional):
                node, name = placed.node, self.policy.name(placed.pattern)
                if isinstance(node, TensorNode):
                    places.tensors.setdefault(node.leaf, name)
                elif isinstance(node, ScalarNode) and node.kind not in ("str", "bytes"):
                    if placed.in_list:  # data in all calls, even where the list is shorter
                        self._numbers[name] = "number"
                    elif not placed.in_cache:
                        places.numbers.append((node.scalar, name))
            self._places.keep(structure, places, _MEMORY_FACTOR * len(structure))
        return places


class _Places(NamedTuple):
    """Names of the places in the trees of one structure.

    Attributes:
        numbers: of scalars whose value decides whether they are data, with their numbers.
        tensors: of tensors, by their numbers.
    """

    numbers: list[tuple[int, str]]
    tensors: dict[int, str]


class TreePlan:
    """The plan for all trees of one structure.

    Args:
        spec: the structure.
        side: ``""`` for inputs, ``outputs`` for outputs.
        plan: the plan for the tape.

    Attributes:
        structure: the redacted structure, encoded.
        scalars: the fate and the kind of each scalar that is a value, by its number.
        tensors: the fates of each tensor, by its number.

    A scalar or tensor that no node refers to has no fate, and is omitted.
    """

    def __init__(self, spec: Structure, side: str, plan: RedactionPlan) -> None:
        self._plan, self._policy = plan, plan.policy
        self._side = side
        self._lengths: set[int] = set()
        self._names: dict[int, str] = {}
        self.scalars: dict[int, tuple[Fate, str]] = {}
        self.tensors: dict[int, TensorFate] = {}
        paths: dict[int, str] = {}
        for placed in placed_nodes(spec.root, side, plan.policy.signature.positional):
            paths[id(placed.node)] = placed.path
            node, name = placed.node, plan.policy.name(placed.pattern)
            # The most private fate counts if a value is at several places.
            if isinstance(node, TensorNode):
                first, elements, span = self.tensors.get(node.leaf, (name, *_MOST_OPEN))
                elements = most_private(elements, plan.policy.fate(placed.path, "elements"))
                span = most_private(span, plan.policy.fate(placed.path, "range"))
                self.tensors[node.leaf] = TensorFate(first, elements, span)
            elif isinstance(node, ScalarNode):
                other, _ = self.scalars.get(node.scalar, ("kept", ""))
                fate = most_private(other, self._scalar_fate(node, placed))
                self.scalars[node.scalar] = fate, node.kind
                self._names[node.scalar] = name
            elif isinstance(node, OpaqueNode) and node.length is not None:
                self._lengths.add(node.length)
        root = self._redacted(spec.root, paths).model_dump(exclude_none=True)
        if side:  # readers skip the context of outputs, so it may contain anything
            spec = spec.model_copy(update={"context": None})
        self.structure = encode_structure(document_like(spec, root, spec.leaves, spec.scalars))

    def scalar(self, number: int, value: Any) -> Any:
        """The scalar that replaces a value on the new tape."""
        if number not in self.scalars:
            is_length = number in self._lengths and 0 <= value <= MAX_DOCUMENT_BYTES
            return value if is_length else 0
        fate, kind = self.scalars[number]
        if fate == "omitted":
            return omitted_scalar(kind, value)
        if fate == "kept":
            return _with_plain_nans(value)
        if isinstance(value, bytes):
            return self._plan.ordinals.data(value)
        ordinal = self._plan.ordinals.text(value)
        if ordinal != value and looks_like_name(value):
            self._plan.replaced_names.add(self._names[number])
        return ordinal

    def is_counted(self, number: int) -> bool:
        """Whether the counted inputs of calls that were not kept may have the values of a scalar,
        which must be an int."""
        if number in self.scalars:
            return self.scalars[number] == ("kept", "int")
        return number in self._lengths

    def _scalar_fate(self, node: ScalarNode, placed: PlacedNode) -> Fate:
        if placed.is_setting:
            return "kept"
        if self._side:
            return self._policy.fate(placed.path, "returned")
        if node.kind in ("str", "bytes"):
            return self._policy.fate(placed.path, "text")
        fact = self._plan.number_fact(placed)
        if fact == "number" and self._policy.request(placed.path) is None:
            self._plan.omitted_numbers.add(self._policy.name(placed.pattern))
        return self._policy.fate(placed.path, fact)

    def _redacted(self, node: Node, paths: Mapping[int, str]) -> Node:
        path = paths[id(node)]
        changes: dict[str, Any] = {}
        if isinstance(node, OpaqueNode):
            return node.model_copy(update={"reason": plain_reason(node.reason)})
        if isinstance(node, EnumNode) and self._policy.fate(path, "enum value") != "kept":
            changes["value"] = None
        if isinstance(node, ScalarNode | TensorNode | SequenceNode | DictNode | FieldsNode):
            changes["beside"] = node.beside and tuple(
                name if is_field(name) or is_name(name) else f"?{number}"
                for number, name in enumerate(node.beside)
            )
        if isinstance(node, DictNode):
            changes["keys"] = tuple(self._key(key, path) for key in node.keys)
        if isinstance(node, FieldsNode):
            changes["fields"] = tuple(
                field if is_field(field) else self._key(field, path) for field in node.fields
            )
        redacted = with_children(node, lambda child: self._redacted(child, paths))
        redacted = redacted.model_copy(update=changes) if changes else redacted
        if isinstance(redacted, ScalarNode) and self.scalars[redacted.scalar][0] == "omitted":
            return omitted_node(redacted)
        return redacted

    def _key(self, key: Any, path: str) -> Any:
        """A key of a dict, or its ordinal. Keys that look like names from code stay, and so do keys
        at a path that is kept."""
        if not key or is_name(key) or (path == "kwargs" and key in self._policy.signature.by_name):
            return key
        if self._policy.fate(f"{path}.{key}" if path else str(key), "key") == "kept":
            return key
        parts = key if isinstance(key, tuple) else (key,)
        redacted = tuple(
            part if is_name(part) or not part else self._plan.ordinals.key(part) for part in parts
        )
        return redacted if isinstance(key, tuple) else redacted[0]


def _with_plain_nans(value: Any) -> Any:
    """A scalar whose NaNs have the bits of Python's own NaN, because other bits may hide data."""
    if isinstance(value, tuple):
        return tuple(map(_with_plain_nans, value))
    return math.nan if isinstance(value, float) and math.isnan(value) else value
