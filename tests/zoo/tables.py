"""Tables and recommenders: ids, bags of ids, histories of any length, several tasks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.case import Arguments, Case, simple
from tests.zoo.containers import made

__all__ = ["CASES"]

_WIDTH = 8
_ITEMS = 50
_FIELDS = 4


class Dlrm(nn.Module):
    """Bags of ids with their offsets, whose last is the end; products of all pairs of features."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(5, _WIDTH), nn.ReLU())
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(_ITEMS, _WIDTH, mode="sum", include_last_offset=True) for _ in range(3)
        )
        self.top = nn.Sequential(nn.Linear(_WIDTH + 6, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, dense: Tensor, offsets: list[Tensor], indices: list[Tensor]) -> Tensor:
        x = self.bottom(dense)
        bags = [bag(i, o) for bag, i, o in zip(self.bags, indices, offsets, strict=True)]
        features = torch.stack([x, *bags], dim=1)
        rows, columns = torch.tril_indices(4, 4, offset=-1)
        products = (features @ features.mT)[:, rows, columns]
        return self.top(torch.cat([x, products], dim=1)).sigmoid()


class DeepFm(nn.Module):
    """One table for all fields, by offsets per field; a factorization machine beside layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_FIELDS * 10, _WIDTH)
        self.linear = nn.Embedding(_FIELDS * 10, 1)
        self.register_buffer("starts", torch.arange(_FIELDS) * 10)
        self.deep = nn.Sequential(nn.Linear(_FIELDS * _WIDTH, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, fields: Tensor) -> Tensor:
        ids = fields + self.starts
        x = self.embed(ids)
        machine = 0.5 * (x.sum(1) ** 2 - (x**2).sum(1)).sum(1, keepdim=True)
        score = self.linear(ids).sum(1) + machine + self.deep(x.flatten(1))
        return score.squeeze(1).sigmoid()


class TwoTower(nn.Module):
    """Queries against documents, each side of its own number and length."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_ITEMS, _WIDTH, padding_idx=0)
        self.query, self.document = nn.Linear(_WIDTH, 8), nn.Linear(_WIDTH, 8)

    def encode(self, ids: Tensor, head: nn.Module) -> Tensor:
        mask = (ids != 0).unsqueeze(-1)
        pooled = (self.embed(ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return nn.functional.normalize(head(pooled), dim=-1)

    def forward(self, queries: Tensor, documents: Tensor) -> dict[str, Tensor]:
        q, d = self.encode(queries, self.query), self.encode(documents, self.document)
        scores = q @ d.T / 0.05
        return {"scores": scores, "best": scores.argmax(-1), "queries": q}


class LateInteraction(nn.Module):
    """The best document token for every query token, summed (ColBERT)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_ITEMS, _WIDTH, padding_idx=0)
        layer = nn.TransformerEncoderLayer(_WIDTH, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, query: Tensor, document: Tensor) -> Tensor:
        q = self.encoder(self.embed(query))
        d = self.encoder(self.embed(document), src_key_padding_mask=document == 0)
        scores = torch.einsum("bqw,bdw->bqd", q, d)
        return scores.masked_fill((document == 0)[:, None], -1e4).amax(-1).sum(-1)


class InterestNetwork(nn.Module):
    """Attention of a candidate over what a user did before, masked by lengths (DIN)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_ITEMS, _WIDTH)
        self.score = nn.Sequential(nn.Linear(4 * _WIDTH, 8), nn.PReLU(), nn.Linear(8, 1))
        self.head = nn.Linear(2 * _WIDTH, 1)

    def forward(self, candidate: Tensor, history: Tensor, lengths: Tensor) -> Tensor:
        item, past = self.embed(candidate), self.embed(history)
        query = item[:, None].expand(-1, history.shape[1], -1)
        pairs = torch.cat([query, past, query - past, query * past], dim=-1)
        weights = self.score(pairs).squeeze(-1)
        mask = torch.arange(history.shape[1])[None] < lengths[:, None]
        weights = weights.masked_fill(~mask, -1e4).softmax(-1)
        pooled = (weights[:, None] @ past).squeeze(1)
        return self.head(torch.cat([pooled, item], dim=-1)).squeeze(-1)


class SelfAttentive(nn.Module):
    """The next item after a left-padded history; scores given candidates, or all items (SASRec)."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(_ITEMS, _WIDTH, padding_idx=0)
        self.position = nn.Embedding(33, _WIDTH, padding_idx=0)
        self.attention = nn.MultiheadAttention(_WIDTH, 2, batch_first=True)
        self.norm = nn.LayerNorm(_WIDTH)

    def forward(self, history: Tensor, candidates: Tensor | None = None) -> Tensor:
        length = history.shape[1]
        positions = torch.arange(1, length + 1)[None] * (history != 0)
        x = self.item(history) * _WIDTH**0.5 + self.position(positions)
        causal = ~torch.ones(length, length, dtype=torch.bool).tril()
        x = self.norm(x + self.attention(x, x, x, attn_mask=causal, need_weights=False)[0])
        last = x[:, -1]
        if candidates is None:
            return last @ self.item.weight.T
        return (self.item(candidates) @ last.unsqueeze(-1)).squeeze(-1)


class BehaviorSequence(nn.Module):
    """The target is one more step of the history; times since then become buckets (BST)."""

    def __init__(self) -> None:
        super().__init__()
        self.item, self.time = nn.Embedding(_ITEMS, _WIDTH), nn.Embedding(6, _WIDTH)
        self.register_buffer("edges", torch.tensor([1.0, 10.0, 60.0, 600.0, 3600.0]))
        self.layer = nn.TransformerEncoderLayer(_WIDTH, 2, 16, batch_first=True)
        self.head = nn.Linear(_WIDTH, 1)

    def forward(self, history: Tensor, times: Tensor, target: Tensor, now: Tensor) -> Tensor:
        ago = torch.cat([now[:, None] - times, torch.zeros_like(now)[:, None]], dim=1)
        ids = torch.cat([history, target[:, None]], dim=1)
        x = self.item(ids) + self.time(torch.bucketize(ago, self.edges))
        return self.head(self.layer(x).mean(1)).squeeze(-1)


class TabTransformer(nn.Module):
    """Columns of categories attend to each other; numbers join later, and may be missing."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_FIELDS * 10, _WIDTH)
        self.layer = nn.TransformerEncoderLayer(_WIDTH, 2, 16, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(3)
        self.head = nn.Linear(_FIELDS * _WIDTH + 3, 2)

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        x = self.layer(self.embed(categories + torch.arange(_FIELDS) * 10)).flatten(1)
        known = torch.nan_to_num(numbers, nan=0.0)
        return self.head(torch.cat([x, self.norm(known)], dim=-1)).softmax(-1)


class ObliviousTrees(nn.Module):
    """Differentiable decision trees: choices of features, and of leaves by their bits (NODE)."""

    def __init__(self, trees: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.choice = nn.Parameter(torch.randn(_WIDTH, trees, depth))
        self.threshold = nn.Parameter(torch.randn(trees, depth))
        self.response = nn.Parameter(torch.randn(trees, 2**depth))
        bits = (torch.arange(2**depth)[:, None] >> torch.arange(depth)) & 1
        self.register_buffer("bits", torch.stack([bits, 1 - bits], dim=-1).float())

    def forward(self, x: Tensor) -> Tensor:
        values = torch.einsum("bf,ftd->btd", x, self.choice.softmax(0))
        gates = (values - self.threshold).sigmoid()
        both = torch.stack([gates, 1 - gates], dim=-1)
        leaves = torch.einsum("btds,lds->btld", both, self.bits).prod(-1)
        return torch.einsum("btl,tl->b", leaves, self.response)


class MultiTask(nn.Module):
    """Experts shared by tasks; which tasks are answered is up to the caller (MMoE)."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(_WIDTH, 8) for _ in range(3))
        self.gates = nn.ModuleDict({task: nn.Linear(_WIDTH, 3) for task in ("click", "buy")})
        self.heads = nn.ModuleDict({task: nn.Linear(8, 1) for task in ("click", "buy")})

    def forward(self, x: Tensor, tasks: list[str], with_gates: bool = False) -> dict[str, Any]:
        shared = torch.stack([expert(x).relu() for expert in self.experts], dim=1)
        found: dict[str, Any] = {}
        for task in tasks:
            gate = self.gates[task](x).softmax(-1)
            found[task] = self.heads[task]((gate[..., None] * shared).sum(1)).squeeze(-1)
            if with_gates:
                found.setdefault("gates", {})[task] = gate
        return found


class Jagged(nn.Module):
    """Values of many keys in one tensor, with a length per key and row (KeyedJaggedTensor)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_ITEMS, _WIDTH)
        self.head = nn.Linear(3 * _WIDTH, 1)

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        flat = lengths.flatten()
        segments = torch.arange(flat.shape[0]).repeat_interleave(flat, output_size=values.shape[0])
        sums = torch.zeros(flat.shape[0], _WIDTH).index_add(0, segments, self.embed(values))
        pooled = sums.view(lengths.shape[0], -1, _WIDTH) / lengths.clamp(min=1).unsqueeze(-1)
        return self.head(pooled.transpose(0, 1).flatten(1)).squeeze(-1)


class WeightedBags(nn.Module):
    """Bags of equal size as a table, and weights per id."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(_ITEMS, _WIDTH, mode="sum", padding_idx=0)

    def forward(self, ids: Tensor, weights: Tensor | None = None) -> Tensor:
        return self.bag(ids, per_sample_weights=weights)


class Ranker(nn.Module):
    """Lists of candidates, flattened: how many each user has, and the order of each list."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(2 * _WIDTH, 1)

    def forward(self, users: Tensor, items: Tensor, owner: Tensor, k: int) -> Any:
        scores = self.score(torch.cat([users[owner], items], dim=-1)).squeeze(-1)
        own = owner[None] == torch.arange(users.shape[0])[:, None]
        best = scores[None].masked_fill(~own, float("-inf")).topk(k, dim=1)
        return best.indices, best.values.softmax(-1), scores


def _bags(rows: int, *sizes: int) -> Arguments:
    offsets = []
    for size in sizes:
        inner = torch.randint(0, size + 1, (rows - 1,)).sort().values
        offsets.append(torch.cat([torch.tensor([0]), inner, torch.tensor([size])]))
    indices = [torch.randint(0, _ITEMS, (size,)) for size in sizes]
    return (torch.randn(rows, 5), offsets, indices), {}


def _fields(rows: int) -> Arguments:
    return (torch.randint(0, 10, (rows, _FIELDS)),), {}


def _tokens(rows: int, length: int) -> Tensor:
    """Ids, padded on the right with zeros."""
    ids = torch.randint(1, _ITEMS, (rows, length))
    lengths = torch.randint(1, length + 1, (rows, 1))
    lengths[0] = length
    return ids * (torch.arange(length) < lengths)


def _towers(queries: int, words: int, documents: int, length: int) -> Arguments:
    both = {"queries": _tokens(queries, words), "documents": _tokens(documents, length)}
    return (), both


def _both(rows: int, words: int, length: int) -> Arguments:
    return (_tokens(rows, words), _tokens(rows, length)), {}


def _interest(rows: int, length: int) -> Arguments:
    lengths = torch.randint(1, length + 1, (rows,))
    history = torch.randint(0, _ITEMS, (rows, length))
    return (), {
        "candidate": torch.randint(0, _ITEMS, (rows,)), "history": history, "lengths": lengths,
    }  # fmt: skip


def _history(rows: int, length: int, candidates: int | None) -> Arguments:
    history = _tokens(rows, length).flip(1)
    if candidates is None:
        return (history,), {}
    return (history,), {"candidates": torch.randint(1, _ITEMS, (rows, candidates))}


def _behavior(rows: int, length: int) -> Arguments:
    times = (torch.rand(rows, length) * 5000).sort(1).values
    ids = torch.randint(0, _ITEMS, (rows, length + 1))
    return (ids[:, :-1], times, ids[:, -1], times[:, -1] + 5), {}


def _table(rows: int) -> Arguments:
    numbers = torch.randn(rows, 3)
    numbers[torch.rand(rows, 3) < 0.2] = float("nan")
    return (torch.randint(0, 10, (rows, _FIELDS)), numbers), {}


def _row(rows: int) -> Arguments:
    return (torch.randn(rows, _WIDTH),), {}


def _tasks(rows: int, with_gates: bool, *tasks: str) -> Arguments:
    more = {"with_gates": True} if with_gates else {}
    return (torch.randn(rows, _WIDTH), list(tasks)), more


def _jagged(rows: int, most: int) -> Arguments:
    lengths = torch.randint(0, most + 1, (3, rows))
    return (torch.randint(0, _ITEMS, (int(lengths.sum()),)), lengths), {}


def _weighted(rows: int, size: int, weighted: bool) -> Arguments:
    ids = torch.randint(0, _ITEMS, (rows, size))
    return (ids,), {"weights": torch.rand(rows, size)} if weighted else {}


def _lists(users: int, k: int, *counts: int) -> Arguments:
    owner = torch.arange(users).repeat_interleave(torch.tensor(counts))
    items = torch.randn(sum(counts), _WIDTH)
    return (torch.randn(users, _WIDTH), items, owner), {"k": k}


_ROWS: dict[str, Any] = {"seen": [(3,), (5,), (4,)], "unseen": [(7,), (12,)]}
_PLANE: dict[str, Any] = {"seen": [(2, 5), (3, 9), (4, 7)], "unseen": [(5, 6), (2, 12)]}

CASES: list[Case] = [
    simple(
        "dlrm", made(Dlrm), _bags,
        seen=[(3, 7, 9, 5), (5, 12, 8, 10), (4, 6, 11, 9)],
        unseen=[(6, 10, 15, 7), (2, 5, 6, 8)], note="one more offset than rows",
    ),
    simple("deep_fm", made(DeepFm), _fields, **_ROWS),
    simple(
        "two_tower", made(TwoTower), _towers,
        seen=[(2, 5, 4, 9), (3, 7, 6, 12), (4, 4, 5, 8)],
        unseen=[(5, 6, 7, 10), (2, 8, 9, 15)],
    ),
    simple(
        "two_tower_square", made(TwoTower), _towers,
        seen=[(3, 5, 3, 9), (5, 7, 5, 12), (4, 4, 4, 8)],
        unseen=[(6, 6, 6, 10), (2, 8, 9, 15)],
        note="as many queries as documents in every recorded call, and by chance",
    ),
    simple(
        "late_interaction", made(LateInteraction), _both,
        seen=[(2, 4, 9), (3, 5, 12), (4, 6, 7)], unseen=[(5, 7, 10), (2, 3, 15)],
    ),
    simple("interest_network", made(InterestNetwork), _interest, **_PLANE),
    simple(
        "self_attentive", made(SelfAttentive), _history,
        seen=[(2, 6, 5), (3, 9, None), (4, 7, 8), (2, 5, None)],
        unseen=[(5, 8, 10), (6, 11, None)], note="candidates, or all items",
    ),
    simple("behavior_sequence", made(BehaviorSequence), _behavior, **_PLANE),
    simple("tab_transformer", made(TabTransformer), _table, **_ROWS, note="not-a-number inputs"),
    simple("oblivious_trees", made(ObliviousTrees), _row, **_ROWS),
    simple(
        "multi_task", made(MultiTask), _tasks,
        seen=[(3, False, "click"), (4, False, "click", "buy"), (5, True, "click", "buy"),
              (6, False, "click"), (2, True, "click", "buy"), (7, False, "click", "buy")],
        unseen=[(8, False, "click"), (9, False, "click", "buy"), (4, True, "click", "buy")],
        note="the keys of the output follow a list of texts",
    ),
    simple("jagged", made(Jagged), _jagged,
           seen=[(3, 4), (5, 3), (4, 6)], unseen=[(6, 5), (2, 7)],
           note="the lengths add up to the number of values"),
    simple(
        "weighted_bags", made(WeightedBags), _weighted,
        seen=[(3, 4, True), (5, 3, False), (4, 6, True), (2, 5, False)],
        unseen=[(6, 5, True), (7, 7, False)],
    ),
    simple(
        "ranker", made(Ranker), _lists,
        seen=[(2, 2, 4, 3), (3, 3, 5, 4, 6), (4, 2, 3, 5, 4, 6)],
        unseen=[(3, 4, 6, 5, 7), (5, 3, 3, 4, 6, 5, 7)], note="how many are best is an int",
    ),
]  # fmt: skip
