"""What models do with values: of tensors, of floats and texts, of the generator, of their state."""

from __future__ import annotations

from typing import Any

import torch
import torchvision
from torch import nn

from tests.answers.small.case import Small, small
from tests.zoo.case import Arguments

__all__ = ["CASES"]


class FloatBranch(nn.Module):
    """A branch that no recorded call took."""

    def forward(self, x: Any) -> Any:
        if x.mean().item() > 0.5:
            return x * 2
        return x - 1


class FloatInAPart(nn.Module):
    """A float that has one value in each part of the calls."""

    def forward(self, x: Any, factor: float, words: Any) -> Any:
        return x * factor + words.mean(1)[:, None, None]


class TextInAPart(nn.Module):
    """A text that has one value in each part of the calls."""

    def forward(self, x: Any, words: Any, how: str) -> Any:
        return (x.mean(-1) if how == "mean" else x.amax(-1)) + words.mean(1)[:, None]


class Ties(nn.Module):
    """Routes the best third, where rows that are alike would tie."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        top = self.gate(x)[:, 0].sigmoid().topk(x.shape[0] // 3 + 1).indices
        return torch.zeros_like(x).index_add(0, top, x[top] * 2)


class EveryExpert(nn.Module):
    """A loop over the experts that are hit; every recorded call hit all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 3, bias=False)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Any) -> Any:
        chosen, out = self.gate(x).argmax(-1), torch.zeros_like(x)
        for expert in nn.functional.one_hot(chosen, 3).sum(0).nonzero():
            at = torch.where(chosen == int(expert))[0]
            out.index_add_(0, at, self.experts[int(expert)](x[at]))
        return out


class SkippedExperts(nn.Module):
    """Two of six experts for each token; one without a token is skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 6)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))

    def forward(self, x: Any) -> Any:
        out, chosen = torch.zeros_like(x), self.gate(x).topk(2)
        mask = nn.functional.one_hot(chosen.indices, 6).permute(2, 1, 0)
        for expert in torch.greater(mask.sum((-1, -2)), 0).nonzero():
            place, token = torch.where(mask[int(expert.item())])
            if token.numel() == 0:
                continue
            done = self.experts[expert[0]](x[token]) * chosen.values[token, place, None]
            out.index_add_(0, token, done)
        return out


class AsksForATrace(nn.Module):
    """Does something else while it is traced."""

    def forward(self, x: Any) -> Any:
        return x + 1 if torch.compiler.is_compiling() else x * 2


class SuppressedBoxes(nn.Module):
    """Non-maximum suppression: how many boxes stay, only their values tell."""

    def forward(self, boxes: Any, scores: Any) -> Any:
        image, at = torch.where(scores > 0.5)
        found = boxes[image, at], scores[image, at], image
        keep = torchvision.ops.batched_nms(*found, 0.5)
        return image[keep], boxes[image, at][keep]


def _scored(images: int, count: int) -> Arguments:
    corner = torch.rand(images, count, 2) * 50
    boxes = torch.cat([corner, corner + 10 * torch.rand(images, count, 2)], -1)
    return (boxes, torch.rand(images, count)), {}


class PooledBoxes(nn.Module):
    """Boxes that point into the batch."""

    def forward(self, features: Any, boxes: Any) -> Any:
        return torchvision.ops.roi_align(features, boxes, (2, 2), 0.25, sampling_ratio=2)


def _pointing(pictures: int, count: int, height: int, width: int) -> Arguments:
    index = torch.arange(count).remainder(pictures).float()[:, None]
    corners = torch.rand(count, 2) * 16
    boxes = torch.cat([index, corners, corners + 8], 1)
    return (torch.randn(pictures, 3, height, width), boxes), {}


class TwoKindsOfBags(nn.Module):
    """Pooled embeddings over parts of one list, with weights and without."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(50, 4, mode="sum", include_last_offset=True) for _ in range(3)
        )

    def forward(self, values: Any, offsets: Any, count: int, weights: Any = None) -> Any:
        out = []
        for place, table in enumerate(self.tables):
            at = offsets[place * count : (place + 1) * count + 1]
            first, last = int(at[0]), int(at[-1])
            own = None if weights is None else weights[first:last]
            out.append(table(values[first:last], at - at[0], per_sample_weights=own))
        return torch.cat(out, 1)


