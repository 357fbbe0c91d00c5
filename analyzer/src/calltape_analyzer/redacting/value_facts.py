"""What is known of the tensors of a tape before any of them gets new values.

In come a tape and treatments; the tape is read once. Out go the ranges that new values keep to, and
the rules that integers follow. None of it depends on a key.
"""

from __future__ import annotations

import math
from typing import Any

from calltape_analyzer.arguments.value_rules import ValueRule, value_rules
from calltape_analyzer.observing.groups import SortedCall
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.pytree.node_paths import nodes_with_paths
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.reading.call import Call, Side
from calltape_analyzer.redacting.tensor_values import NoiseRange, is_mask
from calltape_analyzer.redacting.treatment import Treatment, Treatments
from calltape_analyzer.tape import Tape
from calltape_schema.errors import TapeError
from calltape_schema.records import Tree
from calltape_schema.tree import TensorNode

__all__ = ["ValueFacts", "is_computable"]

_INTEGERS = frozenset(
    f"torch.{name}" for name in ("uint8", "int8", "int16", "int32", "int64", "bool")
)
_TIMES_STORED, _ANY_BYTES = 4, 2**21
_PACKED = "torch.float4_e2m1fn_x2"
"""Floats that stand in pairs in a byte: torch has no arithmetic for them."""


class ValueFacts:
    """The ranges and rules of the tensors of one tape.

    Args:
        tape: is read once if any values are to be made.
        treatments: what was asked for.

    Attributes:
        highest: the largest number in any tensor that is permuted.
        noise: the range of the tensors of each pattern that become noise.

    Raises:
        TapeError: the tape cannot be read.
    """

    def __init__(self, tape: Tape, treatments: Treatments) -> None:
        self.highest = 0
        self.noise: dict[str, NoiseRange] = {}
        self._sorter = CallSorter.of(tape)
        self._rules: list[tuple[Any, dict[int, ValueRule]]] = []
        if treatments.has("permute") or treatments.has("noise"):
            self._learn(tape, treatments)

    def rule(self, call: Call, side: Side, place: int) -> tuple[str, int | None] | None:
        """The name of the rule that a tensor follows, and the size that its numbers are below."""
        if side != "inputs" or not self._rules:
            return None
        placed = self._sorter.sorted(call.record.inputs)
        for facts, rules in self._rules:
            if not facts.group.key.takes(placed.key):
                continue
            for number, rule in rules.items():
                if placed.layout.tensors[number].number == place:
                    return rule.name, _size(facts, rule, placed)
        return None

    def _learn(self, tape: Tape, treatments: Treatments) -> None:
        for call in tape.calls:
            record = call.record
            sides: tuple[tuple[Side, Tree | None, str], ...] = (
                ("inputs", record.inputs, ""), ("outputs", record.outputs, "outputs")
            )  # fmt: skip
            for side, tree, root in sides:
                for path, node in nodes_with_paths(tree.spec().root, root) if tree else ():
                    if isinstance(node, TensorNode):
                        self._widen(call, side, node.leaf, treatments.of(path))
        if treatments.has("permute"):
            variants = tape.variants()
            layouts = (variant.facts.group.layout for variant in variants)
            self._sorter = self._sorter.agreeing(layouts)
            for variant in variants:
                rules = value_rules(variant.facts, tape.calls.at, self._sorter)
                self._rules.append((variant.facts, rules))

    def _widen(self, call: Call, side: Side, leaf: int, treatment: Treatment | None) -> None:
        if treatment is None or treatment.way not in ("permute", "noise"):
            return
        try:
            tensor = call.tensor(side, leaf)
        except TapeError:
            return  # a damaged call is left out later
        if not is_computable(tensor) or not tensor.numel():
            return
        tensor = tensor.detach()
        if is_mask(tensor):
            return
        if treatment.way == "noise":
            self.noise.setdefault(treatment.pattern, NoiseRange()).widen(tensor)
        elif not tensor.dtype.is_floating_point:
            self.highest = max(self.highest, int(tensor.max()))


def _size(facts: Any, rule: ValueRule, placed: SortedCall) -> int | None:
    if rule.symbol is None:
        return None
    column = facts.symbols[rule.symbol].columns[0]
    row = placed.row
    if column.axis is None:
        return int(row.ints[column.index])
    return int(row.shapes[column.index][column.axis])


def is_computable(tensor: Any) -> bool:
    """Whether a value is a dense tensor of plain numbers, and not far larger than its bytes, as one
    that was expanded may be."""
    return (
        not isinstance(tensor, Placeholder)
        and not tensor.is_meta
        and not tensor.is_quantized
        and not tensor.dtype.is_complex
        and (tensor.dtype.is_floating_point or str(tensor.dtype) in _INTEGERS)
        and str(tensor.dtype) != _PACKED
        # torch's own product of the shape may overflow.
        and math.prod(tensor.shape) * tensor.itemsize
        <= max(_TIMES_STORED * tensor.untyped_storage().nbytes(), _ANY_BYTES)
    )
