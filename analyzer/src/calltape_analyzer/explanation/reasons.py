"""Why each dimension and int of one variant is what it is, in words, and which calls say so.

In come the facts of a variant, which were decided in ``variants/``, and those of the others. Out go
the parts of an explanation. Nothing is decided here; no tensor bytes are read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from calltape_analyzer.explanation.explanation import (
    DimensionExplanation,
    PartExplanation,
    Sighting,
)
from calltape_analyzer.observing.fixed_values import fixed_values
from calltape_analyzer.observing.groups import Group
from calltape_analyzer.observing.layout import LeafPath
from calltape_analyzer.observing.size_table import Column
from calltape_analyzer.observing.sorting import CallSource
from calltape_analyzer.observing.tallies import MAX_SIZES_SHOWN, Seen
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.text import MAX_EXAMPLES, Listing, counted, listed, shown_value
from calltape_analyzer.variant import Variant
from calltape_analyzer.variants.derivation import Pools, key_over_lists
from calltape_analyzer.variants.facts import Fixed, Reason, VariantFacts
from calltape_analyzer.variants.symbols import Symbol
from calltape_analyzer.variants.variant_findings import expression

__all__ = ["OtherVariants", "VariantReasons", "parts_of", "parts_of_symbol", "reasons_of"]


def reasons_of(tape: CallSource, variants: Sequence[Variant]) -> list[VariantReasons]:
    """The reasons of each variant of a tape, which are evidence of each other."""
    others = OtherVariants(variants)
    return [VariantReasons(tape, variant, others) for variant in variants]


def parts_of(reasons: VariantReasons, text: str) -> list[PartExplanation]:
    """What a variant has at a path, or below it."""
    group = reasons.facts.group
    found: list[PartExplanation] = []
    for i, (place, name) in enumerate(reasons.tensors):
        if _is_below(name, text):
            dimensions = tuple(reasons.dimension(column) for column in group.dimensions(i))
            dtype = group.facts[i].dtype
            layouts = reasons.variant.findings.tensors[i].layouts
            made = reasons.part(name, place.kind, dtype=dtype, dimensions=dimensions)
            found.append(made.model_copy(update={"layouts": layouts}))
    for column, place in zip(group.layout.int_columns, group.ints, strict=True):
        if _is_below(str(place), text):
            dimensions = (reasons.dimension(column),)
            found.append(reasons.part(str(place), "int", dimensions=dimensions))
    found += (
        reasons.part(value.place, value.kind, value=value.text)
        for value in fixed_values(group, text)
        if _is_below(value.place, text)
    )
    if not found and text in group.layout.nodes:
        found.append(reasons.part(text, group.layout.nodes[text].kind, value="(empty)"))
    return found


def parts_of_symbol(reasons: VariantReasons, name: str) -> list[PartExplanation]:
    """The first dimension (or int) of a symbol of this name."""
    group = reasons.facts.group
    made: list[PartExplanation] = []
    for symbol in reasons.facts.symbols:
        if symbol.name == name:
            column = symbol.columns[0]
            place = group.layout.path(column)
            dtype = group.dtype(column)
            found = reasons.dimension(column)
            others = tuple(n for n in found.equals if n != group.layout.column_name(column))
            dimensions = (found.model_copy(update={"equals": others}),)
            made.append(reasons.part(str(place), place.kind, dtype=dtype, dimensions=dimensions))
    return made


def _is_below(name: str, text: str) -> bool:
    """Whether a path is the one that was asked about, or below it. A ``*`` stands for the number of
    any item of a list, as ``calltape variants`` prints several of them."""
    if "*" not in text:
        return name == text or name.startswith(f"{text}.")
    parts, asked = name.split("."), text.split(".")
    return len(parts) >= len(asked) and all(
        part == wanted or (wanted == "*" and part.isdecimal())
        for part, wanted in zip(parts, asked, strict=False)
    )


class OtherVariants:
    """All variants, to find the values that a dimension has in the others, and in siblings of the
    same list."""

    def __init__(self, variants: Sequence[Variant]) -> None:
        self._variants = variants

    @cached_property
    def _columns(self) -> dict[Hashable, list[tuple[VariantFacts, Column]]]:
        found: dict[Hashable, list[tuple[VariantFacts, Column]]] = {}
        for facts in (variant.facts for variant in self._variants):
            for column in facts.dimensions:
                key = key_over_lists(Pools.key(facts.group, column))
                found.setdefault(key, []).append((facts, column))
        return found

    def values(self, group: Group, column: Column) -> list[tuple[int, Seen, VariantFacts, Column]]:
        """Each value that a dimension had in any variant, with its first variant and column
        there."""
        key = key_over_lists(Pools.key(group, column))
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
class VariantReasons:
    """Why the columns of one variant are what they are.

    Attributes:
        tape: the tape, which gives the file of a call.
        variant: the variant.
        others: all variants.
    """

    tape: CallSource
    variant: Variant
    others: OtherVariants

    @cached_property
    def tensors(self) -> list[tuple[LeafPath, str]]:
        """The places of the tensors, with their names."""
        return [(place, str(place)) for place in self.facts.group.layout.tensors]

    @cached_property
    def _symbols(self) -> dict[Column, int]:
        """The number of its symbol, by column."""
        every = enumerate(self.facts.symbols)
        return {column: i for i, symbol in every for column in symbol.columns}

    @cached_property
    def _followers(self) -> dict[int, list[Symbol]]:
        """The symbols that are computed from a symbol, by its number."""
        found: dict[int, list[Symbol]] = {}
        for other in self.facts.symbols:
            for i in dict.fromkeys(i for _, i in other.relation.terms) if other.relation else ():
                found.setdefault(i, []).append(other)
        return found

    @cached_property
    def _told(self) -> dict[str, tuple[str, ...]]:
        """The warnings of a symbol, by its name."""
        return {symbol.name: symbol.warnings for symbol in self.variant.findings.symbols}

    @cached_property
    def _dynamic(self) -> dict[tuple[int | None, int], Listing]:
        """The dynamic columns by axis and first size."""
        rows = self.facts.rows
        found: dict[tuple[int | None, int], list[str]] = {}
        for column in self.facts.dynamic():
            name = self.facts.group.layout.column_name(column)
            found.setdefault((column.axis, rows.value(0, column)), []).append(name)
        return {key: Listing(names) for key, names in found.items()}

    @cached_property
    def _of_symbols(self) -> dict[int, dict[str, Any]]:
        return {}

    @cached_property
    def _sightings(self) -> dict[int, tuple[Sighting, ...]]:
        return {}

    @cached_property
    def _warned(self) -> dict[int, tuple[str, ...]]:
        """The warnings of each symbol, by its number."""
        symbols = self.facts.symbols
        return {i: tuple(self._warnings(symbols[i])) for i in set(self._symbols.values())}

    @cached_property
    def warnings(self) -> dict[str, tuple[str, ...]]:
        """What has thin evidence, by the name of the symbol: what the findings warn of, and what
        only an explanation does."""
        return {
            one.name: tuple(dict.fromkeys((*self._told[one.name], *self._warnings(one))))
            for one in self.facts.symbols
        }

    @property
    def facts(self) -> VariantFacts:
        return self.variant.facts

    def part(
        self,
        place: str,
        kind: str,
        *,
        dtype: str | None = None,
        value: str | None = None,
        dimensions: tuple[DimensionExplanation, ...] = (),
    ) -> PartExplanation:
        """What this variant has at a place."""
        context = self.facts.group.layout.context
        return PartExplanation(
            variant=self.facts.name,
            calls=self.facts.calls,
            first_call=self.facts.every.first.number,
            places=(place,),
            kind=kind,
            dtype=dtype,
            value=value,
            dimensions=dimensions,
            address=self.tape.calls.address_of(self.facts.every.first),
            context=context.separating() if context.key else None,
        )

    def dimension(self, column: Column) -> DimensionExplanation:
        """Why a dimension, or an int, is dynamic or constant."""
        facts = self.facts
        decided = facts.dimensions[column]
        distinct = len(facts.every.distinct(column))
        number = self._symbols.get(column)
        own_warnings = self._warnings_of_constant(column)
        return DimensionExplanation(
            axis=column.axis,
            dynamic=decided.dynamic,
            reason=decided.reason,
            seen=self._seen(column),
            distinct=distinct,
            why=self._why(column, decided.reason, distinct),
            warnings=own_warnings if number is None else (*own_warnings, *self._warned[number]),
            whole=facts.counted[column].wider_range() if column in facts.counted else None,
            **({} if number is None else self._of_symbol(number)),
        )

    def _seen(self, column: Column) -> tuple[Sighting, ...]:
        """The values of a column, the smallest and the largest ones if they are many. Columns that
        never differed share them: there may be thousands."""
        line = self.facts.every.line(column)
        if line not in self._sightings:
            shown = sorted(self.facts.every.sizes(column).items(), key=lambda item: item[0])
            if len(shown) > MAX_SIZES_SHOWN:
                shown = [*shown[: MAX_SIZES_SHOWN // 2], *shown[-MAX_SIZES_SHOWN // 2 :]]
            self._sightings[line] = tuple(self._sighting(value, seen) for value, seen in shown)
        return self._sightings[line]

    def _sighting(self, value: int, seen: Seen) -> Sighting:
        return Sighting(
            value=value,
            calls=seen.calls,
            first_call=seen.first.number,
            path=self._path(seen.first),
            address=self.tape.calls.address_of(seen.first),
        )

    def _path(self, ref: CallRef) -> str | None:
        return self.tape.calls.path(ref) if len(self.tape.paths) > 1 else None

    def _of_symbol(self, number: int) -> dict[str, Any]:
        """What an explanation says of a symbol. It is made once, because a symbol may stand for
        thousands of dimensions."""
        if number not in self._of_symbols:
            symbol = self.facts.symbols[number]
            layout = self.facts.group.layout
            follows = expression(self.facts, symbol)
            self._of_symbols[number] = {
                "symbol": symbol.name,
                # The dimension that is explained is among them until parts that are alike are one.
                "equals": tuple(layout.column_name(c) for c in symbol.columns),
                "expression": follows,
                "holds": self.facts.calls if follows else 0,
                "related": tuple(self._related(number)),
            }
        return self._of_symbols[number]

    def _why(self, column: Column, reason: Reason, distinct: int) -> str:
        calls = counted(self.facts.calls, "call")
        layout = self.facts.group.layout
        value = shown_value(self.facts.rows.value(0, column))
        if reason == "varied":
            return f"{distinct} values in {calls}"
        if reason == "counter":
            counts = layout.column_name(self.facts.counting_ints[column])
            return f"it counts, and always equals {counts}, in {self.facts.calls} of {calls}"
        if reason == "neighbour":
            return (
                f"always {value} in {calls}, but beside it {self._neighbours(column)} of the same "
                f"axis and size is dynamic, and they never differed"
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
        size = self.facts.rows.value(0, column)
        name = self.facts.group.layout.column_name(column)
        return self._dynamic[column.axis, size].without(name)

    def _elsewhere(self, column: Column) -> str:
        """Other values of the same dimension in other variants, or in siblings of a list."""
        group = self.facts.group
        own = self.facts.rows.value(0, column)
        every = self.others.values(group, column)
        shown: list[str] = []
        for value, seen, facts, c in islice((e for e in every if e[0] != own), MAX_EXAMPLES):
            name = facts.group.layout.column_name(c)
            where = "" if name == group.layout.column_name(column) else f"as {name} "
            at = f"{where}in {facts.name}, call {self.tape.calls.shown(seen.first)}"
            shown.append(f"{shown_value(value)} ({at})")
        more = len(every) - 1 - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more > 0 else "")

    def _related(self, number: int) -> Iterator[str]:
        """What the symbols of its expression are, and which symbols follow from it."""
        facts, layout = self.facts, self.facts.group.layout
        symbol = facts.symbols[number]
        for _, i in symbol.relation.terms if symbol.relation else ():
            term = facts.symbols[i]
            columns = [layout.column_name(c) for c in term.columns]
            yield f"where {term.name} is {listed(columns)}"
        for other in self._followers.get(number, ()):
            yield f"from it follows {other.name}: always {expression(facts, other)}"

    def _warnings(self, symbol: Symbol) -> Iterator[str]:
        known = self._told[symbol.name]
        counted = self.facts.counted
        told = {str(counted[c].wider_range()) for c in symbol.columns if c in counted}
        # The range over the whole traffic has a line of its own.
        yield from (text for text in known if text not in told)
        layout = self.facts.group.layout
        first = next((c for c in symbol.columns if c.axis == 0), None)
        later = next((c for c in symbol.columns if c.axis), None)
        if first and later and not any("always equal" in text for text in known):
            names = f"{layout.column_name(first)} and {layout.column_name(later)}"
            yield f"{names}, a first dimension and a later one, were always equal; is that chance?"
        if symbol.ambiguous:
            yield "another symbol never differed from it in these calls; only other calls tell"

    def _warnings_of_constant(self, column: Column) -> tuple[str, ...]:
        found = self.facts.dimensions[column]
        whole = self.facts.counted.get(column)
        if not found.dynamic and whole is not None and whole.is_wider:
            return ("it is constant in the kept calls only: keep calls of its other sizes too",)
        if found.reason == "constant" and self.facts.calls == 1:
            return ("one call is all the evidence that it is constant",)
        return ()
