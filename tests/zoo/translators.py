"""More models of two halves: translation, summaries, dialogue, experts, pages of text."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.arguments import tiny_images
from tests.zoo.case import Case, lively, simple
from tests.zoo.encoder_decoder import labelled
from tests.zoo.language import VOCAB, built, generated, prompt

__all__ = ["CASES"]

_START: dict[str, Any] = {"decoder_start_token_id": 2, "pad_token_id": 0, "eos_token_id": 1}
_BART: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "max_position_embeddings": 128, "bos_token_id": 2, **_START,
}  # fmt: skip
_FREE: dict[str, Any] = {**_BART, "forced_eos_token_id": None}
_T5: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, **_START,
}  # fmt: skip
_LAYERS: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip


def _to(family: str, head: str = "ForConditionalGeneration", **options: Any) -> Any:
    return partial(built, f"{family}{head}", f"{family}Config", **options)


def _prophetnet() -> nn.Module:
    return built(
        "ProphetNetForConditionalGeneration", "ProphetNetConfig", vocab_size=VOCAB, hidden_size=32,
        encoder_ffn_dim=48, decoder_ffn_dim=48, num_encoder_layers=2, num_decoder_layers=2,
        num_encoder_attention_heads=4, num_decoder_attention_heads=4, max_position_embeddings=64,
        num_buckets=8, relative_max_distance=16, **_START,
    )  # fmt: skip


def _nllb_moe() -> nn.Module:
    return built(
        "NllbMoeForConditionalGeneration", "NllbMoeConfig", **_BART, num_experts=4,
        encoder_sparse_step=2, decoder_sparse_step=2, expert_capacity=64,
    )  # fmt: skip


def _switch() -> nn.Module:
    return built(
        "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig", **_T5,
        num_decoder_layers=2, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1,
        num_experts=4, expert_capacity=64,
    )  # fmt: skip


def _t5gemma() -> nn.Module:
    half = {
        **_LAYERS, "vocab_size": VOCAB, "num_key_value_heads": 2, "head_dim": 8,
        "sliding_window": 32, "query_pre_attn_scalar": 8, "bos_token_id": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    }  # fmt: skip
    return built(
        "T5GemmaForConditionalGeneration", "T5GemmaConfig", encoder=half, decoder=half,
        vocab_size=VOCAB,
    )  # fmt: skip


def _two_berts() -> nn.Module:
    import transformers

    torch.manual_seed(0)
    half = transformers.BertConfig(vocab_size=VOCAB, max_position_embeddings=64, **_LAYERS)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(half, half)
    config.decoder_start_token_id, config.pad_token_id = 2, 0
    model: Any = lively(transformers.EncoderDecoderModel(config=config))
    settings = model.generation_config
    settings.eos_token_id, settings.pad_token_id, settings.decoder_start_token_id = None, 0, 2
    return model


def _reader() -> nn.Module:
    """Lines of text in pictures: a vision transformer, and a decoder for its words."""
    import transformers

    torch.manual_seed(0)
    vision = transformers.DeiTConfig(image_size=16, patch_size=4, **_LAYERS)
    text = transformers.TrOCRConfig(
        vocab_size=VOCAB, d_model=32, decoder_layers=2, decoder_attention_heads=4,
        decoder_ffn_dim=48, max_position_embeddings=64, cross_attention_hidden_size=32, **_START,
    )  # fmt: skip
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text)
    config.decoder_start_token_id, config.pad_token_id = 2, 0
    model: Any = lively(transformers.VisionEncoderDecoderModel(config=config))
    settings = model.generation_config
    settings.eos_token_id, settings.pad_token_id, settings.decoder_start_token_id = None, 0, 2
    return model


def _pix2struct() -> nn.Module:
    attention = {"num_heads": 4, "num_layers": 2, "d_kv": 8, "d_ff": 48, "hidden_size": 32}
    positions = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 16}
    return built(
        "Pix2StructForConditionalGeneration", "Pix2StructConfig",
        text_config={**attention, **positions, "vocab_size": VOCAB, "decoder_start_token_id": 0},
        vision_config={
            "hidden_size": 32, "patch_embed_hidden_size": 48, "d_ff": 48, "d_kv": 8,
            "num_hidden_layers": 2, "num_attention_heads": 4, "seq_len": 16,
        },
    )  # fmt: skip


def _patches(batch: int, count: int) -> dict[str, Tensor]:
    """Patches of a page, each with its row and column before its pixels; some are padding."""
    generator = torch.Generator().manual_seed(batch)
    places = torch.stack([torch.arange(count) // 4 + 1, torch.arange(count) % 4 + 1], dim=1)
    pixels = torch.randn(batch, count, 48, generator=generator)
    mask = torch.ones(batch, count)
    mask[0, -2:] = 0
    patches = torch.cat([places.float().expand(batch, -1, -1), pixels], dim=2)
    return {"flattened_patches": patches * mask[..., None], "attention_mask": mask}


_padded = partial(prompt, padded=True)
_PAIRS: dict[str, Any] = {
    "seen": [(2, 5, 4), (3, 9, 5), (2, 7, 6)],
    "unseen": [(4, 6, 5), (5, 12, 7)],
}
_m2m = _to("M2M100", **_BART)
_fsmt = _to(
    "FSMT", **{k: v for k, v in _BART.items() if k != "vocab_size"}, src_vocab_size=VOCAB,
    tgt_vocab_size=VOCAB, forced_eos_token_id=None,
)  # fmt: skip
_bird = _to("BigBirdPegasus", **_BART, attention_type="original_full")

CASES: list[Case] = [
    generated("pegasus", _to("Pegasus", **_FREE), note="sinusoids"),
    generated("mbart_beams", _to("MBart", **_FREE), num_beams=2, forced_bos_token_id=5),
    generated("m2m100", _m2m, inputs=_padded, forced_bos_token_id=5),
    simple("m2m100_loss", _m2m, labelled, **_PAIRS),
    generated("nllb_moe", _nllb_moe, note="every other layer has experts"),
    generated("blenderbot", _to("Blenderbot", **_FREE, encoder_no_repeat_ngram_size=0)),
    generated("plbart_sampled", _to("PLBart", **_FREE), do_sample=True, num_return_sequences=2),
    generated("fsmt", _fsmt, note="two vocabularies"),
    generated("bigbird_pegasus", _bird),
    generated("prophetnet", _prophetnet, note="predicts two tokens at each place"),
    generated("umt5", _to("UMT5", **_T5), inputs=_padded, note="positions in every layer"),
    generated("switch_transformers", _switch, note="one expert per token, of limited capacity"),
    generated("t5gemma", _t5gemma, note="one attention for both halves"),
    generated("two_berts", _two_berts),
    generated("trocr", _reader, inputs=tiny_images),
    generated("pix2struct", _pix2struct, [(2, 8), (3, 12)], [(4, 10), (5, 15)], inputs=_patches,
              note="patches with their places"),
]  # fmt: skip
