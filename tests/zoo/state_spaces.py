"""Decoders that carry a state: state spaces, linear attention, recurrences, and hybrids."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from tests.zoo.case import Arguments, Case, captured
from tests.zoo.decoders import LLAMA
from tests.zoo.language import VOCAB, built, generated, prompt

__all__ = ["CASES"]

_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}  # fmt: skip
_PLAIN: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2}


def _causal(family: str, **options: Any) -> Any:
    return partial(built, f"{family}ForCausalLM", f"{family}Config", **options)


def _zamba(family: str, **options: Any) -> Any:
    sizes = {**LLAMA, "num_key_value_heads": 4, "num_hidden_layers": 4, "mamba_d_state": 4}
    blocks = ["mamba", "hybrid", "mamba", "hybrid"]  # the hybrid ones share their attention
    return _causal(family, **sizes, layers_block_type=blocks, **options)


def _nemotron_h() -> nn.Module:
    sizes = {name: size for name, size in LLAMA.items() if name != "num_hidden_layers"}
    return built(
        "NemotronHForCausalLM", "NemotronHConfig", **sizes, head_dim=8, n_groups=1, chunk_size=8,
        layers_block_type=["mamba", "attention", "moe"], ssm_state_size=4, mamba_num_heads=8,
        mamba_head_dim=8, n_routed_experts=4, moe_intermediate_size=24,
        moe_shared_expert_intermediate_size=24,
    )  # fmt: skip


def _recurrent_gemma() -> nn.Module:
    return built(
        "RecurrentGemmaForCausalLM", "RecurrentGemmaConfig", vocab_size=VOCAB, hidden_size=32,
        num_hidden_layers=3, lru_width=32, intermediate_size=96, num_attention_heads=4,
        attention_window_size=6,
    )  # fmt: skip


def _kimi_linear() -> nn.Module:
    return built(
        "KimiLinearForCausalLM", "KimiLinearConfig", **{**LLAMA, "num_key_value_heads": 4},
        kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, pad_token_id=0,
        num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, linear_head_dim=8,
        linear_num_heads=4, layer_types=["linear_attention", "full_attention"],
        mlp_layer_types=["dense", "sparse"],
    )  # fmt: skip


def _xlnet() -> nn.Module:
    return built(
        "XLNetLMHeadModel", "XLNetConfig", vocab_size=VOCAB, d_model=32, n_layer=2, n_head=4,
        d_inner=48, mem_len=8,
    )  # fmt: skip


def _segments(module: Any, batch: int, *lengths: int) -> None:
    """A long text in pieces; what the last eight tokens left is remembered."""
    mems = None
    for length in lengths:
        mems = module(prompt(batch, length)["input_ids"], mems=mems, use_mems=True).mems


def _xlnet_drive(module: nn.Module) -> None:
    _segments(module, 2, 10, 9, 12)
    _segments(module, 3, 11, 8, 9)


def _xlnet_unseen(module: nn.Module) -> list[Arguments]:
    return captured(module, lambda m: _segments(m, 4, 13, 10, 7), (0, 1, 2))


def _rwkv_loop(module: Any, batch: int, length: int) -> None:
    """A prompt and greedy steps; the state is a list of tensors."""
    ids, state = prompt(batch, length)["input_ids"], None
    for _ in range(4):
        output = module(ids, state=state, use_cache=True)
        ids, state = output.logits[:, -1:].argmax(-1), output.state


def _rwkv_drive(module: nn.Module) -> None:
    _rwkv_loop(module, 2, 5)
    _rwkv_loop(module, 3, 9)


def _rwkv_unseen(module: nn.Module) -> list[Arguments]:
    return [
        *captured(module, lambda m: _rwkv_loop(m, 4, 7), (0, 3)),
        *captured(module, lambda m: _rwkv_loop(m, 5, 12), (0, 3)),
    ]


_padded = partial(prompt, padded=True)
_falcon_h1 = _causal("FalconH1", **LLAMA, mamba_d_ssm=64, **_MAMBA)
_granite = _causal(
    "GraniteMoeHybrid", **LLAMA, layer_types=["mamba", "attention"], shared_intermediate_size=48,
    num_local_experts=4, pad_token_id=0, **_MAMBA,
)  # fmt: skip
_minimax = _causal(
    "MiniMax", **LLAMA, head_dim=8, num_local_experts=4, block_size=4, pad_token_id=0,
    layer_types=["linear_attention", "full_attention"],
)  # fmt: skip
_xlstm = _causal(
    "xLSTM",
    **{**_PLAIN, "hidden_size": 128},
    num_heads=4,
    chunk_size=8,
    ffn_round_up_to_multiple_of=16,
)
_rwkv = _causal("Rwkv", **_PLAIN, attention_hidden_size=32, intermediate_size=48, context_length=64)

CASES: list[Case] = [
    generated("falcon_mamba", _causal("FalconMamba", **_PLAIN, state_size=4), note="one by one"),
    generated("falcon_h1", _falcon_h1, note="attention and a scan side by side in every layer"),
    generated("falcon_h1_padded", _falcon_h1, inputs=_padded, note="padding must not enter states"),
    generated(
        "zamba", _zamba("Zamba", n_mamba_heads=2, mamba_dt_rank=4), note="attention shares weights"
    ),
    generated("zamba2", _zamba("Zamba2", n_mamba_heads=8, mamba_ngroups=1, chunk_size=8)),
    generated("nemotron_h", _nemotron_h, note="a layer is a scan, attention or experts"),
    generated("granitemoehybrid", _granite),
    generated("recurrent_gemma", _recurrent_gemma, note="a gated recurrence, a window of 6"),
    generated("minimax", _minimax, note="lightning attention in blocks of 4"),
    generated("kimi_linear", _kimi_linear, note="delta rule beside latent attention"),
    generated("xlstm", _xlstm, note="matrix memories, in chunks of 8"),
    Case("rwkv", _rwkv, _rwkv_drive, _rwkv_unseen, note="the state is a list of tensors"),
    Case("xlnet_memories", _xlnet, _xlnet_drive, _xlnet_unseen, note="time first inside"),
]  # fmt: skip
