"""Why a dimension, an int or an argument is what it is.

Takes the variants of a tape, which were decided in ``variants/``, and the text that names the
subject: an argument, a path below it, or a symbol; returns an explanation: what each variant has
there, with the reasons of its dimensions and the calls that show them. Nothing is decided here; no
tensor bytes are read.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Hashable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

from calltape_analyzer.errors import UsageError
from calltape_analyzer.explanation import (
    DimensionExplanation,
    Explanation,
    PartExplanation,
    Sighting,
)
from calltape_analyzer.observing.distinctions import fixed_values, structure_values
from calltape_analyzer.observing.groups import Group
from calltape_analyzer.observing.layout import LeafPath
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.size_table import Column, Seen
from calltape_analyzer.observing.sorting import CallSource
from calltape_analyzer.text import (
    MAX_EXAMPLES,
    Listing,
    counted,
    listed,
    shown_value,
    variant_names,
)
from calltape_analyzer.variant import Variant
from calltape_analyzer.variants.derivation import Pools, key_over_lists
from calltape_analyzer.variants.facts import Fixed, Reason, VariantFacts
from calltape_analyzer.variants.symbols import Symbol
from calltape_analyzer.variants.variant_findings import (
    MAX_SIZES_SHOWN,
    expression,
    may_be_chance,
    warnings_of,
)

__all__ = ["explain"]


def explain(
    tape: CallSource,
    variants: Sequence[Variant],
    argument: str,
    axis: int | None = None,
    *,
    only: Collection[str] | None = None,
) -> Explanation:
    """Says why a dimension, an int or an argument is what it is; see :meth:`Tape.explain`.

    Args:
        tape: has the calls.
        variants: all of its variants, which are evidence of each other.
        argument, axis: as there.
        only: the names of the variants to explain; all by default.

    Raises:
        UsageError: no call passes the subject, or no tensor there has the dimension.
    """
    text = argument
    other_variants = _OtherVariants(variants)
    chosen = [variant for variant in variants if only is None or variant.name in only]
    reasons = [_VariantReasons(tape, variant, other_variants) for variant in chosen]
    parts_by_variant = [_parts_of(variant_reasons, text) for variant_reasons in reasons]
    if (
        not any(parts_by_variant)
        and axis is None
        and (named := re.fullmatch(r"(.+)\[(-?\d{1,9})\]", text))
    ):
        # `calltape variants` and its warnings write a dimension in this way.
        text, axis = named[1], int(named[2])
        parts_by_variant = [_parts_of(variant_reasons, text) for variant_reasons in reasons]
    without = [v for v, parts in zip(chosen, parts_by_variant, strict=True) if not parts]
    left_out = sum(map(len, without))
    notes = []
    if left_out:
        names = variant_names([v.name for v in without])
        notes = [f"{text} is left out, or its default, in {counted(left_out, 'call')}: {names}"]
    if not any(parts_by_variant) and axis is None:
        notes = []  # a symbol that a variant does not have is not left out of its calls
        parts_by_variant = [_parts_of_symbol(variant_reasons, text) for variant_reasons in reasons]
    if not any(parts_by_variant) and (name := _name_at(text, tape)) is not None:
        return explain(tape, variants, name, axis, only=only)
    if not any(parts_by_variant):
        parameter_names = [
            p.name for p in Signature.of(tape.target).parameters if "VAR_" not in p.kind
        ]
        if text in tape.removed:
            raise UsageError(
                f"{text} was left out with remove_inputs",
                advice="open the tape again",
            )
        if axis is not None and any(
            _parts_of_symbol(variant_reasons, text) for variant_reasons in reasons
        ):
            raise UsageError(f"{text} is a symbol, which has no axes", advice="leave the axis out")
        if text not in parameter_names:
            raise _unknown(text, chosen)
        notes = [f"no call passes {text}, or only its default"]
    parts = [part for parts in parts_by_variant for part in parts]
    if axis is not None and parts:
        parts, axis = _at_axis(parts, axis, text)
    return Explanation(
        subject=text, axis=axis, parts=tuple(_merged_alike(parts)), notes=tuple(notes)
    )


def _name_at(text: str, tape: CallSource) -> str | None:
    """What an argument is called that the text names by its position: ``0``, or ``0.keys``."""
    position, dot, below = text.partition(".")
    if not (position.isascii() and position.isdecimal() and len(position) < 4):
        return None
    signature = Signature.of(tape.target)
    names = [parameter.name for parameter in signature.parameters if parameter.kind in _BY_POSITION]
    if int(position) >= len(names) and signature.variadic_positional is None:
        return None
    name = signature.name_at(int(position))
    return None if name in tape.removed else f"{name}{dot}{below}"


_BY_POSITION = ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")


def _at_axis(
    parts: Sequence[PartExplanation], axis: int, text: str
) -> tuple[list[PartExplanation], int]:
    """The parts with one dimension each, and the axis, counted from 0 if it is the same in all."""
    at_axis: list[PartExplanation] = []
    for part in parts:
        rank = len(part.dimensions)
        number = axis + rank if axis < 0 else axis
        if part.dtype is not None and 0 <= number < rank:
            at_axis.append(part.model_copy(update={"dimensions": (part.dimensions[number],)}))
    if not at_axis:
        ranks = sorted({len(p.dimensions) for p in parts if p.dtype is not None})
        what = f"its rank is {' or '.join(map(str, ranks))}" if ranks else "it is not a tensor"
        raise UsageError(f"{text} has no dimension {axis}: {what}", advice="leave it out")
    axes = {part.dimensions[0].axis for part in at_axis}
    only = axes.pop() if len(axes) == 1 else axis
    return at_axis, axis if only is None else only


def _merged_alike(parts: Sequence[PartExplanation]) -> Iterator[PartExplanation]:
    """Parts of one variant that differ in nothing but their place, as one part."""
    parts_of_look: dict[Any, list[PartExplanation]] = {}
    for part in parts:
        dimensions_key = tuple(
            (d.axis, d.dynamic, d.reason, d.symbol, d.seen, d.distinct, d.whole)
            for d in part.dimensions
        )
        key = part.variant, part.kind, part.dtype, part.value, dimensions_key, part.layouts
        parts_of_look.setdefault(key, []).append(part)
    for first, *repeats in parts_of_look.values():
        places = (*first.places, *(name for part in repeats for name in part.places))
        dimensions = []
        for dimension in first.dimensions:
            own_names = {
                name if dimension.axis is None else f"{name}[{dimension.axis}]" for name in places
            }
            equals = tuple(name for name in dimension.equals if name not in own_names)
            dimensions.append(dimension.model_copy(update={"equals": equals}))
        yield first.model_copy(update={"places": places, "dimensions": tuple(dimensions)})


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
    suggestion = f"did you mean {' or '.join(close)}? " if close else ""
    existing = listed(list(arguments), 12) or "none"
    return UsageError(f"no call passes {text}", advice=f"{suggestion}The arguments are: {existing}")


def _parts_of(reasons: _VariantReasons, text: str) -> list[PartExplanation]:
    """What a variant has at a path, or below it."""
    group = reasons.facts.group
    parts: list[PartExplanation] = []
    for i, (place, name) in enumerate(reasons.tensors):
        if _is_place_below(name, text):
            dimensions = tuple(reasons.dimension(column) for column in group.dimensions(i))
            dtype = group.facts[i].dtype
            layouts = reasons.variant.findings.tensors[i].layouts
            part = reasons.part(name, place.kind, dtype=dtype, dimensions=dimensions)
            parts.append(part.model_copy(update={"layouts": layouts}))
    for column, place in zip(group.layout.int_columns, group.layout.ints, strict=True):
        if _is_place_below(str(place), text):
            dimensions = (reasons.dimension(column),)
            parts.append(reasons.part(str(place), "int", dimensions=dimensions))
    parts += (
        reasons.part(value.place, value.kind, value=value.text, varies=value.varies)
        for value in fixed_values(group, text)
        if _is_place_below(value.place, text)
    )
    if not parts and text in group.layout.nodes:
        parts.append(reasons.part(text, group.layout.nodes[text].kind, value="(empty)"))
    return parts


def _parts_of_symbol(reasons: _VariantReasons, name: str) -> list[PartExplanation]:
    """The first dimension (or int) of a symbol of this name."""
    group = reasons.facts.group
    parts: list[PartExplanation] = []
    for symbol in reasons.facts.symbols:
        if symbol.name == name:
            column = symbol.columns[0]
            place = group.layout.path(column)
            dtype = group.dtype(column)
            dimension = reasons.dimension(column)
            other_names = tuple(
                n for n in dimension.equals if n != group.layout.column_name(column)
            )
            dimensions = (dimension.model_copy(update={"equals": other_names}),)
            parts.append(reasons.part(str(place), place.kind, dtype=dtype, dimensions=dimensions))
    return parts


def _is_place_below(name: str, text: str) -> bool:
    """Whether a path is the one that was asked for, or below it. A ``*`` matches the number of any
    list item, as ``calltape variants`` prints it."""
    if "*" not in text:
        return name == text or name.startswith(f"{text}.")
    parts, asked_parts = name.split("."), text.split(".")
    return len(parts) >= len(asked_parts) and all(
        part == asked_part or (asked_part == "*" and part.isdecimal())
        for part, asked_part in zip(parts, asked_parts, strict=False)
    )


_ValueSeen = tuple[int, Seen, VariantFacts, Column]
"""A value, the calls that have it, the first variant that does, and the column there."""


class _OtherVariants:
    """All variants, to find the values that a dimension has in the others, and in siblings of the
    same list."""

    def __init__(self, variants: Sequence[Variant]) -> None:
        self._variants = variants
        self._values: dict[Hashable, list[_ValueSeen]] = {}

    @cached_property
    def _columns(self) -> dict[Hashable, list[tuple[VariantFacts, Column]]]:
        columns: dict[Hashable, list[tuple[VariantFacts, Column]]] = {}
        for facts in (variant.facts for variant in self._variants):
            for column in facts.dimensions:
                key = key_over_lists(Pools.key(facts.group, column))
                columns.setdefault(key, []).append((facts, column))
        return columns

    def values(self, group: Group, column: Column) -> list[_ValueSeen]:
        """Each value that a dimension had in any variant, with its first variant and column
        there."""
        key = key_over_lists(Pools.key(group, column))
        if key not in self._values:
            first: dict[int, _ValueSeen] = {}
            for facts, other_column in self._columns.get(key, ()):
                for value, seen in facts.all_rows.sizes(other_column).items():
                    first.setdefault(value, (value, seen, facts, other_column))
            self._values[key] = list(first.values())
        return self._values[key]


class _VariantReasons:
    """Why the columns of one variant are what they are.

    Args:
        tape: the tape, which gives the file of a call.
        variant: the variant.
        others: all variants.
    """

    def __init__(self, tape: CallSource, variant: Variant, other_variants: _OtherVariants) -> None:
        self.tape = tape
        self.variant = variant
        self.facts = variant.facts
        self._others = other_variants
        self._of_symbols: dict[int, dict[str, Any]] = {}
        self._sightings: dict[int, tuple[Sighting, ...]] = {}
        self._symbols = {
            c: i for i, symbol in enumerate(self.facts.symbols) for c in symbol.columns
        }

    @cached_property
    def tensors(self) -> list[tuple[LeafPath, str]]:
        """The places of the tensors, with their names."""
        return [(place, str(place)) for place in self.facts.group.layout.tensors]

    @cached_property
    def _followers(self) -> dict[int, list[Symbol]]:
        """The symbols that are computed from a symbol, by its number."""
        followers: dict[int, list[Symbol]] = {}
        for symbol in self.facts.symbols:
            for i in dict.fromkeys(i for _, i in symbol.relation.terms) if symbol.relation else ():
                followers.setdefault(i, []).append(symbol)
        return followers

    @cached_property
    def _dynamic(self) -> dict[tuple[int | None, int], Listing]:
        """The dynamic columns by axis and first size."""
        rows = self.facts.rows
        dynamic: dict[tuple[int | None, int], list[str]] = {}
        for column in self.facts.dynamic():
            name = self.facts.group.layout.column_name(column)
            dynamic.setdefault((column.axis, rows.value(0, column)), []).append(name)
        return {key: Listing(names) for key, names in dynamic.items()}

    @cached_property
    def _warnings(self) -> list[tuple[str, ...]]:
        """The warnings of each symbol, by its number."""
        return [tuple(self._warnings_of(symbol)) for symbol in self.facts.symbols]

    def part(
        self,
        place: str,
        kind: str,
        *,
        dtype: str | None = None,
        value: str | None = None,
        varies: bool = False,
        dimensions: tuple[DimensionExplanation, ...] = (),
    ) -> PartExplanation:
        """What this variant has at a place."""
        context = self.facts.group.layout.context
        is_told = context.key and not self.facts.names_context
        return PartExplanation(
            variant=self.facts.name,
            calls=self.facts.calls,
            first_call=self.facts.all_rows.first.number,
            places=(place,),
            kind=kind,
            dtype=dtype,
            value=value,
            varies=varies,
            dimensions=dimensions,
            address=self.tape.calls.address_of(self.facts.all_rows.first),
            context=context.separating() if is_told else None,
        )

    def dimension(self, column: Column) -> DimensionExplanation:
        """Why a dimension, or an int, is dynamic or constant."""
        facts = self.facts
        decided = facts.dimensions[column]
        distinct = len(facts.all_rows.distinct(column))
        number = self._symbols.get(column)
        warnings: tuple[str, ...] = ()
        whole = facts.counted.get(column)
        if not decided.dynamic and whole is not None and whole.is_wider:
            warnings = ("it is constant in the kept calls only: keep calls of its other sizes too",)
        elif decided.reason == "constant" and facts.calls == 1:
            warnings = ("one call is all the evidence that it is constant",)
        return DimensionExplanation(
            axis=column.axis,
            dynamic=decided.dynamic,
            reason=decided.reason,
            seen=self._sizes_seen(column),
            distinct=distinct,
            why=self._why(column, decided.reason, distinct),
            warnings=warnings if number is None else (*warnings, *self._warnings[number]),
            whole=None if whole is None else whole.wider_range(),
            **({} if number is None else self._of_symbol(number)),
        )

    def _sizes_seen(self, column: Column) -> tuple[Sighting, ...]:
        """The values of a column, the smallest and the largest ones if they are many. Columns that
        never differed share them: there may be thousands."""
        line = self.facts.all_rows.line(column)
        if line not in self._sightings:
            shown = sorted(self.facts.all_rows.sizes(column).items(), key=lambda item: item[0])
            if len(shown) > MAX_SIZES_SHOWN:
                shown = [*shown[: MAX_SIZES_SHOWN // 2], *shown[-MAX_SIZES_SHOWN // 2 :]]
            calls = self.tape.calls
            self._sightings[line] = tuple(
                Sighting(
                    value=value,
                    calls=seen.calls,
                    first_call=seen.first.number,
                    path=calls.path(seen.first) if len(self.tape.paths) > 1 else None,
                    address=calls.address_of(seen.first),
                )
                for value, seen in shown
            )
        return self._sightings[line]

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
            neighbours = self._dynamic[column.axis, self.facts.rows.value(0, column)]
            return (
                f"always {value} in {calls}, but beside it "
                f"{neighbours.without(layout.column_name(column))} of the same axis and size is "
                "dynamic, "
                "and they never differed"
            )
        constancy = f"always {value}, in {self.facts.calls} of {calls}"
        if any(isinstance(c, Fixed) and c.column == column for c in self.facts.conditions):
            return (
                f"{constancy}; it broadcasts, and calls where it is not {value} are another variant"
            )
        if reason == "pooled":
            return f"{constancy}, but elsewhere it was {self._elsewhere(column)}"
        if reason == "one":
            return (
                f"{constancy}; elsewhere it was {self._elsewhere(column)}, but torch.export "
                f"takes 0 and 1 for constants"
            )
        return constancy

    def _elsewhere(self, column: Column) -> str:
        """Other values of the same dimension in other variants, or in siblings of a list."""
        group = self.facts.group
        size = self.facts.rows.value(0, column)
        elsewhere = self._others.values(group, column)
        shown: list[str] = []
        for value, seen, facts, c in islice((e for e in elsewhere if e[0] != size), MAX_EXAMPLES):
            name = facts.group.layout.column_name(c)
            where = "" if name == group.layout.column_name(column) else f"as {name} "
            where_seen = f"{where}in {facts.name}, call {self.tape.calls.label_of(seen.first)}"
            shown.append(f"{shown_value(value)} ({where_seen})")
        more = len(elsewhere) - 1 - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more > 0 else "")

    def _related(self, number: int) -> Iterator[str]:
        """What the symbols of its expression are, and which symbols follow from it."""
        facts, layout = self.facts, self.facts.group.layout
        symbol = facts.symbols[number]
        for _, i in symbol.relation.terms if symbol.relation else ():
            term = facts.symbols[i]
            columns = [layout.column_name(c) for c in term.columns]
            yield f"where {term.name} is {listed(columns)}"
        for follower in self._followers.get(number, ()):
            yield f"from it follows {follower.name}: always {expression(facts, follower)}"

    def _warnings_of(self, symbol: Symbol) -> Iterator[str]:
        # The range over the whole traffic has a line of its own.
        yield from warnings_of(self.facts, symbol, has_range=False)
        layout = self.facts.group.layout
        first = next((c for c in symbol.columns if c.axis == 0), None)
        later = next((c for c in symbol.columns if c.axis), None)
        if first and later and not may_be_chance(self.facts, symbol):
            names = f"{layout.column_name(first)} and {layout.column_name(later)}"
            yield f"{names}, a first dimension and a later one, were always equal; is that chance?"
        if symbol.ambiguous:
            yield "another symbol never differed from it in these calls; only other calls tell"
