"""Names for people: of variants, by what makes one different from the others, and of symbols.

The first of a symbol's dimensions that has a usual name in models of transformers
(``sequence_length`` of ``input_ids``) gives it to the symbol, if no other symbol has it. Otherwise
the name is made of the path of the first dimension (``x_dim_1``).
"""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from calltape_analyzer.observing.contexts import FLOAT
from calltape_analyzer.observing.groups import shown_constant
from calltape_analyzer.observing.layout import is_public
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.pytree.caches import is_cache_argument
from calltape_analyzer.text import UniqueNames, counted, printable, shown_value
from calltape_analyzer.variants.facts import CounterIs, Fixed, VariantFacts
from calltape_analyzer.variants.symbols import Symbol
from calltape_schema.privacy import is_name
from calltape_schema.tree import BoolNode, ConstantNode, EnumNode, ScalarNode, walk

__all__ = [
    "FLAT",
    "name_symbols",
    "name_variants",
    "own_dimension_name",
    "usual_dimension_name",
]


# By argument the names of its axes, as the ONNX exports of Optimum have them.
_TOKENS = {0: "batch_size", 1: "sequence_length"}
_TOTAL = {0: "batch_size", 1: "total_sequence_length"}
_PAST = {0: "batch_size", 2: "past_sequence_length"}
_ENCODER = {0: "batch_size", 1: "encoder_sequence_length"}
_USUAL: dict[str, dict[int, str]] = {
    "input_ids": _TOKENS,
    "inputs_embeds": _TOKENS,
    "position_ids": _TOKENS,
    "token_type_ids": _TOKENS,
    "labels": _TOKENS,
    "hidden_states": _TOKENS,
    "decoder_input_ids": _TOKENS,
    "decoder_inputs_embeds": _TOKENS,
    "attention_mask": _TOTAL,
    "decoder_attention_mask": _TOTAL,
    "cache_position": {0: "sequence_length"},
    "cache": _PAST,  # transformers 5.24 gave past_key_values this name
    "past_key_values": _PAST,
    "past_key_value": _PAST,
    "encoder_hidden_states": _ENCODER,
    "encoder_outputs": _ENCODER,
    "encoder_attention_mask": _ENCODER,
    "pixel_values": {0: "batch_size", 2: "height", 3: "width"},
    "pixel_mask": {0: "batch_size", 1: "height", 2: "width"},
    "input_features": {0: "batch_size", 2: "frames"},
    "input_values": {0: "batch_size", 1: "samples"},
    "logits": _TOKENS,
    "last_hidden_state": _TOKENS,
}
_OF_EMBEDDINGS = (
    "inputs_embeds", "decoder_inputs_embeds", "hidden_states", "last_hidden_state",
)  # fmt: skip
_FLAT_RANKS: dict[str, int] = {
    "input_ids": 1,
    "positions": 1,
    "position_ids": 1,
    "token_type_ids": 1,
    "decoder_input_ids": 1,
    **dict.fromkeys(_OF_EMBEDDINGS, 2),
}
"""The rank of these in a flat batch, in which the tokens of all sequences stand in one row, as in
engines that serve many requests (vLLM, SGLang) and in packed training."""
FLAT = "num_tokens"
_MASK_4D = {0: "batch_size", 2: "sequence_length", 3: "total_sequence_length"}


_OF_DECODERS = frozenset(
    {"decoder_input_ids", "decoder_inputs_embeds", "decoder_attention_mask", "encoder_outputs"}
)
_OF_ENCODERS = frozenset({"input_ids", "inputs_embeds", "attention_mask"})
"""What these mean in a call that has arguments of a decoder beside them."""


def usual_dimension_name(
    argument: str, path: str, rank: int, axis: int, shapes_beside: Collection[str] = ()
) -> str | None:
    """The name that an axis usually has in models of transformers, or None.

    Args:
        argument: the name of the parameter.
        path: of the tensor below the argument; ``""`` if the argument is the tensor.
        rank: of the tensor.
        axis: from 0.
        shapes_beside: the names of all arguments of the call.
    """
    is_of_encoder = argument in _OF_ENCODERS and not _OF_DECODERS.isdisjoint(shapes_beside)
    if is_of_encoder and _FLAT_RANKS.get(argument, 0) < rank < 4:
        return _ENCODER.get(axis)
    if "cross_attention" in path and axis == 2:
        return "encoder_sequence_length"
    if argument.endswith("attention_mask") and rank == 4:
        return _MASK_4D.get(axis)
    if rank == _FLAT_RANKS.get(argument):
        return FLAT if axis == 0 else None
    if argument == "cache" and rank != 4:
        return None  # a name that other models give to other things
    return _USUAL.get(argument, {}).get(axis)


