"""Why a dimension, an int or an argument is what it is, and which calls say so.

What is explained was decided in :mod:`variants` and :mod:`symbols`; here it is only looked up and
put in words. Needs no torch, and reads no tensor bytes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from calltape_analyzer.binding import Signature
from calltape_analyzer.errors import UsageError
from calltape_analyzer.explanation import (
    MAX_EXAMPLES,
    DimensionExplanation,
    Explanation,
    Listing,
    PartExplanation,
    Sighting,
    counted,
    listed,
    shown_value,
)
from calltape_analyzer.findings import MAX_SIZES_SHOWN
from calltape_analyzer.fixed_values import fixed_values, structure_values
from calltape_analyzer.observations import Group
from calltape_analyzer.pools import Pools, opened
from calltape_analyzer.splitting import Fixed, column_name
from calltape_analyzer.symbols import Column, Symbol, value_in
from calltape_analyzer.tallies import CallRef, Seen
from calltape_analyzer.variant_findings import expression
from calltape_analyzer.variants import Reason, VariantFacts

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape
    from calltape_analyzer.variant import Variant

__all__ = ["explain"]


def explain(tape: Tape, argument: str, axis: int | None = None, *, path: str = "") -> Explanation:
    """Says why a dimension, an int or an argument is what it is; see :meth:`Tape.explain`.

    Raises:
        UsageError: for something that no call passes, or a dimension that no tensor has.
    """
    text = f"{argument}.{path.lstrip('.')}" if path else argument
    variants = tape.variants()
    pooled = _Pooled(variants)
    looks = [_Look(tape, variant, pooled) for variant in variants]
    found = [_parts_of(look, text) for look in looks]
    if not any(found) and axis is None and (named := re.fullmatch(r"(.+)\[(-?\d{1,9})\]", text)):
        # As `calltape variants` and its warnings write a dimension.
        text, axis = named[1], int(named[2])
        found = [_parts_of(look, text) for look in looks]
    notes = list(_absences(variants, found, text))
    if not any(found) and axis is None:
        notes = []  # a variant may well do without a symbol
        found = [_parts_of_symbol(look, text) for look in looks]
    if not any(found):
        known = [p.name for p in Signature.of(tape.target).parameters if "VAR_" not in p.kind]
        if text in tape.removed:
            raise UsageError(
                f"{text} was left out with remove_inputs",
                advice="open the tape again",
            )
        if text not in known:
            raise _unknown(text, variants)
        notes = [f"no call passes {text}, or only its default"]
    parts = [part for parts in found for part in parts]
    if axis is not None and parts:
        parts, axis = _at_axis(parts, axis, text)
    return Explanation(text, axis, tuple(_alike(parts)), tuple(notes))


def _at_axis(
    parts: Sequence[PartExplanation], axis: int, text: str
) -> tuple[list[PartExplanation], int]:
    """The parts with one dimension each, and the axis counted from 0 (where that is one axis)."""
    made: list[PartExplanation] = []
    for part in parts:
        rank = len(part.dimensions)
        at = axis + rank if axis < 0 else axis
        if part.dtype is not None and 0 <= at < rank:
            made.append(replace(part, dimensions=(part.dimensions[at],)))
    if not made:
        ranks = sorted({len(p.dimensions) for p in parts if p.dtype is not None})
        what = f"tensors of rank {', '.join(map(str, ranks))}" if ranks else "no tensor"
        raise UsageError(f"{text} has no dimension {axis}: it is {what}", advice="leave it out")
    axes = {part.dimensions[0].axis for part in made}
    only = axes.pop() if len(axes) == 1 else axis
    return made, axis if only is None else only


def _parts_of(look: _Look, text: str) -> list[PartExplanation]:
    """What a variant has at a place, or below it."""
    group = look.facts.group
    found: list[PartExplanation] = []
    for i, place in enumerate(group.layout.tensors):
        if _is_below(str(place), text):
            axes = range(group.facts[i].rank)
            dimensions = tuple(look.dimension(Column(i, axis)) for axis in axes)
            part = look.part(str(place), place.kind)
            found.append(replace(part, dtype=group.facts[i].dtype, dimensions=dimensions))
    for i, place in enumerate(group.ints):
        if _is_below(str(place), text):
            dimensions = (look.dimension(Column(i, None)),)
            found.append(replace(look.part(str(place), "int"), dimensions=dimensions))
    found += (
        replace(look.part(value.place, value.kind), value=value.text)
        for value in fixed_values(group)
        if _is_below(value.place, text)
    )
    if not found and text in group.layout.nodes:
        found.append(replace(look.part(text, group.layout.nodes[text].kind), value="(empty)"))
    return found


def _parts_of_symbol(look: _Look, name: str) -> list[PartExplanation]:
    """The first dimension (or int) that a symbol of this name stands for."""
    group = look.facts.group
    made: list[PartExplanation] = []
    for symbol in look.facts.symbols:
        if symbol.name == name:
            column = symbol.columns[0]
            is_int = column.axis is None
            place = group.ints[column.place] if is_int else group.layout.tensors[column.place]
            dtype = None if is_int else group.facts[column.place].dtype
            part = look.part(str(place), place.kind)
            made.append(replace(part, dtype=dtype, dimensions=(look.dimension(column),)))
    return made


def _is_below(name: str, text: str) -> bool:
    return name == text or name.startswith(f"{text}.")


def _absences(
    variants: Sequence[Variant], found: Sequence[Sequence[PartExplanation]], text: str
) -> Iterator[str]:
    without = [v for v, parts in zip(variants, found, strict=True) if not parts]
    calls = sum(len(v) for v in without)
    if calls:
        names = ", ".join(v.name for v in without)
        yield f"{text} is left out, or its default, in {counted(calls, 'call')}: {names}"


def _alike(parts: Sequence[PartExplanation]) -> Iterator[PartExplanation]:
    """Parts of one variant that differ in their place only, as one."""
    same: dict[Any, list[PartExplanation]] = {}
    for part in parts:
        same.setdefault(_key(part), []).append(part)
    for first, *others in same.values():
        places = (*first.places, *(name for part in others for name in part.places))
        dimensions = tuple(_without(d, _at_all(places, d.axis)) for d in first.dimensions)
        yield replace(first, places=places, dimensions=dimensions)


def _without(found: DimensionExplanation, names: set[str]) -> DimensionExplanation:
    return replace(found, equals=tuple(name for name in found.equals if name not in names))


def _at_all(places: Sequence[str], axis: int | None) -> set[str]:
    return {name if axis is None else f"{name}[{axis}]" for name in places}


def _key(part: PartExplanation) -> Any:
    dimensions = tuple(
        (d.axis, d.dynamic, d.reason, d.symbol, d.seen, d.distinct, d.whole)
        for d in part.dimensions
    )
    return part.variant, part.kind, part.dtype, part.value, dimensions


def _unknown(text: str, variants: Sequence[Variant]) -> UsageError:
    places: dict[str, None] = {}
    arguments: dict[str, None] = {}
    for variant in variants:
        layout = variant.facts.group.layout
        arguments |= dict.fromkeys(layout.arguments)
        places |= dict.fromkeys(layout.arguments)
        places |= dict.fromkeys(map(str, (*layout.tensors, *layout.scalars)))
        places |= dict.fromkeys(value.place for value in structure_values(layout))
    close = difflib.get_close_matches(text, islice(places, 4096), n=3)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    known = listed(list(arguments), 12) or "none"
    return UsageError(f"no call passes {text}", advice=f"{meant}The arguments are: {known}")


class _Pooled:
    """The same dimension in other variants, and in siblings of a list."""

    def __init__(self, variants: Sequence[Variant]) -> None:
        self._variants = variants

    @cached_property
    def _columns(self) -> dict[Hashable, list[tuple[VariantFacts, Column]]]:
        found: dict[Hashable, list[tuple[VariantFacts, Column]]] = {}
        for facts in (variant.facts for variant in self._variants):
            for column in facts.dimensions:
                key = opened(Pools.key(facts.group, column))
                found.setdefault(key, []).append((facts, column))
        return found

    def values(self, group: Group, column: Column) -> list[tuple[int, Seen, VariantFacts, Column]]:
        """Each value that a dimension had, where it was first seen."""
        key = opened(Pools.key(group, column))
        if key not in self._values:
            first: dict[int, tuple[int, Seen, VariantFacts, Column]] = {}
            for facts, other in self._columns.get(key, ()):
                for value, seen in facts.every.sizes(other).items():
                    first.setdefault(value, (value, seen, facts, other))
            self._values[key] = list(first.values())
        return self._values[key]

    @cached_property
    def _values(self) -> dict[Hashable, list[tuple[int, Seen, VariantFacts, Column]]]:
        return {}


@dataclass(frozen=True)
class _Look:
    """Finds the reasons of the columns of one variant."""

    tape: Tape
    variant: Variant
    pooled: _Pooled

    @cached_property
    def _symbols(self) -> dict[Column, int]:
        """By column, the number of its symbol."""
        every = enumerate(self.facts.symbols)
        return {column: i for i, symbol in every for column in symbol.columns}

    @cached_property
    def _followers(self) -> dict[int, list[Symbol]]:
        """By the number of a symbol, those that are computed from it."""
        found: dict[int, list[Symbol]] = {}
        for other in self.facts.symbols:
            for i in dict.fromkeys(i for _, i in other.relation.terms) if other.relation else ():
                found.setdefault(i, []).append(other)
        return found

    @cached_property
    def _told(self) -> dict[str, tuple[str, ...]]:
        """By the name of a symbol, its warnings."""
        return {symbol.name: symbol.warnings for symbol in self.variant.findings.symbols}

    @cached_property
    def _dynamic(self) -> dict[tuple[int | None, int], Listing]:
        """The dynamic columns by axis and first size."""
        row = self.facts.rows[0][0]
        found: dict[tuple[int | None, int], list[str]] = {}
        for column in self.facts.dynamic():
            name = column_name(self.facts.group.layout, column)
            found.setdefault((column.axis, value_in(row, column)), []).append(name)
        return {key: Listing(names) for key, names in found.items()}

    @cached_property
    def _names(self) -> dict[int, tuple[str, ...]]:
        return {}

    @cached_property
    def _warned(self) -> dict[int, tuple[str, ...]]:
        """Of each symbol, once: it may stand for thousands of dimensions."""
        symbols = self.facts.symbols
        return {i: tuple(self._warnings(symbols[i])) for i in set(self._symbols.values())}

    @property
    def facts(self) -> VariantFacts:
        return self.variant.facts

    def part(self, place: str, kind: str) -> PartExplanation:
        """A part that is to be filled in."""
        first = self.facts.every.first
        return PartExplanation(self.facts.name, self.facts.calls, first.number, (place,), kind)

    def dimension(self, column: Column) -> DimensionExplanation:
        facts = self.facts
        decided = facts.dimensions[column]
        sizes = facts.every.sizes(column)
        shown = sorted(sizes.items(), key=lambda item: item[0])
        if len(shown) > MAX_SIZES_SHOWN:
            shown = [*shown[: MAX_SIZES_SHOWN // 2], *shown[-MAX_SIZES_SHOWN // 2 :]]
        made = DimensionExplanation(
            axis=column.axis,
            dynamic=decided.dynamic,
            reason=decided.reason,
            seen=tuple(self._sighting(value, seen) for value, seen in shown),
            distinct=len(sizes),
            why=self._why(column, decided.reason, len(sizes)),
            warnings=self._warnings_of_constant(column),
        )
        if column in facts.whole:
            made = replace(made, whole=facts.whole[column].told())
        number = self._symbols.get(column)
        return made if number is None else self._with_symbol(made, number)

    def _sighting(self, value: int, seen: Seen) -> Sighting:
        return Sighting(value, seen.calls, seen.first.number, self._path(seen.first))

    def _path(self, ref: CallRef) -> str | None:
        return self.tape.calls.at(ref).path if len(self.tape.paths) > 1 else None

    def _with_symbol(self, made: DimensionExplanation, number: int) -> DimensionExplanation:
        symbol = self.facts.symbols[number]
        if number not in self._names:
            layout = self.facts.group.layout
            self._names[number] = tuple(column_name(layout, c) for c in symbol.columns)
        follows = expression(self.facts, symbol)
        return replace(
            made,
            symbol=symbol.name,
            equals=self._names[number],  # itself among them, until it is put beside its like
            expression=follows,
            holds=self.facts.calls if follows else 0,
            related=tuple(self._related(number)),
            warnings=(*made.warnings, *self._warned[number]),
        )

    def _why(self, column: Column, reason: Reason, distinct: int) -> str:
        calls = counted(self.facts.calls, "call")
        layout = self.facts.group.layout
        value = shown_value(value_in(self.facts.rows[0][0], column))
        if reason == "varied":
            return f"{distinct} values in {calls}"
        if reason == "counter":
            counts = column_name(layout, self.facts.counters[column.place])
            return f"it counts, and always equals {counts}, in {self.facts.calls} of {calls}"
        if reason == "neighbour":
            return (
                f"always {value} in {calls}, but its argument was seen once, and beside it "
                f"{self._neighbours(column)} of the same axis and size is dynamic"
            )
        here = f"always {value}, in {self.facts.calls} of {calls}"
        if any(isinstance(c, Fixed) and c.column == column for c in self.facts.conditions):
            return f"{here}; it broadcasts, and calls where it is not {value} are another variant"
        if reason == "pooled":
            return f"{here}, but elsewhere it was {self._elsewhere(column)}"
        if reason == "one":
            return (
                f"{here}; elsewhere it was {self._elsewhere(column)}, but torch.export "
                f"takes 0 and 1 for constants"
            )
        return here

    def _neighbours(self, column: Column) -> str:
        size = value_in(self.facts.rows[0][0], column)
        name = column_name(self.facts.group.layout, column)
        return self._dynamic[column.axis, size].without(name)

    def _elsewhere(self, column: Column) -> str:
        """Other values of the same dimension in other variants, or in siblings of a list."""
        group = self.facts.group
        own = value_in(self.facts.rows[0][0], column)
        every = self.pooled.values(group, column)
        shown: list[str] = []
        for value, seen, facts, c in islice((e for e in every if e[0] != own), MAX_EXAMPLES):
            name = column_name(facts.group.layout, c)
            where = "" if name == column_name(group.layout, column) else f"as {name} "
            at = f"{where}in {facts.name}, call {seen.first.number}"
            shown.append(f"{shown_value(value)} ({at})")
        more = len(every) - 1 - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more > 0 else "")

    def _related(self, number: int) -> Iterator[str]:
        """What the symbols of its expression are, and what follows from it."""
        facts, layout = self.facts, self.facts.group.layout
        symbol = facts.symbols[number]
        for _, i in symbol.relation.terms if symbol.relation else ():
            term = facts.symbols[i]
            columns = [column_name(layout, c) for c in term.columns]
            yield f"where {term.name} is {listed(columns)}"
        for other in self._followers.get(number, ()):
            yield f"from it follows {other.name}: always {expression(facts, other)}"

    def _warnings(self, symbol: Symbol) -> Iterator[str]:
        known = self._told[symbol.name]
        told = {str(self.facts.whole[c].told()) for c in symbol.columns if c in self.facts.whole}
        yield from (text for text in known if text not in told)  # a line of its own
        layout = self.facts.group.layout
        first = next((c for c in symbol.columns if c.axis == 0), None)
        later = next((c for c in symbol.columns if c.axis), None)
        if first and later and not any("always equal" in text for text in known):
            names = f"{column_name(layout, first)} and {column_name(layout, later)}"
            yield f"{names}, a first dimension and a later one, were always equal; is that chance?"
        if symbol.ambiguous:
            yield "another symbol never differed from it in these calls; only other calls tell"

    def _warnings_of_constant(self, column: Column) -> tuple[str, ...]:
        found = self.facts.dimensions[column]
        whole = self.facts.whole.get(column)
        if not found.dynamic and whole is not None and whole.is_wider:
            return ("it is constant in the kept calls only: keep calls of its other sizes too",)
        if found.reason == "constant" and self.facts.calls == 1:
            return ("one call is all the evidence that it is constant",)
        return ()
