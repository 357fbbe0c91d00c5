"""The sizes of single calls by the names that people use.

In comes a tape. Out go, for each of its calls, the values of symbols (``sequence_length``),
dimensions (``input_ids[1]``) and ints (``n``). An int that a call leaves to its default has
that value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from calltape_analyzer.editing.expressions import Expression
from calltape_analyzer.errors import UsageError
from calltape_analyzer.observing.columns import Column, SizeRow, value_in
from calltape_analyzer.observing.groups import SortedCall
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.reading.call import Call
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import pattern_of, some_of
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["SizedCalls", "Sizes"]

_MOST_SHOWN = 20


class Sizes(Mapping[str, int]):
    """The sizes of one call by name.

    Args:
        names: of what the call passed.
        row: its values.
        defaults: the values of ints that it left to their defaults.
    """

    def __init__(
        self, names: Mapping[str, Column], row: SizeRow, defaults: Mapping[str, int]
    ) -> None:
        self._names = names
        self._row = row
        self._defaults = defaults

    def __getitem__(self, name: str) -> int:
        column = self._names.get(name)
        return self._defaults[name] if column is None else value_in(self._row, column)

    def __contains__(self, name: object) -> bool:
        return name in self._names or name in self._defaults

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(dict.fromkeys((*self._names, *self._defaults)))

    def __len__(self) -> int:
        return len(self._names.keys() | self._defaults)


class SizedCalls:
    """Tells the sizes of the calls of one tape. Reads no tensor bytes."""

    def __init__(self, tape: Tape) -> None:
        self._variants = [variant.facts for variant in tape.whole.variants()]
        layouts = (facts.group.layout for facts in self._variants)
        self._sorter = CallSorter.of(tape).agreeing(layouts)
        self._names: dict[int, dict[str, Column]] = {}
        self._defaults = tape.signature.int_defaults

    def check(self, expressions: Iterable[Expression]) -> None:
        """Raises if an expression names what no call has.

        Raises:
            UsageError: lists the names that there are.
        """
        known: dict[str, None] = {}
        for facts in self._variants:
            known.update(dict.fromkeys(self._names_in(facts)))
        known.update(dict.fromkeys(self._defaults))
        for expression in expressions:
            for reference in expression.references:
                if not any(name in known for name in reference):
                    shown = (name for name in known if "[-" not in name)
                    raise UsageError(
                        f"no call has a size named {reference}",
                        advice=f"the sizes are: {_examples(shown) or 'none'}",
                    )

    def of(self, call: Call) -> Sizes:
        """The sizes of a call.

        Raises:
            TapeError: its record breaks the format.
        """
        placed = self._sorter.sorted(call.record.inputs)
        for facts in self._variants:
            if facts.group.key.takes(placed.key) and all(
                condition.holds(placed.row) for condition in facts.conditions
            ):
                return Sizes(self._names_in(facts), placed.row, self._left(placed))
        return Sizes(_columns_of(placed), placed.row, self._left(placed))

    def _left(self, placed: SortedCall) -> dict[str, int]:
        """The ints that a call left to their defaults, or passed as these: a layout has neither."""
        passed = placed.layout.nodes
        return {name: value for name, value in self._defaults.items() if name not in passed}

    def _names_in(self, facts: VariantFacts) -> dict[str, Column]:
        known = self._names.get(id(facts))
        if known is None:
            symbols = {symbol.name: symbol.columns[0] for symbol in facts.symbols}
            layout, ranks = facts.group.layout, [one.rank for one in facts.group.facts]
            columns = {
                name: column
                for column in facts.rows.columns
                for name in _spellings(layout.column_name(column), column, ranks)
            }
            known = self._names[id(facts)] = columns | symbols
        return known


def _examples(names: Iterable[str]) -> str:
    """Names that can be typed as they are: one of those that differ in positions only."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(pattern_of(name), []).append(name)
    shown = [
        same[0] if len(same) == 1 else f"{same[0]} and {len(same) - 1} like it"
        for same in found.values()
    ]
    return some_of(shown, _MOST_SHOWN)


def _columns_of(placed: SortedCall) -> dict[str, Column]:
    ranks = [len(shape) for shape in placed.row.shapes]
    return {
        name: column
        for column in placed.row.columns
        for name in _spellings(placed.layout.column_name(column), column, ranks)
    }


def _spellings(name: str, column: Column, ranks: list[int]) -> tuple[str, ...]:
    """``x[1]``, and the same from the end: ``x[-1]``."""
    if column.axis is None:
        return (name,)
    stem = name.rpartition("[")[0]
    return name, f"{stem}[{column.axis - ranks[column.index]}]"
