"""What becomes of each value of the trees of one structure.

In come a structure and the treatments that were asked for. Out go the structure as the new tape has
it, and a fate for each scalar and each tensor. This is found once per structure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from calltape_analyzer.editing.withholding import left_of, names_of_path, opaque
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.pytree.node_paths import names_of_children
from calltape_analyzer.pytree.placed_nodes import PlacedNode, placed_nodes
from calltape_analyzer.redacting.pseudonyms import Pseudonyms
from calltape_analyzer.redacting.treatment import FATES, Fact, Fate, Treatments
from calltape_analyzer.redacting.vocabulary import is_field, told_reason
from calltape_schema.bounds import MAX_DOCUMENT_BYTES
from calltape_schema.packing import pack
from calltape_schema.privacy import is_name
from calltape_schema.tree import (
    CustomNode,
    DictNode,
    EnumNode,
    FieldsNode,
    Node,
    OpaqueNode,
    ScalarNode,
    SequenceNode,
    Structure,
    TensorNode,
    children_of,
    document_like,
    encode_structure,
)

__all__ = ["Fates", "Replaced", "TensorFate", "TreePlan"]


class Replaced:
    """What was replaced so far, for the proof that the analysis says the same.

    Attributes:
        dicts: the patterns of the paths of keys, without the keys; of an argument its name.
        numbers: the places of numbers, as the analysis names them.
        has_withheld: whether any argument has only its length left.
    """

    def __init__(self) -> None:
        self.dicts: set[str] = set()
        self.numbers: set[str] = set()
        self.has_withheld = False


class Fates(NamedTuple):
    """The treatments of a tape, and what they need.

    Attributes:
        long_numbers: the places of numbers that are data, though nobody asked for them.
    """

    treatments: Treatments
    pseudonyms: Pseudonyms
    signature: Signature
    replaced: Replaced
    keys: Mapping[Any, Any]
    long_numbers: Collection[str] = ()


class TensorFate(NamedTuple):
    """What becomes of a tensor.

    Attributes:
        name: its path, by the name of its parameter.
        elements, range: what becomes of these.
    """

    name: str
    elements: Fate
    range: Fate


class TreePlan:
    """The plan for all trees of one structure.

    Args:
        spec: the structure.
        side: ``""`` for inputs, ``outputs`` for outputs.
        fates: what was asked for.

    Attributes:
        root: of the new structure.
        structure: the same, encoded.
        scalars: the fate and the kind of each scalar that is a value.
        is_whole: whether the nodes refer to all tensors and scalars.
        lengths: the scalars that are the lengths of texts that are not on the tape.
        tensors: the fate of each tensor.

    A scalar or a tensor that no node refers to has no fate: nothing of it is on the new tape.
    """

    def __init__(self, spec: Structure, side: str, fates: Fates) -> None:
        self._fates = fates
        self._side = side
        self.scalars: dict[int, tuple[Fate, str]] = {}
        self.lengths: set[int] = set()
        self.tensors: dict[int, TensorFate] = {}
        for placed in placed_nodes(spec.root, side, fates.signature.positional):
            if isinstance(placed.node, TensorNode):
                self._tensor(placed.node.leaf, placed.path)
            elif isinstance(placed.node, ScalarNode) and placed.is_setting:
                self.scalars.setdefault(placed.node.scalar, ("kept", placed.node.kind))
            elif isinstance(placed.node, ScalarNode):
                self._scalar(placed.node, placed)
            elif isinstance(placed.node, OpaqueNode) and placed.node.length is not None:
                self.lengths.add(placed.node.length)
        sizes = len(self.tensors), len(self.scalars.keys() | self.lengths)
        self.is_whole = sizes == (spec.leaves, spec.scalars)
        self.root = self._made(spec.root)
        made = self.root.model_dump(exclude_none=True)
        if side:  # a reader skips the context of outputs, so it may be anything
            spec = spec.model_copy(update={"context": None})
        document = document_like(spec, made, spec.leaves, spec.scalars)
        self.structure = encode_structure(document)

    def scalar(self, place: int, value: Any) -> Any:
        """A scalar as the new tape has it."""
        found = self.scalars.get(place)
        if found is None:
            is_length = place in self.lengths and 0 <= value <= MAX_DOCUMENT_BYTES
            return value if is_length else 0
        fate, kind = found
        if fate == "kept":
            return _plain(value)
        if fate == "withheld":
            return left_of(kind, value)
        pseudonyms = self._fates.pseudonyms
        if kind == "complex":
            return tuple(map(pseudonyms.number, value))
        return self._pseudonym(value)

    def keeps(self, place: int, value: Any) -> bool:
        """Whether the new tape has this scalar, bit by bit: a NaN equals nothing."""
        return pack([self.scalar(place, value)]) == pack([value])

    def hides(self, place: int) -> bool:
        """Whether traffic counters must not have the values of a scalar. They have those of ints
        only."""
        if place in self.scalars:
            return self.scalars[place] != ("kept", "int")
        return place not in self.lengths

    def _tensor(self, leaf: int, path: str) -> None:
        name = list(names_of_path(path, self._fates.signature))[-1]
        fate_of = self._fates.treatments.fate
        found = TensorFate(name, fate_of(path, "elements"), fate_of(path, "range"))
        known = self.tensors.get(leaf)
        # Of a tensor at several places, the most private fate counts.
        if known is None or FATES.index(found.range) > FATES.index(known.range):
            self.tensors[leaf] = found

    def _scalar(self, node: ScalarNode, placed: PlacedNode) -> None:
        name = list(names_of_path(placed.path, self._fates.signature))[-1]
        fate = self._fates.treatments.fate(placed.path, self._fact(node, placed, name))
        known = self.scalars.get(node.scalar)
        if known is not None:
            fate = FATES[max(FATES.index(fate), FATES.index(known[0]))]
        self.scalars[node.scalar] = fate, node.kind
        if fate == "withheld" and not self._side:
            self._fates.replaced.has_withheld = True
        if fate != "kept" and node.kind not in ("str", "bytes"):
            self._fates.replaced.numbers.add(name)

    def _fact(self, node: ScalarNode, placed: PlacedNode, name: str) -> Fact:
        if self._side:
            return "returned"
        if node.kind in ("str", "bytes"):
            return "text"
        is_data = placed.in_list or name in self._fates.long_numbers
        return "number" if is_data else "setting"

    def _made(self, node: Node, at: str | None = None) -> Node:
        at = self._side if at is None else at
        if isinstance(node, ScalarNode):
            node = node.model_copy(update={"beside": self._names(node.beside)})
            return opaque(node) if self.scalars[node.scalar][0] == "withheld" else node
        if isinstance(node, OpaqueNode):
            return node.model_copy(update={"reason": told_reason(node.reason)})
        if isinstance(node, EnumNode):
            keeps = self._fates.treatments.fate(at, "enum value") == "kept"
            return node if keeps else node.model_copy(update={"value": None})
        changes: dict[str, Any] = {}
        names: Any = names_of_children(node)
        if not at and len(names) == 2:
            names = ("args", "kwargs")
        below = [
            self._made(child, f"{at}.{name}" if at else str(name))
            for name, child in zip(names, children_of(node), strict=True)
        ]
        if below:
            changes["children"] = tuple(below)
        if isinstance(node, CustomNode):
            changes["context"] = self._made(node.context, f"{at}.context")
        if isinstance(node, DictNode):
            changes["keys"] = tuple(self._key(key, at) for key in node.keys)
        if isinstance(node, FieldsNode):
            changes["fields"] = tuple(
                field if is_field(field) else self._key(field, at) for field in node.fields
            )
        if isinstance(node, TensorNode | SequenceNode | DictNode | FieldsNode):
            changes["beside"] = self._names(node.beside)
        return node.model_copy(update=changes) if changes else node

    def _names(self, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names is None:
            return None
        return tuple(n if is_field(n) or is_name(n) else f"?{i}" for i, n in enumerate(names))

    def _key(self, key: Any, at: str) -> Any:
        """A key of a dict. One that looks like a name from code stays, and so does one at a path
        that is kept."""
        if not key or is_name(key) or (at == "kwargs" and key in self._fates.signature.by_name):
            return key
        if self._fates.treatments.fate(f"{at}.{key}" if at else str(key), "key") == "kept":
            return key
        made = tuple(map(self._part, key)) if isinstance(key, tuple) else self._part(key)
        self._fates.replaced.dicts.add(self._pattern(key, at))
        return made

    def _pattern(self, key: Any, at: str) -> str:
        """What names a key of a dict to the options, with those beside it."""
        path = f"{at}.{key}" if at == "kwargs" else f"{at}.*" if at else "*"
        return list(names_of_path(path, self._fates.signature))[-1]

    def _part(self, part: Any) -> Any:
        """A key, or a part of one."""
        if is_name(part) or not part:
            return part
        if type(part) in (str, int) and part in self._fates.keys:
            return self._fates.keys[part]
        made = self._pseudonym(part)
        while is_name(made):  # it may be another key of the same dict
            made = self._pseudonym(made)
        return made

    def _pseudonym(self, key: Any) -> Any:
        pseudonyms = self._fates.pseudonyms
        ways: dict[type, Callable[[Any], Any]] = {
            str: pseudonyms.text,
            bytes: pseudonyms.data,
            int: pseudonyms.integer,
            float: pseudonyms.number,
        }
        return ways[type(key)](key)


def _plain(value: Any) -> Any:
    """A scalar whose NaNs are the one that Python makes: the bits of another one are shown nowhere,
    and may be data."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return math.nan if isinstance(value, float) and math.isnan(value) else value
