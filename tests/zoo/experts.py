"""Decoders of experts, and decoders with an attention of their own: latent, gated, multi-query."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from tests.zoo.case import Case
from tests.zoo.decoders import LLAMA
from tests.zoo.language import VOCAB, built, chat, generated, looped, prompt

__all__ = ["CASES"]

_EQUAL: dict[str, Any] = {**LLAMA, "num_key_value_heads": 4}  # as many key heads as query heads
_GPT: dict[str, Any] = {
    "vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128
}  # fmt: skip
_LATENT: dict[str, Any] = {
    **_EQUAL, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "qk_rope_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
_DELTA: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
_HYBRID: dict[str, Any] = {
    "head_dim": 8, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]
}  # fmt: skip


def _causal(family: str, head: str = "ForCausalLM", **options: Any) -> Any:
    return partial(built, f"{family}{head}", f"{family}Config", **options)


def _deepseek_v2() -> nn.Module:
    return built(
        "DeepseekV2ForCausalLM", "DeepseekV2Config", **_LATENT, moe_intermediate_size=24,
        first_k_dense_replace=1, n_shared_experts=1,
    )  # fmt: skip


def _longcat() -> nn.Module:
    sizes = {k: v for k, v in _LATENT.items() if k not in {"intermediate_size", "head_dim"}}
    sizes["num_layers"] = sizes.pop("num_hidden_layers")
    del sizes["num_experts_per_tok"]
    return built(
        "LongcatFlashForCausalLM", "LongcatFlashConfig", **sizes, ffn_hidden_size=48, head_dim=8,
        moe_topk=2, zero_expert_num=2, expert_ffn_hidden_size=24,
    )  # fmt: skip


def _glm4_moe() -> nn.Module:
    return built(
        "Glm4MoeForCausalLM", "Glm4MoeConfig", **LLAMA, head_dim=8, n_routed_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=24, first_k_dense_replace=1,
    )  # fmt: skip


def _deepseek_v32() -> nn.Module:
    return built(
        "DeepseekV32ForCausalLM", "DeepseekV32Config", **_LATENT, moe_intermediate_size=24,
        n_group=2, topk_group=1, index_topk=6, index_head_dim=16, index_n_heads=2,
        mlp_layer_types=["dense", "sparse"],
    )  # fmt: skip


def _gemma3n() -> nn.Module:
    return built(
        "Gemma3nForCausalLM", "Gemma3nTextConfig", **LLAMA, **_HYBRID, num_kv_shared_layers=0,
        vocab_size_per_layer_input=VOCAB, hidden_size_per_layer_input=8, laurel_rank=8,
        activation_sparsity_pattern=[0.5, 0.0],
    )  # fmt: skip


def _mpt() -> nn.Module:
    return built(
        "MptForCausalLM", "MptConfig", vocab_size=VOCAB, d_model=32, n_heads=4, n_layers=2,
        max_seq_len=64,
    )  # fmt: skip


def _xglm() -> nn.Module:
    return built(
        "XGLMForCausalLM", "XGLMConfig", vocab_size=VOCAB, d_model=32, ffn_dim=48, num_layers=2,
        attention_heads=4, max_position_embeddings=128, pad_token_id=0,
    )  # fmt: skip


def _modern() -> nn.Module:
    return built(
        "ModernBertDecoderForCausalLM", "ModernBertDecoderConfig", vocab_size=VOCAB, hidden_size=32,
        intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, local_attention=12,
        max_position_embeddings=128, layer_types=["sliding_attention", "full_attention"],
        pad_token_id=0, bos_token_id=2, cls_token_id=2, eos_token_id=1, sep_token_id=1,
    )  # fmt: skip


_qwen3_5 = partial(built, "Qwen3_5ForCausalLM", "Qwen3_5TextConfig", **LLAMA, **_DELTA, head_dim=8)
_padded = partial(prompt, padded=True)
_ACROSS: dict[str, Any] = {"prompts": [(2, 4), (3, 8)], "unseen": [(4, 3), (5, 11)]}
_ALONE: dict[str, Any] = {"prompts": [(1, 5), (1, 9)], "unseen": [(1, 6), (1, 30)]}
_SMALL: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_olmoe = _causal("Olmoe", **_EQUAL, num_experts=4, num_experts_per_tok=2, pad_token_id=0)
_starcoder = _causal("Starcoder2", **LLAMA, sliding_window=6)

CASES: list[Case] = [
    generated("deepseek_v2", _deepseek_v2, inputs=_padded, note="latent attention, padded"),
    generated("longcat", _longcat, note="two attentions per layer, experts that do nothing"),
    looped("glm4_moe", _glm4_moe, padded=True, note="a bias corrects the choice of experts"),
    generated("olmoe", _olmoe),
    generated("granitemoe", _causal("GraniteMoe", **LLAMA, **_SMALL, pad_token_id=0), **_ALONE),
    generated("deepseek_v32", _deepseek_v32, **_ACROSS, note="an indexer picks six of the past"),
    generated("minimax_m2", _causal("MiniMaxM2", **LLAMA, head_dim=8, **_SMALL)),
    generated("phimoe", _causal("Phimoe", **LLAMA, **_SMALL), inputs=_padded),
    generated("gemma3n", _gemma3n, **_ACROSS, note="four streams, embeddings per layer"),
    generated("starcoder2_across_window", _starcoder, **_ACROSS, inputs=_padded),
    generated("gptj", _causal("GPTJ", **_GPT, rotary_dim=4), note="rotates pairs, from a table"),
    generated("codegen", _causal("CodeGen", **_GPT, rotary_dim=4), inputs=_padded),
    generated("gpt_bigcode", _causal("GPTBigCode", **_GPT), **_ALONE, note="one key for all heads"),
    generated("mpt", _mpt, inputs=_padded, use_cache=True, note="alibi, from a table"),
    generated("xglm", _xglm, inputs=_padded, note="sinusoids by the mask's cumulative sum"),
    looped("persimmon", _causal("Persimmon", **_EQUAL), [(2, 4), (3, 7)], [(4, 5), (2, 11)],
           run=chat),
    generated("cohere", _causal("Cohere", **LLAMA, use_qk_norm=True, bos_token_id=2)),
    generated("diffllama", _causal("DiffLlama", **LLAMA), note="the difference of two attentions"),
    generated("modernbert_decoder", _modern, **_ACROSS),
    generated("smollm3", _causal("SmolLM3", **LLAMA, no_rope_layers=[1, 0], pad_token_id=0),
              output_attentions=False, num_beams=2),
    generated("doge", _causal("Doge", **LLAMA, keep_window_size=6), **_ACROSS,
              note="the values make the mask: the six that matter most"),
    generated("olmo_hybrid", _causal("OlmoHybrid", **LLAMA, **_DELTA, pad_token_id=0)),
    generated("qwen3_5_text", _qwen3_5, **_ALONE),
]  # fmt: skip
