"""A variant as a part of a report page: arguments, symbols with their sizes and
evidence.

In come variants. Out go parts with bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from calltape_analyzer.explanation.reasons import VariantReasons, parts_of_symbol
from calltape_analyzer.observing.evidence import left_out_note
from calltape_analyzer.observing.memory_layout import layouts_in_words
from calltape_analyzer.observing.switches import shown_constant
from calltape_analyzer.reporting.contents import (
    Histogram,
    SymbolPart,
    Table,
    TreeNode,
    VariantPart,
    cut,
    table,
)
from calltape_analyzer.text import alike, counted, listed, shown_range, shown_value
from calltape_analyzer.variant import Variant
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.symbols import Symbol
from calltape_analyzer.variants.variant_findings import (
    SymbolFinding,
    TensorFinding,
    VariantFindings,
)

__all__ = ["argument_tree", "calls_by_size", "histogram_of", "variant_part", "variants_table"]

_MAX_SYMBOLS, _MAX_LINES, _MAX_LINE = 24, 24, 500
_MAX_LEAVES, _MAX_DEPTH = 300, 24
_MAX_BARS, _MAX_BY_SIZE, _MAX_COMMON, _MAX_DRAWN_BITS = 48, 30, 12, 48

Weighs = Literal["kept", "all", "kept and largest"]
_COUNTS: dict[Weighs, str] = {
    "kept": "the calls on the tape",
    "all": "all calls that the recorder counted",
    "kept and largest": "the calls on the tape, and one of the largest size that was counted",
}


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
        notes.append(f"not in the tree: {counted(left_out, 'input')} more")
    if len(symbols) > _MAX_SYMBOLS:
        notes.append(f"not on this page: {counted(len(symbols) - _MAX_SYMBOLS, 'more symbol')}")
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


def argument_tree(findings: VariantFindings) -> tuple[tuple[TreeNode, ...], int]:
    """The inputs as trees, and how many of them are left out. Items of a list that are alike are
    one node."""
    root = TreeNode("")
    leaves = list(alike(_leaves(findings)))
    for name, said in leaves[:_MAX_LEAVES]:
        node = root
        for part in name.split(".", _MAX_DEPTH - 1):
            node = node.children.setdefault(part, TreeNode(cut(part)))
        node.said = cut(said, 400)
    return tuple(root.children.values()), max(0, len(leaves) - _MAX_LEAVES)


def _leaves(findings: VariantFindings) -> Iterator[tuple[str, str]]:
    """Each leaf and scalar with what it is."""
    for tensor in findings.tensors:
        yield f"{tensor.argument}{tensor.path}", _tensor(tensor)
    for number in findings.ints:
        if number.dynamic:
            said = f"int, {number.symbol or 'varies'}, {number.min} to {number.max}"
        elif number.counts is not None:
            said = f"int, always {number.counts}"
        else:
            said = f"int {shown_value(number.min)}"
        yield f"{number.argument}{number.path}", said
    for place, value in findings.constants.items():
        yield place, f"constant {shown_constant(value)}"
    for place, kind in findings.varying.items():
        yield place, f"{kind}, varies"


def _tensor(found: TensorFinding) -> str:
    shape = ", ".join(str(size) for size in found.shape)
    elements = "" if found.range is None else f", elements {found.range[0]} to {found.range[1]}"
    layouts = layouts_in_words(found.layouts)
    memory = "" if layouts is None else f", layout in memory: {layouts}"
    return f"{found.dtype}[{shape}]{elements}{memory}"


def histogram_of(facts: VariantFacts, symbol: Symbol) -> Histogram:
    """The sizes of a symbol: a bar for each if they are few, else 48 bars of equal width or
    fewer."""
    calls, weighs = calls_by_size(facts, symbol)
    rows = [(shown_value(size), number) for size, number in _most_common(calls)]
    common = table("the most common sizes", ("size", "calls"), rows)
    return Histogram(
        bins=tuple(_bins(calls)),
        distinct=len(calls),
        counts=_COUNTS[weighs],
        common=common,
        is_drawn=max(map(int.bit_length, calls)) <= _MAX_DRAWN_BITS,
    )


def calls_by_size(facts: VariantFacts, symbol: Symbol) -> tuple[Counter[int], Weighs]:
    """How many calls had each size of a symbol, and which calls these are: those on the tape
    (``kept``), all of the traffic (``all``), or those on the tape and one of the largest size."""
    sizes = facts.every.sizes(symbol.columns[0])
    calls = Counter({size: seen.calls for size, seen in sizes.items()})
    whole = facts.counted.get(symbol.columns[0])
    if whole is None or whole.shared_with or sum(calls.values()) >= whole.calls:
        return calls, "kept"
    counted_calls = Counter(whole.values.sizes)
    if not whole.values.other_calls and calls.keys() <= counted_calls.keys():
        return counted_calls, "all"
    calls.setdefault(whole.values.max, 1)
    return calls, "kept and largest"


def _bins(calls: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """The bars. Those of many sizes are without gaps: a size that no call had is a bar of height
    0. Few sizes may be far apart (1, 2, 4, 600), and most of them would share a bar."""
    if len(calls) <= _MAX_BY_SIZE:
        return [(size, size, number) for size, number in sorted(calls.items())]
    low, high = min(calls), max(calls)
    width = -(-(high - low + 1) // _MAX_BARS)
    found: Counter[int] = Counter()
    for size, number in calls.items():
        found[(size - low) // width] += number
    return [
        (low + at * width, min(low + (at + 1) * width - 1, high), found[at])
        for at in range((high - low) // width + 1)
    ]


def _most_common(calls: Mapping[int, int]) -> list[tuple[int, int]]:
    return sorted(calls.items(), key=lambda item: (-item[1], item[0]))[:_MAX_COMMON]
