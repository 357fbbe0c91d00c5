"""One variant as data: its calls, its dynamic dimensions with the reasons, its symbols.

:mod:`calltape_analyzer.variants.derivation` fills it in. Findings, explanations, programs and
targets read it. Here too is what decides whether a call belongs to it: conditions on its sizes,
and sizes of 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from calltape_analyzer.facts import Fact, Names, Rejection
from calltape_analyzer.observing.groups import Completion, Group, GroupKey, SortedCall
from calltape_analyzer.observing.layout import ArgumentLayout, Renamed, counter_key_of
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.size_table import Column, SizeRow, SizeTable, Span, value_in
from calltape_analyzer.observing.traffic_counters import CountedGroup, TrafficCounters, Values
from calltape_analyzer.plain_data import PlainData, Texts
from calltape_analyzer.pytree.caches import counted_size
from calltape_analyzer.text import MAX_EXAMPLES, shown_range, variant_names
from calltape_analyzer.variants.symbols import Symbol

__all__ = [
    "Condition",
    "CountedRange",
    "CountedSizes",
    "CounterIs",
    "DimensionDecision",
    "ExcludedSize",
    "Fixed",
    "FixedSize",
    "NewZeros",
    "OtherVariant",
    "Reason",
    "VariantFacts",
    "ZeroSizes",
    "add_counted_sizes",
    "counting_ints_of",
]


class CountedRange(PlainData):
    """What people are told of counted sizes that go beyond the sizes on the tape.

    Attributes:
        min, max: the smallest and largest value over all calls that were counted.
        calls: how many calls were counted.
        kept_calls: how many calls are on the tape, those of ``shared_with`` included. It may be
            more than were counted, if a file has no counters.
        kept_min, kept_max: the smallest and largest value in the calls on the tape.
        shared_with: other variants whose calls are among the counted ones, because counters cannot
            tell them apart.
    """

    min: int
    max: int
    calls: int
    kept_calls: int
    kept_min: int
    kept_max: int
    shared_with: Texts = ()

    def __str__(self) -> str:
        other_names = variant_names(self.shared_with, MAX_EXAMPLES)
        shared = f" (those of {other_names} among them)" if other_names else ""
        some = f"{self.kept_calls:,} of " if self.kept_calls < self.calls else ""
        kept_text = (
            f"kept {some}{self.calls:,} calls{shared}: {shown_range(self.kept_min, self.kept_max)}"
        )
        return f"{kept_text}; over all: {shown_range(self.min, self.max)}"


@dataclass(frozen=True)
class CountedSizes:
    """A dimension, or an int, over all counted calls.

    Attributes:
        values: its values in all calls that were counted.
        calls: how many calls were counted.
        shared_with: the names of other variants whose calls are among them.
        kept: its smallest and largest value in the calls on the tape, of all these variants.
        kept_calls: how many calls are on the tape, of all these variants.
    """

    values: Values
    calls: int
    shared_with: tuple[str, ...]
    kept: Span
    kept_calls: int

    @property
    def is_wider(self) -> bool:
        """Whether some counted values are outside the range of the calls on the tape."""
        return self.values.min < self.kept.min or self.values.max > self.kept.max

    def wider_range(self) -> CountedRange | None:
        """The range over all calls, if it is wider than the range of the calls on the tape."""
        if not self.is_wider:
            return None
        # A file without an end has calls, and no counters.
        low, high = min(self.values.min, self.kept.min), max(self.values.max, self.kept.max)
        return CountedRange(
            min=low,
            max=high,
            calls=self.calls,
            kept_calls=self.kept_calls,
            kept_min=self.kept.min,
            kept_max=self.kept.max,
            shared_with=self.shared_with,
        )


class FixedSize(Rejection, code="fixed_size"):
    """A size or an int is another one than in every recorded call of the variant."""

    place: str
    got: int
    wanted: int


class OtherVariant(Rejection, code="other_variant"):
    """A condition that tells variants apart does not hold."""

    condition: str
    place: str = ""


class ExcludedSize(Rejection, code="excluded_size"):
    """A size or an int has the one value that the variant is not for."""

    place: str
    got: int
    is_int: bool


class NewZeros(Rejection, code="new_zeros"):
    """Dimensions are 0 that were so in no recorded call, and were not seen to work.

    Attributes:
        places: these dimensions.
        why: what came of trying them; None if nothing did.
    """

    places: Names
    why: Fact | None = None

    @property
    def dimension(self) -> str | None:
        return self.places[0]


class Condition(Protocol):
    """What the rows of a variant have in common, besides their group."""

    def holds(self, row: SizeRow) -> bool:
        """Whether a row meets the condition."""
        ...

    def among(self, rows: SizeTable) -> list[bool]:
        """Whether each row of a table meets the condition."""
        ...

    def text(self, layout: ArgumentLayout) -> str:
        """The condition in words."""
        ...

    def rejection(self, layout: ArgumentLayout) -> Rejection:
        """Why a row that does not meet it is rejected."""
        ...


@dataclass(frozen=True)
class Fixed:
    """A column has this value, or (``negated``) another one."""

    column: Column
    value: int
    negated: bool = False

    def holds(self, row: SizeRow) -> bool:
        return (value_in(row, self.column) == self.value) is not self.negated

    def among(self, rows: SizeTable) -> list[bool]:
        return [(value == self.value) is not self.negated for value in rows.values(self.column)]

    @property
    def sign(self) -> str:
        """What stands between the column and the value."""
        return "=" if not self.negated else ">" if self.value == 1 else "!="

    def text(self, layout: ArgumentLayout) -> str:
        return f"{layout.column_name(self.column)} {self.sign} {self.value}"

    def rejection(self, layout: ArgumentLayout) -> Rejection:
        place = layout.column_name(self.column)
        if not self.negated:
            return OtherVariant(self.text(layout), place)
        return ExcludedSize(place, self.value, self.column.is_int)


@dataclass(frozen=True)
class CounterIs:
    """The token counter of a cache layer equals the length of its keys (``open``: the window is not
    full yet), or no longer does.

    Attributes:
        counter: the int that counts tokens.
        keys: the dimension that it counts until the window is full.
    """

    counter: Column
    keys: Column
    open: bool

    def holds(self, row: SizeRow) -> bool:
        return (value_in(row, self.counter) == value_in(row, self.keys)) is self.open

    def among(self, rows: SizeTable) -> list[bool]:
        counts, lengths = rows.values(self.counter), rows.values(self.keys)
        return [(a == b) is self.open for a, b in zip(counts, lengths, strict=True)]

    def text(self, layout: ArgumentLayout) -> str:
        return "window open" if self.open else "window full"

    def rejection(self, layout: ArgumentLayout) -> Rejection:
        return OtherVariant(self.text(layout))


@dataclass(frozen=True)
class ZeroSizes:
    """What is known of sizes of 0 that no call had. Each set has the dimensions that were 0 at
    once.

    Attributes:
        accepted: where program and model returned the same.
        rejected: where they did not, with the reason.
    """

    accepted: frozenset[frozenset[Column]] = frozenset()
    rejected: Mapping[frozenset[Column], Fact] = field(default_factory=dict)

    def rejection(self, columns: Set[Column], names: Sequence[str]) -> NewZeros | None:
        """Why a row is rejected in which some dimensions are 0; None if it is accepted.

        Args:
            columns: these dimensions.
            names: what they are called.
        """
        zero_columns = frozenset(columns)
        if zero_columns in self.accepted:
            return None
        return NewZeros(tuple(names), self.rejected.get(zero_columns))


def counting_ints_of(group: Group) -> dict[Column, Column]:
    """The ints of cache layers that count a dimension, each with that dimension."""
    layout = group.layout
    tensors = {(path.argument, path.path): i for i, path in enumerate(layout.tensors)}
    dimension_of: dict[Column, Column] = {}
    for column, path in zip(layout.int_columns, layout.ints, strict=True):
        counted = counted_size(path.path)
        if path.owner is None or counted is None:
            continue
        tensor_path, axis = counted
        tensor = tensors.get((path.argument, tensor_path))
        if tensor is not None and group.facts[tensor].rank >= 2:
            dimension_of[column] = group.dimensions(tensor)[axis]
    return dimension_of


Reason = Literal["varied", "pooled", "neighbour", "constant", "one", "declared", "counter"]


@dataclass(frozen=True)
class DimensionDecision:
    """Whether a column is dynamic, and why.

    ``reason`` is one of:

    - ``varied``: it has several values in this variant.
    - ``pooled``: it has several values in another variant; or it was seen once, and the same
      dimension of other elements of its list varied.
    - ``neighbour``: a dimension of another argument with the same axis and size is dynamic, and its
      own argument was seen once, or it is a first dimension that never differed from the other one.
    - ``declared``: the user said so.
    - ``constant``: it has one value.
    - ``one``: it varied elsewhere, and is always 1 here.
    - ``counter``: it is an int that follows from a tensor beside it.
    """

    dynamic: bool
    reason: Reason


@dataclass(eq=False)
class VariantFacts:
    """One variant as data.

    Attributes:
        group, conditions: the calls that belong to it.
        rows: distinct sizes, by first call: all of them, or some of very many. The symbols have
            their values in this order. What is said of the calls (their number, ranges, symbols
            and relations) holds for :attr:`all_rows` row.
        dimensions: for each column whether it is dynamic, and why.
        symbols: the dynamic columns, by symbol.
        completions: of a merged variant, how the calls of other groups become calls of this one.
        frozen: small integer tensors, by their number in the layout, whose values are constants of
            the program, because the model reads them with Python (``grid.tolist()``).
        counted: per column its sizes over all counted calls, if the tape has traffic counters.
        all_calls: how many calls were counted, kept or not; None if that is unknown.
        name: unique among the variants of a tape.
        public_name: likewise, and it has nothing that was passed.
        names_context: whether the name says what of the context separates its calls from others.
        capped: whether it has so many dimensions that not all were compared with each other, to
            find broadcasting, or equal dimensions that differ in other variants.
        constant_scalars: texts and floats, by their number among the layout's scalars, that vary
            over the calls and are constants of the program, each with the values that the program
            is for: with others the model does something else, or may do so.
        open_floats: floats, by their number among the layout's scalars, that vary over the calls
            and are inputs of the program.
        zeros: what is known of sizes of 0 that no call had.
        unsampled: all distinct rows, if ``rows`` are some of them.
    """

    group: Group
    rows: SizeTable
    conditions: tuple[Condition, ...] = ()
    dimensions: dict[Column, DimensionDecision] = field(default_factory=dict)
    symbols: list[Symbol] = field(default_factory=list)
    completions: dict[GroupKey, Completion] = field(default_factory=dict)
    frozen: dict[int, Any] = field(default_factory=dict)
    counted: dict[Column, CountedSizes] = field(default_factory=dict)
    all_calls: int | None = None
    name: str = ""
    public_name: str = ""
    names_context: bool = False
    constant_scalars: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    open_floats: frozenset[int] = frozenset()
    capped: bool = False
    zeros: ZeroSizes = field(default_factory=ZeroSizes)
    unsampled: SizeTable | None = None

    @property
    def all_rows(self) -> SizeTable:
        """All distinct rows, however many there are."""
        return self.rows if self.unsampled is None else self.unsampled

    @property
    def calls(self) -> int:
        """How many calls it has."""
        return self.all_rows.calls

    @property
    def nothing_yet(self) -> frozenset[Column]:
        """The axes that are 0 because their tensor stands for "nothing yet". This 0 says nothing
        about their sizes."""
        tensors = {
            c.column.index
            for c in self.conditions
            if isinstance(c, Fixed) and c.value == 0 and not c.negated
        }
        return frozenset(
            column
            for column in (self.all_rows.columns if tensors else ())
            if not column.is_int
            and column.index in tensors
            and self.all_rows.distinct(column) == {0}
        )

    def dynamic(self) -> list[Column]:
        """The dynamic columns."""
        return [column for column, decision in self.dimensions.items() if decision.dynamic]

    def span(self, *columns: Column) -> Span:
        """The smallest and the largest value of columns: over all counted calls if these are known
        to be calls of this variant alone, else over the calls on the tape."""
        values: list[int] = []
        for column in columns:
            seen = self.all_rows.span(column)
            values += (seen.min, seen.max)
            counted = self.counted.get(column)
            if counted is not None and not counted.shared_with:
                values += (counted.values.min, counted.values.max)
        return Span(min(values), max(values))

    @property
    def counting_ints(self) -> dict[Column, Column]:
        """The ints that follow from a dimension of a tensor, each with that dimension."""
        dimension_of = counting_ints_of(self.group)
        return {
            column: dimension_of[column]
            for column, decision in self.dimensions.items()
            if decision.reason == "counter"
        }

    def with_ints(self, scalars: Sequence[Any], ints: Sequence[int]) -> list[Any]:
        """Scalars of a call in the layout's order, with other ints."""
        values = list(scalars)
        for number, value in zip(self.group.layout.int_scalars, ints, strict=True):
            values[number] = value
        return values

    def completion_of(self, key: GroupKey) -> Completion | None:
        """How a call of another group becomes a call of this variant."""
        return next((c for group_key, c in self.completions.items() if group_key.covers(key)), None)

    def has(self, placed: SortedCall) -> bool:
        """Whether a call is of its group, or can be completed, and meets its conditions."""
        row = self.row_in(placed.key, placed.row)
        return row is not None and all(condition.holds(row) for condition in self.conditions)

    def row_in(self, key: GroupKey, row: SizeRow) -> SizeRow | None:
        """A row of any group as a row of this variant; None if it takes no calls of the group.

        Args:
            key: of the group.
            row: in the group's layout.
        """
        if self.group.key.covers(key):
            return row
        completion = self.completion_of(key)
        return None if completion is None else completion.row(row)

    def new_zeros(self, row: SizeRow) -> list[Column]:
        """The dynamic dimensions of a row that are 0, and were not in any call."""
        return [
            column
            for column in self.dynamic()
            if not column.is_int
            and value_in(row, column) == 0
            and 0 not in self.all_rows.distinct(column)
        ]

    def rejects(self, row: SizeRow) -> Rejection | None:
        """Why a row of the same group does not belong to it; None if it does."""
        layout = self.group.layout
        for condition in self.conditions:
            if not condition.holds(row):
                return condition.rejection(layout)
        zeros = self.new_zeros(row)
        if zeros:
            rejection = self.zeros.rejection(set(zeros), [*map(layout.column_name, zeros)])
            if rejection is not None:
                return rejection
        for column, decision in self.dimensions.items():
            if not decision.dynamic and decision.reason != "counter":
                expected, got = self.rows.value(0, column), value_in(row, column)
                if expected != got:
                    return FixedSize(layout.column_name(column), got, expected)
        return None


