"""One vocabulary: both analyses call a dimension by the same name."""

from __future__ import annotations

import keyword
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.variants.names import own_dimension_name, usual_dimension_name
from tests.analyzer.tapes import write_tape


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (("input_ids", "", 2, 1), "sequence_length"),
        (("attention_mask", "", 2, 1), "total_sequence_length"),
        (("decoder_attention_mask", "", 4, 2), "sequence_length"),
        (("decoder_attention_mask", "", 4, 1), None),
        (("past_key_values", ".layers.0.keys", 4, 2), "past_sequence_length"),
        (("cache", ".layers.0.keys", 4, 2), "past_sequence_length"),
        (("cache", "", 3, 2), None),
        (
            ("past_key_values", ".cross_attention_cache.layers.0.keys", 4, 2),
            "encoder_sequence_length",
        ),
        (("past_key_values", ".cross_attention_cache.layers.0.keys", 4, 0), "batch_size"),
        (("x", "", 2, 0), None),
        # Tokens of many requests in one row, as engines pass them.
        (("input_ids", "", 1, 0), "num_tokens"),
        (("positions", "", 1, 0), "num_tokens"),
        (("positions", "", 2, 0), None),
        (("position_ids", "", 1, 0), "num_tokens"),
        (("hidden_states", "", 2, 0), "num_tokens"),
        (("inputs_embeds", "", 2, 1), None),
        (("hidden_states", "", 3, 0), "batch_size"),
        (("input_ids", "", 1, 0, ["decoder_input_ids"]), "num_tokens"),
        (("labels", "", 1, 0), "batch_size"),
        (("logits", "", 2, 0), "batch_size"),
        # Beside a decoder, these are an encoder's.
        (("attention_mask", "", 2, 1, ["encoder_outputs"]), "encoder_sequence_length"),
        (("input_ids", "", 2, 1, ["decoder_input_ids"]), "encoder_sequence_length"),
        (("decoder_input_ids", "", 2, 1, ["encoder_outputs"]), "sequence_length"),
    ],
)
def test_usual_names(where: Any, name: str | None) -> None:
    assert usual_dimension_name(*where) == name


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (("x", "", 0), "x_dim_0"),
        (("xs", ".0.keys", 2), "xs_0_keys_dim_2"),
        (("n", "", None), "n"),
        (("_x", ".é b", 1), "x___b_dim_1"),
        (("", "", None), "n"),
        (("lambda", "", None), "nlambda"),
    ],
)
def test_own_names_are_identifiers(where: tuple[str, str, int | None], name: str) -> None:
    assert own_dimension_name(*where) == name
    assert name.isidentifier()
    assert not keyword.iskeyword(name)


def test_both_analyses_use_the_same_names(tmp_path: Path) -> None:
    def call(batch: int, length: int, past: int) -> dict[str, Any]:
        return {
            "input_ids": torch.zeros(batch, length, dtype=torch.int64),
            "attention_mask": torch.zeros(batch, length + past, dtype=torch.int64),
            "past_key_values": {"cross_attention_cache": torch.zeros(batch, 2, past + 3, 4)},
            "x-ray": torch.zeros(length + 7),
        }

    path = write_tape(tmp_path / "a.tape", [call(2, 3, 4), call(5, 7, 11), call(3, 2, 9)])
    with open_tape(path) as tape:
        (variant,) = tape.variants()
        of_variant = {
            (tensor.argument, d.axis): d.symbol
            for tensor in variant.findings.tensors
            for d in tensor.dimensions
            if d.dynamic
        }
    assert of_variant["past_key_values", 2] == "encoder_sequence_length"
    assert of_variant["x-ray", 0] == "x_ray_dim_0"


def test_tokens_of_many_requests_are_no_batch(tmp_path: Path) -> None:
    def call(tokens: int) -> dict[str, Any]:
        ids = torch.zeros(tokens, dtype=torch.int64)
        return {"input_ids": ids, "positions": ids, "hidden_states": torch.zeros(tokens, 8)}

    with open_tape(write_tape(tmp_path / "a.tape", [call(3), call(14)])) as tape:
        (variant,) = tape.variants()
        assert [symbol.name for symbol in variant.findings.symbols] == ["num_tokens"]


def test_one_token_of_each_sequence_of_a_batch_is_a_batch(tmp_path: Path) -> None:
    def call(rows: int, length: int) -> dict[str, Any]:
        return {
            "input_ids": torch.zeros(rows, dtype=torch.int64),
            "attention_mask": torch.zeros(rows, length, dtype=torch.int64),
        }

    with open_tape(write_tape(tmp_path / "a.tape", [call(3, 5), call(4, 9)])) as tape:
        (variant,) = tape.variants()
        names = [symbol.name for symbol in variant.findings.symbols]
        assert names == ["batch_size", "total_sequence_length"]
