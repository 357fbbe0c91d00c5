"""Which objects are passed, shared and returned; what is special about a model or its caller."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import BatchEncoding

from tests.answers.small.case import Small, seeded, small
from tests.zoo.case import Arguments

__all__ = ["CASES"]


class LabelsAreInputs(nn.Module):
    """A loss with ``labels=ids``."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)

    def forward(self, ids: Any, labels: Any = None) -> Any:
        logits = self.words(ids) @ self.words.weight.T
        if labels is None:
            return logits
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def _labelled(length: int, is_own: bool = False) -> Arguments:
    ids = torch.randint(0, 50, (2, length))
    labels = torch.randint(0, 50, (2, length)) if is_own else ids
    return (), {"ids": ids, "labels": labels}


class OneObject(nn.Module):
    """``value is key``: one object twice, or two objects."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, key: Any, value: Any) -> Any:
        held = self.first(key)
        values = held if value is key else self.second(value)
        return torch.softmax(held @ held.transpose(1, 2), -1) @ values


def _attended(rows: int, length: int, is_one: bool) -> Arguments:
    key = torch.randn(rows, length, 6)
    return (key, key if is_one else torch.randn(rows, length, 6)), {}


class SharedMemory(nn.Module):
    """One argument is a view of another one, which the model writes to."""

    def forward(self, new: Any, store: Any, window: Any) -> Any:
        store[:, :2] = new
        return window.sum(1)


def _stored(rows: int, length: int) -> Arguments:
    store = torch.randn(rows, length)
    return (torch.randn(rows, 2), store, store[:, :4]), {}


class Tagger(nn.Module):
    """Returns texts, None and numbers beside tensors; sometimes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Any, names: bool = False, only_warm: bool = False) -> Any:
        if only_warm:
            return None
        words = ["cat", "dog", "eel"] if names else None
        return {"scores": self.head(x), "names": words, "count": x.shape[0], "version": "v1"}


class Pooler(nn.Module):
    """Takes what a tokenizer returns."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 8)

    def forward(self, features: Any) -> Any:
        held = self.embedding(features["input_ids"])
        mask = features["attention_mask"].unsqueeze(-1).to(held.dtype)
        return (held * mask).sum(1) / mask.sum(1).clamp(min=1e-9)


def _encoded(rows: int, length: int) -> Arguments:
    ids, mask = torch.randint(0, 30, (rows, length)), torch.randint(0, 2, (rows, length))
    return (BatchEncoding({"input_ids": ids, "attention_mask": mask}),), {}


class Count(nn.Module):
    """Becomes a ScriptModule."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 4), nn.Linear(4, 2)

    def forward(
        self, ids: torch.Tensor, weights: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        held = self.embedding(ids)
        if weights is not None:
            held = held * weights.unsqueeze(-1)
        return {"logits": self.head(held.mean(1))}


def _scripted() -> Any:
    return torch.jit.script(Count().eval())


def _counted(rows: int, length: int, weighted: bool = False) -> Arguments:
    more = {"weights": torch.rand(rows, length)} if weighted else {}
    return (torch.randint(0, 10, (rows, length)),), more


def _halving() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))


def _halving_in_training() -> nn.Module:
    torch.manual_seed(1)
    return _halving()


def _autocast_block() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))


CASES: list[Small] = [
    small(LabelsAreInputs, _labelled, name="labels_are_inputs",
          seen=[(7,), (9,), (12,)], unseen=[(8, True), (15, True), (6,)]),
    small(OneObject, _attended, name="one_object",
          seen=[(2, 3, True), (4, 5, True), (3, 6, False), (2, 7, False)],
          unseen=[(5, 8, True), (5, 8, False), (6, 2, True)]),
    small(SharedMemory, _stored, name="shared_memory",
          seen=[(2, 6), (3, 9), (4, 8)], unseen=[(5, 12), (7, 5)]),
    small(Tagger, lambda n, flag, on: ((torch.randn(n, 6),), {flag: on}),
          name="answers_with_texts",
          seen=[(2, "names", False), (5, "names", True), (3, "names", False), (4, "names", True),
                (2, "only_warm", True), (3, "only_warm", True)],
          unseen=[(9, "names", True), (7, "names", False), (6, "only_warm", True)]),
    small(Pooler, _encoded, name="batch_encoding", classes=(BatchEncoding,),
          seen=[(2, 4), (3, 7), (5, 5)], unseen=[(6, 9), (1, 3), (4, 12)]),
    small(_scripted, _counted, name="scripted",
          seen=[(2, 3), (4, 6), (3, 5, True), (2, 8, True)],
          unseen=[(7, 9), (5, 4, True), (1, 2)]),
    small(_halving, lambda n: ((torch.ones(n, 6),), {}), name="training_mode",
          exported=_halving_in_training, seen=[(3,), (5,), (4,)], unseen=[(7,), (9,)]),
    small(partial(nn.Linear, 6, 6), lambda n: ((torch.ones(n, 6),), {}), name="other_weights",
          exported=seeded(partial(nn.Linear, 6, 6), seed=5),
          seen=[(3,), (5,), (4,)], unseen=[(7,), (9,)]),
    small(_autocast_block, lambda b, t: ((torch.randn(b, t, 8),), {}), name="under_autocast",
          context=partial(torch.autocast, "cpu", dtype=torch.bfloat16),
          seen=[(2, 3), (4, 6), (3, 5)], unseen=[(7, 3), (5, 11), (1, 2)]),
]  # fmt: skip
