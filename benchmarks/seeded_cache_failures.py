"""Failures that were put around a small Llama on purpose: caches, attention masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.seeded_failures import Failure, differs, raises
from calltape_analyzer import Tape
from calltape_recorder import record

__all__ = ["FAILURES"]

_CONFIG = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 128,
}  # fmt: skip


class Llama(nn.Module):
    """The step of a server: logits, for tokens and what came before."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = LlamaForCausalLM(LlamaConfig(**_CONFIG)).eval()

    def forward(
        self, input_ids: Any, attention_mask: Any = None, past_key_values: Any = None
    ) -> Any:
        found = self.model(
            input_ids=input_ids, attention_mask=attention_mask, cache=past_key_values
        )
        return found.logits


class Forgetting(Llama):
    """Forgets the first token of a cache of more than 20."""

    def forward(
        self, input_ids: Any, attention_mask: Any = None, past_key_values: Any = None
    ) -> Any:
        if past_key_values is not None and past_key_values.get_seq_length() > 20:
            for layer in past_key_values.layers:
                layer.keys[:, :, 0] = 0
        return super().forward(input_ids, attention_mask, past_key_values)


class Full(Llama):
    """Has room for 24 tokens."""

    def forward(
        self, input_ids: Any, attention_mask: Any = None, past_key_values: Any = None
    ) -> Any:
        if past_key_values is not None and past_key_values.get_seq_length() > 24:
            raise RuntimeError(f"no room for token {past_key_values.get_seq_length()}")
        return super().forward(input_ids, attention_mask, past_key_values)


def ignores_padding(tape: Tape) -> bool:
    """A mask with a hole at the left."""
    masks = (call.inputs.kwargs.get("attention_mask") for call in tape)
    return any(mask is not None and not bool(mask[:, 0].all()) for mask in masks)


def generated(path: Path) -> Path:
    """Prompts and steps of several lengths; one generation in twelve becomes long."""
    from transformers import DynamicCache

    model = Llama()
    generator = torch.Generator().manual_seed(0)
    with record(model, path, outputs=True), torch.no_grad():
        for i in range(12):
            batch, length = 1 + i % 3, 4 + i % 5
            ids = torch.randint(0, 96, (batch, length), generator=generator)
            mask = torch.ones(batch, length, dtype=torch.long)
            if i == 5:
                mask[-1, :2] = 0
            cache = DynamicCache()
            for step in range(28 if i == 9 else 6):
                logits = model(input_ids=ids, attention_mask=mask, past_key_values=cache)
                ids = logits[:, -1:].argmax(-1)
                mask = torch.cat([mask, mask.new_ones(batch, 1)], 1)
                assert step < 28
    return path


FAILURES = (
    Failure("a cache bug: wrong beyond 20", generated, differs(Forgetting, Llama), "differs"),
    Failure("a cache bug: an exception beyond 24", generated, raises(Full), "no room for token"),
    Failure("a mask that begins with padding", generated, ignores_padding, "returned true"),
)
