"""Vision-language models: a picture comes with the first call, and only a cache with the others."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.zoo.case import Case
from tests.zoo.language import VOCAB, built, generated, looped, prompt

__all__ = ["CASES", "llava_inputs", "qwen2_vl_inputs"]

_IMAGE, _START, _END, _VIDEO = VOCAB - 1, VOCAB - 2, VOCAB - 3, VOCAB - 4
_TEXT: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "pad_token_id": 0,
}  # fmt: skip
_VISION: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "image_size": 16, "patch_size": 4,
}  # fmt: skip
_SIGLIP = {**_VISION, "model_type": "siglip_vision_model", "vision_use_head": False}


def _llava() -> nn.Module:
    return built(
        "LlavaForConditionalGeneration", "LlavaConfig", image_token_index=_IMAGE,
        vision_config={**_VISION, "model_type": "clip_vision_model"},
        text_config={**_TEXT, "model_type": "llama"}, vision_feature_layer=-1,
    )  # fmt: skip


def _paligemma() -> nn.Module:
    return built(
        "PaliGemmaForConditionalGeneration", "PaliGemmaConfig", image_token_index=_IMAGE,
        projection_dim=32, hidden_size=32, vision_config={**_SIGLIP, "projection_dim": 32},
        text_config={**_TEXT, "model_type": "gemma", "head_dim": 8},
    )  # fmt: skip


def _gemma3() -> nn.Module:
    text = {
        **_TEXT, "head_dim": 8, "sliding_window": 32, "query_pre_attn_scalar": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    }  # fmt: skip
    return built(
        "Gemma3ForConditionalGeneration", "Gemma3Config", text_config=text, mm_tokens_per_image=4,
        vision_config=_SIGLIP, image_token_index=_IMAGE, boi_token_index=_START,
        eoi_token_index=_END,
    )  # fmt: skip


def _idefics3(family: str = "Idefics3") -> nn.Module:
    return built(
        f"{family}ForConditionalGeneration", f"{family}Config", image_token_id=_IMAGE,
        scale_factor=2, vision_config=_VISION, text_config={**_TEXT, "model_type": "llama"},
    )  # fmt: skip


def _smolvlm() -> nn.Module:
    return _idefics3("SmolVLM")


def _qwen2_vl() -> nn.Module:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    return built(
        "Qwen2VLForConditionalGeneration", "Qwen2VLConfig", **_QWEN,
        text_config={**_TEXT, "rope_parameters": rope},
        vision_config={
            "depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2,
            "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2,
        },
    )  # fmt: skip


def _qwen2_5_vl() -> nn.Module:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    return built(
        "Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLConfig", **_QWEN,
        text_config={**_TEXT, "rope_parameters": rope},
        vision_config={
            "depth": 2, "hidden_size": 32, "out_hidden_size": 32, "num_heads": 4,
            "intermediate_size": 48, "patch_size": 4, "spatial_merge_size": 2,
            "temporal_patch_size": 2, "window_size": 16, "fullatt_block_indexes": [1],
        },
    )  # fmt: skip


_QWEN = {
    "image_token_id": _IMAGE, "video_token_id": _VIDEO, "vision_start_token_id": _START,
    "vision_end_token_id": _END,
}  # fmt: skip


def _internvl() -> nn.Module:
    return built(
        "InternVLForConditionalGeneration", "InternVLConfig", image_token_id=_IMAGE,
        vision_config={**_VISION, "image_size": [16, 16], "patch_size": [4, 4]},
        text_config={**_TEXT, "model_type": "qwen2"}, downsample_ratio=0.5,
    )  # fmt: skip


def _text(batch: int, length: int) -> torch.Tensor:
    return prompt(batch, length)["input_ids"] % _VIDEO


def _with_image(batch: int, length: int, tokens: int) -> dict[str, torch.Tensor]:
    """One picture per row, whose tokens follow the first token of the prompt."""
    text = _text(batch, length)
    ids = torch.cat([text[:, :1], text.new_full((batch, tokens), _IMAGE), text[:, 1:]], dim=1)
    generator = torch.Generator().manual_seed(batch)
    pixels = torch.randn(batch, 3, 16, 16, generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}


def llava_inputs(batch: int, length: int) -> dict[str, torch.Tensor]:
    return _with_image(batch, length, 16)


def _paligemma_inputs(batch: int, length: int) -> dict[str, torch.Tensor]:
    given = _with_image(batch, length, 16)
    return {**given, "token_type_ids": torch.zeros_like(given["input_ids"])}


def _gemma3_inputs(batch: int, length: int) -> dict[str, torch.Tensor]:
    given = _with_image(batch, length, 4)
    return {**given, "token_type_ids": (given["input_ids"] == _IMAGE).long()}


def _idefics3_inputs(batch: int, length: int) -> dict[str, torch.Tensor]:
    given = _with_image(batch, length, 4)
    return {**given, "pixel_values": given["pixel_values"][:, None]}


def _internvl_inputs(batch: int, length: int) -> dict[str, torch.Tensor]:
    return _with_image(batch, length, 4)


def qwen2_vl_inputs(batch: int, length: int) -> dict[str, torch.Tensor]:
    """Pictures of 4 by 6 patches, merged two by two into 6 tokens each."""
    given = _with_image(batch, length, 6)
    ids = given["input_ids"]
    generator = torch.Generator().manual_seed(batch)
    return {
        "input_ids": ids,
        "attention_mask": given["attention_mask"],
        "pixel_values": torch.randn(batch * 24, 3 * 2 * 4 * 4, generator=generator),
        "image_grid_thw": torch.tensor([[1, 4, 6]] * batch),
        "mm_token_type_ids": (ids == _IMAGE).long(),
    }


def _llava_loop(module: Any, batch: int, length: int, steps: int) -> None:
    """By hand: the pixels go in with the prompt."""
    given = llava_inputs(batch, length)
    mask = given["attention_mask"]
    output = module(**given, use_cache=True)
    for _ in range(steps):
        mask = torch.cat([mask, mask.new_ones(batch, 1)], dim=1)
        output = module(
            input_ids=output.logits[:, -1:].argmax(-1) % _VIDEO, attention_mask=mask,
            cache=output.cache, use_cache=True,
        )  # fmt: skip


def _qwen2_vl_loop(module: Any, batch: int, length: int, steps: int) -> None:
    """By hand: the model finds positions in the grid of each picture."""
    output = module(**qwen2_vl_inputs(batch, length), use_cache=True)
    for step in range(steps):
        # A row of the prompt is 6 picture tokens longer than its text, and 3 positions: a grid
        # of 2 by 3 tokens ends at its longer side.
        position = length + 3 + step
        output = module(
            input_ids=output.logits[:, -1:].argmax(-1) % _VIDEO,
            position_ids=torch.full((3, batch, 1), position),
            cache=output.cache, use_cache=True,
        )  # fmt: skip


def _llava_sometimes(batch: int, length: int) -> dict[str, torch.Tensor]:
    """Odd batches come without a picture."""
    return llava_inputs(batch, length) if batch % 2 == 0 else prompt(batch, length)


_ONE: dict[str, Any] = {"prompts": [(1, 6), (1, 9)], "unseen": [(1, 10), (1, 15)]}
# As many pictures as recorded: generate() passes a list with one tensor per picture.
_KNOWN: dict[str, Any] = {"prompts": [(2, 6), (3, 9)], "unseen": [(2, 7), (3, 12)]}
_ANY: dict[str, Any] = {"prompts": [(2, 6), (3, 9)], "unseen": [(4, 7), (5, 12)]}
_LIST = "pictures are encoded outside, and come as a list"

CASES: list[Case] = [
    generated("llava_generate", _llava, inputs=llava_inputs, **_ONE),
    generated("llava_generate_batched", _llava, inputs=llava_inputs, **_KNOWN, note=_LIST),
    generated("llava_with_and_without", _llava, inputs=_llava_sometimes, **_KNOWN),
    looped("llava_manual", _llava, **_ANY, run=_llava_loop, note="pixels go in with the prompt"),
    generated("paligemma_generate", _paligemma, inputs=_paligemma_inputs, **_ONE),
    generated("paligemma_generate_batched", _paligemma, inputs=_paligemma_inputs, **_ANY),
    generated("gemma3_vlm_generate", _gemma3, inputs=_gemma3_inputs, **_ONE),
    generated("gemma3_vlm_generate_batched", _gemma3, inputs=_gemma3_inputs, **_ANY),
    generated("qwen2_vl_generate", _qwen2_vl, inputs=qwen2_vl_inputs, **_ONE),
    generated("qwen2_vl_generate_batched", _qwen2_vl, inputs=qwen2_vl_inputs, **_KNOWN, note=_LIST),
    looped("qwen2_vl_manual", _qwen2_vl, **_KNOWN, run=_qwen2_vl_loop, note="grids are data"),
    generated("qwen2_5_vl_generate", _qwen2_5_vl, inputs=qwen2_vl_inputs, **_ONE),
    generated("smolvlm_generate", _smolvlm, inputs=_idefics3_inputs, **_ONE),
    generated(
        "idefics3_generate_batched", _idefics3, inputs=_idefics3_inputs, **_KNOWN, note=_LIST
    ),
    generated("internvl_generate_batched", _internvl, inputs=_internvl_inputs, **_ANY),
]
