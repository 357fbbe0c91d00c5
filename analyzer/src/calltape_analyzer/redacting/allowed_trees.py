"""What may be in the manifest and in the trees of a redacted tape, by place and kind of fact."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from calltape_analyzer.editing.omission import leaf_document
from calltape_analyzer.errors import RedactionError
from calltape_analyzer.pytree.nodes import PlacedNode, placed_nodes
from calltape_analyzer.redacting.ordinals import is_ordinal
from calltape_analyzer.redacting.policy import Fate, Policy, number_fact
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
from calltape_schema.records import MINOR, Manifest, Step, Target, decode_manifest, encode_manifest
from calltape_schema.tree import (
    ConstantNode,
    DictNode,
    EnumNode,
    FieldsNode,
    Leaf,
    OpaqueNode,
    ScalarNode,
    Structure,
    TensorNode,
    decode_leaves,
    decode_structure,
    document_like,
    encode_structure,
)

__all__ = ["NotAllowedError", "TreeChecks", "decoded", "is_same", "require"]

_MAX_KNOWN = 4096
_KEY = re.compile(r"t(0|[1-9]\d{0,6})", re.ASCII)
_OMITTED_NAME = re.compile(r"\?\d{1,6}", re.ASCII)


class NotAllowedError(RedactionError):
    """The new tape has a fact that is not on the list."""

    def __init__(self, place: str, fact: str) -> None:
        super().__init__(
            f"the new tape would contain a fact that is not allowed: {fact}, in {place}",
            advice="no recorder writes it: leave such calls out, or report this if your recorder "
            "did; nothing was written",
        )


def require(holds: object, place: str, fact: str) -> None:
    if not holds:
        raise NotAllowedError(place, fact)


def decoded(data: bytes | memoryview, place: str) -> Any:
    """A document that has the one encoding that a writer gives it: another one may hold more."""
    document = unpack(data)
    require(pack(document) == bytes(data), place, "another encoding")
    return document


def _sorted(document: Any) -> Any:
    """The same with the fields of all maps in one order."""
    if isinstance(document, dict):
        fields: dict[str, Any] = document
        return {name: _sorted(fields[name]) for name in sorted(fields)}
    if isinstance(document, list | tuple):
        items: Any = document
        return [_sorted(item) for item in items]
    return document


def is_same(one: Any, other: Any) -> bool:
    """Whether two documents are one, bit by bit, whatever the order of their fields is."""
    return pack(_sorted(one)) == pack(_sorted(other))


Test = Callable[[Any, Collection[int]], bool]


class _Tree(NamedTuple):
    """What may be in the trees of one structure.

    Attributes:
        scalars: per scalar whether a value may stand there, beside tensors of some sizes.
        elements: the leaves that may have them.
        ranges: the leaves that may have one, each with its place; None where it may be any.
        shown: the scalars whose values may be counted.
    """

    leaves: int
    scalars: list[Test]
    elements: frozenset[int]
    ranges: Mapping[int, str | None]
    shown: frozenset[int]


class TreeChecks:
    """Checks the parts of records, structures and leaves once each."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._trees = Recent(_MAX_KNOWN, cost=1)
        self._leaves = Recent(_MAX_KNOWN, cost=1)
        self._spans: dict[tuple[str, str], tuple[int, int]] = {}

    # --- the manifest ------------------------------------------------------------------------

    def manifest(self, content: bytes) -> bytes:
        """Checks the manifest, and gives the id of the tape."""
        found, where = decode_manifest(content), "the manifest"
        require(encode_manifest(found) == content, where, "other fields")
        require(found.minor == MINOR, where, "another version")
        producer, policy = found.producer, found.policy
        versions = (producer.calltape, producer.torch, producer.python, producer.transformers)
        for version in versions:
            require(version is None or is_version(version), where, "another version")
        require(producer.platform is None or is_platform(producer.platform), where, "a platform")
        require(producer.host is None, where, "the name of a host")
        require(policy.keep is None and not policy.leaf_values, where, "words of the policy")
        observed = found.observed
        if observed is not None:
            require(plain_reason(observed.reason) == observed.reason, where, "other words")
        if found.target is not None:
            self._target(found.target)
        self._history(found)
        return found.tape

    def _target(self, target: Target) -> None:
        where = "the target"
        require(is_class_name(target.type), where, "the name of a class")
        names = [target.method, *(target.outside or ())]
        names += [] if target.module is None else [target.module]
        names += [one.name for one in target.signature or ()]
        require(all(map(is_code_name, names)), where, "a name that is not from code")
        for one in target.signature or ():
            require(is_default(one.default), where, "a default that is not from code")

    def _history(self, manifest: Manifest) -> None:
        require(plain_id(manifest.tape) == manifest.tape, "the manifest", "an id")
        steps = manifest.history or ()
        for number, step in enumerate(steps):
            self._step(step, is_own=number == len(steps) - 1)

    def _step(self, step: Step, *, is_own: bool) -> None:
        where = "the history"
        require(step.verb in VERBS or is_without_text(step.verb), where, "other words")
        require(is_code_name(step.tool) or is_without_text(step.tool), where, "other words")
        require(is_version(step.version), where, "another version")
        for name, value in step.options if not is_own else ():
            is_pattern = step.verb == "redact" and are_patterns(value)
            is_allowed = is_code_name(name) and (is_without_text(value) or is_pattern)
            require(is_allowed, where, "words of an earlier step")
        ids = [step.tape, *(source.tape for source in step.sources)]
        require(all(plain_id(one) == one for one in ids), where, "an id")
        for source in step.sources:
            require(not source.files and source.host is None, where, "the name of a file")

    # --- trees -------------------------------------------------------------------------------

    def tree(self, tree: dict[str, Any], side: str, keys: dict[str, blob.Stored]) -> None:
        """Checks the tree of one side of a call.

        Args:
            tree: with the bytes of its structure and leaves.
            side: ``inputs`` or ``outputs``.
            keys: gets what the blob may have.
        """
        rules = self._rules(tree["structure"], side)
        leaves = self._facts(tree["leaves"])
        scalars, ranges = tree.get("scalars", ()), tree.get("ranges", ())
        sizes = len(leaves), len(scalars)
        require(sizes == (rules.leaves, len(rules.scalars)), side, "values that no node refers to")
        beside = {size for leaf in leaves for size in leaf.shape}
        for value, may_stand in zip(scalars, rules.scalars, strict=True):
            require(may_stand(value, beside), side, "a scalar")
        for at, leaf in enumerate(leaves):
            if leaf.key is None:
                continue
            require(at in rules.elements and _KEY.fullmatch(leaf.key), side, "elements of a tensor")
            stored = blob.stored_as(leaf)
            require(stored is not None and keys.get(leaf.key, stored) == stored, side, "a dtype")
            assert stored is not None
            keys[leaf.key] = stored
        ranged = [one["leaf"] for one in ranges]
        require(len(set(ranged)) == len(ranged), side, "a second range of a tensor")
        for one in ranges:
            require(one.keys() == {"leaf", "min", "max"}, side, "other fields")
            dtype, span = leaves[one["leaf"]].dtype, (one["min"], one["max"])
            is_allowed = one["leaf"] in rules.ranges and dtype in blob.INTEGER_FORMATS
            require(is_allowed, side, "the range of a tensor")
            place = rules.ranges[one["leaf"]]
            of_all = span if place is None else self._spans.setdefault((place, dtype), span)
            require(span == of_all, side, "the range of one call")

    def kind(self, kind: Any) -> None:
        """Checks counted inputs."""
        rules, where = self._rules(kind.structure, "inputs"), "the table of inputs"
        first = sum(kind.ranks)
        sizes = len(kind.dtypes), len(kind.axes) - first
        require(sizes == (rules.leaves, len(rules.scalars)), where, "sizes of no tensor")
        require(all(map(is_torch_name, kind.dtypes)), where, "a dtype")
        beside = {size for axis in kind.axes[:first] for size in (*axis.sizes, axis.max)}
        for at, axis in enumerate(kind.axes[first:]):
            if axis is not None:
                values = (*axis.sizes, axis.max)
                are_allowed = all(rules.scalars[at](one, beside) for one in values)
                require(at in rules.shown and are_allowed, where, "values of a scalar")

    def _facts(self, data: bytes) -> tuple[Leaf, ...]:
        """Checks the facts of tensors."""
        return self._leaves.once(data, lambda: self._checked_facts(data))

    def _checked_facts(self, data: bytes) -> tuple[Leaf, ...]:
        documents, found = decoded(data, "the facts of a tensor"), decode_leaves(data)
        where = "the facts of a tensor"
        known = [leaf_document(leaf) for leaf in found]
        require(is_same(documents, known), where, "other fields")
        counts = Counter(leaf.storage for leaf in found)
        for leaf in found:
            names = all(map(is_torch_name, (leaf.dtype, leaf.device, leaf.layout)))
            require(names, where, "a name that torch does not have")
            require(leaf.subclass is None or is_class_name(leaf.subclass), where, "a class")
            is_allowed = leaf.missing is None or plain_reason(leaf.missing) == leaf.missing
            require(is_allowed, where, "a reason in other words")
            is_shared = leaf.storage is not None and counts[leaf.storage] > 1
            require(is_shared or (leaf.storage is None and not leaf.offset), where, "a memory")
            require((leaf.storage or 0) < len(found), where, "the number of a memory")
        return found

    def _rules(self, structure: bytes, side: str) -> _Tree:
        return self._trees.once((structure, side), lambda: self._made(structure, side))

    def _made(self, structure: bytes, side: str) -> _Tree:
        spec = decode_structure(structure)
        root = spec.root.model_dump(exclude_none=True)
        known = encode_structure(document_like(spec, root, spec.leaves, spec.scalars))
        require(structure == known, side, "other fields of a structure")
        self._context(spec, side)
        at = "" if side == "inputs" else side
        elements: dict[int, bool] = {}
        ranges: dict[int, set[Fate]] = {}
        places: dict[int, str] = {}
        tests: dict[int, list[Test]] = {}
        hidden: set[int] = set()
        fate = self._policy.fate
        for placed in placed_nodes(spec.root, at, self._policy.signature.positional):
            node = placed.node
            self._names(placed, side)
            if isinstance(node, TensorNode):
                leaf, path = node.leaf, placed.path
                elements[leaf] = elements.get(leaf, True) and fate(path, "elements") == "kept"
                ranges.setdefault(leaf, set()).add(fate(path, "range") if not at else "omitted")
                places.setdefault(leaf, self._policy.name(placed.pattern))
            elif isinstance(node, ScalarNode):
                tests.setdefault(node.scalar, []).append(self._scalar(placed, node, side))
                if node.kind != "int":
                    hidden.add(node.scalar)
            elif isinstance(node, OpaqueNode) and node.length is not None:
                tests.setdefault(node.length, []).append(_is_length)
        is_all = set(elements) == set(range(spec.leaves)) and set(tests) == set(range(spec.scalars))
        require(is_all, side, "values that no node refers to")
        return _Tree(
            spec.leaves,
            [_all_of(tests[number]) for number in range(spec.scalars)],
            frozenset(leaf for leaf, is_kept in elements.items() if is_kept),
            {
                leaf: None if fates == {"kept"} else places[leaf]
                for leaf, fates in ranges.items()
                if "omitted" not in fates
            },
            frozenset(tests.keys() - hidden),
        )

    def _context(self, spec: Structure, side: str) -> None:
        context = spec.context
        if context is None:
            return
        require(side == "inputs", side, "a context")
        names = [context.default_dtype]
        names += [name for one in context.autocast for name in (one.device, one.dtype)]
        require(all(map(is_torch_name, names)), side, "a name that torch does not have")

    def _scalar(self, placed: PlacedNode, node: ScalarNode, side: str) -> Test:
        """Whether a value may stand where a node has one."""
        path, policy = placed.path, self._policy
        if placed.is_setting:
            return lambda value, _: type(value) is int and is_setting(value)
        if side == "outputs":
            is_kept = policy.fate(path, "returned") == "kept"
            return lambda value, _: is_kept and _is_plain(value)
        if node.kind in ("str", "bytes"):
            fate = policy.fate(path, "text")
            return lambda value, _: fate == "kept" or (fate == "replaced" and self._is_text(value))
        fates = {fact: policy.fate(path, fact) for fact in ("setting", "size", "number")}

        def may_stand(value: Any, beside: Collection[int]) -> bool:
            fact = number_fact(value, beside, policy.defaults)
            if placed.in_list or placed.in_cache:
                fact = "number" if placed.in_list else "setting"
            return fates[fact] == "kept" and _is_plain(value)

        return may_stand

    def _is_text(self, value: Any) -> bool:
        """Whether a text is empty, an ordinal, or the default of a parameter."""
        return not value or is_ordinal(value) or (type(value), value) in self._policy.defaults

    def _names(self, placed: PlacedNode, side: str) -> None:
        """Checks the names and the words of a node."""
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
            require(all(self._key(key, placed.path) for key in node.keys), side, "a key")
        elif isinstance(node, FieldsNode):
            fields = (is_field(one) or self._key(one, placed.path) for one in node.fields)
            require(all(fields), side, "the name of a field")
        for one in getattr(node, "beside", None) or ():
            is_allowed = is_field(one) or is_name(one) or _OMITTED_NAME.fullmatch(one)
            require(is_allowed, side, "the name of an attribute")

    def _key(self, key: Any, at: str) -> bool:
        """Whether a dict may have a key: a name, one that was kept, or an ordinal."""
        if not key or is_name(key) or (at == "kwargs" and key in self._policy.signature.by_name):
            return True
        if self._policy.fate(f"{at}.{key}" if at else str(key), "key") == "kept":
            return True
        parts = key if isinstance(key, tuple) else (key,)
        return all(not p or is_name(p) or (isinstance(p, str) and is_ordinal(p)) for p in parts)


def _is_plain(value: Any) -> bool:
    """Whether no bit of a scalar is hidden: all NaNs look alike."""
    parts: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
    nans = (part for part in parts if isinstance(part, float) and math.isnan(part))
    return all(pack(one) == pack(math.nan) for one in nans)


def _is_length(value: int, _: Collection[int]) -> bool:
    return 0 <= value <= MAX_DOCUMENT_BYTES


def _all_of(tests: list[Test]) -> Test:
    return lambda value, beside: all(test(value, beside) for test in tests)
