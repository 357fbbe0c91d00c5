"""Names of variants, for people: what makes a variant different from the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from calltape_analyzer.observing.fixed_values import is_name, is_public
from calltape_analyzer.observing.layout import ArgumentLayout
from calltape_analyzer.observing.observations import shown_constant
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.size_table import Column
from calltape_analyzer.pytree.caches import is_cache_argument
from calltape_analyzer.text import UniqueNames, counted, printable, shown_value
from calltape_analyzer.variants.facts import CounterIs, Fixed, VariantFacts
from calltape_schema.tree import BoolNode, ConstantNode, EnumNode, walk

__all__ = ["name_variants"]

_WITH, _WITHOUT = "decode", "prefill"
_MAX_PHRASES = 32
_SHARED = "shared "
"""Begins the key of a feature whose rest says the opposite."""


class _Phrase(NamedTuple):
    """A part of a name, and whether it says nothing of what was passed."""

    text: str
    is_public: bool = True


_Features = Mapping[str, _Phrase]


def name_variants(variants: Sequence[VariantFacts], signature: Signature) -> None:
    """Gives each variant a unique name: ``prefill`` and ``decode`` if their caches are empty and
    not, else what distinguishes it (``mask present``, ``add=False``); ``main`` for a single one.
    The public name is the same, or the variant's number if the name has what was passed."""
    features = [_features(variant) for variant in variants]
    absent = _absent(features, signature)
    phrases = _Phrases(_distinguishing(features, absent), absent)
    taken, told = UniqueNames(numbered="{} ({})"), UniqueNames(numbered="{} ({})")
    for number, (variant, found) in enumerate(zip(variants, features, strict=True)):
        own = phrases.of(found)
        name = printable(", ".join(phrase.text for phrase in own)) or "main"
        is_public = all(phrase.is_public for phrase in own)
        variant.name = taken.add(name)
        variant.public_name = told.add(name if is_public else f"variant {number}")


def _absent(features: Sequence[_Features], signature: Signature) -> dict[str, _Phrase]:
    """The phrase for calls that leave an argument out: its default, or ``no`` and its name. And the
    one for calls whose arguments share no memory."""
    defaults = {p.name: p.default for p in signature.parameters if p.has_default}
    found: dict[str, _Phrase] = {}
    for key in dict.fromkeys(key for own in features for key in own if key.startswith("has ")):
        name = key.removeprefix("has ")
        default = defaults.get(name)
        scalar = isinstance(default, bool | int | float | str)
        text = f"{name}={shown_constant(default)}" if scalar else f"no {name}"
        is_value = scalar and not isinstance(default, bool)
        found[key] = _Phrase(text, is_public(name) and not is_value)
    for key, phrase in (item for own in features for item in own.items()):
        if key.startswith(_SHARED):
            found[key] = phrase._replace(text=key.removeprefix(_SHARED))
    return found


def _distinguishing(features: Sequence[_Features], absent: Mapping[str, _Phrase]) -> dict[str, int]:
    """The features that tell variants apart which were equal in all features before, with their
    order. Looks at the features of each variant only, because the features of all others would be
    quadratic work."""
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
        moved: dict[tuple[int, _Phrase], list[int]] = {}
        for number in numbers:
            moved.setdefault((part[number], features[number][key]), []).append(number)
        left = Counter(part[number] for number in numbers)
        # If all variants leave a part, the last group of them stays.
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
    """The phrases that tell each variant apart, in the order of the chosen features.

    If there are very many, a name has the phrases of features that the variant has, and says how
    many more there are: names do not grow with the features of other variants.
    """

    def __init__(self, chosen: Mapping[str, int], absent: Mapping[str, _Phrase]) -> None:
        self._chosen = chosen
        self._absent = absent
        self._optional = [key for key in chosen if key in absent]

    def of(self, found: _Features) -> list[_Phrase]:
        """The phrases of a variant with these features."""
        chosen = self._chosen
        own = sorted((chosen[key], one) for key, one in found.items() if one.text and key in chosen)
        phrases = list(dict.fromkeys(one for _, one in own))
        lacking = len(self._optional) - sum(key in self._absent for key in found if key in chosen)
        if len(phrases) + lacking > _MAX_PHRASES:
            shown = phrases[:_MAX_PHRASES] or [self._absent[key] for key in self._optional[:1]]
            return [*shown, _Phrase(f"and {len(phrases) + lacking - len(shown)} more")]
        rest = [(chosen[key], self._absent[key]) for key in self._optional if key not in found]
        return list(dict.fromkeys(one for _, one in sorted(own + rest)))


