"""Names for people: of variants, by what tells them apart, and of symbols, by what they are usually
called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from calltape_analyzer.binding import Signature
from calltape_analyzer.dims import well_known_name
from calltape_analyzer.explanation import counted, shown_value
from calltape_analyzer.layout import Layout
from calltape_analyzer.printable import printable
from calltape_analyzer.splitting import column_name
from calltape_analyzer.switches import shown_constant
from calltape_analyzer.symbols import Column, Symbol
from calltape_analyzer.unique_names import UniqueNames
from calltape_analyzer.variants import VariantFacts
from calltape_schema.tree import BoolNode, ConstantNode, EnumNode, FieldsNode, Node, walk

__all__ = ["name_symbols", "name_variants"]

_WITH, _WITHOUT = "decode", "prefill"
_MAX_PHRASES = 32


def name_variants(variants: Sequence[VariantFacts], signature: Signature) -> None:
    """Gives each variant a unique name: ``prefill`` and ``decode`` where a cache is empty or not,
    else what distinguishes it (``mask present``, ``add=False``); ``main`` for a single one."""
    features = [_features(variant) for variant in variants]
    absent = _absent(features, signature)
    phrases = _Phrases(_telling(features, absent), absent)
    taken = UniqueNames(numbered="{} ({})")
    for variant, found in zip(variants, features, strict=True):
        variant.name = taken.add(printable(", ".join(phrases.of(found))) or "main")


def _absent(features: Sequence[Mapping[str, str]], signature: Signature) -> dict[str, str]:
    """What is said of calls that leave an argument out: its default, or that it is not there."""
    defaults = {p.name: p.default for p in signature.parameters if p.has_default}
    found: dict[str, str] = {}
    for key in dict.fromkeys(key for own in features for key in own if key.startswith("has ")):
        name = key.removeprefix("has ")
        default = defaults.get(name)
        scalar = isinstance(default, bool | int | float | str)
        found[key] = f"{name}={shown_constant(default)}" if scalar else f"no {name}"
    return found


def _telling(features: Sequence[Mapping[str, str]], absent: Mapping[str, str]) -> dict[str, int]:
    """The features that tell variants apart that were the same so far, with their order. Looks at
    what each variant has, not at all that others have."""
    own = features[0] if features else {}
    having: dict[str, list[int]] = {key: [] for key in (*own, *absent)}
    for number, found in enumerate(features):
        for key, value in found.items():
            if value != absent.get(key):
                having.setdefault(key, []).append(number)
    part = [0] * len(features)
    sizes = Counter(part)
    chosen: dict[str, int] = {}
    for key, numbers in having.items():
        moved: dict[tuple[int, str], list[int]] = {}
        for number in numbers:
            moved.setdefault((part[number], features[number][key]), []).append(number)
        left = Counter(part[number] for number in numbers)
        # Of a part that all leave, one stays.
        parts = sum(1 for at, count in left.items() if count == sizes[at])
        if len(moved) == parts:
            continue
        chosen[key] = len(chosen)
        for (at, _), alike in moved.items():
            new = len(sizes)
            sizes[new] = len(alike)
            sizes[at] -= len(alike)
            for number in alike:
                part[number] = new
    return chosen


class _Phrases:
    """What tells each variant apart, in the order of what was chosen. Of very much, what a variant
    has, and how much more there is: names do not grow with what others have."""

    def __init__(self, chosen: Mapping[str, int], absent: Mapping[str, str]) -> None:
        self._chosen = chosen
        self._absent = absent
        self._optional = [key for key in chosen if key in absent]

    def of(self, found: Mapping[str, str]) -> list[str]:
        """The phrases of a variant with these features."""
        chosen = self._chosen
        own = sorted((chosen[key], text) for key, text in found.items() if text and key in chosen)
        texts = list(dict.fromkeys(text for _, text in own))
        lacking = len(self._optional) - sum(key in self._absent for key in found if key in chosen)
        if len(texts) + lacking > _MAX_PHRASES:
            shown = texts[:_MAX_PHRASES] or [self._absent[key] for key in self._optional[:1]]
            return [*shown, f"and {len(texts) + lacking - len(shown)} more"]
        rest = [(chosen[key], self._absent[key]) for key in self._optional if key not in found]
        return list(dict.fromkeys(text for _, text in sorted(own + rest)))


def _features(variant: VariantFacts) -> dict[str, str]:
    """What could tell a variant apart, the most telling first, as phrases."""
    layout = variant.group.layout
    found: dict[str, str] = {}
    states = {name for name, node in layout.nodes.items() if is_state(name, node)}
    tensors = Counter(place.argument for place in layout.tensors)
    filled = any(place.argument in states and not place.private for place in layout.tensors)
    found["phase"] = "merged" if variant.completions else _WITH if filled else _WITHOUT
    if variant.conditions:
        found["condition"] = ", ".join(condition.text(layout) for condition in variant.conditions)
    constants = _constants(variant)
    for name in layout.arguments:
        if name not in states:
            is_tensor = name in tensors
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
        found[f"tensors {name}"] = f"{counted(tensors[name], 'tensor')} in {name}"
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
    ints = layout.ints
    for column, dimension in variant.dimensions.items():
        is_counted = column.axis is None and ints[column.place].owner is not None
        if column.axis is None and not dimension.dynamic and not is_counted:
            value = variant.rows[0][0].ints[column.place]
            found[f"int {ints[column.place]}"] = f"{ints[column.place]}={shown_value(value)}"
    return found


def name_symbols(variant: VariantFacts) -> None:
    """Gives the symbols of a variant unique names."""
    taken = UniqueNames()
    for symbol in variant.symbols:
        symbol.name = taken.add(_symbol_name(variant.group.layout, variant, symbol))


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
