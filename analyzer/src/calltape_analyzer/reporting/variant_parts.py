"""A variant as a part of a report page: arguments, symbols with their evidence, pairs.

In come variants. Out go parts with bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from calltape_analyzer.explanation.reasons import VariantReasons, parts_of_symbol
from calltape_analyzer.observing.evidence import left_out_note
from calltape_analyzer.observing.switches import shown_constant
from calltape_analyzer.reporting.argument_trees import argument_tree
from calltape_analyzer.reporting.contents import SymbolPart, Table, VariantPart, cut, table
from calltape_analyzer.reporting.size_histograms import histogram_of, pairs_of, unpaired
from calltape_analyzer.text import counted, listed, shown_range
from calltape_analyzer.variant import Variant
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.symbols import Symbol
from calltape_analyzer.variants.variant_findings import SymbolFinding

__all__ = ["variant_part", "variants_table"]

_MAX_SYMBOLS, _MAX_LINES, _MAX_LINE = 24, 24, 500


def variants_table(
    variants: Sequence[Variant], reasons: Sequence[VariantReasons], left_out: int
) -> Table:
    """A row for each variant.

    Args:
        variants: all of a tape.
        reasons: of those that are shown, the first ones.
        left_out: how many calls raised, and are in none of them.
    """
    calls = sum(map(len, variants)) or 1
    rows = []
    for own in reasons:
        found = own.variant.findings
        dynamic = [symbol.name for symbol in found.symbols]
        rows.append(
            (
                found.name,
                found.calls,
                round(100 * found.calls / calls, 1),
                found.all_calls,
                len(found.tensors),
                listed(dynamic, 6) or "none",
                sum(map(len, own.warnings.values())),
            )
        )
    head = ("variant", "calls", "% of calls", "counted", "tensors", "symbols", "warnings")
    made = table(_caption([own.variant for own in reasons], left_out), head, rows)
    return Table(made.caption, made.head, made.rows, len(variants) - len(rows))


def _caption(shown: Sequence[Variant], left_out: int) -> str:
    said = "the programs that can serve the calls"
    if left_out:
        said += f"; {left_out_note(left_out)} of all numbers here"
    known = [one.findings.all_calls is not None for one in shown]
    if any(known):
        said += "; counted are all calls, on the tape or not"
        said += "" if all(known) else " (–: not known)"
    return said


def variant_part(variant: Variant, reasons: VariantReasons) -> VariantPart:
    """Everything that a page says of a variant.

    Args:
        variant: the variant.
        reasons: why its dimensions are what they are.
    """
    found, facts = variant.findings, variant.facts
    tree, left_out = argument_tree(found)
    symbols = list(zip(facts.symbols, found.symbols, strict=True))
    notes = [cut(note, _MAX_LINE) for note in found.notes[:_MAX_LINES]]
    if left_out:
        notes.append(f"not in the tree: {left_out}")
    if len(symbols) > _MAX_SYMBOLS:
        notes.append(f"not on this page: {counted(len(symbols) - _MAX_SYMBOLS, 'more symbol')}")
    if alone := unpaired(facts):
        notes.append(f"not among the dimensions that go together: {alone}")
    ints = [
        (one.name, one.symbol or "", shown_range(one.min, one.max), one.counts or "")
        for one in found.ints
    ]
    constants = [(place, shown_constant(value)) for place, value in found.constants.items()]
    constants += [(place, f"{kind} that varies") for place, kind in found.varying.items()]
    return VariantPart(
        name=cut(found.name),
        facts=tuple(_facts(variant)),
        arguments=tree,
        symbols=tuple(_symbol(facts, *one, reasons) for one in symbols[:_MAX_SYMBOLS]),
        pairs=tuple(pairs_of(facts)),
        ints=table("ints", ("int", "symbol", "values", "counts"), ints),
        constants=table("constants, and what varies", ("place", "value"), constants),
        notes=tuple(notes),
    )


def _facts(variant: Variant) -> list[tuple[str, str]]:
    found = variant.findings
    first = found.address or str(found.first_call)
    facts = [("calls on the tape", f"{found.calls:,}, the first is {first}")]
    if found.all_calls is not None:
        facts.append(("calls counted", f"{found.all_calls:,}, on the tape or not"))
    if found.conditions:
        facts.append(("what its calls have in common", cut("; ".join(found.conditions), 400)))
    facts.append(("sizes", _combinations(variant.facts)))
    return facts


def _combinations(facts: VariantFacts) -> str:
    if facts.calls == 1:
        return "of one call, which tells nothing of sizes that vary"
    distinct = len(facts.every)
    return "the same in all calls" if distinct == 1 else f"{distinct} different combinations"


def _symbol(
    facts: VariantFacts, symbol: Symbol, found: SymbolFinding, reasons: VariantReasons
) -> SymbolPart:
    is_free = found.expression is None and symbol.varied
    follows = f"; always {found.expression}" if found.expression else ""
    places = listed(found.dimensions, 6)
    said = f"{places}: {shown_range(found.min, found.max)}{follows}"
    warnings = reasons.warnings[symbol.name]
    lines = [
        line
        for part in parts_of_symbol(reasons, found.name)[:1]
        for dimension in part.dimensions
        for line in dimension.lines(part.calls)
        if not line.startswith("  warning: ")
    ]
    return SymbolPart(
        name=cut(found.name),
        said=cut(said, _MAX_LINE),
        evidence=tuple(cut(line, _MAX_LINE) for line in lines[:_MAX_LINES]),
        warnings=tuple(cut(text, _MAX_LINE) for text in warnings[:_MAX_LINES]),
        histogram=histogram_of(facts, symbol) if is_free else None,
    )
