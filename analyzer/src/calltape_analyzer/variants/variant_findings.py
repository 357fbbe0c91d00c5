"""What is known of a variant, as plain data: models that dump to JSON and need no torch.

Every target (TensorRT, OpenVINO, ...) translates these findings, and one table shows them in the
command, a REPL, a notebook and the page of the viewer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from pydantic import Field

from calltape_analyzer.observing.distinctions import structure_values
from calltape_analyzer.observing.groups import shown_constant
from calltape_analyzer.observing.memory_layout import LayoutSeen, layouts_in_words
from calltape_analyzer.observing.size_table import Column, Span
from calltape_analyzer.plain_data import PlainData, Sketch
from calltape_analyzer.pytree.placeholder import DATA_KEYS, has_data_keys
from calltape_analyzer.text import (
    counted,
    fitted,
    listed,
    merge_alike,
    printable,
    shown_range,
    shown_value,
    table_lines,
    unique,
)
from calltape_analyzer.variants.facts import Reason, VariantFacts
from calltape_analyzer.variants.symbols import MAX_SYMBOLS_FOR_SUMS, Symbol
from calltape_schema.tree import OpaqueNode, walk

__all__ = [
    "ARGUMENTS",
    "SYMBOLS",
    "DimensionFinding",
    "IntFinding",
    "SymbolFinding",
    "TensorFinding",
    "VariantFindings",
    "VariantTable",
    "findings_of",
    "may_be_chance",
    "symbol_rows",
    "warnings_of",
]


_THIN = 2


MAX_SIZES_SHOWN = 64
"""How many sizes of a dimension a finding lists."""


class SizeSeen(PlainData):
    """One size of a dimension, or one value of an int.

    Attributes:
        size: the size, or the value.
        calls: how many calls had it.
        first_call: the number of the first of them.
    """

    size: int
    calls: int
    first_call: int


class SymbolFinding(PlainData):
    """Dimensions (and ints) that were always equal.

    Attributes:
        name: unique in its variant.
        expression: how it always followed from other symbols (``past_sequence_length + 1``), or
            None.
        dimensions: the dimensions and ints that it stands for (``input_ids[0]``).
        sizes: the values seen, smallest first, at most 64; ``distinct`` counts all.
        min, max: the smallest and largest value; over all counted calls, if the tape has traffic
            counters.
        warnings: for which conclusions there is little evidence.
    """

    name: str
    expression: str | None
    dimensions: tuple[str, ...]
    sizes: tuple[SizeSeen, ...]
    distinct: int
    min: int
    max: int
    warnings: tuple[str, ...] = ()


class DimensionFinding(PlainData):
    """One axis of a tensor.

    Attributes:
        axis: its number.
        dynamic, reason: as in :class:`~calltape_analyzer.variants.facts.DimensionDecision`.
        min, max: its smallest and largest size; if it is dynamic and the tape has traffic counters,
            over all counted calls.
        symbol: its name, if it is dynamic.
    """

    axis: int
    dynamic: bool
    reason: Reason
    min: int
    max: int
    symbol: str | None = None


class TensorFinding(PlainData):
    """One tensor.

    Attributes:
        argument, path: where it stands.
        name: as an input of an exported program.
        dtype, dimensions: its dtype and axes.
        range: of the elements of an integer tensor, if it is on the tape.
        layouts: how many calls had which layout in memory, the most common first, by the names of
            :func:`~calltape_analyzer.observing.memory_layout.layout_name`: ``contiguous``,
            ``channels_last``, ``transposed (stride order 1,0)``, ``with gaps``, ``overlapping``,
            ``expanded (axis 0)``. Of variants that only sizes tell apart, each has the counts of
            all of them together if these are several (the notes say so).
    """

    argument: str
    path: str
    name: str
    dtype: str
    dimensions: tuple[DimensionFinding, ...]
    range: tuple[int, int] | None = None
    layouts: tuple[LayoutSeen, ...] = ()

    @property
    def shape(self) -> tuple[int | str, ...]:
        """The size of each axis, or the name of its symbol if it is dynamic."""
        return tuple(d.symbol or d.min for d in self.dimensions)


class IntFinding(PlainData):
    """One int. It is always ``min``, unless it is dynamic. If it is a token counter of a cache,
    ``counts`` names the dimension that it always equals."""

    argument: str
    path: str
    name: str
    dynamic: bool
    min: int
    max: int
    symbol: str | None = None
    counts: str | None = None


class VariantFindings(PlainData):
    """Everything that is known of a variant.

    Attributes:
        name: unique on its tape.
        calls: how many it has; ``first_call`` is the number of the first.
        address: the address of the first call, if the tape is of several recordings.
        tensors, ints: its inputs, in flattening order.
        constants: the other scalars, by path.
        varying: by path, the kind of each text and float that varies from call to call.
        symbols: its dynamic dimensions, by symbol.
        conditions: what its calls have in common besides their structure, in words.
        all_calls: how many calls were counted, kept or not; None if the tape has no traffic
            counters, or if they cannot tell its calls from the calls of another variant, because
            only texts, floats or sizes differ.
        context: what separates its calls from those in other contexts, in words: the autocast that
            they are under; None without one.
        notes: what limits the findings, such as dimensions that are constant in the calls on the
            tape, and not in all counted calls.
    """

    name: str
    calls: int
    first_call: int
    address: str | None = None
    tensors: tuple[TensorFinding, ...]
    ints: tuple[IntFinding, ...]
    constants: dict[str, Any]
    varying: dict[str, str] = Field(default_factory=dict)
    symbols: tuple[SymbolFinding, ...]
    conditions: tuple[str, ...] = ()
    all_calls: int | None = None
    context: str | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        inputs = f"{counted(len(self.tensors), 'tensor')}, {counted(len(self.ints), 'int')}"
        sizes = counted(len(self.symbols), "symbol")
        name, calls = printable(self.name), counted(self.calls, "call")
        return f"<VariantFindings {name}: {calls}, {inputs}, {sizes}>"

    def symbol(self, name: str) -> SymbolFinding:
        """The symbol of a name."""
        return next(symbol for symbol in self.symbols if symbol.name == name)

    def _sketch(self) -> Sketch:
        """The symbols."""
        rows = [
            (
                symbol.name,
                listed(symbol.dimensions),
                shown_range(symbol.min, symbol.max),
                symbol.expression or "",
                len(symbol.warnings) or "",
            )
            for symbol in self.symbols
        ]
        facts: list[tuple[str, object]] = [
            ("calls", self.calls),
            ("inputs", f"{counted(len(self.tensors), 'tensor')}, {counted(len(self.ints), 'int')}"),
        ]
        if self.constants:
            facts.append(("constants", listed(list(self.constants))))
        head = ("symbol", "dimensions", "sizes", "always", "warnings")
        return Sketch(f"Variant {self.name}", facts, head=head, rows=rows)

    def warnings(self) -> Iterator[str]:
        """For which conclusions there is little evidence."""
        for symbol in self.symbols:
            yield from (printable(f"{symbol.name}: {text}") for text in symbol.warnings)
        yield from map(printable, self.notes)


def findings_of(variant: VariantFacts, address: str | None = None) -> VariantFindings:
    """The findings of a variant, whose symbols have names.

    Args:
        variant: the variant.
        address: of its first call, if the tape is of several recordings.
    """
    by_column = {c: symbol.name for symbol in variant.symbols for c in symbol.columns}
    layout = variant.group.layout
    group = variant.group
    counting = variant.counting_ints
    names = unique(place.input_name for place in layout.tensors)
    return VariantFindings(
        name=variant.name,
        calls=variant.calls,
        first_call=variant.all_rows.first.number,
        address=address,
        tensors=tuple(_tensor(variant, i, name, by_column) for i, name in enumerate(names)),
        ints=tuple(
            _int(variant, column, by_column, counting.get(column)) for column in layout.int_columns
        ),
        constants={str(place): value for place, value in group.fixed()},
        varying={str(place): place.kind for place in group.varying},
        symbols=tuple(_symbol(variant, symbol) for symbol in variant.symbols),
        conditions=tuple(c.text(layout) for c in variant.conditions),
        all_calls=variant.all_calls,
        context=layout.context.separating() if layout.context.key else None,
        notes=tuple(_notes(variant)),
    )


def _tensor(
    variant: VariantFacts, number: int, name: str, by_column: dict[Column, str]
) -> TensorFinding:
    group = variant.group
    path = group.layout.tensors[number]
    dimensions = []
    for axis, column in enumerate(group.dimensions(number)):
        decision = variant.dimensions[column]
        range_ = _range(variant, column)
        dimensions.append(
            DimensionFinding(
                axis=axis,
                dynamic=decision.dynamic,
                reason=decision.reason,
                min=range_.min,
                max=range_.max,
                symbol=by_column.get(column),
            )
        )
    span = group.ranges.get(number)
    return TensorFinding(
        argument=path.argument,
        path=path.path,
        name=name,
        dtype=group.facts[number].dtype,
        dimensions=tuple(dimensions),
        range=(span.min, span.max) if span is not None else None,
        layouts=_layouts(variant, number),
    )


def _layouts(variant: VariantFacts, number: int) -> tuple[LayoutSeen, ...]:
    """How many calls had which layout of a tensor; those of all calls of the group if it had
    several, because a group does not know which sizes had which."""
    group = variant.group
    layouts = group.formats[number].most_common() if group.formats else []
    if len(layouts) == 1:
        layouts = [(layouts[0][0], variant.calls)]
    return tuple(LayoutSeen(name=name, calls=calls) for name, calls in layouts)


def _int(
    variant: VariantFacts, column: Column, by_column: dict[Column, str], dimension: Column | None
) -> IntFinding:
    """The finding of an int, with the dimension that it counts."""
    layout = variant.group.layout
    path = layout.path(column)
    range_ = _range(variant, column)
    return IntFinding(
        argument=path.argument,
        path=path.path,
        name=str(path),
        dynamic=variant.dimensions[column].dynamic,
        min=range_.min,
        max=range_.max,
        symbol=by_column.get(column),
        counts=layout.column_name(dimension) if dimension is not None else None,
    )


def _range(variant: VariantFacts, column: Column) -> Span:
    """The range over all counted calls only if the column is dynamic: a program takes a constant
    with its one value."""
    if variant.dimensions[column].dynamic:
        return variant.span(column)
    return variant.all_rows.span(column)


def _notes(variant: VariantFacts) -> Iterator[str]:
    for place in variant.group.varying:
        yield f"{place} ({place.kind}) varies: a trace has that of one call"
    for column, sizes in variant.counted.items():
        decision = variant.dimensions[column]
        wider = sizes.wider_range()
        if wider is not None and not decision.dynamic and decision.reason != "counter":
            yield f"{variant.group.layout.column_name(column)} is constant, but {wider}"
    yield from _unrecorded(variant)
    group = variant.group
    if variant.calls < group.calls and any(len(seen) > 1 for seen in group.formats):
        yield (
            f"layouts in memory are those of {counted(group.calls, 'call')}: also of the variants "
            "that only sizes tell from this one"
        )
    if variant.capped:
        yield "there are too many dimensions to compare all: some may be equal, or broadcast"
    capped = sum(symbol.capped for symbol in variant.symbols)
    if capped:
        yield (
            f"sums were sought among {MAX_SYMBOLS_FOR_SUMS} symbols: {capped} others of "
            f"{len(variant.symbols)} may follow from more"
        )


def _unrecorded(variant: VariantFacts) -> Iterator[str]:
    """Notes on objects of which the tape has nothing. Their tensors are missing from all findings
    about the variant."""
    for argument, root in variant.group.layout.nodes.items():
        opaque = [node for node in walk(root) if isinstance(node, OpaqueNode) and node.of is None]
        if has_data_keys(root):
            yield f"{argument} has a dict of which no entry is told: {DATA_KEYS}"
        counts = Counter((node.type, node.reason) for node in opaque if node.reason != DATA_KEYS)
        if not counts:
            continue
        (name, reason), calls = counts.most_common(1)[0]
        more = f", and {counted(len(counts) - 1, 'other kind')}" if len(counts) > 1 else ""
        objects = "an object" if calls == 1 else f"{calls} objects"
        yield f"{argument} has {objects} of {name} that the tape lacks ({reason}){more}"


def _symbol(variant: VariantFacts, symbol: Symbol) -> SymbolFinding:
    sizes = variant.all_rows.sizes(symbol.columns[0])
    shown = sorted(sizes.items(), key=lambda item: item[0])[:MAX_SIZES_SHOWN]
    span = variant.span(*symbol.columns)
    return SymbolFinding(
        name=symbol.name,
        expression=expression(variant, symbol),
        dimensions=tuple(variant.group.layout.column_name(c) for c in symbol.columns),
        sizes=tuple(
            SizeSeen(size=value, calls=seen.calls, first_call=seen.first.number)
            for value, seen in shown
        ),
        distinct=len(sizes),
        min=span.min,
        max=span.max,
        warnings=tuple(warnings_of(variant, symbol)),
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


def warnings_of(variant: VariantFacts, symbol: Symbol, *, has_range: bool = True) -> Iterator[str]:
    """For which conclusions there is little evidence.

    Args:
        variant: has the symbol.
        symbol: what is concluded.
        has_range: whether a wider range over the whole traffic is among them.
    """
    counted = [variant.counted[column] for column in symbol.columns if column in variant.counted]
    wider = filter(None, (counted_sizes.wider_range() for counted_sizes in counted if has_range))
    yield from map(str, islice(wider, 1))
    yield from _warnings_of_counted(variant, symbol)
    if variant.calls == 1:
        yield "one call is all the evidence"
    if not symbol.varied:
        where = "elsewhere in its list, or " if variant.calls == 1 else ""
        yield f"never varied here; it is dynamic because it varied {where}in other calls"
    sizes = variant.all_rows.distinct(symbol.columns[0])
    if max(sizes) < 2:
        yield "no size of at least 2 was seen, and torch takes 0 and 1 for constants"
    if may_be_chance(variant, symbol):
        where = " and ".join(variant.group.layout.column_name(c) for c in symbol.columns[:2])
        yield f"{where} were always equal, which may be chance"
    if symbol.relation is not None and len(sizes) <= _THIN:
        yield f"{expression(variant, symbol)} rests on {len(sizes)} distinct sizes"


def may_be_chance(variant: VariantFacts, symbol: Symbol) -> bool:
    """Whether dimensions of different axes are one symbol, and little says that they belong
    together."""
    dimensions = [column for column in symbol.columns if not column.is_int]
    axes = {column.axis for column in dimensions}
    arguments = {variant.group.layout.path(column).argument for column in dimensions}
    return len(axes) > 1 and (len(arguments) == 1 or len(variant.all_rows) <= _THIN)


def _warnings_of_counted(variant: VariantFacts, symbol: Symbol) -> Iterator[str]:
    """In what the counted calls differ from the calls on the tape."""
    counted_columns = [
        (column, variant.counted[column]) for column in symbol.columns if column in variant.counted
    ]
    if symbol.relation is not None and counted_columns:
        terms = [i for _, i in symbol.relation.terms]
        spans = {i: variant.span(*variant.symbols[i].columns) for i in terms}
        own_span = variant.span(*symbol.columns)
        low = symbol.relation.value({i: span.min for i, span in spans.items()})
        high = symbol.relation.value({i: span.max for i, span in spans.items()})
        if own_span.min < low or own_span.max > high:
            yield f"{expression(variant, symbol)} held in the kept calls, but not in all"
    for column, other_counted in counted_columns[1:]:
        if other_counted.values != counted_columns[0][1].values and not other_counted.shared_with:
            names = [variant.group.layout.column_name(c) for c in (counted_columns[0][0], column)]
            yield f"{' and '.join(names)} were equal in the kept calls, but not in all"
            return


ARGUMENTS = ("argument", "dtype", "shape or value")
SYMBOLS = ("symbol", "sizes", "always")

Row = tuple[str, str, str]


class HasFindings(Protocol):
    """A variant that was analyzed."""

    facts: VariantFacts

    @property
    def findings(self) -> VariantFindings:
        """Everything that is known of it, as plain data."""
        ...


@dataclass(frozen=True)
class VariantTable:
    """What people are shown of a variant. Nothing is printable yet.

    Attributes:
        name: of the variant.
        calls: how many it has, and which is the first.
        facts: names and texts: what its calls have in common.
        arguments: a row per argument, under the head ARGUMENTS; tensors of a list that look alike
            share one.
        symbols: a row per symbol, under the head SYMBOLS.
        notes: names and texts: layouts in memory, and warnings.
    """

    name: str
    calls: str
    facts: tuple[tuple[str, str], ...]
    arguments: tuple[Row, ...]
    symbols: tuple[Row, ...]
    notes: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, variant: HasFindings) -> VariantTable:
        """The table of a variant."""
        findings, layout = variant.findings, variant.facts.group.layout
        calls = counted(findings.calls, "call")
        if findings.all_calls is not None and findings.all_calls > findings.calls:
            calls = f"kept {findings.calls:,} of {counted(findings.all_calls, 'call')}"
        facts = [("called with", findings.context)] if findings.context is not None else []
        if findings.conditions:
            facts.append(("where", ", ".join(findings.conditions)))
        return cls(
            name=findings.name,
            calls=f"{calls}, first call {findings.address or findings.first_call}",
            facts=tuple(facts),
            # A program wants what is True, None, a dtype or the like, and not its default.
            arguments=(
                *_arguments(findings),
                *(
                    (value.place, value.kind, value.text)
                    for value in structure_values(layout)
                    if value.place in layout.nodes
                ),
            ),
            symbols=tuple(symbol_rows(findings)),
            notes=(*_layout_notes(findings), *(("warning", text) for text in findings.warnings())),
        )

    @property
    def tables(self) -> list[tuple[Row, tuple[Row, ...]]]:
        """The head and the rows of each table that has any."""
        tables = (ARGUMENTS, self.arguments), (SYMBOLS, self.symbols)
        return [(head, rows) for head, rows in tables if rows]

    def lines(self, width: int | None) -> Iterator[str]:
        """The text that ``calltape variants`` prints, for a terminal of this width."""
        yield from fitted(f"{self.name}: {self.calls}", width)
        for name, text in self.facts:
            yield from fitted(f"{name} {text}", width)
        for head, rows in self.tables:
            for lines in table_lines(head, rows, width):
                yield from lines
        for name, text in self.notes:
            yield from fitted(f"{name}: {text}", width)

    def sketch(self) -> Sketch:
        """The table for notebooks."""
        notes = [f"{name}: {text}" for name, text in self.notes]
        below = [Sketch(head=SYMBOLS, rows=self.symbols, lines=notes)]
        return Sketch(
            f"{self.name}: {self.calls}",
            self.facts,
            head=ARGUMENTS,
            rows=self.arguments,
            parts=below if self.symbols or notes else (),
        )

    def document(self) -> dict[str, Any]:
        """The table for the viewer's page: lists and texts."""
        return {
            "name": self.name,
            "calls": self.calls,
            "facts": self.facts,
            "tables": [{"head": head, "rows": rows} for head, rows in self.tables],
            "notes": self.notes,
        }


