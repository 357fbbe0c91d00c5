"""Fewest and smallest sizes, by the resizing that representative arguments use.

What was learned from the whole tape holds for the resized calls too: which dimensions are one
symbol, which follow from others, what integers have to do with sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from calltape_analyzer.arguments.samples import recorded_sample, resized, resized_row
from calltape_analyzer.arguments.sizings import followed
from calltape_analyzer.arguments.value_rules import value_rules
from calltape_analyzer.errors import TapeError
from calltape_analyzer.minimising.changed_calls import ChangedCall
from calltape_analyzer.minimising.halving import smallest_number
from calltape_analyzer.minimising.search import Search
from calltape_analyzer.observing.size_table import SizeRow, value_in
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.pytree.caches import counted_size
from calltape_analyzer.reading.call import Call
from calltape_analyzer.tape import Tape
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.symbols import Symbol
from calltape_analyzer.writing.built_calls import BuiltCall

__all__ = ["shrink_sizes"]

_MAX_CONSTANTS = 32
_FIRST_SIZES = (1, 2, 3)


def shrink_sizes(search: Search, source: Tape) -> None:
    """Makes the sizes of all calls smaller, first together, then one by one.

    Args:
        search: has the calls.
        source: the whole tape: its variants say which sizes belong together.
    """
    with search.opened() as base:
        calls = list(base.calls)
        sized = _sized_calls(source, base)

        def keeps(what: str) -> bool:
            made: list[Call | BuiltCall] = []
            for call in calls:
                one = sized.get(call.number)
                made.append(call if one is None or not one.is_changed else one.built())
            return search.keeps(what, made)

        for size in _FIRST_SIZES if sized else ():
            moved = [one.try_all(size) for one in sized.values()]
            if all(moved) and keeps(f"all sizes {size}"):
                break
            for one in sized.values():
                one.undo()
        for one in sized.values():
            for place in one.free:
                one.shrink(place, keeps)


def _sized_calls(source: Tape, base: Tape) -> dict[int, _SizedCall]:
    """The calls of a tape whose variant is known, by number."""
    signature = source.signature
    passed = {name for call in base.calls for name in _passed(call, base)}
    ignored = [name for name in signature.names if name not in passed]
    whole = source
    with suppress(TapeError):
        whole = source.only(ignore=[name for name in ignored if _is_there(source, name)])
    found: dict[int, _SizedCall] = {}
    variants = whole.variants()
    sorter = CallSorter.of(whole).agreeing(one.facts.group.layout for one in variants)
    for variant in variants:
        facts = variant.facts
        places = {facts.rows.row(at): at for at in range(len(facts.rows))}
        rules: Any = None
        for call in base.calls:
            placed = sorter.sorted(call.record.inputs)
            if not facts.group.key.takes(placed.key):
                continue
            row = places.get(placed.row, 0)
            with suppress(TapeError):
                rules = value_rules(facts, whole.calls.at, sorter) if rules is None else rules
                one = _SizedCall(call, facts, sorter, row, rules)
                if one.fits(placed.row):
                    found[call.number] = one
    return found


def _passed(call: Call, tape: Tape) -> list[str]:
    root = ChangedCall(call)
    count = len(root.positional["children"])
    names = [tape.signature.name_at(i) for i in range(count)]
    return [*names, *map(str, root.named["keys"])]


def _is_there(source: Tape, name: str) -> bool:
    return any(name in _passed(call, source) for call in source.calls[:100])


class _SizedCall:
    """A call that can be resized.

    Attributes:
        free: the numbers of the symbols that follow from no other one.
    """

    def __init__(
        self, call: Call, facts: VariantFacts, sorter: CallSorter, row: int, rules: Any
    ) -> None:
        self._call, self._row, self._rules = call, row, rules
        self._facts = replace(facts, symbols=[*facts.symbols, *_constants(facts)])
        placed = sorter.sorted(call.record.inputs)
        self._layout = placed.layout
        self._sample = recorded_sample(call, sorter)
        # Not always those of the row: the call may have been resized before.
        self._recorded = tuple(
            value_in(placed.row, symbol.columns[0]) for symbol in self._facts.symbols
        )
        self._values = self._before = self._recorded
        self._known = len(facts.symbols)
        self.free = [i for i, one in enumerate(self._facts.symbols) if one.relation is None]

    def fits(self, row: SizeRow) -> bool:
        """Whether the symbols explain all sizes of the call."""
        return resized_row(self._facts, self._row, self._recorded) == row

    @property
    def is_changed(self) -> bool:
        return self._values != self._recorded

    def try_all(self, size: int) -> bool:
        """Gives all symbols that varied a small size, as far as they are larger."""
        symbols = self._facts.symbols
        moved = {
            i: size * symbols[i].unit
            for i in self.free
            if i < self._known and self._values[i] > size * symbols[i].unit
        }
        return self._move(moved)

    def undo(self) -> None:
        """Takes the last change back."""
        self._values = self._before

    def shrink(self, place: int, keeps: Any) -> None:
        """Finds the smallest size of one symbol."""

        def enough(value: int) -> bool:
            if not self._move({place: value}):
                return False
            what = f"size {self._values[place]} for {self._recorded[place]}"
            if keeps(f"{what} ({self._facts.symbols[place].name or 'a constant'})"):
                return True
            self.undo()
            return False

        symbol = self._facts.symbols[place]
        if self._values[place] > 1:
            smallest_number(self._values[place], symbol.unit if symbol.varied else 1, enough)

    def _move(self, moved: dict[int, int]) -> bool:
        made = followed(self._facts.symbols, self._values, moved)
        if made is None:
            return False
        self._before, self._values = self._values, made
        return True

    def built(self) -> BuiltCall:
        """The call with these sizes."""
        sample = resized(self._sample, self._facts, self._row, self._values, self._rules)
        changed = ChangedCall(self._call)
        shapes: dict[str, Sequence[int]] = {}
        pairs = zip(self._layout.tensors, sample.tensors, strict=True)
        for i, (place, tensor) in enumerate(pairs):
            shapes[str(place)] = tensor.shape
            is_resized = list(tensor.shape) != list(changed.leaves[place.number]["shape"])
            if is_resized or i in self._rules:
                changed.set_tensor(place.number, tensor)
        for place, value in zip(self._layout.scalars, sample.scalars, strict=True):
            if place.number >= len(changed.scalars):
                continue  # the default of an int that the call leaves out
            beside = counted_size(str(place)) if place.is_int else None
            recorded = changed.scalars[place.number]
            if beside is not None and beside[0] in shapes:
                old = self._recorded_shape(beside[0])
                if old is not None and len(old) >= 2 and old[beside[1]] == recorded:
                    value = int(shapes[beside[0]][beside[1]])
            if place.is_int:
                changed.scalars[place.number] = value
        return changed.built()

    def _recorded_shape(self, path: str) -> Sequence[int] | None:
        facts = self._call.record.inputs.facts()
        return next((facts[p.number].shape for p in self._layout.tensors if str(p) == path), None)


def _constants(facts: VariantFacts) -> list[Symbol]:
    """Symbols for the dimensions that never varied: those that were always equal are one."""
    columns = defaultdict(list)
    dynamic = {column for symbol in facts.symbols for column in symbol.columns}
    for column in facts.dimensions:
        if column.axis is not None and column not in dynamic:
            values = facts.rows.values(column)
            if values and min(values) > 1:
                columns[values].append(column)
    # First axes first: a batch may be smaller more often than a width.
    found = [Symbol(same, values) for values, same in columns.items()]
    found.sort(key=lambda symbol: min(column.axis or 0 for column in symbol.columns))
    return found[:_MAX_CONSTANTS]
