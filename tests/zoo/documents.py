"""Long texts, bytes, tables and pages: encoders that cut, pool, hash or pad what they are given."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.arguments import random_ids
from tests.zoo.case import Arguments, Case, simple
from tests.zoo.language import VOCAB, built, generated

__all__ = ["CASES"]

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128, "pad_token_id": 0,
}  # fmt: skip


def _encoder(family: str, head: str = "Model", **options: Any) -> Any:
    return partial(built, f"{family}{head}", f"{family}Config", **{**_SIZES, **options})


def _funnel() -> nn.Module:
    return built(
        "FunnelModel", "FunnelConfig", vocab_size=VOCAB, block_sizes=[1, 1], d_model=32, n_head=4,
        d_head=8, d_inner=48, num_decoder_layers=1, pad_token_id=0,
    )  # fmt: skip


def _led() -> nn.Module:
    return built(
        "LEDForConditionalGeneration", "LEDConfig", vocab_size=VOCAB, d_model=32, encoder_layers=2,
        decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=48, max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64, attention_window=8, pad_token_id=0,
        decoder_start_token_id=2,
    )  # fmt: skip


def _longt5() -> nn.Module:
    return built(
        "LongT5ForConditionalGeneration", "LongT5Config", vocab_size=VOCAB, d_model=32, d_kv=8,
        d_ff=48, num_layers=2, num_heads=4, local_radius=4, global_block_size=4,
        relative_attention_num_buckets=8, relative_attention_max_distance=16,
        encoder_attention_type="transient-global", decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip


def _reformer() -> nn.Module:
    return built(
        "ReformerModel", "ReformerConfig", vocab_size=VOCAB, hidden_size=32, num_attention_heads=4,
        attention_head_size=8, feed_forward_size=48, attn_layers=["local", "lsh"],
        local_attn_chunk_length=4, lsh_attn_chunk_length=4, num_buckets=4, hash_seed=7,
        axial_pos_shape=[8, 8], axial_pos_embds_dim=[16, 16], max_position_embeddings=64,
    )  # fmt: skip


def _perceiver() -> nn.Module:
    return built(
        "PerceiverForMaskedLM", "PerceiverConfig", vocab_size=VOCAB, d_model=32, d_latents=32,
        num_latents=8, num_self_attends_per_block=2, num_self_attention_heads=4,
        num_cross_attention_heads=4, qk_channels=32, v_channels=32, max_position_embeddings=32,
    )  # fmt: skip


def _canine() -> nn.Module:
    return built(
        "CanineModel", "CanineConfig", hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=128, num_hash_functions=4,
        num_hash_buckets=128, local_transformer_stride=16,
    )  # fmt: skip


def _tapas() -> nn.Module:
    return built(
        "TapasForQuestionAnswering", "TapasConfig", **_SIZES, num_aggregation_labels=4,
        type_vocab_sizes=[3, 16, 16, 2, 8, 8, 4], max_num_rows=8, max_num_columns=8,
    )  # fmt: skip


def _masked(rows: int, length: int) -> Arguments:
    lengths = torch.randint(2, length + 1, (rows, 1))
    mask = (torch.arange(length) < lengths).long()
    return (), {"input_ids": random_ids(rows, length), "attention_mask": mask}


def _globally(rows: int, length: int) -> Arguments:
    """The first token sees all of the text, and all of it sees the first token."""
    kwargs = _masked(rows, length)[1]
    everywhere = torch.zeros_like(kwargs["input_ids"])
    everywhere[:, 0] = 1
    return (), {**kwargs, "global_attention_mask": everywhere}


def _summary(batch: int, length: int) -> dict[str, Tensor]:
    return _globally(batch, length)[1]


def _characters(rows: int, length: int) -> Arguments:
    kwargs = _masked(rows, length)[1]
    return (), {**kwargs, "input_ids": torch.randint(32, 40_000, (rows, length))}


def _boxed(rows: int, length: int) -> Arguments:
    """Words and where on the page they stand."""
    corner = torch.randint(0, 40, (rows, length, 2))
    return (), {**_masked(rows, length)[1], "bbox": torch.cat([corner, corner + 9], dim=-1)}


def _cells(rows: int, length: int) -> Arguments:
    """A question, and a table that is read cell by cell: seven kinds of token types."""
    sizes = torch.tensor([2, 3, 4, 2, 3, 3, 2])
    types = (torch.rand(rows, length, 7) * sizes).long()
    return (), {**_masked(rows, length)[1], "token_type_ids": types}


_PLANE: dict[str, Any] = {"seen": [(2, 10), (3, 18), (4, 14)], "unseen": [(5, 12), (2, 24)]}
_WHOLE: dict[str, Any] = {"seen": [(2, 16), (3, 32), (4, 24)], "unseen": [(5, 40), (2, 48)]}
_LONG: dict[str, Any] = {"seen": [(2, 96), (3, 112), (4, 80)], "unseen": [(5, 88), (2, 120)]}

CASES: list[Case] = [
    simple("longformer", _encoder("Longformer", attention_window=8), _globally, **_PLANE,
           note="pads to whole windows, and gathers the tokens that see everything"),
    simple("longformer_local", _encoder("Longformer", "ForMaskedLM", attention_window=8), _masked,
           **_WHOLE, note="whole windows only"),
    generated("led", _led, [(2, 16), (3, 24)], [(4, 32), (5, 40)], inputs=_summary),
    generated("longt5", _longt5, [(2, 10), (3, 18)], [(4, 14), (5, 23)]),
    simple("big_bird", _encoder("BigBird", attention_type="block_sparse", block_size=4,
           num_random_blocks=1), _masked, **_LONG, note="random blocks, looked up in numpy"),
    simple("big_bird_full", _encoder("BigBird", attention_type="original_full"), _masked,
           **_PLANE),
    simple("reformer", _reformer, _masked, **_PLANE, note="hashes and sorts, pads to chunks"),
    simple("funnel", _funnel, _masked, **_PLANE, note="pools by two, and puts back"),
    simple("perceiver", _perceiver, _masked, **_PLANE),
    simple("canine", _canine, _characters, **_LONG, note="characters, hashed; local windows"),
    simple("fnet", partial(built, "FNetModel", "FNetConfig", vocab_size=VOCAB, hidden_size=32,
           intermediate_size=48, num_hidden_layers=2), lambda *size: ((random_ids(*size),), {}),
           **_PLANE, note="a Fourier transform in place of attention"),
    simple("convbert", _encoder("ConvBert", embedding_size=32, conv_kernel_size=3), _masked,
           **_PLANE, note="attention beside a convolution that depends on the span"),
    simple("layoutlm", _encoder("LayoutLM", "ForTokenClassification",
           max_2d_position_embeddings=64), _boxed, **_PLANE),
    simple("lilt", _encoder("Lilt", hidden_size=48, channel_shrink_ratio=2,
           max_2d_position_embeddings=64), _boxed, **_PLANE,
           note="two streams that lend each other scores"),
    simple("tapas", _tapas, _cells, **_PLANE, note="positions within a cell; segments of a table"),
]  # fmt: skip
