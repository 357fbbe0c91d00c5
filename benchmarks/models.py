"""The two models whose calls are timed: an addition, and one decode step of a small Llama."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch

__all__ = ["Add", "DecodeStep", "cache_name", "leaves_of"]


def cache_name(model: torch.nn.Module) -> str:
    """What forward of a model of transformers calls its cache: ``cache`` since 5.24."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class Add(torch.nn.Module):
    """Two small tensors in, one out."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class DecodeStep:
    """A two-layer Llama with random weights and a cache of 64 tokens; every call gets a cache of
    its own, because forward appends to it."""

    def __init__(self, device: str = "cpu") -> None:
        from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
        )
        torch.manual_seed(0)
        self.module = LlamaForCausalLM(config).eval().to(device)
        self._cache = DynamicCache(config=config)
        self._device = device
        self._cache_name = cache_name(self.module)
        with torch.no_grad():
            tokens = torch.ones(1, 64, dtype=torch.int64, device=device)
            self.module(input_ids=tokens, **{self._cache_name: self._cache})

    def twin(self) -> torch.nn.Module:
        """The same model as another object, to be recorded by somebody else."""
        return copy.deepcopy(self.module)

    def arguments(self) -> dict[str, Any]:
        return {
            "input_ids": torch.ones(1, 1, dtype=torch.int64, device=self._device),
            "attention_mask": torch.ones(1, 65, dtype=torch.int64, device=self._device),
            "position_ids": torch.full((1, 1), 64, device=self._device),
            self._cache_name: copy.deepcopy(self._cache),
        }


def leaves_of(value: Any) -> list[torch.Tensor]:
    """Tensors of a tuple, mapping or cache: what any recorder must at least copy."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif hasattr(value, "layers"):
        value = [tensor for layer in value.layers for tensor in (layer.keys, layer.values)]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves_of(item)]
    return []