def own_dimension_name(argument: str, path: str, axis: int | None) -> str:
    """A name made of where a dimension stands, which is an identifier in ASCII: ``x_dim_0``.

    Args:
        argument, path: as above.
        axis: from 0; None for an int, whose name is that of its path alone.
    """
    text = f"{argument}{path}" if axis is None else f"{argument}{path}_dim_{axis}"
    name = re.sub("[^0-9A-Za-z]", "_", text).strip("_")
    is_plain = name[:1].isalpha() and not keyword.iskeyword(name)
    return name if is_plain else f"n{name}"  # f(**{"1": x, "lambda": 2})


def name_symbols(variant: VariantFacts) -> None:
    """Gives the symbols of a variant unique names."""
    names_taken = UniqueNames()
    for symbol in variant.symbols:
        name = _usual_name(variant, symbol)
        if name is None or name in names_taken.names:
            first = symbol.columns[0]
            path = variant.group.layout.path(first)
            name = own_dimension_name(path.argument, path.path, first.axis)
        symbol.name = names_taken.add(name)


def _usual_name(variant: VariantFacts, symbol: Symbol) -> str | None:
    """The first usual name of its dimensions. That of a flat batch comes last: one token of each
    sequence of a batch is a row of tokens, too."""
    group = variant.group
    usual_name: str | None = None
    for column in symbol.columns:
        if column.axis is None:
            continue
        path = group.layout.path(column)
        rank = group.facts[column.index].rank
        usual = usual_dimension_name(
            path.argument, path.path, rank, column.axis, group.layout.arguments
        )
        if usual is not None and usual != FLAT:
            return usual
        usual_name = usual_name or usual
    return usual_name


_WITH, _WITHOUT = "decode", "prefill"
_MAX_PHRASES = 32


class _Key(NamedTuple):
    """What tells variants apart: something of an argument or of a value in it.

    Attributes:
        kind: what it is, such as ``dtype``.
        of: the path. Of arguments that share memory, the words for those that do not.
        number: among those of this kind in one argument.
    """

    kind: str
    of: str = ""
    number: int = 0


class _Phrase(NamedTuple):
    """A part of a name, and whether it is free of values that were passed."""

    text: str
    is_public: bool = True


_Features = Mapping[_Key, _Phrase]


def name_variants(variants: Sequence[VariantFacts], signature: Signature) -> None:
    """Gives each variant a unique name: ``prefill`` and ``decode`` if their caches are empty and
    not, else what distinguishes it (``mask present``, ``add=False``); ``main`` for a single one.
    The public name is the same, or the variant's number if the name has what was passed."""
    features = [_features(variant) for variant in variants]
    absent = _absent(variants, features, signature)
    phrases = _Phrases(_distinguishing(features, absent), absent)
    names, public_names = UniqueNames(numbered="{} ({})"), UniqueNames(numbered="{} ({})")
    for number, (variant, phrases_of_variant) in enumerate(zip(variants, features, strict=True)):
        distinguishing = phrases.of(phrases_of_variant)
        name = printable(", ".join(phrase.text for phrase in distinguishing)) or "main"
        context = variant.group.layout.context
        separating = (
            [phrases_of_variant[_Key("context")]]
            if context.effective_autocast or context.modes
            else []
        )
        separating += [phrases_of_variant[_Key("default dtype")]] if context.dtype != FLOAT else []
        variant.names_context = all(phrase in distinguishing for phrase in separating)
        is_public = all(phrase.is_public for phrase in distinguishing)
        variant.name = names.add(name)
        variant.public_name = public_names.add(name if is_public else f"variant {number}")


