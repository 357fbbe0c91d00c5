"""Decoder language models through generate() and by hand, with the cache that each brings."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tests.zoo.case import Case
from tests.zoo.language import VOCAB, built, chat, generated, looped, prompt

__all__ = ["CASES", "LLAMA", "llama"]

# fmt: off
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128,
}
# fmt: on
LLAMA: dict[str, Any] = {**_SIZES, "num_key_value_heads": 2}
_HEAD: dict[str, Any] = {**LLAMA, "head_dim": 8}
_EXPERTS: dict[str, Any] = {
    **LLAMA,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}


def llama(**options: Any) -> torch.nn.Module:
    """The smallest of them, which several families use."""
    return built("LlamaForCausalLM", "LlamaConfig", **LLAMA, **options)


def _causal(family: str, head: str = "ForCausalLM", **options: Any) -> Any:
    return partial(built, f"{family}{head}", f"{family}Config", **options)


def _gpt2() -> torch.nn.Module:
    return built(
        "GPT2LMHeadModel", "GPT2Config", vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4,
        n_positions=128,
    )  # fmt: skip


def _gpt_neo() -> torch.nn.Module:
    return built(
        "GPTNeoForCausalLM", "GPTNeoConfig", vocab_size=VOCAB, hidden_size=32, num_layers=2,
        num_heads=4, max_position_embeddings=128, window_size=6,
        attention_types=[[["global", "local"], 1]],
    )  # fmt: skip


def _opt() -> torch.nn.Module:
    return built(
        "OPTForCausalLM", "OPTConfig", vocab_size=VOCAB, hidden_size=32, ffn_dim=48,
        num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128,
        word_embed_proj_dim=32,
    )  # fmt: skip


def _bloom() -> torch.nn.Module:
    return built(
        "BloomForCausalLM", "BloomConfig", vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4
    )


def _deepseek() -> torch.nn.Module:
    return built(
        "DeepseekV3ForCausalLM", "DeepseekV3Config", **_SIZES, num_key_value_heads=4,
        q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8,
        n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
        moe_intermediate_size=24, first_k_dense_replace=1,
    )  # fmt: skip


def _embedded(batch: int, length: int) -> dict[str, torch.Tensor]:
    """A prompt that is embedded already, as adapters and soft prompts pass it."""
    generator = torch.Generator().manual_seed(100 * batch + length)
    return {
        "inputs_embeds": torch.randn(batch, length, 32, generator=generator),
        "attention_mask": torch.ones(batch, length, dtype=torch.long),
    }


_PADDED = partial(prompt, padded=True)
_OPTIONS = {"pad_token_id": 0}

CASES: list[Case] = [
    looped("llama_manual", llama),
    looped("llama_manual_padded", llama, padded=True, note="left padding, mask over past and new"),
    looped("llama_batch_one", llama, [(1, 5), (1, 9)], [(1, 6), (1, 30)], note="always batch 1"),
    looped(
        "llama_chat", llama, [(2, 4), (3, 7)], [(4, 5), (2, 11)], run=chat,
        note="several new tokens on a filled cache",
    ),
    looped("llama_hidden_states", llama, output_hidden_states=True),
    looped("llama_eager", partial(llama, attn_implementation="eager"), output_attentions=True),
    generated("llama_generate", llama),
    generated("llama_generate_padded", llama, inputs=_PADDED, unseen=[(4, 7), (5, 12)]),
    generated("llama_generate_batch_one", llama, [(1, 5), (1, 9)], [(1, 6), (1, 30)]),
    generated("llama_generate_embeds", llama, inputs=_embedded),
    generated("llama_no_cache", llama, use_cache=False, note="no cache: every call is longer"),
    generated("llama_beams", llama, [(2, 5), (3, 9)], num_beams=2, note="batch is rows × beams"),
    generated("qwen2", _causal("Qwen2", **LLAMA, pad_token_id=0)),
    generated("qwen3", _causal("Qwen3", **_HEAD)),
    generated("gpt2", _gpt2),
    generated("gpt2_padded", _gpt2, inputs=_PADDED),
    generated("gpt_neo", _gpt_neo, note="every other layer looks back 6 tokens"),
    generated("phi", _causal("Phi", **_SIZES)),
    generated("phi3", _causal("Phi3", **LLAMA, **_OPTIONS)),
    generated("opt", _opt),
    generated("opt_padded", _opt, inputs=_PADDED, note="positions from the mask's cumulative sum"),
    generated("bloom", _bloom, note="alibi: biases from the mask"),
    generated(
        "falcon",
        _causal("Falcon", **_SIZES, ffn_hidden_size=48, new_decoder_architecture=False),
        note="multi-query",
    ),
    generated("stablelm", _causal("StableLm", **LLAMA)),
    generated("gpt_neox", _causal("GPTNeoX", **_SIZES)),
    generated("olmo2", _causal("Olmo2", **LLAMA, **_OPTIONS)),
    generated("mixtral", _causal("Mixtral", **LLAMA, num_local_experts=4)),
    generated("qwen2_moe", _causal("Qwen2Moe", **_EXPERTS, shared_expert_intermediate_size=24)),
    looped("qwen3_moe", _causal("Qwen3Moe", **_EXPERTS, head_dim=8)),
    generated("deepseek_v3", _deepseek, note="latent attention, grouped experts"),
]  # fmt: skip
