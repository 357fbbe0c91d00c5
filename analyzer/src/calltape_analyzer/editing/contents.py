"""What kinds of data a tape holds, found in one walk over its calls.

In comes a tape. Out go counts: calls that raised, outputs and values that are missing, classes that
are unknown here, and what may tell of a person or a machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from calltape_analyzer.editing.withholding import names_of_path
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.pytree.classes import ClassIndex, loaded_named_tuple
from calltape_analyzer.pytree.nested_tensors import is_nested_node
from calltape_analyzer.pytree.node_paths import nodes_with_paths
from calltape_analyzer.reading.damage import is_damage
from calltape_analyzer.tape import Tape
from calltape_schema.errors import TapeError
from calltape_schema.history import Redacted
from calltape_schema.leaves import Leaf
from calltape_schema.privacy import is_without_text
from calltape_schema.records import CallRecord, Tree
from calltape_schema.tree import (
    CustomNode,
    EnumNode,
    FieldsNode,
    OpaqueNode,
    ScalarNode,
    TensorNode,
    walk,
)

__all__ = ["Contents", "contents_of", "looks_like", "masks_of"]

_MAX_REASONS = 100
_MAX_PLACES = 100
_MAX_KNOWN = 4096
_MAX_CLASSES = 1000
_INTEGERS = frozenset({"int64", "int32", "uint32", "uint64"})
_IMAGE_CHANNELS = frozenset({1, 3, 4})
_LEAST_IMAGE = 16
_LEAST_SAMPLES = 4000
_LOOKS = {
    "token_ids": "whole numbers that may be token ids",
    "image": "numbers that may be images",
    "audio": "numbers that may be audio",
}


@dataclass
class Contents:
    """What is on a tape.

    Attributes:
        calls: how many calls are whole.
        raised: how many of them raised.
        outputs_missing: per reason, how many calls lack outputs.
        withheld: how many tensors have no value, because the policy said so.
        unknown: the names of classes that this process does not have or does not allow.
        unstored: per reason, where objects and values are not on the tape because the recorder
            could not store them.
        valueless: per reason, where tensors have no value for another reason than the policy.
        private: what may tell of a person or a machine, and whether it is there.
        redacted: how much of it was redacted.
    """

    calls: int = 0
    raised: int = 0
    outputs_missing: Counter[str] = field(default_factory=Counter)
    withheld: int = 0
    unknown: set[str] = field(default_factory=set)
    unstored: dict[str, dict[str, None]] = field(default_factory=dict)
    valueless: dict[str, dict[str, None]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    redacted: Redacted | None = None

    def tell(self, what: str) -> None:
        self.private[what] = True


def contents_of(tape: Tape) -> Contents:
    """Walks over the calls of a tape, and compares each tensor with its checksum."""
    found = Contents()
    looked: dict[Hashable, None] = {}
    for call in tape.calls:
        try:
            call.check(entries=True)
            record = call.record
        except TapeError as error:
            if not is_damage(error):
                raise
            continue  # it stands in the tape's damage
        _add(found, record)
        for tree, root in ((record.inputs, ""), (record.outputs, "outputs")):
            key = tree and (tree.structure, tree.leaves, root, record.tape)
            if tree is None or key is None:
                continue
            found.withheld += sum(leaf.missing == "policy" for leaf in tree.facts())
            if key not in looked:
                if len(looked) >= _MAX_KNOWN:
                    looked.clear()
                looked[key] = None
                _look(found, tree, tape.class_index)
                if _has_texts(tree):
                    found.tell("texts")
                _look_for_missing(found, tree, root, tape.signature)
    if any(manifest.producer.host for manifest in tape.manifests):
        found.tell("the host's name")
    found.redacted = tape.redacted
    if found.calls and found.redacted != "all":
        found.tell("times and thread ids")
    return found


def _add(found: Contents, record: CallRecord) -> None:
    found.calls += 1
    if record.error is not None:
        found.raised += 1
        if record.error.message and not is_without_text(record.error.message):
            found.tell("exception messages")
    if record.outputs_missing is not None or (record.outputs is None and record.error is None):
        reason = record.outputs_missing or "no reason is given"
        if reason in found.outputs_missing or len(found.outputs_missing) < _MAX_REASONS:
            found.outputs_missing[reason] += 1


def _look(found: Contents, tree: Tree, classes: ClassIndex) -> None:
    for node in walk(tree.spec().root):
        if (
            isinstance(node, (FieldsNode, CustomNode, EnumNode))
            and len(found.unknown) < _MAX_CLASSES
            and not _is_known(node, classes)
        ):
            found.unknown.add(node.type)
    masks = masks_of(tree)
    for number, leaf in enumerate(tree.facts()):
        if leaf.key is not None:
            for kind in looks_like(leaf, is_mask=number in masks):
                found.tell(_LOOKS[kind])


def _has_texts(tree: Tree) -> bool:
    return any(
        isinstance(node, ScalarNode) and node.kind in ("str", "bytes")
        for node in walk(tree.spec().root)
    )


def _look_for_missing(found: Contents, tree: Tree, root: str, signature: Signature) -> None:
    """What the recorder could not store."""
    facts = tree.facts()
    for path, node in nodes_with_paths(tree.spec().root, root):
        if isinstance(node, OpaqueNode) and node.reason != "policy":
            _note(found.unstored, node.reason, f"{_name(path, signature)} ({node.type})")
        elif isinstance(node, TensorNode):
            reason = facts[node.leaf].missing
            if reason is not None and reason != "policy":
                _note(found.valueless, reason, _name(path, signature))


def _name(path: str, signature: Signature) -> str:
    """A place as people call it: by the name of its parameter."""
    return list(names_of_path(path, signature))[-1]


def _note(found: dict[str, dict[str, None]], reason: str, what: str) -> None:
    if reason in found or len(found) < _MAX_REASONS:
        places = found.setdefault(reason, {})
        if len(places) < _MAX_PLACES:
            places[what] = None


def _is_known(node: FieldsNode | CustomNode | EnumNode, classes: ClassIndex) -> bool:
    if classes.get(node.type) is not None or is_nested_node(node):
        return True
    if not isinstance(node, FieldsNode) or node.kind != "namedtuple":
        return False
    return loaded_named_tuple(node.type, node.fields) is not None


def masks_of(tree: Tree) -> frozenset[int]:
    """The numbers of the integer tensors that hold nothing but 0 and 1, as their ranges say."""
    return frozenset(one.leaf for one in tree.ranges if one.min >= 0 and one.max <= 1)


def looks_like(leaf: Leaf, *, is_mask: bool = False) -> tuple[str, ...]:
    """What the values of a tensor may be, by its dtype and shape: ``token_ids``, ``image`` or
    ``audio``.

    Args:
        leaf: the tensor.
        is_mask: whether it holds nothing but 0 and 1: no ids, but maybe a scanned page.
    """
    if leaf.dtype in _INTEGERS and len(leaf.shape) in (1, 2) and max(leaf.shape, default=0) > 1:
        return () if is_mask else ("token_ids",)
    if not leaf.dtype.startswith(("float", "bfloat", "uint8")) or not leaf.shape:
        return ()
    sizes = leaf.shape
    if len(sizes) in (3, 4):
        one, two, three = sizes[-3:]
        for channels, height, width in ((one, two, three), (three, one, two)):
            if channels in _IMAGE_CHANNELS and min(height, width) >= _LEAST_IMAGE:
                return ("image",)
    if len(sizes) <= 3 and leaf.shape[-1] >= _LEAST_SAMPLES:
        return ("audio",)
    return ()