def _absent(
    variants: Sequence[VariantFacts], features: Sequence[_Features], signature: Signature
) -> dict[_Key, _Phrase]:
    """The phrase for calls that leave an argument out: its default, or ``no`` and its name. And the
    one for calls whose arguments share no memory."""
    defaults = {p.name: p.default for p in signature.parameters if p.has_default}
    layouts = [variant.group.layout for variant in variants]
    private = {name for layout in layouts for name in layout.arguments if not is_public(name)}
    private |= {str(place) for each in layouts for place in each.tensors if not place.is_public}
    absent: dict[_Key, _Phrase] = {}
    for key in dict.fromkeys(
        key for phrases_of_variant in features for key in phrases_of_variant if key.kind == "has"
    ):
        name = key.of
        default = defaults.get(name)
        scalar = isinstance(default, bool | int | float | str)
        text = f"{name}={shown_constant(default)}" if scalar else f"no {name}"
        is_value = scalar and not isinstance(default, bool)
        absent[key] = _Phrase(text, name not in private and not is_value)
    for key, phrase in (
        item for phrases_of_variant in features for item in phrases_of_variant.items()
    ):
        if key.kind == "shared":
            absent[key] = phrase._replace(text=key.of)
    return absent


def _distinguishing(features: Sequence[_Features], absent: _Features) -> dict[_Key, int]:
    """The features that tell variants apart which were equal in all features before, with their
    order. Looks at the features of each variant only, because the features of all others would be
    quadratic work."""
    first_phrases = features[0] if features else {}
    having: dict[_Key, list[int]] = {key: [] for key in (*first_phrases, *absent)}
    for number, phrases_of_variant in enumerate(features):
        for key, value in phrases_of_variant.items():
            if value != absent.get(key):
                having.setdefault(key, []).append(number)
    part = [0] * len(features)
    sizes = Counter(part)
    chosen: dict[_Key, int] = {}
    for key, numbers in having.items():
        moved: dict[tuple[int, _Phrase], list[int]] = {}
        for number in numbers:
            moved.setdefault((part[number], features[number][key]), []).append(number)
        sizes_left = Counter(part[number] for number in numbers)
        # If all variants leave a part, the last group of them stays.
        parts = sum(1 for part_number, count in sizes_left.items() if count == sizes[part_number])
        if len(moved) == parts:
            continue
        chosen[key] = len(chosen)
        for (part_number, _), moved_together in moved.items():
            new = len(sizes)
            sizes[new] = len(moved_together)
            sizes[part_number] -= len(moved_together)
            for number in moved_together:
                part[number] = new
    return chosen


class _Phrases:
    """The phrases that tell each variant apart, in the order of the chosen features.

    If there are very many, a name has the phrases of features that the variant has, and says how
    many more there are: names do not grow with the features of other variants.
    """

    def __init__(self, chosen: Mapping[_Key, int], absent: _Features) -> None:
        self._chosen = chosen
        self._absent = absent
        self._optional = [key for key in chosen if key in absent]

    def of(self, features: _Features) -> list[_Phrase]:
        """The phrases of a variant with these features."""
        chosen = self._chosen
        ranked = sorted((chosen[key], p) for key, p in features.items() if p.text and key in chosen)
        phrases = list(dict.fromkeys(phrase for _, phrase in ranked))
        lacking = len(self._optional) - sum(
            key in self._absent for key in features if key in chosen
        )
        if len(phrases) + lacking > _MAX_PHRASES:
            shown = phrases[:_MAX_PHRASES] or [self._absent[key] for key in self._optional[:1]]
            return [*shown, _Phrase(f"and {len(phrases) + lacking - len(shown)} more")]
        absent = [(chosen[key], self._absent[key]) for key in self._optional if key not in features]
        return list(dict.fromkeys(phrase for _, phrase in sorted(ranked + absent)))


