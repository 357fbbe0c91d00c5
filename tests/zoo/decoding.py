"""Ways to decode: assistants, lookups, beams, windows, masks and positions of the caller's own."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.case import Arguments, Case, captured, simple
from tests.zoo.decoders import LLAMA, llama
from tests.zoo.language import VOCAB, built, generated, looped, prompt

__all__ = ["CASES"]

_WINDOW: dict[str, Any] = {
    **LLAMA, "sliding_window": 6, "pad_token_id": 0,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip


def _causal(family: str, **options: Any) -> Any:
    return partial(built, f"{family}ForCausalLM", f"{family}Config", **options)


def _llama4() -> nn.Module:
    return built(
        "Llama4ForCausalLM", "Llama4TextConfig", **LLAMA, head_dim=8, intermediate_size_mlp=48,
        num_local_experts=4, attention_chunk_size=8, pad_token_id=0,
        layer_types=["chunked_attention", "full_attention"], no_rope_layers=[1, 0],
    )  # fmt: skip


class LowRank(nn.Module):
    """A linear layer, and what an adapter adds to it."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * self.up(self.down(x))


def _adapted() -> nn.Module:
    model: Any = llama()
    for layer in model.model.layers:
        layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj)
        layer.self_attn.v_proj = LowRank(layer.self_attn.v_proj)
    return model.eval()


def _alone(batch: int, length: int) -> dict[str, Tensor]:
    """Words that come again, as a lookup in the prompt needs them."""
    ids = torch.arange(length)[None].expand(batch, -1) % 4 + 10
    return {"input_ids": ids.contiguous(), "attention_mask": torch.ones(batch, length).long()}


def _assisted(module: Any, batch: int, length: int) -> None:
    """A smaller model proposes; the model looks at several tokens at once and keeps some."""
    assistant: Any = llama()
    assistant.model.layers = assistant.model.layers[:1]
    assistant.config.num_hidden_layers = 1
    assistant.generation_config.num_assistant_tokens = 3
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0.0
    module.generate(
        **prompt(batch, length), assistant_model=assistant, do_sample=False, max_new_tokens=8
    )


def _assisted_drive(module: nn.Module) -> None:
    _assisted(module, 1, 5)
    _assisted(module, 1, 9)


def _assisted_unseen(module: nn.Module) -> list[Arguments]:
    return [
        *captured(module, lambda m: _assisted(m, 1, 7), (0, 1)),
        *captured(module, lambda m: _assisted(m, 1, 14), (0, 1)),
    ]


def _looked_up(module: Any, length: int) -> None:
    module.generate(
        **_alone(1, length), prompt_lookup_num_tokens=3, do_sample=False, max_new_tokens=6
    )


def _lookup_drive(module: nn.Module) -> None:
    _looked_up(module, 9)
    _looked_up(module, 13)


def _lookup_unseen(module: nn.Module) -> list[Arguments]:
    return [
        *captured(module, lambda m: _looked_up(m, 11), (0, 1)),
        *captured(module, lambda m: _looked_up(m, 18), (0, 1)),
    ]


def _causal_mask(batch: int, length: int, past: int) -> Tensor:
    """Added to the scores, for every head the same."""
    rows = torch.arange(past, past + length)[:, None]
    mask = torch.where(torch.arange(past + length) <= rows, 0.0, torch.finfo(torch.float32).min)
    return mask.expand(batch, 1, -1, -1).contiguous()


def _square_loop(module: Any, batch: int, length: int, steps: int) -> None:
    """The caller makes the mask of four dimensions and the positions."""
    ids, past, seen = prompt(batch, length)["input_ids"], None, 0
    for _ in range(steps + 1):
        new = ids.shape[1]
        positions = torch.arange(seen, seen + new).expand(batch, -1).contiguous()
        output = module(
            input_ids=ids, attention_mask=_causal_mask(batch, new, seen), cache=past,
            position_ids=positions, use_cache=True,
        )  # fmt: skip
        ids, past, seen = output.logits[:, -1:].argmax(-1), output.cache, seen + new


