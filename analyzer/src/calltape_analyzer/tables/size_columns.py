"""The columns of a table that differ from tape to tape: the sizes of symbols and dynamic axes.

In come the variants of a tape. Out go the names of the columns, what each is, and for the inputs of
a call its variant and its value in each column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from calltape_analyzer.observing.groups import GroupKey
from calltape_analyzer.observing.size_table import Column, SizeRow, value_in
from calltape_analyzer.observing.sorting import CallSorter, CallSource
from calltape_analyzer.text import UniqueNames, printable, some_of
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.records import Tree

__all__ = ["CallSizes", "SizeColumn", "SizeColumns", "int64"]

MOST_COLUMNS = 1000
_MOST_NAME, _MOST_DOCUMENTED = 200, 1000
_MOST_VARIANTS_NAMED = 8
_MOST_INT = 2**63


class SizeColumn(NamedTuple):
    """A column of the table.

    Attributes:
        name: unique in the table, also if case does not count; printable, without double quotes,
            and at most 200 characters long.
        kind: ``symbol``, ``axis`` or ``int``.
        told: the name on the tape, at most 1,000 characters of it.
        variants: the public names of some variants that have it.
    """

    name: str
    kind: str
    told: str
    variants: str


class CallSizes(NamedTuple):
    """The public name of the variant of a call, or None, and its value in each column (None if it
    has none there)."""

    variant: str | None
    values: tuple[int | None, ...]


class _Known(NamedTuple):
    """A variant, and where its values stand in a row of the table."""

    facts: VariantFacts
    places: tuple[tuple[int, Column], ...]


class SizeColumns:
    """The size columns of a tape.

    Args:
        tape: whose calls are sorted as its variants were.
        variants: of the tape.
        taken: the names of the other columns.

    Attributes:
        columns: symbols first, then axes and ints, in the order of the variants; at most 1,000.
        left_out: how many more there are.
    """

    def __init__(
        self, tape: CallSource, variants: Sequence[VariantFacts], taken: Iterable[str]
    ) -> None:
        self._sorter = CallSorter.of(tape).agreeing(one.group.layout for one in variants)
        found: dict[tuple[str, str], list[tuple[int, Column]]] = {}
        symbols: dict[tuple[str, str], list[tuple[int, Column]]] = {}
        for at, facts in enumerate(variants):
            own = set()
            for symbol in facts.symbols:
                symbols.setdefault(("symbol", symbol.name), []).append((at, symbol.columns[0]))
                own.add((symbol.name, symbol.columns[0]))
            layout = facts.group.layout
            for column in facts.dynamic():
                name = layout.column_name(column)
                if (name, column) not in own:  # an int is a symbol by its own name
                    kind = "int" if column.is_int else "axis"
                    found.setdefault((kind, name), []).append((at, column))
        for kind, name in list(found):
            same = symbols.get(("symbol", name), [])
            if kind == "int" and any(column.is_int for _, column in same):
                same += found.pop((kind, name))  # a symbol elsewhere, and another's member here
        every = [*symbols.items(), *found.items()]
        self.left_out = max(len(every) - MOST_COLUMNS, 0)
        names = UniqueNames(name.lower() for name in taken)
        self.columns: list[SizeColumn] = []
        places: list[list[tuple[int, Column]]] = [[] for _ in variants]
        for index, ((kind, name), where) in enumerate(every[:MOST_COLUMNS]):
            told = some_of(
                [printable(variants[at].public_name[:_MOST_NAME]) for at, _ in where],
                _MOST_VARIANTS_NAMED,
            )
            made = _column_name(name, names)
            documented = printable(name[:_MOST_DOCUMENTED])
            self.columns.append(SizeColumn(made, kind, documented, told))
            for at, column in where:
                places[at].append((index, column))
        self._known: dict[object, list[_Known]] = {}
        for facts, own_places in zip(variants, places, strict=True):
            known = _Known(facts, tuple(own_places))
            self._known.setdefault(_likeness(facts.group.key), []).append(known)

    def of(self, inputs: Tree) -> CallSizes:
        """Variant and sizes of a call with these inputs; of a call that raised, of those that its
        arguments are like.

        Raises:
            TapeError: the inputs break the format.
        """
        placed = self._sorter.sorted(inputs)
        for known in self._known.get(_likeness(placed.key), ()):
            if known.facts.has(placed):
                return CallSizes(known.facts.public_name, self._values(placed.row, known))
        return CallSizes(None, (None,) * len(self.columns))

    def _values(self, row: SizeRow, known: _Known) -> tuple[int | None, ...]:
        values: list[int | None] = [None] * len(self.columns)
        for index, column in known.places:
            values[index] = int64(value_in(row, column))
        return tuple(values)


def int64(value: int) -> int | None:
    """A value that a column has; None for one beyond 64 bits with a sign."""
    return value if -_MOST_INT <= value < _MOST_INT else None


def _likeness(key: GroupKey) -> object:
    """Equal for all keys of which one may take the other."""
    return key[:2]


def _column_name(name: str, names: UniqueNames) -> str:
    """A name that is as readable, and unique without regard to case: many engines have none. In
    SQL it stands between double quotes."""
    shown = printable(name[:_MOST_NAME]).replace('"', "'")[:_MOST_NAME] or "_"
    lower = shown.lower()
    made = names.add(lower)
    return shown + made[len(lower) :]
