"""Calls without what is private.

Takes a recorded call; returns a record and the bytes that its leaves still have, for the shared way
of making tapes (:mod:`calltape_analyzer.editing.rewriting`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Any

from calltape_analyzer.editing.omission import leaf_document, without_value
from calltape_analyzer.pytree.nodes import ReferencedOnly
from calltape_analyzer.reading.call import Call, Side
from calltape_analyzer.redacting.plan import Plan, TreePlan
from calltape_analyzer.redacting.vocabulary import is_torch_name, plain_reason
from calltape_schema.blob import INTEGER_FORMATS
from calltape_schema.errors import TapeError
from calltape_schema.inputs_table import InputsTable, Kind
from calltape_schema.privacy import FEWEST_RANGED, is_setting, without_text
from calltape_schema.records import CallRecord, ModelError, Range, Tree
from calltape_schema.tree import Leaf, decode_structure, encode_leaves

__all__ = ["CallRedaction"]


class CallRedaction:
    """Takes what is private out of the calls of one tape.

    Args:
        plan: for this tape.
        shift: is added to all times, in nanoseconds.

    Attributes:
        omitted: how many tensors had values that the new tape does not have.
        unknown_dtypes: how many others would have stayed, but only a later version knows their
            dtype.
        few_ranged: the places of integer tensors that have so few elements in all calls that the
            range may tell what one of them was.
    """

    def __init__(self, plan: Plan, shift: int) -> None:
        self._plan = plan
        self._shift = shift
        self._referenced = ReferencedOnly()
        self.omitted = self.unknown_dtypes = 0
        self.few_ranged: set[str] = set()

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
            "thread": self._plan.ordinals.thread(record.thread),
            "outputs_missing": record.outputs_missing and plain_reason(record.outputs_missing),
        }
        if record.outputs is not None:
            changes["outputs"] = self._tree(call, "outputs", record.outputs, kept)
        if record.error is not None:
            message = without_text(record.error.message)
            changes["error"] = ModelError(type=record.error.type, message=message)
        return record.model_copy(update=changes), dict(kept.values())

    def moment(self, time_ns: int) -> int:
        """A time on the new tape."""
        return min(max(time_ns + self._shift, 0), 2**63 - 1)

    def unkept(self, table: InputsTable) -> InputsTable:
        """The counted inputs of calls that are on no tape, for the new one."""
        return table.changed(self._kind)

    def _kind(self, kind: Kind) -> Kind | None:
        if not all(map(is_torch_name, kind.dtypes)):
            return None
        try:
            plan = self._plan.of(kind.structure, decode_structure(kind.structure), "")
            made = kind.without_ints(plan.structure, lambda at: not plan.is_counted(at))
            return self._referenced.kind(made)
        except TapeError:
            return None

    def _tree(self, call: Call, side: Side, tree: Tree, kept: dict[str, tuple[str, Any]]) -> Tree:
        plan = self._plan.of(tree.structure, tree.spec(), "" if side == "inputs" else side)
        documents = [
            self._leaf(call, side, at, leaf, plan, kept) for at, leaf in enumerate(tree.facts())
        ]
        made = Tree.model_construct(
            structure=plan.structure,
            leaves=encode_leaves(_with_plain_storages(documents, plan.tensors)),
            scalars=tuple(plan.scalar(at, value) for at, value in enumerate(tree.scalars)),
            ranges=self._ranges(tree, plan) if side == "inputs" else (),
        )
        return self._referenced.tree(made)

    def _leaf(
        self, call: Call, side: Side, at: int, leaf: Leaf, plan: TreePlan,
        kept: dict[str, tuple[str, Any]],
    ) -> dict[str, Any]:  # fmt: skip
        """The facts of a leaf on the new tape. ``kept`` gets its bytes, if they stay, under a new
        key, by the key that they had.

        Raises:
            TapeError: ``unsupported`` if the new tape cannot say the dtype; the call is damaged.
        """
        if leaf.key is None:
            return {**leaf_document(leaf), "missing": plain_reason(leaf.missing or "")}
        if not is_torch_name(leaf.dtype):  # it may be a text of the model: the call is left out
            raise TapeError("unsupported", f"a tensor of call {call.number} has an unknown dtype")
        fate = plan.tensors.get(at)
        if fate is None or fate.elements != "kept":
            self.omitted += 1
            return without_value(leaf)
        if leaf.key not in kept:
            try:
                stored = call.stored(side, at)
            except TapeError as error:
                if error.kind != "unsupported":
                    raise
                self.unknown_dtypes += 1
                return {**without_value(leaf), "missing": plain_reason(f"dtype {leaf.dtype}")}
            # The name of a blob's entry is a path, which may have a private key in it.
            kept[leaf.key] = f"t{len(kept)}", stored
        return {**leaf_document(leaf), "key": kept[leaf.key][0]}

    def _ranges(self, tree: Tree, plan: TreePlan) -> tuple[Range, ...]:
        made: dict[int, Range] = {}
        facts = tree.facts()
        for one in tree.ranges:
            fate, dtype = plan.tensors.get(one.leaf), facts[one.leaf].dtype
            if fate is None or fate.range == "omitted" or dtype not in INTEGER_FORMATS:
                continue
            if fate.range == "kept":
                made.setdefault(one.leaf, one)
                continue
            of_all = self._plan.range(fate.name, dtype)
            if of_all is None:
                continue
            made[one.leaf] = Range(leaf=one.leaf, min=of_all.min, max=of_all.max)
            are_settings = is_setting(of_all.min) and is_setting(of_all.max)
            if of_all.elements < FEWEST_RANGED and not are_settings:
                self.few_ranged.add(fate.name)
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