def _documents(*lengths: int) -> Arguments:
    """Several texts in one row; positions start anew with each of them."""
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    ids = torch.randint(3, VOCAB, positions.shape)
    return (), {"input_ids": ids, "position_ids": positions, "use_cache": False}


def _kept(rows: int, length: int, keep: int) -> Arguments:
    return (), {**prompt(rows, length), "logits_to_keep": keep, "use_cache": False}


def _places(rows: int, length: int, keep: int) -> Arguments:
    """The positions whose logits are wanted, as a tensor."""
    places = torch.randperm(length)[:keep].sort().values
    return (), {**prompt(rows, length), "logits_to_keep": places, "use_cache": False}


def _rewarded(rows: int, length: int) -> Arguments:
    """Padded on the right: the head reads the last token that is none."""
    lengths = torch.randint(2, length + 1, (rows, 1))
    mask = (torch.arange(length) < lengths).long()
    ids = torch.randint(3, VOCAB, (rows, length)) * mask
    return (), {"input_ids": ids, "attention_mask": mask, "use_cache": False}


def _long_past(batch: int, length: int) -> dict[str, Tensor]:
    return prompt(batch, length, padded=True)


_ACROSS: dict[str, Any] = {"prompts": [(2, 4), (3, 8)], "unseen": [(4, 3), (5, 11)]}
_PAST: dict[str, Any] = {"prompts": [(2, 9), (3, 12)], "unseen": [(4, 10), (5, 15)]}
_PLANE: dict[str, Any] = {"seen": [(2, 5), (3, 9), (4, 7)], "unseen": [(5, 6), (2, 12)]}
_KEPT: dict[str, Any] = {
    "seen": [(2, 8, 2), (3, 12, 3), (2, 10, 5)], "unseen": [(4, 9, 4), (5, 14, 6)]
}  # fmt: skip
_reward = partial(built, "Qwen2ForSequenceClassification", "Qwen2Config", **LLAMA, num_labels=1,
                  pad_token_id=0)  # fmt: skip
_tokens = partial(built, "LlamaForTokenClassification", "LlamaConfig", **LLAMA, num_labels=3)

CASES: list[Case] = [
    Case("assisted", llama, _assisted_drive, _assisted_unseen,
         note="a cache that is cropped, several new tokens, logits_to_keep"),
    Case("prompt_lookup", llama, _lookup_drive, _lookup_unseen, note="some steps find nothing"),
    generated("several_per_prompt", llama, num_beams=3, num_return_sequences=2),
    generated("guided", llama, guidance_scale=1.5, new=3, note="twice per token, once without"),
    looped("square_masks", llama, run=_square_loop, note="added masks of four dimensions"),
    simple("packed_by_positions", llama, _documents,
           seen=[(5, 4, 6), (7, 3), (4, 6, 5, 3)], unseen=[(6, 8), (3, 9, 4)],
           note="where texts begin is in the values of the positions"),
    simple("logits_to_keep", llama, _kept, **_KEPT, note="an int that cuts from the end"),
    simple("logits_at_places", llama, _places, **_KEPT),
    looped("low_rank_adapters", _adapted, padded=True),
    simple("reward_head", _reward, _rewarded, **_PLANE, note="reads where the padding begins"),
    simple("token_head", _tokens, _rewarded, **_PLANE),
    generated("llama4_chunked", _llama4, **_ACROSS, note="attention in chunks of 8"),
    generated("cohere2_past_window", _causal("Cohere2", **_WINDOW), **_PAST),
    generated("olmo3_across_window", _causal("Olmo3", **_WINDOW), **_ACROSS),
    generated("exaone4", _causal("Exaone4", **_WINDOW), inputs=_long_past, **_PAST,
              note="padded on the left, and past its window"),
    looped("ministral_manual", _causal("Ministral", **_WINDOW, head_dim=8), **_ACROSS),
]  # fmt: skip