_Name = tuple[str, int | None]
"""Path and axis of a column; the axis of an int is None."""


def add_counted_sizes(
    counters: TrafficCounters,
    variants: Sequence[VariantFacts],
    signature: Signature,
    renamed: Renamed = str,
) -> None:
    """Gives each variant what the counters say of its columns (:attr:`VariantFacts.counted`): sizes
    that no call on the tape may have.

    Counters tell calls apart by structure, dtypes and ranks only. If texts, floats or sizes divide
    such calls into several variants, nobody knows to which variant a counted size belongs: people
    are told of it, and it decides nothing.

    Args:
        counters: of the tape; without the calls that raised, as far as they are known.
        variants: all variants of the tape, with their names.
        signature, renamed: as the variants were laid out with.
    """
    counted = counters.by_counter_key(signature, renamed)
    variants_of_key: dict[Hashable, list[VariantFacts]] = defaultdict(list)
    for variant in variants:
        group = variant.group
        variants_of_key[counter_key_of(group.layout, group.facts, signature)].append(variant)
    for key, indistinct in variants_of_key.items():
        if key in counted:
            _add_to(indistinct, counted[key])


def _add_to(
    variants: Sequence[VariantFacts], groups: Sequence[tuple[ArgumentLayout, CountedGroup]]
) -> None:
    """Gives variants that counters cannot tell apart what was counted of their calls."""
    values: dict[_Name, Values] = {}
    for layout, group in groups:
        for name, counted_values in _values_of(layout, group):
            values[name] = values[name].merge(counted_values) if name in values else counted_values
    kept_spans: dict[_Name, Span] = {}
    for variant in variants:
        for column, name in _names_of(variant).items():
            kept_spans[name] = variant.all_rows.span(column).merge(kept_spans.get(name))
    calls = sum(group.calls for _, group in groups)
    kept_calls = sum(variant.calls for variant in variants)
    for variant in variants:
        other_names = tuple(o.name for o in variants if o is not variant)
        variant.all_calls = None if other_names else max(calls, variant.calls)
        variant.counted = {
            column: CountedSizes(values[name], calls, other_names, kept_spans[name], kept_calls)
            for column, name in _names_of(variant).items()
            if name in values
        }


def _values_of(layout: ArgumentLayout, group: CountedGroup) -> Iterator[tuple[_Name, Values]]:
    for path in layout.tensors:
        for axis, values in enumerate(group.leaves[path.number]):
            yield (str(path), axis), values
    for path in layout.ints:
        number: Values | None
        if path.number < len(group.scalars):
            number = group.scalars[path.number]
        else:  # these calls leave it out
            value = layout.defaults[path.number - len(group.scalars)]
            number = Values(value, value, {value: group.calls})
        if number is not None:
            yield (str(path), None), number


def _names_of(variant: VariantFacts) -> Mapping[Column, _Name]:
    layout = variant.group.layout
    return {column: (str(layout.path(column)), column.axis) for column in variant.all_rows.columns}
