"""Names of symbols: why a dynamic dimension is called ``batch_size`` or ``x_dim_1``.

The first of a symbol's dimensions that has a usual name (``sequence_length`` of ``input_ids``)
gives it to the symbol, if no other symbol has it. Otherwise the name is made of the path of the
first dimension. The vocabulary is in :mod:`calltape_analyzer.variants.symbol_names`.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from calltape_analyzer.text import UniqueNames
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.symbols import Symbol

__all__ = [
    "FLAT",
    "name_symbols",
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
    argument: str, path: str, rank: int, axis: int, beside: Collection[str] = ()
) -> str | None:
    """The name that an axis usually has in models of transformers, or None.

    Args:
        argument: the name of the parameter.
        path: of the tensor below the argument; ``""`` if the argument is the tensor.
        rank: of the tensor.
        axis: from 0.
        beside: the names of all arguments of the call.
    """
    is_of_encoder = argument in _OF_ENCODERS and not _OF_DECODERS.isdisjoint(beside)
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
    return name if name[:1].isalpha() else f"n{name}"  # f(**{"1": x})


def name_symbols(variant: VariantFacts) -> None:
    """Gives the symbols of a variant unique names."""
    taken = UniqueNames()
    for symbol in variant.symbols:
        usual = _usual_name(variant, symbol)
        is_free = usual is not None and usual not in taken.names
        symbol.name = taken.add(usual if usual and is_free else _own_name(variant, symbol))


def _usual_name(variant: VariantFacts, symbol: Symbol) -> str | None:
    """The first usual name of its dimensions. That of a flat batch comes last: one token of each
    sequence of a batch is a row of tokens, too."""
    group = variant.group
    found: str | None = None
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
        found = found or usual
    return found


def _own_name(variant: VariantFacts, symbol: Symbol) -> str:
    first = symbol.columns[0]
    path = variant.group.layout.path(first)
    return own_dimension_name(path.argument, path.path, first.axis)
