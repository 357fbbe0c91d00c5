"""Calls without what is private.

In comes a recorded call. Out go a record and the bytes that its leaves still have, for the shared
way of making tapes (:mod:`calltape_analyzer.editing.rewriting`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any

from calltape_analyzer.editing.withholding import leaf_document, without_value
from calltape_analyzer.pytree.node_paths import nodes_with_paths
from calltape_analyzer.reading.call import Call, Side
from calltape_analyzer.redacting.element_ranges import ElementRanges
from calltape_analyzer.redacting.leak_search import RemovedValues, number_forms
from calltape_analyzer.redacting.new_values import NewValue, NewValues
from calltape_analyzer.redacting.treatment import Treatment
from calltape_analyzer.redacting.tree_plan import Fates, TreePlan
from calltape_schema.inputs_table import InputsTable, Kind
from calltape_schema.privacy import is_setting, without_text
from calltape_schema.records import CallRecord, ModelError, Range, Tree
from calltape_schema.tree import Leaf, ScalarNode, Structure, decode_structure, encode_leaves

__all__ = ["CallRedaction"]

_MAX_KNOWN = 1024
_SURROGATES = "surrogatepass"


class CallRedaction:
    """Takes what is private out of the calls of one tape.

    Args:
        fates: what was asked for.
        ranges: of the integer tensors of the tape.
        values: makes the values of the tensors that keep some.
        shift: is added to all times, in nanoseconds.
        removed: gets what is taken out.

    Attributes:
        withheld: how many tensors had values that the new tape does not have.
        ranged: how many elements had the integer tensors at a place that share a range, if the
            range may tell what one of them was.
    """

    def __init__(
        self, fates: Fates, ranges: ElementRanges, values: NewValues, shift: int,
        removed: RemovedValues,
    ) -> None:  # fmt: skip
        self._fates = fates
        self._ranges = ranges
        self._values = values
        self._shift = shift
        self._removed = removed
        self._plans: dict[Hashable, TreePlan] = {}
        self.withheld = 0
        self.ranged: Counter[tuple[str, tuple[int, int]]] = Counter()

    def apply(self, call: Call) -> tuple[CallRecord, dict[str, Any]]:
        """The record of a call without what is private, and the bytes of its leaves.

        Raises:
            TapeError: the call is damaged.
        """
        record = call.record
        kept: dict[str, Any] = {}
        changes: dict[str, Any] = {
            "inputs": self._tree(call, "inputs", record.inputs, kept),
            "time_ns": self.moment(record.time_ns),
            "thread": self._fates.pseudonyms.thread(record.thread),
        }
        if record.outputs is not None:
            changes["outputs"] = self._tree(call, "outputs", record.outputs, kept)
        if record.error is not None:
            message = without_text(record.error.message)
            if message != record.error.message:
                self._removed.add(record.error.message)
            changes["error"] = ModelError(type=record.error.type, message=message)
        self._values.forget()
        return record.model_copy(update=changes), kept

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
            spec = tree.spec()
            plan = self._plan(tree.structure, spec, at)
            for place, value in enumerate(tree.scalars):
                if plan.scalar(place, value) != value:
                    continue
                if isinstance(value, str):
                    yield value.encode(errors=_SURROGATES)
                else:
                    yield from (value,) if isinstance(value, bytes) else number_forms(value)
            for place in range(spec.leaves):
                path, treatment = plan.tensors.get(place, ("", None))
                found = self._new_value(call, side, place, path, treatment)
                if found is not None and found.stays:
                    yield bytes(found.data or b"")
        self._values.forget()

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

    def _kind(self, kind: Kind) -> Kind:
        plan = self._plan(kind.structure, decode_structure(kind.structure), "")
        return kind.without_ints(plan.structure, plan.hides)

    def _plan(self, structure: bytes, spec: Structure, side: str) -> TreePlan:
        key = structure, side
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _MAX_KNOWN:
                del self._plans[next(iter(self._plans))]
            plan = self._plans[key] = TreePlan(spec, side, self._fates)
            self._removed.structure(plan.root)
        return plan

    def _tree(self, call: Call, side: Side, tree: Tree, kept: dict[str, Any]) -> Tree:
        spec = tree.spec()
        at = "" if side == "inputs" else "outputs"
        plan = self._plan(tree.structure, spec, at)
        self._removed.note(call, side, plan)
        documents = [
            self._leaf(call, side, place, leaf, plan, kept)
            for place, leaf in enumerate(tree.facts())
        ]
        return Tree.model_construct(
            structure=plan.structure,
            leaves=encode_leaves(documents),
            scalars=tuple(plan.scalar(place, value) for place, value in enumerate(tree.scalars)),
            ranges=self._ranges_of(tree, plan) if side == "inputs" else (),
        )

    def _leaf(
        self, call: Call, side: Side, place: int, leaf: Leaf, plan: TreePlan, kept: dict[str, Any]
    ) -> dict[str, Any]:
        path, treatment = plan.tensors.get(place, ("", None))
        if leaf.key is None:
            return without_value(leaf)
        found = self._new_value(call, side, place, path, treatment)
        if found is None or found.drawn is not None:
            drawn = None if found is None else found.drawn
            self._removed.rows(call, side, place, leaf, drawn)
        if found is None:
            self.withheld += 1
            return without_value(leaf)
        # The name of a blob's entry is a path, which may have a private key in it.
        kept[found.key] = found.data
        return {**leaf_document(leaf), "key": found.key}

    def _new_value(
        self, call: Call, side: Side, place: int, path: str, treatment: Treatment | None
    ) -> NewValue | None:
        if treatment is None or treatment.way == "shapes_only":
            return None
        return self._values.of(call, side, place, path, treatment)

    def _ranges_of(self, tree: Tree, plan: TreePlan) -> tuple[Range, ...]:
        made: list[Range] = []
        for one in tree.ranges:
            path, treatment = plan.tensors.get(one.leaf, ("", None))
            if treatment is None:
                span = self._ranges.of(tree, one.leaf)
                if span is not None and not all(map(is_setting, span)):
                    self.ranged[path, span] += math.prod(tree.facts()[one.leaf].shape)
            elif treatment.way == "keep":
                span = one.min, one.max
            else:
                span = self._values.range_of(treatment, one)
            if span is not None:
                low, high = max(span[0], -(2**63)), min(span[1], 2**64 - 1)
                made.append(Range(leaf=one.leaf, min=low, max=high))
        return tuple(made)