def _arguments(findings: VariantFindings) -> Iterator[Row]:
    places = ((f"{t.argument}{t.path}", (t.dtype, t.shape)) for t in findings.tensors)
    for name, (dtype, shape) in merge_alike(places):
        yield name, dtype, f"[{', '.join(map(str, shape))}]"
    for int_finding in findings.ints:
        if int_finding.counts is not None:
            value = f"counts {int_finding.counts}"
        elif int_finding.dynamic:
            value = int_finding.symbol or _span(int_finding.min, int_finding.max)
        else:
            value = shown_value(int_finding.min)
        yield int_finding.name, "int", value
    for place, constant in findings.constants.items():
        yield place, type(constant).__name__, shown_constant(constant)
    for place, kind in findings.varying.items():
        yield place, kind, "varies"


def symbol_rows(findings: VariantFindings) -> Iterator[Row]:
    """A row per symbol, under the head SYMBOLS."""
    for symbol in findings.symbols:
        sizes = _span(symbol.min, symbol.max)
        count = f" ({symbol.distinct} sizes)" if symbol.distinct > 1 else ""
        yield symbol.name, f"{sizes}{count}", symbol.expression or ""


def _span(low: int, high: int) -> str:
    return shown_value(low) if low == high else f"{shown_value(low)}..{shown_value(high)}"


def _layout_notes(findings: VariantFindings) -> Iterator[tuple[str, str]]:
    layouts = ((f"{t.argument}{t.path}", layouts_in_words(t.layouts)) for t in findings.tensors)
    for name, words in merge_alike((name, words) for name, words in layouts if words is not None):
        yield f"layout of {name}", words
