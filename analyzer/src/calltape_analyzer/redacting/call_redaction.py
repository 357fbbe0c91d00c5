"""Calls without what is private.

In comes a recorded call. Out go a record and the bytes that its leaves still have, for the shared
way of making tapes (:mod:`calltape_analyzer.editing.rewriting`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Hashable, Iterator
from functools import cached_property
from typing import Any

from calltape_analyzer.editing.withholding import leaf_document, without_value
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observing.evidence import counters_of_evidence
from calltape_analyzer.observing.groups import Group
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.pytree.node_paths import nodes_with_paths
from calltape_analyzer.pytree.referenced import ReferencedOnly
from calltape_analyzer.reading.call import Call, Side
from calltape_analyzer.redacting.leak_search import RemovedValues, known_bytes, number_forms
from calltape_analyzer.redacting.tree_plan import Fates, TreePlan
from calltape_analyzer.redacting.vocabulary import is_torch_name, told_reason
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted
from calltape_analyzer.variants.counters_by_variant import counted_calls
from calltape_schema.blob import INTEGER_FORMATS
from calltape_schema.errors import TapeError
from calltape_schema.inputs_table import InputsTable, Kind
from calltape_schema.privacy import is_setting, without_text
from calltape_schema.records import CallRecord, ModelError, Range, Tree
from calltape_schema.tree import Leaf, ScalarNode, Structure, decode_structure, encode_leaves

__all__ = ["CallRedaction", "ElementRanges"]

_MAX_KNOWN = 1024
_MAX_TREES = 4096
_SURROGATES = "surrogatepass"


class CallRedaction:
    """Takes what is private out of the calls of one tape.

    Args:
        fates: what was asked for.
        ranges: of the integer tensors of the tape.
        shift: is added to all times, in nanoseconds.
        removed: gets what is taken out.

    Attributes:
        has_unreferenced: whether any call had tensors or scalars that no node refers to.
        withheld: how many tensors had values that the new tape does not have.
        later: how many others would have stayed, but only a later version knows their dtype.
        ranged: how many elements had the integer tensors at a place that share a range, if the
            range may tell what one of them was.
    """

    def __init__(
        self, fates: Fates, ranges: ElementRanges, shift: int, removed: RemovedValues
    ) -> None:
        self._fates = fates
        self._ranges = ranges
        self._shift = shift
        self._removed = removed
        self._plans: dict[Hashable, TreePlan] = {}
        self._referenced = ReferencedOnly()
        self.has_unreferenced = False
        self.withheld = self.later = 0
        self.ranged: Counter[tuple[str, tuple[int, int]]] = Counter()

    def apply(self, call: Call) -> tuple[CallRecord, dict[str, Any]]:
        """The record of a call without what is private, and the bytes of its leaves.

        Raises:
            TapeError: the call is damaged.
        """
        record = call.record
        kept: dict[str, tuple[str, Any]] = {}
        changes: dict[str, Any] = {
            "inputs": self._tree(call, "inputs", record.inputs, kept),
            "time_ns": self.moment(record.time_ns),
            "thread": self._fates.pseudonyms.thread(record.thread),
            "outputs_missing": record.outputs_missing and told_reason(record.outputs_missing),
        }
        if record.outputs is not None:
            changes["outputs"] = self._tree(call, "outputs", record.outputs, kept)
        if record.error is not None:
            message = without_text(record.error.message)
            if message != record.error.message:
                self._removed.add(record.error.message)
            changes["error"] = ModelError(type=record.error.type, message=message)
        return record.model_copy(update=changes), dict(kept.values())

    def notes(self) -> Iterator[str]:
        """What is to be known of the tensors that stay, in words."""
        if self.later:
            which = counted(self.later, "tensor")
            yield f"{which} without values: only a later version knows the dtype"

    def moment(self, time_ns: int) -> int:
        """A time on the new tape."""
        return min(max(time_ns + self._shift, 0), 2**63 - 1)

    def unkept(self, table: InputsTable) -> InputsTable:
        """The counted inputs of calls that are on no tape, for the new one."""
        return table.changed(self._kind)

    def staying(self, call: Call) -> Iterator[bytes]:
        """What of the scalars and the values of tensors of a call is on the new tape as it was.

        Raises:
            TapeError: the call is damaged.
        """
        record = call.record
        sides: tuple[tuple[Side, Tree | None, str], ...] = (
            ("inputs", record.inputs, ""), ("outputs", record.outputs, "outputs")
        )  # fmt: skip
        for side, tree, at in sides:
            if tree is None:
                continue
            plan = self._plan(tree.structure, tree.spec(), at)
            for place, value in enumerate(tree.scalars):
                if not plan.keeps(place, value):
                    continue
                if isinstance(value, str):
                    yield value.encode(errors=_SURROGATES)
                else:
                    yield from (value,) if isinstance(value, bytes) else number_forms(value)
            for place, fate in plan.tensors.items():
                if fate.elements == "kept":
                    yield bytes(known_bytes(call, side, place) or b"")

    def withheld_paths(self, structure: bytes, spec: Structure, side: str) -> set[str]:
        """The paths of the arguments of which only the length is left."""
        if side:
            return set()  # the analysis reads no outputs
        plan = self._plan(structure, spec, side)
        return {
            path
            for path, node in nodes_with_paths(spec.root)
            if isinstance(node, ScalarNode) and plan.scalars[node.scalar][0] == "withheld"
        }

    def _kind(self, kind: Kind) -> Kind | None:
        if not all(map(is_torch_name, kind.dtypes)):
            return None
        try:
            plan = self._plan(kind.structure, decode_structure(kind.structure), "")
            return self._referenced.kind(kind.without_ints(plan.structure, plan.hides))
        except TapeError:
            return None

    def _plan(self, structure: bytes, spec: Structure, side: str) -> TreePlan:
        key = structure, side
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _MAX_KNOWN:
                del self._plans[next(iter(self._plans))]
            plan = self._plans[key] = TreePlan(spec, side, self._fates)
            self._removed.structure(plan.root)
            self.has_unreferenced |= not plan.is_whole
        return plan

    def _tree(self, call: Call, side: Side, tree: Tree, kept: dict[str, tuple[str, Any]]) -> Tree:
        spec = tree.spec()
        at = "" if side == "inputs" else "outputs"
        plan = self._plan(tree.structure, spec, at)
        self._removed.note(call, side, plan)
        documents = [
            self._leaf(call, side, place, leaf, plan, kept)
            for place, leaf in enumerate(tree.facts())
        ]
        made = Tree.model_construct(
            structure=plan.structure,
            leaves=encode_leaves(_with_plain_storages(documents, plan.tensors)),
            scalars=tuple(plan.scalar(place, value) for place, value in enumerate(tree.scalars)),
            ranges=self._ranges_of(tree, plan) if side == "inputs" else (),
        )
        return self._referenced.tree(made)

    def _leaf(
        self, call: Call, side: Side, place: int, leaf: Leaf, plan: TreePlan,
        kept: dict[str, tuple[str, Any]],
    ) -> dict[str, Any]:  # fmt: skip
        """The facts of a leaf on the new tape. ``kept`` gets its bytes, if they stay, under a new
        key, by the key that they had.

        Raises:
            TapeError: ``unsupported`` if the new tape cannot say the dtype; the call is damaged.
        """
        if leaf.key is None:
            return {**leaf_document(leaf), "missing": told_reason(leaf.missing or "")}
        if not is_torch_name(leaf.dtype):  # it may be a text of the model: the call is left out
            raise TapeError("unsupported", f"a tensor of call {call.number} has an unknown dtype")
        fate = plan.tensors.get(place)
        if fate is None or fate.elements != "kept":
            self._removed.rows(call, side, place, leaf)
            self.withheld += 1
            return without_value(leaf)
        if leaf.key not in kept:
            # The name of a blob's entry is a path, which may have a private key in it.
            stored = known_bytes(call, side, place)
            if stored is None:
                self.later += 1
                return {**without_value(leaf), "missing": told_reason(f"dtype {leaf.dtype}")}
            kept[leaf.key] = f"t{len(kept)}", stored
        return {**leaf_document(leaf), "key": kept[leaf.key][0]}

    def _ranges_of(self, tree: Tree, plan: TreePlan) -> tuple[Range, ...]:
        made: dict[int, Range] = {}
        facts = tree.facts()
        for one in tree.ranges:
            fate, is_whole = plan.tensors.get(one.leaf), facts[one.leaf].dtype in INTEGER_FORMATS
            if fate is None or fate.range == "withheld" or one.leaf in made or not is_whole:
                continue
            if fate.range == "kept":
                made[one.leaf] = one
                continue
            span = self._ranges.of(tree, one.leaf)
            if span is not None:
                made[one.leaf] = Range(leaf=one.leaf, min=span[0], max=span[1])
                if not all(map(is_setting, span)):
                    self.ranged[fate.name, span] += math.prod(facts[one.leaf].shape)
        return tuple(made.values())


def _with_plain_storages(
    leaves: list[dict[str, Any]], referenced: Container[int]
) -> list[dict[str, Any]]:
    """Facts of leaves in which the number of a memory says which of the referenced leaves share
    it, and nothing else."""
    shared = Counter(leaf.get("storage") for at, leaf in enumerate(leaves) if at in referenced)
    numbers: dict[int, int] = {}
    for leaf in leaves:
        storage = leaf.pop("storage", None)
        if storage is None or shared[storage] < 2:
            leaf.pop("offset", None)
        else:
            leaf["storage"] = numbers.setdefault(storage, len(numbers))
    return leaves


class ElementRanges:
    """The ranges of the integer tensors of one tape over all calls of one kind.

    The range of a single call tells what its few elements are. The analysis only says the range of
    all calls of a variant, so each call of the new tape gets that one.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._sorter = CallSorter.of(tape)
        self._known: dict[Hashable, dict[int, tuple[int, int]]] = {}

    @cached_property
    def _groups(self) -> list[Group]:
        try:
            return self._tape._soundly(lambda: self._groups_of(self._tape))
        except (InferenceError, TapeError):  # the analysis says nothing of it either
            return []

    def _groups_of(self, tape: Tape) -> list[Group]:
        """The groups of the calls, divided by the texts that divide variants."""
        self._sorter, made = CallSorter.of(tape).settled(tape.calls)
        sorter = self._sorter
        counters = counters_of_evidence(tape.counters, tape.calls, made.left_out)
        made.set_counted_calls(counted_calls(counters, sorter.signature, sorter.renamed))
        return list(made.groups.values())

    def of(self, tree: Tree, leaf: int) -> tuple[int, int] | None:
        """The range of a leaf; None if no call of its kind is evidence.

        Raises:
            TapeError: the tree breaks the format.
        """
        groups = self._groups  # they settle the sorter
        placed = self._sorter.sorted(tree)
        key = tree.structure, placed.key
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MAX_TREES:
                self._known.clear()
            group = next((one for one in groups if one.key.takes(placed.key)), None)
            numbers = [path.number for path in placed.layout.tensors]
            found = self._known[key] = {} if group is None else _by_leaf(group, numbers)
        return found.get(leaf)


def _by_leaf(group: Group, numbers: list[int]) -> dict[int, tuple[int, int]]:
    spans = group.ranges.items()
    return {numbers[tensor]: (span.min, span.max) for tensor, span in spans}
