"""What is known of a variant, as plain data: models that dump to JSON and need no torch.

Every target (TensorRT, OpenVINO, ...) is a translation of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict

from calltape_analyzer.explanation import shown_value
from calltape_analyzer.findings import MAX_SIZES_SHOWN, SizeSeen
from calltape_analyzer.layout import Place
from calltape_analyzer.printable import printable
from calltape_analyzer.splitting import column_name
from calltape_analyzer.symbols import MAX_SYMBOLS_FOR_SUMS, Column, Symbol
from calltape_analyzer.tallies import Span
from calltape_analyzer.variants import Reason, VariantFacts

__all__ = [
    "DimensionFinding",
    "IntFinding",
    "SymbolFinding",
    "TensorFinding",
    "VariantFindings",
    "findings_of",
]

_THIN = 2


class _Finding(BaseModel):
    model_config = ConfigDict(frozen=True)


class SymbolFinding(_Finding):
    """Dimensions (and ints) that were always equal.

    Attributes:
        name: unique in its variant.
        expression: how it always followed from other symbols (``past_sequence_length + 1``), or
            None.
        dimensions: what it stands for: ``input_ids[0]``, or the name of an int.
        sizes: the values seen, smallest first, at most 64; ``distinct`` counts all.
        min, max: the smallest and largest; over the whole traffic, where the tape has counters of
            the calls that were not kept.
        warnings: where the evidence is thin.
    """

    name: str
    expression: str | None
    dimensions: tuple[str, ...]
    sizes: tuple[SizeSeen, ...]
    distinct: int
    min: int
    max: int
    warnings: tuple[str, ...] = ()


class DimensionFinding(_Finding):
    """One axis of a tensor.

    ``reason`` is ``varied``, ``pooled`` (in another variant, or seen once, in the siblings of the
    same list), ``neighbour`` (its argument was seen once, beside a dynamic dimension of the same
    axis and size), ``declared``, ``constant``, or ``one`` (it varied elsewhere, and is always 1
    here).
    ``min`` and ``max`` of a dynamic one are those of the whole traffic, where the tape has counters
    of the calls that were not kept.
    """

    axis: int
    dynamic: bool
    reason: Reason
    min: int
    max: int
    symbol: str | None = None


class TensorFinding(_Finding):
    """One tensor: where it stands, its name as an input of an exported program, and its axes.
    ``range`` is that of the elements of an integer tensor, where it is on the tape."""

    argument: str
    path: str
    name: str
    dtype: str
    dimensions: tuple[DimensionFinding, ...]
    range: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[int | str, ...]:
        """Sizes, and the names of symbols where they are dynamic."""
        return tuple(d.symbol or d.min for d in self.dimensions)


class IntFinding(_Finding):
    """One int: ``dynamic`` where it varied, else always ``min``; ``counts`` names the dimension
    that it always is, for a counter of a cache."""

    argument: str
    path: str
    name: str
    dynamic: bool
    min: int
    max: int
    symbol: str | None = None
    counts: str | None = None


class VariantFindings(_Finding):
    """Everything that is known of a variant.

    Attributes:
        name: unique on its tape.
        calls: how many it has; ``first_call`` is the number of the first.
        tensors, ints: its inputs, in flattening order.
        constants: the other scalars by place.
        varying: the kind of those that are no constants, by place: texts and floats that vary from
            call to call.
        symbols: its dynamic dimensions, by symbol.
        conditions: what its calls have in common besides their structure, in words.
        all_calls: how many calls there were, kept or not, where the tape has counters of them and
            these can tell (calls that only texts, floats or sizes set apart they cannot); else
            None.
        notes: dimensions and ints that are constant in the calls on the tape, and not in the whole
            traffic.
    """

    name: str
    calls: int
    first_call: int
    tensors: tuple[TensorFinding, ...]
    ints: tuple[IntFinding, ...]
    constants: dict[str, Any]
    varying: dict[str, str] = {}
    symbols: tuple[SymbolFinding, ...]
    conditions: tuple[str, ...] = ()
    all_calls: int | None = None
    notes: tuple[str, ...] = ()

    def symbol(self, name: str) -> SymbolFinding:
        """The symbol of a name."""
        return next(symbol for symbol in self.symbols if symbol.name == name)

    def warnings(self) -> Iterator[str]:
        """Where the evidence is thin."""
        for symbol in self.symbols:
            yield from (printable(f"{symbol.name}: {text}") for text in symbol.warnings)
        yield from map(printable, self.notes)


def findings_of(variant: VariantFacts, names: dict[int, str]) -> VariantFindings:
    """The findings of a variant, whose symbols have names.

    Args:
        variant: any variant.
        names: per tensor its name as an input of a program.
    """
    by_column = {c: symbol.name for symbol in variant.symbols for c in symbol.columns}
    layout = variant.group.layout
    group = variant.group
    counters = variant.counters
    return VariantFindings(
        name=variant.name,
        calls=variant.calls,
        first_call=variant.every.first.number,
        tensors=tuple(
            _tensor(variant, i, place, names[i], by_column)
            for i, place in enumerate(layout.tensors)
        ),
        ints=tuple(
            _int(variant, i, place, by_column, counters.get(i))
            for i, place in enumerate(variant.group.ints)
        ),
        constants={str(place): value for place, value in group.fixed()},
        varying={str(place): place.kind for place in group.varying},
        symbols=tuple(_symbol(variant, symbol) for symbol in variant.symbols),
        conditions=tuple(c.text(layout) for c in variant.conditions),
        all_calls=variant.all_calls,
        notes=tuple(_notes(variant)),
    )


def _tensor(
    variant: VariantFacts, i: int, place: Place, name: str, by_column: dict[Column, str]
) -> TensorFinding:
    dimensions = []
    for axis in range(variant.group.facts[i].rank):
        column = Column(i, axis)
        found = variant.dimensions[column]
        range_ = _range(variant, column)
        dimensions.append(
            DimensionFinding(
                axis=axis,
                dynamic=found.dynamic,
                reason=found.reason,
                min=range_.min,
                max=range_.max,
                symbol=by_column.get(column),
            )
        )
    span = variant.group.ranges.get(i)
    return TensorFinding(
        argument=place.argument,
        path=place.path,
        name=name,
        dtype=variant.group.facts[i].dtype,
        dimensions=tuple(dimensions),
        range=(span.min, span.max) if span is not None else None,
    )


def _int(
    variant: VariantFacts,
    i: int,
    place: Place,
    by_column: dict[Column, str],
    counted: Column | None,
) -> IntFinding:
    column = Column(i, None)
    range_ = _range(variant, column)
    return IntFinding(
        argument=place.argument,
        path=place.path,
        name=str(place),
        dynamic=variant.dimensions[column].dynamic,
        min=range_.min,
        max=range_.max,
        symbol=by_column.get(column),
        counts=column_name(variant.group.layout, counted) if counted is not None else None,
    )


def _range(variant: VariantFacts, column: Column) -> Span:
    """That of the whole traffic only where it is dynamic: a program takes a constant as it was."""
    if variant.dimensions[column].dynamic:
        return variant.span(column)
    return variant.every.span(column)


def _notes(variant: VariantFacts) -> Iterator[str]:
    for place in variant.group.varying:
        yield f"{place} ({place.kind}) varies: a trace has that of one call"
    for column, whole in variant.whole.items():
        found = variant.dimensions[column]
        told = whole.told()
        if told is not None and not found.dynamic and found.reason != "counter":
            yield f"{column_name(variant.group.layout, column)} is constant, but {told}"
    if variant.capped:
        yield "there are too many dimensions to compare all: some may be equal, or broadcast"
    capped = sum(symbol.capped for symbol in variant.symbols)
    if capped:
        yield (
            f"sums were sought among {MAX_SYMBOLS_FOR_SUMS} symbols: {capped} others of "
            f"{len(variant.symbols)} may follow from more"
        )


def _symbol(variant: VariantFacts, symbol: Symbol) -> SymbolFinding:
    sizes = variant.every.sizes(symbol.columns[0])
    shown = sorted(sizes.items(), key=lambda item: item[0])[:MAX_SIZES_SHOWN]
    span = variant.span(*symbol.columns)
    return SymbolFinding(
        name=symbol.name,
        expression=expression(variant, symbol),
        dimensions=tuple(column_name(variant.group.layout, c) for c in symbol.columns),
        sizes=tuple(
            SizeSeen(size=value, calls=seen.calls, first_call=seen.first.number)
            for value, seen in shown
        ),
        distinct=len(sizes),
        min=span.min,
        max=span.max,
        warnings=tuple(_warnings(variant, symbol)),
    )


def expression(variant: VariantFacts, symbol: Symbol) -> str | None:
    """How a symbol follows from others, as text."""
    if symbol.relation is None:
        return None
    terms = [
        variant.symbols[i].name
        if factor == 1
        else f"{shown_value(factor)}*{variant.symbols[i].name}"
        for factor, i in symbol.relation.terms
    ]
    constant = symbol.relation.constant
    text = " + ".join(terms)
    sign = "+" if constant > 0 else "-"
    return f"{text} {sign} {shown_value(abs(constant))}" if constant else text


def _warnings(variant: VariantFacts, symbol: Symbol) -> Iterator[str]:
    """Where a conclusion rests on little."""
    yield from _warnings_of_whole(variant, symbol)
    if variant.calls == 1:
        yield "one call is all the evidence"
    elif not symbol.varied:
        yield "never varied here; it is dynamic because it varied in other calls"
    sizes = variant.every.distinct(symbol.columns[0])
    if max(sizes) < 2:
        yield "no size of at least 2 was seen, and torch takes 0 and 1 for constants"
    axes = {c.axis for c in symbol.columns if c.axis is not None}
    arguments = {
        variant.group.layout.tensors[c.place].argument for c in symbol.columns if c.axis is not None
    }
    if len(axes) > 1 and (len(arguments) == 1 or len(variant.every) <= _THIN):
        where = " and ".join(column_name(variant.group.layout, c) for c in symbol.columns[:2])
        yield f"{where} were always equal, which may be chance"
    if symbol.relation is not None and len(sizes) <= _THIN:
        yield f"{expression(variant, symbol)} rests on {len(sizes)} distinct sizes"


def _warnings_of_whole(variant: VariantFacts, symbol: Symbol) -> Iterator[str]:
    """Where the whole traffic is not as the calls on the tape are."""
    known = [
        (column, variant.whole[column]) for column in symbol.columns if column in variant.whole
    ]
    told = next((text for _, whole in known if (text := whole.told()) is not None), None)
    if told is not None:
        yield str(told)
    if symbol.relation is not None and known:
        terms = [i for _, i in symbol.relation.terms]
        spans = {i: variant.span(*variant.symbols[i].columns) for i in terms}
        own = variant.span(*symbol.columns)
        low = symbol.relation.value({i: span.min for i, span in spans.items()})
        high = symbol.relation.value({i: span.max for i, span in spans.items()})
        if own.min < low or own.max > high:
            yield f"{expression(variant, symbol)} held in the kept calls, but not in all"
    for column, whole in known[1:]:
        if whole.values != known[0][1].values and not whole.shared_with:
            names = [column_name(variant.group.layout, c) for c in (known[0][0], column)]
            yield f"{' and '.join(names)} were equal in the kept calls, but not in all"
            return
