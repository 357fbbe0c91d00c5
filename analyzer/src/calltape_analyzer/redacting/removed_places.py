"""The places whose values a redaction takes out although nobody asked for it by their path.

In come a tape and what was asked for. Out go patterns that keep them. Paths that share a value
belong together: of a tensor at several places, the most private treatment counts.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from calltape_analyzer.editing.withholding import names_of_path
from calltape_analyzer.pytree.node_paths import nodes_with_paths
from calltape_analyzer.reading.call import Call, Side
from calltape_analyzer.redacting.long_numbers import long_numbers
from calltape_analyzer.redacting.pseudonyms import Pseudonyms
from calltape_analyzer.redacting.treatment import Treatments, Way
from calltape_analyzer.redacting.tree_plan import Fates, Replaced, TreePlan
from calltape_analyzer.tape import Tape
from calltape_schema.records import Tree
from calltape_schema.tree import EnumNode, Node, ScalarNode, TensorNode

__all__ = ["RemovedPlace", "removed_places"]


class RemovedPlace(NamedTuple):
    """Paths that have one value.

    Attributes:
        name: of the first path, with the name of its parameter.
        patterns: ``keep`` takes them.
        facts: of the value in the first call that has it, in words that do not tell it.
    """

    name: str
    patterns: tuple[str, ...]
    facts: str


def removed_places(tape: Tape, asked: Mapping[Way, Sequence[str]]) -> list[RemovedPlace]:
    """The places of the values that redaction removes by default, in the order of the calls.

    Raises:
        TapeError: a call is damaged.
    """
    treatments = Treatments(dict(asked), tape.signature)
    defaults = [one.default for one in tape.signature.parameters if one.default is not None]
    numbers = long_numbers(tape, treatments).replaced
    fates = Fates(treatments, Pseudonyms(defaults), tape.signature, Replaced(), {}, numbers)
    facts: dict[str, str] = {}
    groups: dict[str, set[str]] = {}
    for call in tape.calls:
        for shared in _removed(call, fates):
            group = set(shared).union(*(groups.get(path, ()) for path in shared))
            groups.update(dict.fromkeys(group, group))
            for path, words in shared.items():
                facts.setdefault(path, words)
    found: dict[int, RemovedPlace] = {}
    for path, words in facts.items():
        group = groups[path]
        patterns = tuple(glob.escape(one) for one in facts if one in group)
        name = list(names_of_path(path, tape.signature))[-1]
        found.setdefault(id(group), RemovedPlace(name, patterns, words))
    return list(found.values())


def _removed(call: Call, fates: Fates) -> Iterator[dict[str, str]]:
    """For each value of a call that is removed, its paths, each with words about it."""
    record = call.record
    sides: tuple[tuple[Side, Tree | None, str], ...] = (
        ("inputs", record.inputs, ""), ("outputs", record.outputs, "outputs")
    )  # fmt: skip
    for side, tree, root in sides:
        if tree is None:
            continue
        spec = tree.spec()
        plan = TreePlan(spec, root, fates)
        found: dict[object, dict[str, str]] = {}
        for path, node in nodes_with_paths(spec.root, root):
            if not path or fates.treatments.of(path) is not None:
                continue
            words = _words(call, side, tree, node, plan)
            if words:
                found.setdefault(_value_of(node, path), {})[path] = words
        yield from found.values()


def _value_of(node: Node, path: str) -> object:
    if isinstance(node, TensorNode):
        return "leaf", node.leaf
    return ("scalar", node.scalar) if isinstance(node, ScalarNode) else path


def _words(call: Call, side: Side, tree: Tree, node: Node, plan: TreePlan) -> str:
    """What is removed there; empty if nothing is."""
    if isinstance(node, TensorNode):
        leaf = tree.facts()[node.leaf]
        if leaf.key is None:
            return ""
        data = call.stored(side, node.leaf)
        return f"{leaf.dtype}{list(leaf.shape)}{'' if any(data or b'') else ', all 0'}"
    if isinstance(node, ScalarNode):
        value: Any = tree.scalars[node.scalar]
        if plan.scalar(node.scalar, value) == value:
            return ""
        is_text = node.kind in ("str", "bytes")
        return f"{node.kind} of length {len(value)}" if is_text else node.kind
    return "a member of an enum" if isinstance(node, EnumNode) and node.value is not None else ""
