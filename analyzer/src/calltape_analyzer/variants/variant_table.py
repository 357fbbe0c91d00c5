"""The table of a variant: one for the command, a REPL, a notebook and the page of the viewer.

In come a variant's findings and the layout of its arguments. Out go cells, and lines of text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from calltape_analyzer.fitting import fitted, table_lines
from calltape_analyzer.notebook import Sketch
from calltape_analyzer.observing.fixed_values import structure_values
from calltape_analyzer.observing.layout import ArgumentLayout
from calltape_analyzer.observing.memory_layout import layouts_in_words
from calltape_analyzer.observing.switches import shown_constant
from calltape_analyzer.text import alike, counted, shown_value
from calltape_analyzer.variants.variant_findings import VariantFindings

__all__ = ["ARGUMENTS", "SYMBOLS", "VariantTable", "symbol_rows"]

ARGUMENTS = ("argument", "dtype", "shape or value")
SYMBOLS = ("symbol", "sizes", "always")

Row = tuple[str, str, str]


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
    def of(cls, found: VariantFindings, layout: ArgumentLayout) -> VariantTable:
        """The table of a variant.

        Args:
            found: its findings.
            layout: of its arguments.
        """
        calls = counted(found.calls, "call")
        if found.all_calls is not None and found.all_calls > found.calls:
            calls = f"kept {found.calls:,} of {counted(found.all_calls, 'call')}"
        facts = [("called with", found.context)] if found.context is not None else []
        if found.conditions:
            facts.append(("where", ", ".join(found.conditions)))
        return cls(
            name=found.name,
            calls=f"{calls}, first call {found.address or found.first_call}",
            facts=tuple(facts),
            arguments=(*_arguments(found), *_fixed(layout)),
            symbols=tuple(symbol_rows(found)),
            notes=(*_layout_notes(found), *(("warning", text) for text in found.warnings())),
        )

    def lines(self, width: int | None) -> Iterator[str]:
        """The text that ``calltape variants`` prints, for a terminal of this width."""
        yield from fitted(f"{self.name}: {self.calls}", width)
        for name, text in self.facts:
            yield from fitted(f"{name} {text}", width)
        for head, rows in ((ARGUMENTS, self.arguments), (SYMBOLS, self.symbols)):
            if rows:
                for lines in table_lines(head, rows, width):
                    yield from lines
        for name, text in self.notes:
            yield from fitted(f"{name}: {text}", width)

    def sketch(self) -> Sketch:
        """The same for notebooks."""
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
        """The same for the page of the viewer: lists and texts."""
        return {
            "name": self.name,
            "calls": self.calls,
            "facts": self.facts,
            "tables": [
                {"head": head, "rows": rows}
                for head, rows in ((ARGUMENTS, self.arguments), (SYMBOLS, self.symbols))
                if rows
            ],
            "notes": self.notes,
        }


def _arguments(found: VariantFindings) -> Iterator[Row]:
    places = ((f"{t.argument}{t.path}", (t.dtype, t.shape)) for t in found.tensors)
    for name, (dtype, shape) in alike(places):
        yield name, dtype, f"[{', '.join(map(str, shape))}]"
    for given in found.ints:
        if given.counts is not None:
            value = f"counts {given.counts}"
        elif given.dynamic:
            value = given.symbol or _span(given.min, given.max)
        else:
            value = shown_value(given.min)
        yield given.name, "int", value
    for place, constant in found.constants.items():
        yield place, type(constant).__name__, shown_constant(constant)
    for place, kind in found.varying.items():
        yield place, kind, "varies"


def _fixed(layout: ArgumentLayout) -> Iterator[Row]:
    """A row per argument that is True, None, a dtype or the like, and not its default: a program
    wants it."""
    for value in structure_values(layout):
        if value.place in layout.nodes:
            yield value.place, value.kind, value.text


def symbol_rows(found: VariantFindings) -> Iterator[Row]:
    """A row per symbol, under the head SYMBOLS."""
    for symbol in found.symbols:
        sizes = _span(symbol.min, symbol.max)
        count = f" ({symbol.distinct} sizes)" if symbol.distinct > 1 else ""
        yield symbol.name, f"{sizes}{count}", symbol.expression or ""


def _span(low: int, high: int) -> str:
    return shown_value(low) if low == high else f"{shown_value(low)}..{shown_value(high)}"


def _layout_notes(found: VariantFindings) -> Iterator[tuple[str, str]]:
    layouts = ((f"{t.argument}{t.path}", layouts_in_words(t.layouts)) for t in found.tensors)
    for name, words in alike((name, words) for name, words in layouts if words is not None):
        yield f"layout of {name}", words
