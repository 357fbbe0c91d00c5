"""What kinds of data a tape holds, found in one walk over its calls.

In comes a tape. Out go counts: calls that raised, outputs and values that are missing, and classes
that are unknown here.
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
from calltape_schema.records import CallRecord, Tree
from calltape_schema.tree import (
    CustomNode,
    EnumNode,
    FieldsNode,
    OpaqueNode,
    TensorNode,
    walk,
)

__all__ = ["Contents", "contents_of"]

_MAX_REASONS = 100
_MAX_PLACES = 100
_MAX_KNOWN = 4096
_MAX_CLASSES = 1000


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
    """

    calls: int = 0
    raised: int = 0
    outputs_missing: Counter[str] = field(default_factory=Counter)
    withheld: int = 0
    unknown: set[str] = field(default_factory=set)
    unstored: dict[str, dict[str, None]] = field(default_factory=dict)
    valueless: dict[str, dict[str, None]] = field(default_factory=dict)


def contents_of(tape: Tape, *, check: bool = True) -> Contents:
    """Walks over the calls of a tape.

    Args:
        tape: the tape.
        check: whether each tensor is compared with its checksum.
    """
    found = Contents()
    looked: dict[Hashable, None] = {}
    for call in tape.calls:
        try:
            if check:
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
                _look_for_missing(found, tree, root, tape.signature)
    return found


def _add(found: Contents, record: CallRecord) -> None:
    found.calls += 1
    if record.error is not None:
        found.raised += 1
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
