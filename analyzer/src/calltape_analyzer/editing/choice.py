"""Selecting calls of a tape by time, outcome, sizes and novelty.

Records are decoded only if a condition needs them. Tensor bytes are never read.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import partial
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
from calltape_schema.affine_span import AffineSpan
from calltape_schema.bounds import MAX_COUNT
from calltape_schema.errors import TapeError
from calltape_schema.recent import Recent
from calltape_schema.records import CallRecord

__all__ = ["CallSizes", "Choice", "select_calls"]

_MAX_NAMED = 20
# Bounds of what is remembered about earlier calls; the last call may exceed them. Beyond them every
# call counts as novel, so that no novel one is left out.
_MAX_PATTERNS = 65_536
_MAX_NUMBERS = 1_000_000
_MAX_CONSTANTS = 256

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Choice(PlainData):
    """Conditions on calls. All of them must hold; then ``novel`` and ``first`` select from the
    remaining calls, in this order. To select calls in any other way, use ``tape.only(calls=...)``.

    Attributes:
        start, end: when the call began, in seconds since 1970 (UTC): from ``start``, and before
            ``end``.
        raised: True for calls that raised, False for those that did not.
        where: conditions on sizes (:class:`~calltape_analyzer.editing.expressions.Expression`).
        novel: only calls that add evidence to the ones before, and those with the smallest and the
            largest sizes.
        first: at most this many calls.
    """

    start: Finite | None = None
    end: Finite | None = None
    raised: bool | None = None
    where: tuple[str, ...] = ()
    novel: bool = False
    first: int | None = Field(default=None, ge=0, le=MAX_COUNT)

    @field_validator("where", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """The conditions that were set."""
        return self.model_dump(exclude_defaults=True)


def select_calls(tape: Tape, choice: Choice) -> array[int]:
    """The positions of the calls that meet the conditions. Corrupted calls are never selected; the
    tape's ``damage`` lists them.

    Raises:
        UsageError: a condition names a size that no call has.
    """
    tape.calls.scan()  # finds corrupted calls, which the index of a file may list
    selected: Iterable[int] = range(len(tape.calls))
    if choice.where or (choice.start, choice.end, choice.raised) != (None, None, None):
        selected = _meeting(tape, choice)
    if choice.novel:
        selected = _novel(tape, selected)
    return array("Q", islice(selected, choice.first))


def _meeting(tape: Tape, choice: Choice) -> Iterator[int]:
    sizes = CallSizes(tape, [Expression(text) for text in choice.where]) if choice.where else None
    results = Recent()  # calls of a file that share inputs share one
    for position, call in enumerate(tape.calls.including_unsound()):
        # The table of a group has the times, so calls of other hours are not decoded.
        began = call.segment.began_ns(call.position) / 1e9
        if choice.start is not None and began < choice.start:
            continue
        if choice.end is not None and began >= choice.end:
            continue
        record = _record_of(call)
        if record is None or choice.raised not in (None, record.error is not None):
            continue
        if sizes is not None:
            inputs = call.segment, call.segment.inputs_number(call.position)
            if not results.once(inputs, partial(sizes.meet, call)):
                continue
        yield position


def _record_of(call: Call) -> CallRecord | None:
    try:
        return call.record
    except TapeError as error:
        if not is_damage(error):
            raise
        return None  # the tape's damage lists it


def _novel(tape: Tape, positions: Iterable[int]) -> list[int]:
    sorter, novelty = CallSorter.of(tape), _Novelty()
    novel: set[int] = set()
    for position in positions:
        record = _record_of(tape.calls[position])
        if record is None:
            continue
        raised = None if record.error is None else record.error.type
        if novelty.add(sorter.sorted(record.inputs), raised, position):
            novel.add(position)
    return sorted(novel.union(novelty.extremes()))


class _Novelty:
    """Finds calls whose sizes add evidence to those of earlier calls."""

    def __init__(self) -> None:
        self._spans: dict[Hashable, AffineSpan] = {}  # by kind and pattern of equal sizes
        # By kind, the smallest value of each size, followed by the largest of each, negated; each
        # with the first call that had it.
        self._extremes: dict[Hashable, list[tuple[int, int]]] = {}
        self._constants: dict[Hashable, set[Hashable]] = {}
        self._room = _MAX_NUMBERS

    def add(self, call: SortedCall, raised: str | None, position: int) -> bool:
        """Adds a call, and returns whether it is novel.

        Args:
            call: its group and sizes.
            raised: the type of its exception, if it raised one.
            position: its position on the tape.
        """
        if self._room <= 0:
            return True
        # Texts and floats distinguish kinds of calls as long as there are few of them.
        constants: Hashable = call.key.constants
        seen = self._constants.setdefault(call.key[:2], set())
        if constants not in seen:
            if len(seen) < _MAX_CONSTANTS:
                seen.add(constants)
            else:
                constants = None
        kind = (call.key.layout, call.key.facts, constants, raised)
        sizes = [size for shape in call.row.shapes for size in shape] + list(call.row.ints)
        # The pattern says which sizes are equal, and which are 0 or 1.
        first: dict[int, int] = {}
        pattern = tuple(
            -1 - size if size in (0, 1) else first.setdefault(size, i)
            for i, size in enumerate(sizes)
        )
        key = (kind, pattern)
        span = self._spans.get(key)
        if span is None:
            if len(self._spans) >= _MAX_PATTERNS:
                return True
            self._room -= len(sizes)
            span = self._spans[key] = AffineSpan()
        values = [*sizes, *(-size for size in sizes)]
        extremes = self._extremes.get(kind) or [(value, position) for value in values]
        self._extremes[kind] = [
            extreme if extreme[0] <= value else (value, position)
            for extreme, value in zip(extremes, values, strict=True)
        ]
        if not span.add(list(first)):
            return False
        self._room -= len(first)
        return True

    def extremes(self) -> Iterable[int]:
        """The positions of calls with the smallest and the largest value of each size."""
        for extremes in self._extremes.values():
            yield from (position for _, position in extremes)


class CallSizes:
    """Evaluates conditions on the sizes of calls, which have the names that people use: symbols
    (``sequence_length``), dimensions (``input_ids[1]``) and ints (``n``). An int that a call does
    not pass has its default value.

    Args:
        tape: the tape with the calls.
        expressions: the conditions.

    Raises:
        UsageError: an expression names a size that no call has.
    """

    def __init__(self, tape: Tape, expressions: Sequence[Expression]) -> None:
        self._expressions = expressions
        self._variants = [variant.facts for variant in tape.whole.variants()]
        layouts = (facts.group.layout for facts in self._variants)
        self._sorter = CallSorter.of(tape).agreeing(layouts)
        self._columns: dict[int, dict[str, Column]] = {}
        for facts in self._variants:
            ranks = [one.rank for one in facts.group.facts]
            symbols = {symbol.name: symbol.columns[0] for symbol in facts.symbols}
            columns = _columns_by_name(facts.rows.columns, facts.group.layout, ranks)
            self._columns[id(facts)] = columns | symbols
        self._defaults = tape.signature.int_defaults
        all_names: list[Iterable[str]] = [*self._columns.values(), self._defaults]
        names = dict.fromkeys(chain.from_iterable(all_names))
        for expression in expressions:
            for spellings in expression.references:
                if not any(name in names for name in spellings):
                    raise UsageError(
                        f"no call has a size named {spellings[0]}",
                        advice=f"the sizes are: {_examples(names) or 'none'}",
                    )

    def meet(self, call: Call) -> bool:
        """Whether the sizes of a call meet all conditions.

        Raises:
            TapeError: its record breaks the format.
        """
        sizes = self.of(call)
        return all(one.holds(sizes) for one in self._expressions)

    def of(self, call: Call) -> dict[str, int]:
        """The sizes of a call.

        Raises:
            TapeError: its record breaks the format.
        """
        placed = self._sorter.sorted(call.record.inputs)
        facts = next((one for one in self._variants if one.has(placed)), None)
        if facts is None:
            ranks = list(map(len, placed.row.shapes))
            columns = _columns_by_name(placed.row.columns, placed.layout, ranks)
        else:
            columns = self._columns[id(facts)]
        # A layout has no ints that have their default value.
        passed = placed.layout.nodes
        defaults = {name: value for name, value in self._defaults.items() if name not in passed}
        return defaults | {name: value_in(placed.row, column) for name, column in columns.items()}


def _columns_by_name(
    columns: Iterable[Column], layout: ArgumentLayout, ranks: Sequence[int]
) -> dict[str, Column]:
    """Columns as ``x[1]``, and counted from the end as ``x[-1]``."""
    by_name: dict[str, Column] = {}
    for column in columns:
        by_name[layout.column_name(column)] = column
        if column.axis is not None:
            from_end = column.axis - ranks[column.index]
            by_name[f"{layout.path(column)}[{from_end}]"] = column
    return by_name


def _examples(names: Iterable[str]) -> str:
    """Names to choose from; of those that differ only in positions, the first."""
    similar: dict[str, list[str]] = {}
    for name in names:
        if "[-" not in name:
            similar.setdefault(pattern_of(name), []).append(name)
    examples = [
        group[0] if len(group) == 1 else f"{group[0]} and {len(group) - 1} like it"
        for group in similar.values()
    ]
    return some_of(examples, _MAX_NAMED)
