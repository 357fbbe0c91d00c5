"""More vision-language models: queries, crossed attention, tiles, patches, pictures and videos."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.arguments import drawn
from tests.zoo.case import Arguments, Case, simple
from tests.zoo.language import VOCAB, built, generated, prompt

__all__ = ["CASES"]

_IMAGE, _VIDEO, _START, _END = VOCAB - 1, VOCAB - 2, VOCAB - 3, VOCAB - 4
_LAYERS: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
_TEXT: dict[str, Any] = {
    **_LAYERS, "vocab_size": VOCAB, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1,
}  # fmt: skip
_VISION: dict[str, Any] = {**_LAYERS, "image_size": 16, "patch_size": 4}
_SIGLIP: dict[str, Any] = {
    **_VISION, "model_type": "siglip_vision_model", "vision_use_head": False
}  # fmt: skip
_QUERIES: dict[str, Any] = {
    **_LAYERS, "vocab_size": VOCAB, "encoder_hidden_size": 32, "cross_attention_frequency": 1
}  # fmt: skip
_OPT: dict[str, Any] = {
    "model_type": "opt", "vocab_size": VOCAB, "hidden_size": 32, "ffn_dim": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128,
    "word_embed_proj_dim": 32, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1,
}  # fmt: skip


def _blip(head: str) -> nn.Module:
    return built(
        f"Blip{head}", "BlipConfig", projection_dim=16, image_text_hidden_size=16,
        text_config={**_LAYERS, "vocab_size": VOCAB, "max_position_embeddings": 64,
                     "projection_dim": 16, "bos_token_id": 2, "sep_token_id": 1,
                     "encoder_hidden_size": 32},
        vision_config=_VISION,
    )  # fmt: skip


def _captions() -> nn.Module:
    return _blip("ForConditionalGeneration")


def _matches() -> nn.Module:
    return _blip("ForImageTextRetrieval")


def _blip2() -> nn.Module:
    return built(
        "Blip2ForConditionalGeneration", "Blip2Config", vision_config=_VISION,
        qformer_config=_QUERIES, text_config=_OPT, num_query_tokens=4, image_token_index=_IMAGE,
    )  # fmt: skip


def _instructblip() -> nn.Module:
    return built(
        "InstructBlipForConditionalGeneration", "InstructBlipConfig", vision_config=_VISION,
        qformer_config=_QUERIES, text_config=_OPT, num_query_tokens=4, image_token_index=_IMAGE,
    )  # fmt: skip


def _git() -> nn.Module:
    return built(
        "GitForCausalLM", "GitConfig", **_LAYERS, vision_config=_VISION, vocab_size=VOCAB,
        max_position_embeddings=64, bos_token_id=2, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip


def _kosmos2() -> nn.Module:
    return built(
        "Kosmos2ForConditionalGeneration", "Kosmos2Config", vision_config=_VISION,
        text_config={"vocab_size": VOCAB, "embed_dim": 32, "layers": 2, "ffn_dim": 48,
                     "attention_heads": 4, "max_position_embeddings": 64},
        latent_query_num=4,
    )  # fmt: skip


def _aya() -> nn.Module:
    return built(
        "AyaVisionForConditionalGeneration", "AyaVisionConfig", vision_config=_SIGLIP,
        text_config={**_TEXT, "model_type": "cohere2", "sliding_window": 64,
                     "layer_types": ["sliding_attention", "full_attention"]},
        image_token_index=_IMAGE,
    )  # fmt: skip


def _mllama() -> nn.Module:
    return built(
        "MllamaForConditionalGeneration", "MllamaConfig", image_token_index=_IMAGE,
        text_config={**_TEXT, "cross_attention_layers": [1],
                     "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        vision_config={
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_global_layers": 1, "attention_heads": 4, "vision_output_dim": 64,
            "image_size": 16, "patch_size": 4, "max_num_tiles": 2,
            "intermediate_layers_indices": [0], "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
        },
    )  # fmt: skip


def _idefics2() -> nn.Module:
    return built(
        "Idefics2ForConditionalGeneration", "Idefics2Config", image_token_id=_IMAGE,
        vision_config=_VISION, text_config={**_TEXT, "model_type": "mistral"},
        perceiver_config={"hidden_size": 32, "resampler_n_latents": 4, "resampler_depth": 1,
                          "resampler_n_heads": 4, "resampler_head_dim": 8,
                          "num_key_value_heads": 2},
    )  # fmt: skip


def _tiled(family: str, **options: Any) -> nn.Module:
    return built(
        f"{family}ForConditionalGeneration", f"{family}Config", image_token_index=_IMAGE,
        text_config={**_TEXT, "model_type": "qwen2"}, vision_feature_layer=-1,
        image_grid_pinpoints=[[16, 32], [32, 16]], **options,
    )  # fmt: skip


def _llava_next() -> nn.Module:
    clip = {**_VISION, "model_type": "clip_vision_model"}
    return _tiled("LlavaNext", vision_config=clip)


def _onevision() -> nn.Module:
    return _tiled("LlavaOnevision", vision_config=_SIGLIP, video_token_index=_VIDEO)


def _janus() -> nn.Module:
    codes = {
        "embed_dim": 8, "num_embeddings": 16, "latent_channels": 8, "base_channels": 32,
        "channel_multiplier": [1, 1], "num_res_blocks": 1, "num_patches": 4, "projection_dim": 32,
        "image_token_embed_dim": 32,
    }  # fmt: skip
    return built(
        "JanusForConditionalGeneration", "JanusConfig", image_token_id=_IMAGE, vq_config=codes,
        text_config={**_TEXT, "model_type": "llama"},
        vision_config={**_VISION, "mlp_ratio": 2.0, "projection_dim": 32, "num_image_tokens": 16},
    )  # fmt: skip


def _fuyu() -> nn.Module:
    return built(
        "FuyuForCausalLM", "FuyuConfig", image_size=16, patch_size=4, image_token_id=_IMAGE,
        text_config={**_TEXT, "model_type": "persimmon", "num_key_value_heads": 4},
    )  # fmt: skip


def _florence() -> nn.Module:
    return built(
        "Florence2ForConditionalGeneration", "Florence2Config", image_token_id=_IMAGE,
        text_config={
            "model_type": "bart", "vocab_size": VOCAB, "d_model": 32, "encoder_layers": 2,
            "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
            "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1, "decoder_start_token_id": 2,
            "forced_eos_token_id": None,
        },
        vision_config={
            "depths": [1, 1], "patch_size": [3, 3], "patch_stride": [2, 2], "patch_padding": [1, 1],
            "patch_prenorm": [False, True], "embed_dim": [8, 16], "num_heads": [2, 4],
            "num_groups": [2, 4], "window_size": 2, "projection_dim": 32,
            "max_temporal_embeddings": 4, "max_position_embeddings": 8,
        },
    )  # fmt: skip


def _qwen3_vl() -> nn.Module:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    return built(
        "Qwen3VLForConditionalGeneration", "Qwen3VLConfig", image_token_id=_IMAGE,
        video_token_id=_VIDEO, vision_start_token_id=_START, vision_end_token_id=_END,
        text_config={**_TEXT, "head_dim": 8, "rope_parameters": rope},
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4,
            "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2,
            "out_hidden_size": 32, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
        },
    )  # fmt: skip


def _colpali() -> nn.Module:
    return built(
        "ColPaliForRetrieval", "ColPaliConfig", embedding_dim=16,
        vlm_config={
            "model_type": "paligemma", "image_token_index": _IMAGE, "projection_dim": 32,
            "hidden_size": 32, "vision_config": {**_SIGLIP, "projection_dim": 32},
            "text_config": {**_TEXT, "model_type": "gemma", "head_dim": 8},
        },
    )  # fmt: skip


def _seen(batch: int, length: int, tokens: int, *shape: int) -> dict[str, Tensor]:
    """A picture per row, whose tokens follow the first token of the prompt."""
    text = prompt(batch, length)["input_ids"] % _END
    ids = torch.cat([text[:, :1], text.new_full((batch, tokens), _IMAGE), text[:, 1:]], dim=1)
    pixels = drawn(batch, batch, *(shape or (3, 16, 16)))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}


def _beside(rows: int, length: int) -> Arguments:
    """Words and a picture that have their own ways in."""
    return (), {**prompt(rows, length), "pixel_values": torch.randn(rows, 3, 16, 16)}


def _asked(rows: int, length: int) -> Arguments:
    return (), _seen(rows, length, 4)


def _instructed(rows: int, length: int) -> Arguments:
    """The queries read the instruction as well."""
    words = prompt(rows, length)
    read = {f"qformer_{name}": words[name] for name in ("input_ids", "attention_mask")}
    return (), {**_seen(rows, length, 4), **read}


def _grounded(rows: int, length: int) -> Arguments:
    given = _seen(rows, length, 4)
    places = (given["input_ids"] == _IMAGE).long()
    return (), {**given, "image_embeds_position_mask": places}


def _page(rows: int, length: int) -> Arguments:
    return (), _seen(rows, length, 16)


def _begun(batch: int, length: int) -> dict[str, Tensor]:
    return {**prompt(batch, length), "pixel_values": drawn(batch, batch, 3, 16, 16)}


def _aya_inputs(batch: int, length: int) -> dict[str, Tensor]:
    return _seen(batch, length, 4)


def _sixteen(batch: int, length: int) -> dict[str, Tensor]:
    return _seen(batch, length, 16)


def _crossed(batch: int, length: int) -> dict[str, Tensor]:
    """Two tiles per picture; what each token may look at is a mask of its own."""
    words = prompt(batch, length)
    return {
        **words, "pixel_values": drawn(batch, batch, 1, 2, 3, 16, 16),
        "aspect_ratio_ids": torch.full((batch, 1), 2),
        "aspect_ratio_mask": torch.ones(batch, 1, 2, dtype=torch.long),
        "cross_attention_mask": torch.ones(batch, length, 1, 2, dtype=torch.long),
    }  # fmt: skip


def _idefics2_inputs(batch: int, length: int) -> dict[str, Tensor]:
    return _seen(batch, length, 4, 1, 3, 16, 16)


def _next_inputs(batch: int, length: int) -> dict[str, Tensor]:
    """A wide picture: the whole, and two tiles with the ends of their rows."""
    given = _seen(batch, length, 16 + 32 + 4, 3, 3, 16, 16)
    return {**given, "image_sizes": torch.tensor([[16, 32]] * batch)}


def _onevision_inputs(batch: int, length: int) -> dict[str, Tensor]:
    given = _next_inputs(batch, length)
    return {
        **given, "batch_num_images": torch.ones(batch, dtype=torch.long),
    }  # fmt: skip


def _patched(batch: int, length: int) -> dict[str, Tensor]:
    given = _seen(batch, length, 16, 16, 48)
    return {**given, "image_patches": given.pop("pixel_values")}


def _described(batch: int, length: int) -> dict[str, Tensor]:
    return _seen(batch, length, 17)


def _grids(batch: int, length: int) -> dict[str, Tensor]:
    given = _seen(batch, length, 6)
    return {
        **given, "pixel_values": drawn(batch, batch * 24, 3 * 2 * 4 * 4),
        "image_grid_thw": torch.tensor([[1, 4, 6]] * batch),
        "mm_token_type_ids": (given["input_ids"] == _IMAGE).long(),
    }  # fmt: skip


_PLANE: dict[str, Any] = {"seen": [(2, 5), (3, 9), (4, 7)], "unseen": [(5, 6), (2, 12)]}
_ONE: dict[str, Any] = {"prompts": [(1, 6), (1, 9)], "unseen": [(1, 11), (1, 15)]}
# As many pictures as recorded, where they come as a list.
_KNOWN: dict[str, Any] = {"prompts": [(2, 6), (3, 9)], "unseen": [(2, 7), (3, 12)]}
_ANY: dict[str, Any] = {"prompts": [(2, 6), (3, 9)], "unseen": [(4, 7), (5, 12)]}

CASES: list[Case] = [
    simple("blip_captions", _captions, _beside, **_PLANE),
    simple("blip_matches", _matches, _beside, **_PLANE, note="is this text about this picture"),
    simple("blip2", _blip2, _asked, **_PLANE, note="four queries look at the picture"),
    simple("instructblip", _instructblip, _instructed, **_PLANE),
    generated("git", _git, inputs=_begun, **_ANY, note="the picture is a prefix in the cache"),
    simple("kosmos2", _kosmos2, _grounded, **_PLANE),
    generated("aya_vision", _aya, inputs=_aya_inputs, **_KNOWN),
    generated("mllama", _mllama, inputs=_crossed, **_ANY, note="every other layer looks across"),
    generated("idefics2", _idefics2, inputs=_idefics2_inputs, **_KNOWN, note="patches by masks"),
    generated("llava_next", _llava_next, inputs=_next_inputs, **_ONE, note="tiles"),
    generated("llava_onevision", _onevision, inputs=_onevision_inputs, **_ONE, note="tiles"),
    generated("janus", _janus, inputs=_sixteen, **_KNOWN),
    generated("fuyu", _fuyu, inputs=_patched, **_ANY, note="patches without a vision tower"),
    generated("florence2", _florence, inputs=_described, **_ANY, note="a picture in the encoder"),
    generated("qwen3_vl", _qwen3_vl, inputs=_grids, **_ONE, note="features in several layers"),
    simple("colpali", _colpali, _page, **_PLANE, note="a vector per token"),
]  # fmt: skip
