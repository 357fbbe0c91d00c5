"""The values of the tensors of a new tape that keep some.

In come calls and treatments. Out go bytes. One walk over the tape before tells the ranges that new
values keep to, and the rules that integers follow.
"""

from __future__ import annotations

import math
from typing import Any

from calltape_analyzer.arguments.value_rules import ValueRule, value_rules
from calltape_analyzer.observing.groups import SortedCall
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.pytree.caches import has_cache_word
from calltape_analyzer.pytree.node_paths import nodes_with_paths
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.reading.call import Call, Side
from calltape_analyzer.redacting.pseudonyms import Pseudonyms
from calltape_analyzer.redacting.tensor_values import NoiseRange, is_mask, noisy, permuted
from calltape_analyzer.redacting.treatment import Treatment, Treatments
from calltape_analyzer.tape import Tape
from calltape_analyzer.writing.stored_values import stored_bytes
from calltape_schema.errors import TapeError
from calltape_schema.leaves import Leaf
from calltape_schema.records import Range, Tree
from calltape_schema.tree import TensorNode

__all__ = ["NewValues"]

_INTEGERS = frozenset(
    f"torch.{name}" for name in ("uint8", "int8", "int16", "int32", "int64", "bool")
)
_TIMES_STORED, _ANY_BYTES = 4, 2**21
_PACKED = "torch.float4_e2m1fn_x2"
"""Floats that stand in pairs in a byte: torch has no arithmetic for them."""


class NewValues:
    """Makes values.

    Args:
        tape: is read once if any values are to be made.
        treatments: what was asked for.
        pseudonyms: have the permutations.
        special: whether NaN and infinities stay where they are.

    Raises:
        TapeError: the tape cannot be read.
    """

    def __init__(
        self, tape: Tape, treatments: Treatments, pseudonyms: Pseudonyms, *, special: bool
    ) -> None:
        self._pseudonyms = pseudonyms
        self._special = special
        self._highest = 0
        self._noise: dict[str, NoiseRange] = {}
        self._ids: dict[tuple[int, int], int] = {}
        self._shared: dict[tuple[str, str], tuple[str, Any]] = {}
        self._sorter = CallSorter.of(tape)
        self._rules: list[tuple[Any, dict[int, ValueRule]]] = []
        if treatments.has("permute") or treatments.has("noise"):
            self._learn(tape, treatments)

    def forget(self) -> None:
        """Ends a call."""
        self._shared.clear()

    def of(
        self, call: Call, side: Side, place: int, path: str, treatment: Treatment
    ) -> tuple[str, Any] | None:
        """The key and the bytes of a leaf on the new tape; None if its values are left out, because
        they cannot be computed with.

        Raises:
            TapeError: the call is damaged.
        """
        tree = call.record.inputs if side == "inputs" else call.record.outputs
        leaf = tree.facts()[place] if tree is not None else None
        if leaf is None or leaf.key is None:
            return None
        known = self._shared.get((leaf.key, treatment.way))
        if known is not None:
            return known
        if treatment.way == "keep":
            data: Any = call.stored(side, place)
        else:
            data = self._made(call, side, place, path, leaf, treatment)
            if data is None:
                return None
        found = self._shared[leaf.key, treatment.way] = f"t{len(self._shared)}", data
        return found

    def range_of(self, treatment: Treatment, one: Range) -> tuple[int, int] | None:
        """The range that new integers are in."""
        if treatment.way == "permute":
            return min(one.min, 0), max(self._highest, 1)
        noise = self._noise.get(treatment.pattern)
        if treatment.way != "noise" or noise is None or noise.low > noise.high:
            return None
        return min(int(noise.low), 0), max(int(noise.high), 1)

    def _made(
        self, call: Call, side: Side, place: int, path: str, leaf: Leaf, treatment: Treatment
    ) -> Any:
        tensor = call.tensor(side, place)
        if not _computable(tensor):
            return None
        tensor = tensor.detach()
        if is_mask(tensor):
            return call.stored(side, place)
        if treatment.way == "noise":
            span = self._noise.get(treatment.pattern, NoiseRange())
            by_value = leaf.storage is not None or any(map(has_cache_word, path.split(".")))
            seed = self._pseudonyms.seed(
                "values" if by_value else f"{call.ref.tape.hex()} {call.number} {leaf.key}"
            )
            made = noisy(tensor, span, seed, by_value=by_value, special=self._special)
            return stored_bytes(leaf, made)
        if tensor.dtype.is_floating_point:
            return None
        below, in_order = None, False
        rule = self._rule(call, side, place)
        if rule is not None:
            name, size = rule
            if _follows_from_sizes(tensor.long(), name, size):
                return call.stored(side, place)
            in_order = name in ("sorted", "offsets")
            size = tensor.shape[-1] if name == "permutation" else size
            # A rule holds in the calls that were looked at. In another one a number may be larger:
            # it must not stay because of that.
            below = size if size is not None and int(tensor.max()) < size else None
        made = permuted(
            tensor, self._highest, self._pseudonyms, self._ids, below=below, in_order=in_order
        )
        return stored_bytes(leaf, made)

    def _rule(self, call: Call, side: Side, place: int) -> tuple[str, int | None] | None:
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
            for variant in tape.variants():
                rules = value_rules(variant.facts, tape.calls.at, self._sorter)
                self._rules.append((variant.facts, rules))

    def _widen(self, call: Call, side: Side, leaf: int, treatment: Treatment | None) -> None:
        if treatment is None or treatment.way not in ("permute", "noise"):
            return
        try:
            tensor = call.tensor(side, leaf)
        except TapeError:
            return  # a damaged call is left out later
        if not _computable(tensor) or not tensor.numel():
            return
        tensor = tensor.detach()
        if is_mask(tensor):
            return
        if treatment.way == "noise":
            self._noise.setdefault(treatment.pattern, NoiseRange()).widen(tensor)
        elif not tensor.dtype.is_floating_point:
            self._highest = max(self._highest, int(tensor.max()))


def _follows_from_sizes(tensor: Any, name: str, size: int | None) -> bool:
    """Whether a tensor itself keeps to a rule whose numbers follow from sizes, so that it says no
    more than they do. Rules are learned from some calls: others may have ids at the same path."""
    flat, steps = tensor.flatten(), tensor.diff(dim=-1)
    if name == "consecutive":
        return bool((steps == 1).all()) and (size is None or bool((tensor[..., 0] == size).all()))
    if name == "lengths":
        return size is not None and size in (int(flat.sum()), int(flat.max()))
    if int(flat[0]) != 0 or not bool((steps >= 0).all()):
        return False
    if name == "segments":
        return bool((steps <= 1).all())
    return name == "offsets" and int(flat[-1]) == size


def _size(facts: Any, rule: ValueRule, placed: SortedCall) -> int | None:
    if rule.symbol is None:
        return None
    column = facts.symbols[rule.symbol].columns[0]
    row = placed.row
    if column.axis is None:
        return int(row.ints[column.index])
    return int(row.shapes[column.index][column.axis])


def _computable(tensor: Any) -> bool:
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
