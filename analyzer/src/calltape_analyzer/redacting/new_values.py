"""The values of the tensors of a new tape that keep some.

In come calls and treatments. Out go bytes, and how far chance decided what they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from calltape_analyzer.pytree.caches import has_cache_word
from calltape_analyzer.pytree.nested_tensors import nested_places, table_leaves
from calltape_analyzer.reading.call import Call, Side
from calltape_analyzer.redacting.pseudonyms import Pseudonyms
from calltape_analyzer.redacting.tensor_values import Drawn, NoiseRange, is_mask, noisy, permuted
from calltape_analyzer.redacting.treatment import Treatment
from calltape_analyzer.redacting.value_facts import ValueFacts, is_computable
from calltape_analyzer.writing.stored_values import stored_bytes
from calltape_schema.records import Range, Tree
from calltape_schema.tree import Leaf

__all__ = ["NewValue", "NewValues"]

_MAX_KNOWN = 1024


class NewValue(NamedTuple):
    """The values of a tensor on the new tape.

    Attributes:
        key: of the entry of the blob.
        data: the bytes.
        drawn: how its whole numbers were replaced; None if the values are those that it had, or
            floats.
        stays: whether the values are those that it had.
    """

    key: str
    data: Any
    drawn: Drawn | None = None
    stays: bool = False


class _Made(NamedTuple):
    data: Any
    drawn: Drawn | None = None
    stays: bool = False


class NewValues:
    """Makes values.

    Args:
        facts: of the tensors of the tape.
        pseudonyms: have the permutations.
        special: whether NaN and infinities stay where they are.
    """

    def __init__(self, facts: ValueFacts, pseudonyms: Pseudonyms, *, special: bool) -> None:
        self._facts = facts
        self._pseudonyms = pseudonyms
        self._special = special
        self._ids: dict[tuple[int, int], int] = {}
        self._shared: dict[tuple[str, str], NewValue] = {}
        self._nested: dict[bytes, frozenset[int]] = {}

    def forget(self) -> None:
        """Ends a call."""
        self._shared.clear()

    def of(
        self, call: Call, side: Side, place: int, path: str, treatment: Treatment
    ) -> NewValue | None:
        """The values of a leaf on the new tape; None if they are left out, because they cannot be
        computed with.

        Raises:
            TapeError: the call is damaged.
        """
        tree = call.record.inputs if side == "inputs" else call.record.outputs
        leaf = tree.facts()[place] if tree is not None else None
        if tree is None or leaf is None or leaf.key is None:
            return None
        known = self._shared.get((leaf.key, treatment.way))
        if known is not None:
            return known
        if treatment.way == "keep":
            made: _Made | None = _Made(call.stored(side, place), stays=True)
        elif place in self._tables(tree) and not self._says_sizes(call, side, place):
            return None  # other numbers would give no nested tensor; a reader makes some up
        else:
            made = self._made(call, side, place, path, leaf, treatment)
        if made is None:
            return None
        found = self._shared[leaf.key, treatment.way] = NewValue(f"t{len(self._shared)}", *made)
        return found

    def _tables(self, tree: Tree) -> frozenset[int]:
        """The leaves of a tree that say where the components of its nested tensors are."""
        known = self._nested.get(tree.structure)
        if known is None:
            if len(self._nested) >= _MAX_KNOWN:
                self._nested.clear()
            places = nested_places(tree.spec().root)
            known = frozenset(leaf for node, _ in places for leaf in table_leaves(node))
            self._nested[tree.structure] = known
        return known

    def _says_sizes(self, call: Call, side: Side, place: int) -> bool:
        """Whether a tensor keeps to a rule whose numbers follow from sizes."""
        rule, tensor = self._facts.rule(call, side, place), call.tensor(side, place)
        return (
            rule is not None
            and is_computable(tensor)
            and tensor.numel() > 0
            and _follows_from_sizes(tensor.detach().long(), *rule)
        )

    def range_of(self, treatment: Treatment, one: Range) -> tuple[int, int] | None:
        """The range that new integers are in."""
        if treatment.way == "permute":
            return min(one.min, 0), max(self._facts.highest, 1)
        noise = self._facts.noise.get(treatment.pattern)
        if treatment.way != "noise" or noise is None or noise.low > noise.high:
            return None
        return min(int(noise.low), 0), max(int(noise.high), 1)

    def _made(
        self, call: Call, side: Side, place: int, path: str, leaf: Leaf, treatment: Treatment
    ) -> _Made | None:
        tensor = call.tensor(side, place)
        if not is_computable(tensor):
            return None
        tensor = tensor.detach()
        if is_mask(tensor):
            return _Made(call.stored(side, place), stays=True)
        if treatment.way == "noise":
            span = self._facts.noise.get(treatment.pattern, NoiseRange())
            by_value = leaf.storage is not None or any(map(has_cache_word, path.split(".")))
            seed = self._pseudonyms.seed(
                "values" if by_value else f"{call.ref.tape.hex()} {call.number} {leaf.key}"
            )
            made = noisy(tensor, span, seed, by_value=by_value, special=self._special)
            return _Made(stored_bytes(leaf, made), _drawn_from(span, tensor))
        if tensor.dtype.is_floating_point:
            return None
        return self._permuted(call, side, place, leaf, tensor)

    def _permuted(self, call: Call, side: Side, place: int, leaf: Leaf, tensor: Any) -> _Made:
        size, in_order = None, False
        rule = self._facts.rule(call, side, place)
        if rule is not None:
            name, size = rule
            if _follows_from_sizes(tensor.long(), name, size):
                return _Made(call.stored(side, place), stays=True)
            in_order = name in ("sorted", "offsets")
            size = tensor.shape[-1] if name == "permutation" else size
        # A rule holds in the calls that were looked at. In another one a number may be larger: it
        # must not stay because of that.
        below = self._facts.highest + 1
        if size is not None and int(tensor.max()) < size:
            below = min(size, below)
        drawn = Drawn(1, below - 1, in_order=in_order)
        made = permuted(tensor, self._facts.highest, self._pseudonyms, self._ids, drawn)
        return _Made(stored_bytes(leaf, made), drawn)


def _drawn_from(span: NoiseRange, tensor: Any) -> Drawn | None:
    if tensor.dtype.is_floating_point or span.low > span.high:
        return None
    return Drawn(int(span.low), int(span.high), among_all=True)


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
