"""Which calls of a tape are wanted.

Takes a tape and what somebody asks for; returns the places of the calls, in order. Records are
decoded only where the question needs them, and no tensor bytes are read. Conditions on sizes name
them as people do.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Annotated, Any

from pydantic import Field, field_validator

from calltape_analyzer.editing.expressions import Expression
from calltape_analyzer.errors import UsageError, is_damage
from calltape_analyzer.observing.groups import SortedCall
from calltape_analyzer.observing.layout import ArgumentLayout
from calltape_analyzer.observing.size_table import Column, value_in
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.plain_data import PlainData
from calltape_analyzer.reading.call import Call
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import pattern_of, some_of
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.affine_span import AffineSpan
from calltape_schema.bounds import MAX_COUNT
from calltape_schema.errors import TapeError
from calltape_schema.recent import Recent
from calltape_schema.records import CallRecord

__all__ = ["Choice", "SizedCalls", "chosen"]

_MOST_SHOWN = 20
# Bounds of what is remembered of the calls chosen so far; the last call may exceed them. Beyond
# them every call counts as new, so that none is left out wrongly.
_MAX_PATTERNS = 65_536
_MAX_NUMBERS = 1_000_000
_MAX_CONSTANTS = 256

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Choice(PlainData):
    """What is required of each call. All conditions must hold; then ``novel`` and ``first`` select
    among the remaining calls, in this order. To select calls in any other way, name them:
    ``tape.only(calls=...)``.

    Attributes:
        start, end: when the call began, in seconds since 1970 (UTC): from ``start``, and before
            ``end``.
        raised: True for calls that raised, False for those that did not.
        where: conditions on sizes (:class:`~calltape_analyzer.editing.expressions.Expression`).
        novel: only calls that show something new compared with the ones before, and those with the
            smallest and the largest sizes.
        first: only the first so many calls.
    """

    start: Finite | None = None
    end: Finite | None = None
    raised: bool | None = None
    where: tuple[str, ...] = ()
    novel: bool = False
    first: int | None = Field(default=None, ge=0, le=MAX_COUNT)

    @field_validator("where", mode="before")
    @classmethod
    def _one_is_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """The conditions that were set."""
        return self.model_dump(exclude_defaults=True)


def chosen(tape: Tape, choice: Choice) -> array[int]:
    """The places of the wanted calls on a tape. Calls that are damaged are not chosen by what their
    records would say; the tape's ``damage`` names them.

    Raises:
        UsageError: a condition names what no call has.
    """
    tape.calls.scan()  # a damaged call is none, whatever the end of its file says
    found: Iterable[int] = range(len(tape.calls))
    if choice.where or (choice.start, choice.end, choice.raised) != (None, None, None):
        found = _passing(tape, choice)
    if choice.novel:
        found = _novel(tape, found)
    return array("Q", islice(found, choice.first))


def _passing(tape: Tape, choice: Choice) -> Iterator[int]:
    sizes = _Sizes(tape, choice.where) if choice.where else None
    for place, call in enumerate(tape.calls.including_unsound()):
        # The tables of the groups tell it: the records of other hours are not decoded.
        began = call.segment.began_ns(call.position) / 1e9
        if choice.start is not None and began < choice.start:
            continue
        if choice.end is not None and began >= choice.end:
            continue
        record = _record_of(call)
        if record is None or choice.raised not in (None, record.error is not None):
            continue
        if sizes is None or sizes.meet(call):
            yield place


def _record_of(call: Call) -> CallRecord | None:
    try:
        return call.record
    except TapeError as error:
        if not is_damage(error):
            raise
        return None  # it stands in the tape's damage


def _novel(tape: Tape, places: Iterable[int]) -> list[int]:
    sorter, novelty = CallSorter.of(tape), _Novelty()
    found: set[int] = set()
    for place in places:
        call = tape.calls[place]
        record = _record_of(call)
        if record is None:
            continue
        raised = None if record.error is None else record.error.type
        if novelty.is_new(sorter.sorted(record.inputs), raised, place):
            found.add(place)
    return sorted(found.union(novelty.extremes()))


class _Novelty:
    """Which calls add evidence to the calls before them, by their sizes."""

    def __init__(self) -> None:
        self._patterns: dict[Hashable, AffineSpan] = {}
        # By kind, for each size its smallest value, and then for each its largest one negated, each
        # with the first call that had it.
        self._extremes: dict[Hashable, list[tuple[int, int]]] = {}
        self._constants: dict[Hashable, set[Hashable]] = {}
        self._room = _MAX_NUMBERS

    def is_new(self, placed: SortedCall, raised: str | None, index: int) -> bool:
        """Whether a call adds evidence.

        Args:
            placed: its group and sizes.
            raised: the type of its exception, if it raised one.
            index: its place among the calls.
        """
        if self._room <= 0:
            return True
        flat = [size for shape in placed.row.shapes for size in shape] + list(placed.row.ints)
        kind = (placed.key.layout, placed.key.facts, self._constants_of(placed), raised)
        heads, pattern = _pattern_of(flat)
        key = (kind, pattern)
        span = self._patterns.get(key)
        if span is None:
            if len(self._patterns) >= _MAX_PATTERNS:
                return True
            self._room -= len(flat)
            span = self._patterns[key] = AffineSpan()
        values = [*flat, *(-size for size in flat)]
        known = self._extremes.get(kind) or [(value, index) for value in values]
        pairs = zip(known, values, strict=True)
        self._extremes[kind] = [one if one[0] <= value else (value, index) for one, value in pairs]
        if not span.add([flat[head] for head in heads]):
            return False
        self._room -= len(heads)
        return True

    def _constants_of(self, placed: SortedCall) -> Hashable:
        """Texts and floats, which tell kinds of calls apart as long as there are few of them."""
        known = self._constants.setdefault(placed.key[:2], set())
        if placed.key.constants in known:
            return placed.key.constants
        if len(known) >= _MAX_CONSTANTS:
            return None
        known.add(placed.key.constants)
        return placed.key.constants

    def extremes(self) -> Iterable[int]:
        """The places of calls with the smallest and the largest value of each size."""
        for found in self._extremes.values():
            yield from (index for _, index in found)


def _pattern_of(flat: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
    """Which sizes are equal, and which are 0 or 1; and one place for each of the others' values."""
    first: dict[int, int] = {}
    pattern = [
        -1 - size if size in (0, 1) else first.setdefault(size, at) for at, size in enumerate(flat)
    ]
    return list(first.values()), tuple(pattern)


