"""What becomes of each value of a tape.

Takes a tape, whose records are read once, and a policy; returns, per structure, the structure as
the new tape has it, and a fate for each scalar and each tensor. A place has one fate in all calls:
if a number looks like data in any of them, nothing stays of the numbers there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from calltape_analyzer.editing.omission import left_of, opaque
from calltape_analyzer.observing.groups import looks_like_name
from calltape_analyzer.pytree.nodes import PlacedNode, placed_nodes, with_children
from calltape_analyzer.redacting.ordinals import Ordinals
from calltape_analyzer.redacting.policy import Fact, Fate, Policy, most_private, number_fact
from calltape_analyzer.redacting.vocabulary import is_field, plain_reason
from calltape_analyzer.tape import Tape
from calltape_analyzer.writing.lineage import unkept_of
from calltape_schema.blob import INTEGER_FORMATS
from calltape_schema.bounds import MAX_DOCUMENT_BYTES
from calltape_schema.errors import TapeError
from calltape_schema.inputs_table import Kind
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

__all__ = ["ElementRange", "Plan", "TensorFate", "TreePlan"]

_MAX_KNOWN = 1024
_NUMBERS: tuple[Fact, ...] = ("setting", "size", "number")
"""From open to private."""


@dataclass
class ElementRange:
    """The smallest and the largest element of the integer tensors at a place over all calls, and
    how many elements these tensors have together."""

    min: int
    max: int
    elements: int = 0


class TensorFate(NamedTuple):
    """What becomes of a tensor.

    Attributes:
        name: of its place.
        elements, range: what becomes of these.
    """

    name: str
    elements: Fate
    range: Fate


class Plan:
    """The plan for one tape.

    Args:
        tape: is read once.
        policy: what becomes of which kind of fact.

    Attributes:
        policy: the same.
        ordinals: of the tape.
        omitted_numbers: the names of places whose numbers look like data and are omitted.
        replaced_names: the names of places with texts that look like names, and are ordinals now.

    Raises:
        TapeError: the tape cannot be read.
    """

    def __init__(self, tape: Tape, policy: Policy) -> None:
        self.policy = policy
        self.ordinals = Ordinals([default for _, default in policy.defaults])
        self.omitted_numbers: set[str] = set()
        self.replaced_names: set[str] = set()
        self._numbers: dict[str, Fact] = {}
        self._ranges: dict[tuple[str, str], ElementRange] = {}
        self._places = Recent(_MAX_KNOWN, cost=1)
        self._trees = Recent(_MAX_KNOWN, cost=1)
        for call in tape.calls:
            with suppress(TapeError):  # it stands in the tape's damage
                self._note(call.record.inputs)
        table = unkept_of(tape.whole.segments)
        for kind in (*table.kinds.values(), *(row.kind() for row in table.rows.values())):
            with suppress(TapeError):  # then it is not on the new tape
                self._note_counted(kind)

    def of(self, structure: bytes, spec: Structure, side: str) -> TreePlan:
        """The plan for all trees of one structure.

        Args:
            structure: the structure, encoded.
            spec: the same structure, decoded.
            side: ``""`` for inputs, ``outputs`` for outputs.
        """
        return self._trees.once((structure, side), lambda: TreePlan(spec, side, self))

    def number(self, placed: PlacedNode) -> Fact:
        """What the numbers at a place of the inputs are."""
        if placed.in_list:
            return "number"
        name = self.policy.name(placed.pattern)
        return "setting" if placed.in_cache else self._numbers.get(name, "setting")

    def range(self, name: str, dtype: str) -> ElementRange | None:
        """The range of the integer tensors at a place; None if no call has one."""
        return self._ranges.get((name, dtype))

    def _note(self, tree: Tree) -> None:
        places = self._of(tree.structure, tree.spec())
        long = [
            (name, tree.scalars[at])
            for at, name in places.numbers
            if type(tree.scalars[at]) is not int or not is_setting(tree.scalars[at])
        ]
        facts = tree.facts() if long or tree.ranges else ()
        sizes = {size for at in places.tensors for size in facts[at].shape} if long else set()
        for name, value in long:
            self._note_numbers(name, (value,), sizes)
        for one in tree.ranges:
            leaf, place = facts[one.leaf], places.tensors.get(one.leaf)
            if place is not None and leaf.dtype in INTEGER_FORMATS:
                own = ElementRange(one.min, one.max)
                known = self._ranges.setdefault((place, leaf.dtype), own)
                known.min, known.max = min(known.min, one.min), max(known.max, one.max)
                known.elements += math.prod(leaf.shape)

    def _note_counted(self, kind: Kind) -> None:
        first = sum(kind.ranks)
        sizes = {size for axis in kind.axes[:first] if axis for size in (*axis.sizes, axis.max)}
        for at, name in self._of(kind.structure, decode_structure(kind.structure)).numbers:
            if axis := kind.axes[first + at]:
                self._note_numbers(name, (*axis.sizes, axis.max), sizes)

    def _note_numbers(self, name: str, values: Sequence[Any], sizes: Collection[int]) -> None:
        facts = [number_fact(value, sizes, self.policy.defaults) for value in values]
        ranks = map(_NUMBERS.index, (self._numbers.get(name, "setting"), *facts))
        self._numbers[name] = _NUMBERS[max(ranks)]

    def _of(self, structure: bytes, spec: Structure) -> _Places:
        return self._places.once(structure, lambda: self._places_in(spec))

    def _places_in(self, spec: Structure) -> _Places:
        found = _Places([], {})
        for placed in placed_nodes(spec.root, named=self.policy.signature.positional):
            node, name = placed.node, self.policy.name(placed.pattern)
            if isinstance(node, TensorNode):
                found.tensors.setdefault(node.leaf, name)
            elif isinstance(node, ScalarNode) and node.kind not in ("str", "bytes"):
                if placed.in_list:  # data in all calls, also where the list is shorter
                    self._numbers[name] = "number"
                elif not placed.in_cache:
                    found.numbers.append((node.scalar, name))
        return found


class _Places(NamedTuple):
    """The places in the trees of one structure, by their names.

    Attributes:
        numbers: of the scalars that are numbers, and of which the value decides what they are.
        tensors: of each leaf.
    """

    numbers: list[tuple[int, str]]
    tensors: dict[int, str]


class TreePlan:
    """The plan for all trees of one structure.

    Args:
        spec: the structure.
        side: ``""`` for inputs, ``outputs`` for outputs.
        plan: of the tape.

    Attributes:
        structure: the new structure, encoded.
        scalars: the fate and the kind of each scalar that is a value.
        tensors: the fate of each tensor.

    A scalar or a tensor that no node refers to has no fate: nothing of it is on the new tape.
    """

    def __init__(self, spec: Structure, side: str, plan: Plan) -> None:
        self._plan, self._policy = plan, plan.policy
        self._side = side
        self._lengths: set[int] = set()
        self._names: dict[int, str] = {}
        self.scalars: dict[int, tuple[Fate, str]] = {}
        self.tensors: dict[int, TensorFate] = {}
        paths: dict[int, str] = {}
        for placed in placed_nodes(spec.root, side, plan.policy.signature.positional):
            paths[id(placed.node)] = placed.path
            if isinstance(placed.node, TensorNode):
                self._tensor(placed.node.leaf, placed)
            elif isinstance(placed.node, ScalarNode):
                self._scalar(placed.node, placed)
            elif isinstance(placed.node, OpaqueNode) and placed.node.length is not None:
                self._lengths.add(placed.node.length)
        made = self._made(spec.root, paths).model_dump(exclude_none=True)
        if side:  # a reader skips the context of outputs, so it may be anything
            spec = spec.model_copy(update={"context": None})
        self.structure = encode_structure(document_like(spec, made, spec.leaves, spec.scalars))

    def scalar(self, at: int, value: Any) -> Any:
        """A scalar as the new tape has it."""
        if at not in self.scalars:
            is_length = at in self._lengths and 0 <= value <= MAX_DOCUMENT_BYTES
            return value if is_length else 0
        fate, kind = self.scalars[at]
        if fate == "omitted":
            return left_of(kind, value)
        if fate == "kept":
            return _without_bits(value)
        if isinstance(value, bytes):
            return self._plan.ordinals.data(value)
        made = self._plan.ordinals.text(value)
        if made != value and looks_like_name(value):
            self._plan.replaced_names.add(self._names[at])
        return made

    def is_counted(self, at: int) -> bool:
        """Whether the counts of calls that are on no tape may have the values of a scalar. They
        have those of ints only."""
        return self.scalars[at] == ("kept", "int") if at in self.scalars else at in self._lengths

    def _tensor(self, leaf: int, placed: PlacedNode) -> None:
        fate, path = self._policy.fate, placed.path
        name = self._policy.name(placed.pattern)
        found = TensorFate(name, fate(path, "elements"), fate(path, "range"))
        known = self.tensors.get(leaf, found)
        # Of a tensor at several places, the most private fate counts.
        self.tensors[leaf] = TensorFate(
            known.name,
            most_private(known.elements, found.elements),
            most_private(known.range, found.range),
        )

    def _scalar(self, node: ScalarNode, placed: PlacedNode) -> None:
        fate, name = self._fate(node, placed), self._policy.name(placed.pattern)
        known, _ = self.scalars.get(node.scalar, (fate, ""))
        self.scalars[node.scalar] = most_private(known, fate), node.kind
        self._names[node.scalar] = name

    def _fate(self, node: ScalarNode, placed: PlacedNode) -> Fate:
        if placed.is_setting:
            return "kept"
        if self._side:
            return self._policy.fate(placed.path, "returned")
        if node.kind in ("str", "bytes"):
            return self._policy.fate(placed.path, "text")
        fact = self._plan.number(placed)
        if fact == "number" and self._policy.request(placed.path) is None:
            self._plan.omitted_numbers.add(self._policy.name(placed.pattern))
        return self._policy.fate(placed.path, fact)

    def _made(self, node: Node, paths: Mapping[int, str]) -> Node:
        """A node as the new tape has it."""
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
        made = with_children(node, lambda child: self._made(child, paths))
        made = made.model_copy(update=changes) if changes else made
        if isinstance(made, ScalarNode) and self.scalars[made.scalar][0] == "omitted":
            return opaque(made)
        return made

    def _key(self, key: Any, path: str) -> Any:
        """A key of a dict. One that looks like a name from code stays, and so does one at a path
        that is kept."""
        if not key or is_name(key) or (path == "kwargs" and key in self._policy.signature.by_name):
            return key
        if self._policy.fate(f"{path}.{key}" if path else str(key), "key") == "kept":
            return key
        parts = key if isinstance(key, tuple) else (key,)
        made = tuple(
            part if is_name(part) or not part else self._plan.ordinals.key(part) for part in parts
        )
        return made if isinstance(key, tuple) else made[0]


def _without_bits(value: Any) -> Any:
    """A scalar whose NaNs are the one that Python makes: the bits of another one are shown nowhere,
    and may be data."""
    if isinstance(value, tuple):
        return tuple(map(_without_bits, value))
    return math.nan if isinstance(value, float) and math.isnan(value) else value