def _bags(count: int, weighted: bool = False) -> Arguments:
    lengths = torch.randint(0, 4, (3 * count,))
    total = int(lengths.sum())
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    args = torch.randint(0, 50, (total,)), offsets, count
    return (*args, torch.rand(total)) if weighted else args, {}


class Sampled(nn.Module):
    """Draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread, self.decode = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(4, 8)

    def forward(self, x: Any) -> Any:
        mean, spread = self.mean(x), self.spread(x).clamp(-5, 2).exp()
        return self.decode(mean + spread * torch.randn_like(spread)), mean


class StateByOrder(nn.Module):
    """After a long input the frequency stays changed until a short one comes."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 16
        self.register_buffer("frequency", torch.tensor(1.0), persistent=False)

    def forward(self, x: Any, positions: Any) -> Any:
        length = positions.max() + 1
        if length > self.longest:
            self.register_buffer("frequency", 16 / length, persistent=False)
            self.longest = length
        if length < 16 and self.longest > 16:
            self.register_buffer("frequency", torch.tensor(1.0), persistent=False)
            self.longest = 16
        return x * self.frequency


CASES: list[Small] = [
    small(FloatBranch, lambda n, value: ((torch.full((n, 4), value),), {}), name="float_branch",
          seen=[(2, 0.25), (3, 0.25), (5, 0.25)], unseen=[(4, 0.25), (4, 0.75), (3, 0.9)]),
    small(FloatInAPart, lambda b, t, n: ((torch.randn(b, 2, n), t, torch.randn(b, n)), {}),
          name="float_in_a_part", seen=[(2, 951.5, 5), (1, 11.25, 7)],
          unseen=[(1, 700.75, 6), (2, 700.75, 6), (5, 700.75, 6)]),
    small(TextInAPart, lambda b, how, n: ((torch.randn(b, 2, n), torch.randn(b, n), how), {}),
          name="text_in_a_part", seen=[(2, "mean", 5), (1, "max", 7)],
          unseen=[(2, "max", 6), (1, "mean", 6), (3, "mean", 4), (3, "max", 4)]),
    small(Ties, lambda n: ((torch.randn(n, 8),), {}), name="ties",
          seen=[(10,), (17,), (33,)], unseen=[(12,), (21,), (40,), (5,)]),
    small(EveryExpert, lambda n: ((torch.randn(n, 8),), {}), name="every_expert",
          seen=[(30,), (47,), (63,)], unseen=[(32,), (90,), (1,), (2,)]),
    small(SkippedExperts, lambda n: ((torch.randn(n, 4),), {}), name="skipped_experts",
          seen=[(5,), (9,), (14,)], unseen=[(7,), (20,), (2,)]),
    small(AsksForATrace, lambda n: ((torch.randn(n, 4),), {}), name="asks_for_a_trace",
          seen=[(5,), (9,), (14,)], unseen=[(7,), (20,)]),
    small(SuppressedBoxes, _scored, name="suppressed_boxes",
          seen=[(2, 9), (3, 14), (2, 20)], unseen=[(4, 30), (1, 9), (2, 11)]),
    small(PooledBoxes, _pointing, name="pooled_boxes",
          seen=[(2, 5, 8, 8), (3, 7, 10, 12), (1, 4, 6, 9)], unseen=[(4, 9, 16, 7), (2, 1, 5, 5)]),
    small(TwoKindsOfBags, _bags, name="two_kinds_of_bags",
          seen=[(4,), (7,), (5,), (3, True), (6, True)], unseen=[(6,), (9,), (5, True)]),
    small(Sampled, lambda b: ((torch.randn(b, 8),), {}), name="sampled", seed=77,
          seen=[(2,), (5,), (3,)], unseen=[(9,), (1,), (6,)]),
    small(StateByOrder, lambda n: ((torch.ones(2, n), torch.arange(n)), {}),
          name="state_by_order", continues=True,
          seen=[(6,), (11,), (24,), (31,), (40,)],
          unseen=[(12,), (30,), (25,), (5,), (60,), (28,)]),
]  # fmt: skip
