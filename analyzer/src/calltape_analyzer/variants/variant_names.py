"""Names of variants, for people: what makes a variant different from the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.switches import shown_constant
from calltape_analyzer.pytree.caches import is_cache_argument
from calltape_analyzer.text import UniqueNames, counted, printable, shown_value
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.tree import BoolNode, ConstantNode, EnumNode, walk

__all__ = ["name_variants"]

_WITH, _WITHOUT = "decode", "prefill"
_MAX_PHRASES = 32
_SHARED = "shared "


def name_variants(variants: Sequence[VariantFacts], signature: Signature) -> None:
    """Gives each variant a unique name: ``prefill`` and ``decode`` if their caches are empty and
    not, else what distinguishes it (``mask present``, ``add=False``); ``main`` for a single one."""
    features = [_features(variant) for variant in variants]
    absent = _absent(features, signature)
    phrases = _Phrases(_distinguishing(features, absent), absent)
    taken = UniqueNames(numbered="{} ({})")
    for variant, found in zip(variants, features, strict=True):
        variant.name = taken.add(printable(", ".join(phrases.of(found))) or "main")


def _absent(features: Sequence[Mapping[str, str]], signature: Signature) -> dict[str, str]:
    """The phrase for calls that leave an argument out: its default, or ``no`` and its name. And the
    one for calls whose arguments share no memory."""
    defaults = {p.name: p.default for p in signature.parameters if p.has_default}
    found: dict[str, str] = {}
    for key in dict.fromkeys(key for own in features for key in own if key.startswith("has ")):
        name = key.removeprefix("has ")
        default = defaults.get(name)
        scalar = isinstance(default, bool | int | float | str)
        found[key] = f"{name}={shown_constant(default)}" if scalar else f"no {name}"
    for key in dict.fromkeys(key for own in features for key in own if key.startswith(_SHARED)):
        found[key] = f"not: {key.removeprefix(_SHARED)}"
    return found


def _distinguishing(
    features: Sequence[Mapping[str, str]], absent: Mapping[str, str]
) -> dict[str, int]:
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
        moved: dict[tuple[int, str], list[int]] = {}
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
    """All features of a variant as phrases, the most informative first."""
    layout = variant.group.layout
    found: dict[str, str] = {}
    states = {name for name, node in layout.nodes.items() if is_cache_argument(name, node)}
    tensors = Counter(place.argument for place in layout.tensors)
    filled = any(place.argument in states and not place.private for place in layout.tensors)
    found["phase"] = "merged" if variant.completions else _WITH if filled else _WITHOUT
    found["context"] = layout.context.separating()
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
        if facts.memory:
            found[f"memory {place}"] = f"{place} {facts.memory}"
    for pair in variant.group.key.shared:
        text = pair.text(layout.tensors)
        found[f"{_SHARED}{text}"] = text
    for name in layout.arguments:
        found[f"tensors {name}"] = f"{counted(tensors[name], 'tensor')} in {name}"
    return found


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
    for column, path in zip(layout.int_columns, layout.ints, strict=True):
        if not variant.dimensions[column].dynamic and path.owner is None:
            found[f"int {path}"] = f"{path}={shown_value(variant.rows.value(0, column))}"
    return found
