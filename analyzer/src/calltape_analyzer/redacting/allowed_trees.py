"""The allowlist for the manifest and the trees of a redacted tape."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from calltape_analyzer.editing.omission import leaf_document
from calltape_analyzer.errors import RedactionError
from calltape_analyzer.pytree.nodes import PlacedNode, placed_nodes
from calltape_analyzer.redacting.policy import Fate, Policy, is_ordinal, number_fact
from calltape_analyzer.redacting.vocabulary import (
    VERBS,
    are_patterns,
    is_class_name,
    is_code_name,
    is_default,
    is_enum_name,
    is_field,
    is_platform,
    is_torch_name,
    is_version,
    plain_id,
    plain_reason,
)
from calltape_schema import blob
from calltape_schema.bounds import MAX_DOCUMENT_BYTES
from calltape_schema.packing import pack, unpack
from calltape_schema.privacy import is_name, is_setting, is_without_text
from calltape_schema.recent import Recent
from calltape_schema.records import MINOR, Step, Target, decode_manifest, encode_manifest
from calltape_schema.tree import (
    ConstantNode,
    DictNode,
    EnumNode,
    FieldsNode,
    Leaf,
    OpaqueNode,
    ScalarNode,
    TensorNode,
    decode_leaves,
    decode_structure,
    document_like,
    encode_structure,
)

__all__ = ["NotAllowedError", "TreeChecks", "decoded", "require"]

_KEY = re.compile(r"t(0|[1-9]\d{0,6})", re.ASCII)
_OMITTED_NAME = re.compile(r"\?\d{1,6}", re.ASCII)
_MEMORY_FACTOR = 20
"""Roughly how many bytes of memory decoded rules take per encoded byte."""


class NotAllowedError(RedactionError):
    """The new tape contains a fact that is not on the allowlist."""

    def __init__(self, place: str, fact: str) -> None:
        super().__init__(
            f"the new tape would contain a fact that is not allowed: {fact}, in {place}",
            advice="no recorder writes it: leave such calls out, or report this if your recorder "
            "did; nothing was written",
        )


def require(is_allowed: object, place: str, fact: str) -> None:
    if not is_allowed:
        raise NotAllowedError(place, fact)


def decoded(data: bytes | memoryview, place: str) -> Any:
    """Decodes a document in canonical encoding. Another encoding could hide data."""
    document = unpack(data)
    require(pack(document) == bytes(data), place, "another encoding")
    return document


def _sorted_texts(document: Any) -> Any:
    """A document with the fields of all maps in alphabetical order."""
    if isinstance(document, dict):
        fields: dict[str, Any] = document
        return {name: _sorted_texts(fields[name]) for name in sorted(fields)}
    if isinstance(document, list | tuple):
        items: Any = document
        return [_sorted_texts(item) for item in items]
    return document


ScalarCheck = Callable[[Any, Collection[int]], bool]
"""Whether a scalar may have a value in a call whose tensors have these sizes."""


class _TreeRules(NamedTuple):
    """What the trees of one structure may contain.

    Attributes:
        leaves: how many tensors there are.
        scalars: the check of each scalar.
        elements: the tensors that may have elements.
        ranges: the tensors that may have a range. One with a place must have the range of all
            tensors there; with None, any range is allowed.
        counted: the scalars whose values may be counted.
    """

    leaves: int
    scalars: list[ScalarCheck]
    elements: frozenset[int]
    ranges: Mapping[int, str | None]
    counted: frozenset[int]


class TreeChecks:
    """Checks manifests, trees and counted inputs."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._rules = Recent()  # by structure and side
        self._leaves = Recent()
        self._ranges: dict[tuple[str, str], tuple[int, int]] = {}  # by place and dtype

    # --- the manifest ------------------------------------------------------------------------

    def manifest(self, content: bytes) -> bytes:
        """Checks the manifest, and returns the id of the tape."""
        manifest, where = decode_manifest(content), "the manifest"
        require(encode_manifest(manifest) == content, where, "other fields")
        require(manifest.minor == MINOR, where, "another version")
        producer, policy = manifest.producer, manifest.policy
        versions = (producer.calltape, producer.torch, producer.python, producer.transformers)
        for version in versions:
            require(version is None or is_version(version), where, "another version")
        require(producer.platform is None or is_platform(producer.platform), where, "a platform")
        require(producer.host is None, where, "the name of a host")
        require(policy.keep is None and not policy.leaf_values, where, "words of the policy")
        observed = manifest.observed
        if observed is not None:
            require(plain_reason(observed.reason) == observed.reason, where, "other words")
        if manifest.target is not None:
            _check_target(manifest.target)
        require(plain_id(manifest.tape) == manifest.tape, where, "an id")
        steps = manifest.history or ()
        for number, step in enumerate(steps):
            _check_step(step, is_last=number == len(steps) - 1)
        return manifest.tape

    # --- trees -------------------------------------------------------------------------------

    def check(self, tree: dict[str, Any], side: str, keys: dict[str, blob.Stored]) -> None:
        """Checks the tree of one side of a call.

        Args:
            tree: the document of the tree, with the bytes of its structure and leaves.
            side: ``inputs`` or ``outputs``.
            keys: receives the entries that the blob of the call may have.
        """
        rules = self._rules_for(tree["structure"], side)
        data: bytes = tree["leaves"]
        leaves = self._leaves.once(data, lambda: _checked_leaves(data), _MEMORY_FACTOR * len(data))
        scalars, ranges = tree.get("scalars", ()), tree.get("ranges", ())
        counts = len(leaves), len(scalars)
        require(counts == (rules.leaves, len(rules.scalars)), side, "values that no node refers to")
        sizes = {size for leaf in leaves for size in leaf.shape}
        for value, is_allowed in zip(scalars, rules.scalars, strict=True):
            require(is_allowed(value, sizes), side, "a scalar")
        for number, leaf in enumerate(leaves):
            if leaf.key is None:
                continue
            is_allowed_key = number in rules.elements and _KEY.fullmatch(leaf.key)
            require(is_allowed_key, side, "elements of a tensor")
            stored = blob.stored_as(leaf)
            require(stored is not None and keys.get(leaf.key, stored) == stored, side, "a dtype")
            assert stored is not None
            keys[leaf.key] = stored
        ranged = [range_["leaf"] for range_ in ranges]
        require(len(set(ranged)) == len(ranged), side, "a second range of a tensor")
        for range_ in ranges:
            require(range_.keys() == {"leaf", "min", "max"}, side, "other fields")
            dtype, span = leaves[range_["leaf"]].dtype, (range_["min"], range_["max"])
            may_have = range_["leaf"] in rules.ranges and dtype in blob.INTEGER_FORMATS
            require(may_have, side, "the range of a tensor")
            place = rules.ranges[range_["leaf"]]
            whole = span if place is None else self._ranges.setdefault((place, dtype), span)
            require(span == whole, side, "the range of one call")

    def kind(self, kind: Any) -> None:
        """Checks counted inputs."""
        rules, where = self._rules_for(kind.structure, "inputs"), "the table of inputs"
        first = sum(kind.ranks)
        counts = len(kind.dtypes), len(kind.axes) - first
        require(counts == (rules.leaves, len(rules.scalars)), where, "sizes of no tensor")
        require(all(map(is_torch_name, kind.dtypes)), where, "a dtype")
        sizes = {size for axis in kind.axes[:first] for size in (*axis.sizes, axis.max)}
        for number, axis in enumerate(kind.axes[first:]):
            if axis is not None:
                values = (*axis.sizes, axis.max)
                are_allowed = all(rules.scalars[number](value, sizes) for value in values)
                require(number in rules.counted and are_allowed, where, "values of a scalar")

    def _rules_for(self, structure: bytes, side: str) -> _TreeRules:
        size = _MEMORY_FACTOR * len(structure)
        return self._rules.once((structure, side), lambda: self._build_rules(structure, side), size)

    def _build_rules(self, structure: bytes, side: str) -> _TreeRules:
        """Checks a structure, and returns the rules for its trees."""
        spec = decode_structure(structure)
        root = spec.root.model_dump(exclude_none=True)
        canonical = encode_structure(document_like(spec, root, spec.leaves, spec.scalars))
        require(structure == canonical, side, "other fields of a structure")
        context = spec.context
        if context is not None:
            require(side == "inputs", side, "a context")
            names = [context.default_dtype]
            names += [name for a in context.autocast for name in (a.device, a.dtype)]
            require(all(map(is_torch_name, names)), side, "a name that torch does not have")
        root_path = "" if side == "inputs" else side
        elements: dict[int, bool] = {}
        ranges: dict[int, set[Fate]] = {}
        places: dict[int, str] = {}
        checks: dict[int, list[ScalarCheck]] = {}
        not_ints: set[int] = set()
        fate = self._policy.fate
        for placed in placed_nodes(spec.root, root_path, self._policy.signature.positional):
            node, path = placed.node, placed.path
            self._check_names(placed, side)
            if isinstance(node, TensorNode):
                leaf = node.leaf
                elements[leaf] = elements.get(leaf, True) and fate(path, "elements") == "kept"
                is_input = side == "inputs"
                ranges.setdefault(leaf, set()).add(fate(path, "range") if is_input else "omitted")
                places.setdefault(leaf, self._policy.name(placed.pattern))
            elif isinstance(node, ScalarNode):
                checks.setdefault(node.scalar, []).append(self._scalar_check(placed, node, side))
                if node.kind != "int":
                    not_ints.add(node.scalar)
            elif isinstance(node, OpaqueNode) and node.length is not None:
                checks.setdefault(node.length, []).append(
                    lambda value, _: 0 <= value <= MAX_DOCUMENT_BYTES
                )
        leaves, scalars = range(spec.leaves), range(spec.scalars)
        are_referenced = set(elements) == set(leaves) and set(checks) == set(scalars)
        require(are_referenced, side, "values that no node refers to")
        return _TreeRules(
            spec.leaves,
            [_passes_all(checks[number]) for number in scalars],
            frozenset(leaf for leaf, is_kept in elements.items() if is_kept),
            {
                leaf: None if fates == {"kept"} else places[leaf]
                for leaf, fates in ranges.items()
                if "omitted" not in fates
            },
            frozenset(checks.keys() - not_ints),
        )

    def _scalar_check(self, placed: PlacedNode, node: ScalarNode, side: str) -> ScalarCheck:
        path, policy = placed.path, self._policy
        if placed.is_setting:
            return lambda value, _: type(value) is int and is_setting(value)
        if side == "outputs":
            is_kept = policy.fate(path, "returned") == "kept"
            return lambda value, _: is_kept and _has_plain_nans(value)
        if node.kind in ("str", "bytes"):
            fate = policy.fate(path, "text")
            return lambda value, _: (
                fate == "kept"
                or (
                    fate == "replaced"
                    and (not value or is_ordinal(value) or (type(value), value) in policy.defaults)
                )
            )
        fates = {fact: policy.fate(path, fact) for fact in ("setting", "size", "number")}

        def is_allowed(value: Any, sizes: Collection[int]) -> bool:
            fact = number_fact(value, sizes, policy.defaults)
            if placed.in_list or placed.in_cache:
                fact = "number" if placed.in_list else "setting"
            return fates[fact] == "kept" and _has_plain_nans(value)

        return is_allowed

    def _check_names(self, placed: PlacedNode, side: str) -> None:
        """Checks names and reasons of a node."""
        node = placed.node
        name = getattr(node, "type", None)
        require(name is None or is_class_name(name), side, "the name of a class")
        if isinstance(node, ConstantNode):
            require(is_torch_name(node.name), side, "a name that torch does not have")
        elif isinstance(node, EnumNode):
            is_kept = self._policy.fate(placed.path, "enum value") == "kept"
            require(node.value is None or is_kept, side, "the value of an enum")
            require(is_enum_name(node.name), side, "the name of a member of an enum")
        elif isinstance(node, OpaqueNode):
            require(plain_reason(node.reason) == node.reason, side, "a reason in other words")
        elif isinstance(node, DictNode):
            require(all(self._is_allowed_key(key, placed.path) for key in node.keys), side, "a key")
        elif isinstance(node, FieldsNode):
            fields = (is_field(f) or self._is_allowed_key(f, placed.path) for f in node.fields)
            require(all(fields), side, "the name of a field")
        for attribute in getattr(node, "beside", None) or ():
            is_allowed = (
                is_field(attribute) or is_name(attribute) or _OMITTED_NAME.fullmatch(attribute)
            )
            require(is_allowed, side, "the name of an attribute")

    def _is_allowed_key(self, key: Any, path: str) -> bool:
        """Whether a dict may have a key: a name, a kept one, or an ordinal."""
        if not key or is_name(key) or (path == "kwargs" and key in self._policy.signature.by_name):
            return True
        if self._policy.fate(f"{path}.{key}" if path else str(key), "key") == "kept":
            return True
        parts = key if isinstance(key, tuple) else (key,)
        return all(not p or is_name(p) or (isinstance(p, str) and is_ordinal(p)) for p in parts)