class _Sizes:
    """Whether the sizes of a call meet all conditions. Calls of equal inputs in one file are looked
    at once."""

    def __init__(self, tape: Tape, texts: Sequence[str]) -> None:
        self._expressions = [Expression(text) for text in texts]
        self._calls = SizedCalls(tape)
        self._calls.check(self._expressions)
        self._known = Recent()

    def meet(self, call: Call) -> bool:
        def meets() -> bool:
            sizes = self._calls.of(call)
            return all(one.holds(sizes) for one in self._expressions)

        return self._known.once((call.segment, call.segment.inputs_number(call.position)), meets)


class SizedCalls:
    """Tells the sizes of the calls of one tape by the names that people use: symbols
    (``sequence_length``), dimensions (``input_ids[1]``) and ints (``n``). An int that a call leaves
    to its default has that value. Reads no tensor bytes."""

    def __init__(self, tape: Tape) -> None:
        self._variants = [variant.facts for variant in tape.whole.variants()]
        layouts = (facts.group.layout for facts in self._variants)
        self._sorter = CallSorter.of(tape).agreeing(layouts)
        self._names = {id(facts): _names_in(facts) for facts in self._variants}
        self._defaults = tape.signature.int_defaults

    def check(self, expressions: Iterable[Expression]) -> None:
        """Raises if an expression names what no call has.

        Raises:
            UsageError: lists the names that there are.
        """
        every: list[Iterable[str]] = [*self._names.values(), self._defaults]
        known = dict.fromkeys(chain.from_iterable(every))
        for expression in expressions:
            for reference in expression.references:
                if not any(name in known for name in reference):
                    shown = (name for name in known if "[-" not in name)
                    raise UsageError(
                        f"no call has a size named {reference[0]}",
                        advice=f"the sizes are: {_examples(shown) or 'none'}",
                    )

    def of(self, call: Call) -> dict[str, int]:
        """The sizes of a call.

        Raises:
            TapeError: its record breaks the format.
        """
        placed = self._sorter.sorted(call.record.inputs)
        facts = next((one for one in self._variants if one.has(placed)), None)
        if facts is None:
            names = _spelled(placed.row.columns, placed.layout, list(map(len, placed.row.shapes)))
        else:
            names = self._names[id(facts)]
        # Of an int that it left to its default, or passed as this, a layout has neither.
        passed = placed.layout.nodes
        left = {name: value for name, value in self._defaults.items() if name not in passed}
        return left | {name: value_in(placed.row, column) for name, column in names.items()}


def _names_in(facts: VariantFacts) -> dict[str, Column]:
    ranks = [one.rank for one in facts.group.facts]
    symbols = {symbol.name: symbol.columns[0] for symbol in facts.symbols}
    return _spelled(facts.rows.columns, facts.group.layout, ranks) | symbols


def _spelled(
    columns: Iterable[Column], layout: ArgumentLayout, ranks: Sequence[int]
) -> dict[str, Column]:
    """Columns by their names, ``x[1]``, and by the same from the end: ``x[-1]``."""
    found: dict[str, Column] = {}
    for column in columns:
        found[layout.column_name(column)] = column
        if column.axis is not None:
            from_end = column.axis - ranks[column.index]
            found[f"{layout.path(column)}[{from_end}]"] = column
    return found


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