def _features(variant: VariantFacts) -> dict[_Key, _Phrase]:
    """All features of a variant as phrases, the most informative first."""
    layout = variant.group.layout
    phrases: dict[_Key, _Phrase] = {}
    states = {name for name, node in layout.nodes.items() if is_cache_argument(name, node)}
    tensors = Counter(place.argument for place in layout.tensors)
    filled = any(place.argument in states and not place.private for place in layout.tensors)
    phase = "merged" if variant.completions else _WITH if filled else _WITHOUT
    phrases[_Key("phase")] = _Phrase(phase)
    phrases[_Key("context")] = _Phrase(layout.context.autocast_in_words())
    phrases[_Key("default dtype")] = _Phrase(layout.context.dtype_in_words())
    if variant.conditions:
        phrases[_Key("condition")] = _conditions(variant)
    constants = _constants(variant)
    for name in layout.arguments:
        if name not in states:
            is_tensor = name in tensors
            constant = constants.get(_Key("bool", name)) or constants.get(_Key("constant", name))
            present = _Phrase(f"{name} present", is_public(name))
            phrases[_Key("has", name)] = present if is_tensor or not constant else constant
    phrases |= constants
    for place in layout.tensors:
        if place.path and place.argument not in states:
            phrases[_Key("has", str(place))] = _Phrase(f"{place} present", place.is_public)
    for place, facts in zip(layout.tensors, variant.group.facts, strict=True):
        path, is_public_path = str(place), place.is_public
        if place.argument not in states:
            phrases[_Key("dtype", path)] = _Phrase(f"{path} {facts.dtype}", is_public_path)
            phrases[_Key("rank", path)] = _Phrase(f"{path} of rank {facts.rank}", is_public_path)
        if facts.memory:
            phrases[_Key("memory", path)] = _Phrase(f"{path} {facts.memory}", is_public_path)
        if facts.grad is not None:
            requires = "requires" if facts.grad else "requires no"
            phrases[_Key("grad", path)] = _Phrase(f"{path} {requires} gradients", is_public_path)
    for pair in variant.group.key.shared:
        text = pair.text(layout.tensors)
        paths = layout.tensors[pair.one], layout.tensors[pair.other]
        apart = pair.text(layout.tensors, negated=True)
        is_public_path = all(place.is_public for place in paths)
        phrases[_Key("shared", apart)] = _Phrase(text, is_public_path)
    for name in layout.arguments:
        text = f"{counted(tensors[name], 'tensor')} in {name}"
        phrases[_Key("tensors", name)] = _Phrase(text, is_public(name))
    return phrases


def _conditions(variant: VariantFacts) -> _Phrase:
    """What the calls have in common: of a size it may be told, of an int not."""
    layout = variant.group.layout
    are_public = [
        isinstance(condition, CounterIs)
        or (
            isinstance(condition, Fixed)
            and not condition.column.is_int
            and layout.path(condition.column).is_public
        )
        for condition in variant.conditions
    ]
    return _Phrase(
        ", ".join(condition.text(layout) for condition in variant.conditions), all(are_public)
    )


def _constants(variant: VariantFacts) -> dict[_Key, _Phrase]:
    layout = variant.group.layout
    phrases: dict[_Key, _Phrase] = {}
    counts: Counter[_Key] = Counter()

    def add(kind: str, name: str, phrase: _Phrase) -> None:
        key = _Key(kind, name)
        phrases[key._replace(number=counts[key])] = phrase
        counts[key] += 1

    named_nodes = ((name, node) for name, root in layout.nodes.items() for node in walk(root))
    for name, node in named_nodes:
        is_public_name = is_public(name)
        if isinstance(node, EnumNode) or (isinstance(node, ConstantNode) and node.kind != "device"):
            is_public_name = (
                is_public_name and isinstance(node, ConstantNode) and is_name(node.name)
            )
            add("named", name, _Phrase(f"{name}={node.name}", is_public_name))
        if isinstance(node, BoolNode):
            is_top = layout.nodes[name] is node
            text = f"{name}={node.value}" if is_top else f"flags in {name}"
            add("bool", name, _Phrase(text, is_public_name))
        if isinstance(node, ScalarNode) and str(layout.scalars[node.scalar]) in layout.ordered:
            cls = (node.type or node.kind).rpartition(":")[2]
            add("class", name, _Phrase(f"{layout.scalars[node.scalar]} a {cls}", is_public_name))
    for place, value in variant.group.fixed():
        shown = shown_constant(value)
        is_long = isinstance(value, (str, bytes)) and len(value) > len(shown)
        is_whole = not is_long and repr(value) == shown
        text = f"{place}{'=' if is_whole else ' a '}{shown}"
        phrases[_Key("constant", str(place))] = _Phrase(text, is_public=False)
    for column, path in zip(layout.int_columns, layout.ints, strict=True):
        if not variant.dimensions[column].dynamic and path.owner is None:
            text = f"{path}={shown_value(variant.rows.value(0, column))}"
            phrases[_Key("int", str(path))] = _Phrase(text, is_public=False)
    return phrases