def _has_plain_nans(value: Any) -> bool:
    """Whether the NaNs of a scalar have the bits of Python's own NaN: other bits may hide data."""
    parts: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
    nans = (part for part in parts if isinstance(part, float) and math.isnan(part))
    return all(pack(nan) == pack(math.nan) for nan in nans)


def _passes_all(checks: list[ScalarCheck]) -> ScalarCheck:
    return lambda value, sizes: all(check(value, sizes) for check in checks)


def _check_target(target: Target) -> None:
    where = "the target"
    require(is_class_name(target.type), where, "the name of a class")
    names = [target.method, *(target.outside or ())]
    names += [] if target.module is None else [target.module]
    names += [parameter.name for parameter in target.signature or ()]
    require(all(map(is_code_name, names)), where, "a name that is not from code")
    for parameter in target.signature or ():
        require(is_default(parameter.default), where, "a default that is not from code")


def _check_step(step: Step, *, is_last: bool) -> None:
    """Checks a step of the history. The options of the last one are those of this redaction."""
    where = "the history"
    require(step.verb in VERBS or is_without_text(step.verb), where, "other words")
    require(is_code_name(step.tool) or is_without_text(step.tool), where, "other words")
    require(is_version(step.version), where, "another version")
    for name, value in step.options if not is_last else ():
        is_pattern = step.verb == "redact" and are_patterns(value)
        is_allowed = is_code_name(name) and (is_without_text(value) or is_pattern)
        require(is_allowed, where, "words of an earlier step")
    ids = [step.tape, *(source.tape for source in step.sources)]
    require(all(plain_id(id_) == id_ for id_ in ids), where, "an id")
    for source in step.sources:
        require(not source.files and source.host is None, where, "the name of a file")


def _checked_leaves(data: bytes) -> tuple[Leaf, ...]:
    where = "the facts of a tensor"
    documents, leaves = decoded(data, where), decode_leaves(data)
    expected = [leaf_document(leaf) for leaf in leaves]
    require(pack(_sorted_texts(documents)) == pack(_sorted_texts(expected)), where, "other fields")
    counts = Counter(leaf.storage for leaf in leaves)
    for leaf in leaves:
        names = all(map(is_torch_name, (leaf.dtype, leaf.device, leaf.layout)))
        require(names, where, "a name that torch does not have")
        require(leaf.subclass is None or is_class_name(leaf.subclass), where, "a class")
        is_allowed = leaf.missing is None or plain_reason(leaf.missing) == leaf.missing
        require(is_allowed, where, "a reason in other words")
        is_shared = leaf.storage is not None and counts[leaf.storage] > 1
        require(is_shared or (leaf.storage is None and not leaf.offset), where, "a memory")
        require((leaf.storage or 0) < len(leaves), where, "the number of a memory")
    return leaves
