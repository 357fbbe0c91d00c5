"""How language models are driven: generate(), or a loop of prefill and decode steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.zoo.case import Arguments, Case, captured, lively

__all__ = ["VOCAB", "built", "chat", "generated", "loop", "looped", "prompt"]

VOCAB = 99
Prompt = tuple[int, int]
"""Batch and length."""


def built(model_class: str, config_class: str, **options: Any) -> torch.nn.Module:
    """A model of transformers from its config, with random weights."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**options)
    model: Any = lively(getattr(transformers, model_class)(config))
    if getattr(model, "generation_config", None) is not None:
        # No end of sequence: the number of calls must not depend on what random weights say.
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
    return model


def prompt(batch: int, length: int, padded: bool = False) -> dict[str, torch.Tensor]:
    """Token ids and their mask; ``padded`` on the left, more in later rows."""
    ids = torch.randint(3, VOCAB, (batch, length), generator=_generator(batch, length))
    mask = torch.ones_like(ids)
    if padded:
        for row in range(batch):
            mask[row, :row] = 0
        ids = ids.masked_fill(mask == 0, 0)
    return {"input_ids": ids, "attention_mask": mask}


def _generator(batch: int, length: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * batch + length)


def generated(
    name: str,
    make: Callable[[], torch.nn.Module],
    prompts: Sequence[Prompt] = ((2, 5), (3, 9)),
    unseen: Sequence[Prompt] = ((4, 7), (5, 12)),
    *,
    inputs: Callable[[int, int], dict[str, Any]] = prompt,
    new: int = 4,
    note: str = "",
    **options: Any,
) -> Case:
    """Every prompt through ``generate()``; unseen are the prefill and a late step of others."""

    def run(module: Any, batch: int, length: int) -> None:
        torch.manual_seed(batch)
        settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": new, **options}
        module.generate(**inputs(batch, length), **settings)

    def drive(module: Any) -> None:
        for batch, length in prompts:
            run(module, batch, length)

    def others(module: Any) -> list[Arguments]:
        found: list[Arguments] = []
        for batch, length in unseen:
            found += captured(module, lambda m, b=batch, n=length: run(m, b, n), (0, new - 1))
        return found

    return Case(name, make, drive, others, note=note)


def loop(module: Any, batch: int, length: int, steps: int, **options: Any) -> None:
    """Prefill, then greedy steps, as people write it by hand: a mask over past and new tokens."""
    padded = options.pop("padded", False)
    given = prompt(batch, length, padded)
    ids, mask = given["input_ids"], given["attention_mask"]
    output = module(input_ids=ids, attention_mask=mask, use_cache=True, **options)
    for _ in range(steps):
        ids = output.logits[:, -1:].argmax(-1)
        mask = torch.cat([mask, mask.new_ones(batch, 1)], dim=1)
        output = module(
            input_ids=ids, attention_mask=mask, cache=output.cache,
            use_cache=True, **options,
        )  # fmt: skip


def looped(
    name: str,
    make: Callable[[], torch.nn.Module],
    prompts: Sequence[Prompt] = ((2, 5), (3, 8)),
    unseen: Sequence[Prompt] = ((4, 6), (5, 11)),
    *,
    steps: int = 3,
    note: str = "",
    run: Callable[..., None] = loop,
    **options: Any,
) -> Case:
    """Every prompt through a hand-written loop."""

    def drive(module: Any) -> None:
        for batch, length in prompts:
            run(module, batch, length, steps, **options)

    def others(module: Any) -> list[Arguments]:
        found: list[Arguments] = []
        for batch, length in unseen:
            found += captured(
                module, lambda m, b=batch, n=length: run(m, b, n, steps, **options), (0, steps)
            )
        return found

    return Case(name, make, drive, others, note=note)


def chat(module: Any, batch: int, length: int, steps: int) -> None:
    """Turns of a conversation: every turn brings several tokens and meets a filled cache."""
    past, seen = None, 0
    for turn in range(steps + 1):
        new = length + turn
        seen += new
        output = module(
            input_ids=prompt(batch, new)["input_ids"],
            attention_mask=torch.ones(batch, seen, dtype=torch.long),
            cache=past,
        )
        past = output.cache
