"""Names for people: of variants, by what tells them apart, and of symbols, by what they are usually
called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calltape_analyzer.binding import Signature
from calltape_analyzer.dims import well_known_name
from calltape_analyzer.explanation import shown_value
from calltape_analyzer.layout import Layout
from calltape_analyzer.printable import printable
from calltape_analyzer.splitting import column_name
from calltape_analyzer.switches import shown_constant
from calltape_analyzer.symbols import Column, Symbol
from calltape_analyzer.variants import VariantFacts
from calltape_schema.tree import BoolNode, ConstantNode, EnumNode, FieldsNode, Node, walk

__all__ = ["name_symbols", "name_variants"]

_WITH, _WITHOUT = "decode", "prefill"


def name_variants(variants: Sequence[VariantFacts], signature: Signature) -> None:
    """Gives each variant a unique name: ``prefill`` and ``decode`` where a cache is empty or not,
    else what distinguishes it (``mask present``, ``add=False``); ``main`` for a single one."""
    features = [_features(variant) for variant in variants]
    _say_what_is_absent(features, signature)
    keys = list(dict.fromkeys(key for found in features for key in found))
    telling = [key for key in keys if len({found.get(key) for found in features}) > 1]
    chosen: list[str] = []
    for key in telling:
        # Only what tells apart two variants that were the same so far.
        if _distinct(features, [*chosen, key]) > _distinct(features, chosen):
            chosen.append(key)
    taken: set[str] = set()
    for variant, found in zip(variants, features, strict=True):
        phrases = [found[key] for key in chosen if found.get(key)]
        name = printable(", ".join(dict.fromkeys(phrases)))
        variant.name = _unique(name or "main", taken)
        taken.add(variant.name)


def _say_what_is_absent(features: Sequence[dict[str, str]], signature: Signature) -> None:
    """An argument that some calls leave out is its default there, or absent."""
    defaults = {p.name: p.default for p in signature.parameters if p.has_default}
    for key in dict.fromkeys(key for found in features for key in found if key.startswith("has ")):
        name = key.removeprefix("has ")
        default = defaults.get(name)
        scalar = isinstance(default, bool | int | float | str)
        for found in features:
            if key not in found:
                found[key] = f"{name}={shown_constant(default)}" if scalar else f"no {name}"


def _distinct(features: Sequence[Mapping[str, str]], keys: Sequence[str]) -> int:
    return len({tuple(found.get(key) for key in keys) for found in features})


def _unique(name: str, taken: set[str]) -> str:
    made, count = name, 2
    while made in taken:
        made, count = f"{name} ({count})", count + 1
    return made


def _features(variant: VariantFacts) -> dict[str, str]:
    """What could tell a variant apart, the most telling first, as phrases."""
    layout = variant.group.layout
    found: dict[str, str] = {}
    states = [name for name, node in layout.nodes.items() if is_state(name, node)]
    filled = any(place.argument in states and not place.private for place in layout.tensors)
    found["phase"] = "merged" if variant.completions else _WITH if filled else _WITHOUT
    for condition in variant.conditions:
        found["condition"] = ", ".join(
            filter(None, (found.get("condition"), condition.text(layout)))
        )
    constants = _constants(variant)
    for name in layout.arguments:
        if name not in states:
            is_tensor = any(place.argument == name for place in layout.tensors)
            own = constants.get(f"bool {name} 0") or constants.get(f"constant {name}")
            found[f"has {name}"] = f"{name} present" if is_tensor or not own else own
    found |= constants
    for place in layout.tensors:
        if place.path and place.argument not in states:
            found[f"has {place}"] = f"{place} present"
    for place, facts in zip(layout.tensors, variant.group.facts, strict=True):
        if place.argument not in states:
            found[f"dtype {place}"] = f"{place} {facts.dtype}"
            found[f"rank {place}"] = f"{place} of rank {facts.rank}"
    for name in layout.arguments:
        count = sum(place.argument == name for place in layout.tensors)
        found[f"tensors {name}"] = f"{count} tensors in {name}"
    return found


def is_state(name: str, node: Node) -> bool:
    """Whether an argument is what a model keeps between calls."""
    is_cache = isinstance(node, FieldsNode) and node.type.endswith("Cache")
    return is_cache or "past" in name or "cache" in name


def _constants(variant: VariantFacts) -> dict[str, str]:
    layout = variant.group.layout
    found: dict[str, str] = {}
    counts: dict[str, int] = {}
    named: dict[str, int] = {}
    every = ((name, node) for name, root in layout.nodes.items() for node in walk(root))
    for name, node in every:
        if isinstance(node, EnumNode) or (isinstance(node, ConstantNode) and node.kind != "device"):
            at = named[name] = named.get(name, -1) + 1
            found[f"named {name} {at}"] = f"{name}={node.name}"
        if isinstance(node, BoolNode):
            at = counts[name] = counts.get(name, -1) + 1
            is_top = layout.nodes[name] is node
            found[f"bool {name} {at}"] = f"{name}={node.value}" if is_top else f"flags in {name}"
    for place, value in variant.group.fixed():
        shown = shown_constant(value)
        is_long = isinstance(value, (str, bytes)) and len(value) > len(shown)
        is_whole = not is_long and repr(value) == shown
        found[f"constant {place}"] = f"{place}{'=' if is_whole else ' a '}{shown}"
    ints = [place for place in layout.scalars if place.kind == "int"]
    for column, dimension in variant.dimensions.items():
        is_counted = column.axis is None and ints[column.place].owner is not None
        if column.axis is None and not dimension.dynamic and not is_counted:
            value = variant.rows[0][0].ints[column.place]
            found[f"int {ints[column.place]}"] = f"{ints[column.place]}={shown_value(value)}"
    return found


def name_symbols(variant: VariantFacts) -> None:
    """Gives the symbols of a variant unique names."""
    taken: set[str] = set()
    for symbol in variant.symbols:
        name = _symbol_name(variant.group.layout, variant, symbol)
        made, count = name, 2
        while made in taken:
            made, count = f"{name}_{count}", count + 1
        symbol.name = made
        taken.add(made)


def _symbol_name(layout: Layout, variant: VariantFacts, symbol: Symbol) -> str:
    for column in symbol.columns:
        if column.axis is None:
            continue
        place = layout.tensors[column.place]
        if "cross_attention" in place.path and column.axis == 2:
            return "encoder_sequence_length"
        rank = variant.group.facts[column.place].rank
        known = well_known_name(place.argument, rank, column.axis)
        if known is not None:
            return known
    return _own_name(layout, symbol.columns[0])


def _own_name(layout: Layout, column: Column) -> str:
    text = column_name(layout, column)
    if column.axis is not None:
        text = f"{layout.tensors[column.place]}_dim_{column.axis}"
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in text).strip("_") or "n"