def _features(variant: VariantFacts) -> dict[str, _Phrase]:
    """All features of a variant as phrases, the most informative first."""
    layout = variant.group.layout
    found: dict[str, _Phrase] = {}
    states = {name for name, node in layout.nodes.items() if is_cache_argument(name, node)}
    tensors = Counter(place.argument for place in layout.tensors)
    filled = any(place.argument in states and not place.private for place in layout.tensors)
    phase = "merged" if variant.completions else _WITH if filled else _WITHOUT
    found["phase"] = _Phrase(phase)
    found["context"] = _Phrase(layout.context.autocast_in_words())
    found["default dtype"] = _Phrase(layout.context.dtype_in_words())
    if variant.conditions:
        found["condition"] = _conditions(variant)
    constants = _constants(variant)
    for name in layout.arguments:
        if name not in states:
            is_tensor = name in tensors
            own = constants.get(f"bool {name} 0") or constants.get(f"constant {name}")
            present = _Phrase(f"{name} present", is_public(name))
            found[f"has {name}"] = present if is_tensor or not own else own
    found |= constants
    for place in layout.tensors:
        if place.path and place.argument not in states:
            found[f"has {place}"] = _Phrase(f"{place} present", is_public(str(place)))
    for place, facts in zip(layout.tensors, variant.group.facts, strict=True):
        if place.argument not in states:
            told = is_public(str(place))
            found[f"dtype {place}"] = _Phrase(f"{place} {facts.dtype}", told)
            found[f"rank {place}"] = _Phrase(f"{place} of rank {facts.rank}", told)
        if facts.memory:
            told = is_public(str(place))
            found[f"memory {place}"] = _Phrase(f"{place} {facts.memory}", told)
    for pair in variant.group.key.shared:
        text = pair.text(layout.tensors)
        both = layout.tensors[pair.one], layout.tensors[pair.other]
        apart = pair.text(layout.tensors, negated=True)
        found[f"{_SHARED}{apart}"] = _Phrase(text, all(is_public(str(place)) for place in both))
    for name in layout.arguments:
        text = f"{counted(tensors[name], 'tensor')} in {name}"
        found[f"tensors {name}"] = _Phrase(text, is_public(name))
    return found


def _conditions(variant: VariantFacts) -> _Phrase:
    """What the calls have in common: of a size it may be told, of an int not."""
    layout = variant.group.layout
    told = [
        isinstance(one, CounterIs)
        or (isinstance(one, Fixed) and not one.column.is_int and _is_told(layout, one.column))
        for one in variant.conditions
    ]
    return _Phrase(", ".join(one.text(layout) for one in variant.conditions), all(told))


def _is_told(layout: ArgumentLayout, column: Column) -> bool:
    return is_public(layout.column_name(column).partition("[")[0])


def _constants(variant: VariantFacts) -> dict[str, _Phrase]:
    layout = variant.group.layout
    found: dict[str, _Phrase] = {}
    counts: dict[str, int] = {}
    named: dict[str, int] = {}
    every = ((name, node) for name, root in layout.nodes.items() for node in walk(root))
    for name, node in every:
        told = is_public(name)
        if isinstance(node, EnumNode) or (isinstance(node, ConstantNode) and node.kind != "device"):
            at = named[name] = named.get(name, -1) + 1
            told = told and isinstance(node, ConstantNode) and is_name(node.name)
            found[f"named {name} {at}"] = _Phrase(f"{name}={node.name}", told)
        if isinstance(node, BoolNode):
            at = counts[name] = counts.get(name, -1) + 1
            is_top = layout.nodes[name] is node
            text = f"{name}={node.value}" if is_top else f"flags in {name}"
            found[f"bool {name} {at}"] = _Phrase(text, told)
    for place, value in variant.group.fixed():
        shown = shown_constant(value)
        is_long = isinstance(value, (str, bytes)) and len(value) > len(shown)
        is_whole = not is_long and repr(value) == shown
        text = f"{place}{'=' if is_whole else ' a '}{shown}"
        found[f"constant {place}"] = _Phrase(text, is_public=False)
    for column, path in zip(layout.int_columns, layout.ints, strict=True):
        if not variant.dimensions[column].dynamic and path.owner is None:
            text = f"{path}={shown_value(variant.rows.value(0, column))}"
            found[f"int {path}"] = _Phrase(text, is_public=False)
    return found
