"""Decoders whose cache is not simply everything so far: windows, fixed buffers, states."""

from __future__ import annotations

from typing import Any

import torch

from tests.zoo.case import Arguments, Case, captured
from tests.zoo.decoders import LLAMA, llama
from tests.zoo.language import VOCAB, built, generated, looped, prompt

__all__ = ["CASES"]

_WINDOW = 6
_HYBRID: dict[str, Any] = {**LLAMA, "head_dim": 8, "sliding_window": _WINDOW}


def _mistral() -> torch.nn.Module:
    return built("MistralForCausalLM", "MistralConfig", **LLAMA, sliding_window=_WINDOW)


def _gemma2() -> torch.nn.Module:
    return built("Gemma2ForCausalLM", "Gemma2Config", **_HYBRID, query_pre_attn_scalar=8)


def _gemma3() -> torch.nn.Module:
    return built(
        "Gemma3ForCausalLM", "Gemma3TextConfig", **_HYBRID, query_pre_attn_scalar=8,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip


def _gpt_oss() -> torch.nn.Module:
    return built(
        "GptOssForCausalLM", "GptOssConfig", **_HYBRID, num_local_experts=4,
        num_experts_per_tok=2, layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip


def _mamba() -> torch.nn.Module:
    return built(
        "MambaForCausalLM", "MambaConfig", vocab_size=VOCAB, hidden_size=32, state_size=4,
        num_hidden_layers=2,
    )  # fmt: skip


def _mamba2() -> torch.nn.Module:
    return built(
        "Mamba2ForCausalLM", "Mamba2Config", vocab_size=VOCAB, hidden_size=32, state_size=4,
        num_hidden_layers=2, num_heads=8, head_dim=8, n_groups=1, chunk_size=8,
    )  # fmt: skip


def _jamba() -> torch.nn.Module:
    return built(
        "JambaForCausalLM", "JambaConfig", **LLAMA, num_experts=2, attn_layer_period=2,
        attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, use_mamba_kernels=False,
        mamba_d_state=4, mamba_dt_rank=4,
    )  # fmt: skip


def _qwen3_next() -> torch.nn.Module:
    return built(
        "Qwen3NextForCausalLM", "Qwen3NextConfig", **LLAMA, head_dim=8, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=24,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"],
    )  # fmt: skip


def _lfm2() -> torch.nn.Module:
    return built(
        "Lfm2ForCausalLM", "Lfm2Config", **LLAMA, layer_types=["conv", "full_attention"],
        block_auto_adjust_ff_dim=False,
    )  # fmt: skip


def _bamba() -> torch.nn.Module:
    return built(
        "BambaForCausalLM", "BambaConfig", **LLAMA, attn_layer_indices=[1], mamba_n_heads=8,
        mamba_d_head=8, mamba_d_state=4, mamba_n_groups=1, mamba_chunk_size=8,
    )  # fmt: skip


def _static_loop(module: Any, batch: int, length: int, steps: int) -> None:
    """A cache of fixed size, and the positions that say how much of it is filled."""
    from transformers import StaticCache

    cache = StaticCache(config=module.config, max_cache_len=32)
    ids = prompt(batch, length)["input_ids"]
    positions = torch.arange(length)[None]
    for step in range(steps + 1):
        output = module(input_ids=ids, position_ids=positions, cache=cache, use_cache=True)
        ids = output.logits[:, -1:].argmax(-1)
        positions = torch.tensor([[length + step]])


def _pairs_loop(module: Any, batch: int, length: int, steps: int) -> None:
    """The cache as pairs of tensors: what exported programs of before the cache classes take."""
    ids, past = prompt(batch, length)["input_ids"], None
    for _ in range(steps + 1):
        logits, past = module(ids, past)
        ids = logits[:, -1:].argmax(-1)


class Pairs(torch.nn.Module):
    """A language model that takes and gives its cache as a tuple of (key, value)."""

    def __init__(self) -> None:
        super().__init__()
        self.model = llama()

    def forward(self, input_ids: torch.Tensor, past: Any = None) -> tuple[torch.Tensor, Any]:
        from transformers import DynamicCache

        cache = DynamicCache() if past is None else DynamicCache(past)
        output = self.model(input_ids=input_ids, cache=cache, use_cache=True)
        layers = output.cache.layers
        return output.logits, tuple((layer.keys, layer.values) for layer in layers)


class InlineCache(torch.nn.Module):
    """Attention over a preallocated cache that the caller owns and the model writes into."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, width)
        self.mix = torch.nn.Linear(width, 3 * width)
        self.head = torch.nn.Linear(width, VOCAB)

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        query, key, value = self.mix(self.embed(ids)).chunk(3, dim=-1)
        keys.index_copy_(1, positions, key)
        values.index_copy_(1, positions, value)
        allowed = torch.arange(keys.shape[1])[None] <= positions[:, None]
        scores = (query @ keys.transpose(1, 2)).masked_fill(~allowed, float("-inf"))
        return self.head(scores.softmax(-1) @ values)


def _inline_cache() -> torch.nn.Module:
    torch.manual_seed(0)
    return InlineCache().eval()


def _inline_run(module: torch.nn.Module, batch: int, length: int, size: int) -> None:
    keys, values = torch.zeros(2, batch, size, 16).unbind()
    ids, positions = prompt(batch, length)["input_ids"], torch.arange(length)
    for step in range(3):
        logits = module(ids, positions, keys, values)
        ids, positions = logits[:, -1:].argmax(-1), torch.tensor([length + step])


def _inline_drive(module: torch.nn.Module) -> None:
    _inline_run(module, 2, 5, 16)
    _inline_run(module, 3, 7, 24)


def _inline_unseen(module: torch.nn.Module) -> list[Arguments]:
    return captured(module, lambda m: _inline_run(m, 4, 6, 20), (0, 2))


def _pairs() -> torch.nn.Module:
    return Pairs().eval()


_SHORT = {"prompts": [(2, 3), (3, 4)], "unseen": [(4, 5), (5, 4)]}
_LONG = {"prompts": [(2, 9), (3, 12)], "unseen": [(4, 10), (5, 15)]}
_ACROSS = {"prompts": [(2, 4), (3, 8)], "unseen": [(4, 3), (5, 11)]}
_STATIC = {"cache_implementation": "static", "disable_compile": True}

CASES: list[Case] = [
    generated("mistral_within", _mistral, **_SHORT, new=2, note="window never full"),
    generated("mistral_past_window", _mistral, **_LONG, note="window full from the prompt on"),
    generated("mistral_across_window", _mistral, **_ACROSS, note="fills its window on the way"),
    generated("gemma2", _gemma2, **_ACROSS),
    generated("gemma3_text", _gemma3, **_ACROSS, note="sliding and full layers in one cache"),
    looped("gemma3_text_manual", _gemma3, **_LONG, note="builds its own hybrid cache"),
    generated("gpt_oss", _gpt_oss, **_ACROSS, note="attention sinks, experts, hybrid cache"),
    generated("llama_static_generate", llama, **_STATIC, note="mask is 4-D while decoding"),
    looped("llama_static_manual", llama, run=_static_loop),
    looped("llama_pairs", _pairs, run=_pairs_loop, note="cache as nested tuples"),
    Case(
        "inline_cache", _inline_cache, _inline_drive, _inline_unseen,
        note="mutates tensors of the caller, returns none of them",
    ),
    generated("mamba", _mamba, note="state of fixed size"),
    generated("mamba2", _mamba2, note="chunked scan"),
    generated("jamba", _jamba, note="states and keys in one cache"),
    generated("bamba", _bamba, note="chunked scan beside attention"),
    generated("lfm2", _lfm2, note="short convolutions beside attention"),
    generated("qwen3_next", _qwen3_next, note="gated delta rule beside attention"),
]  # fmt: skip
