"""Integers that place and cut: offsets, page tables, positions, lengths, permutations, masks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.case import Arguments, Case, captured, simple
from tests.zoo.containers import made

__all__ = ["CASES"]

_WIDTH = 8
_WORDS = 40
_PAGE = 4
_PAGES = 12
_EMPTY = -1e4


class Varlen(nn.Module):
    """Attention over sequences laid end to end; their boundaries are offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_WORDS, _WIDTH)
        self.mix = nn.Linear(_WIDTH, 3 * _WIDTH)

    def forward(
        self, ids: Tensor, cu_seqlens: Tensor, position_ids: Tensor, max_seqlen: int
    ) -> Tensor:
        x = self.embed(ids) + position_ids[:, None] / max_seqlen
        places = torch.arange(ids.shape[0])
        segment = torch.searchsorted(cu_seqlens[1:], places, right=True)
        allowed = (segment[:, None] == segment[None]) & (places[:, None] >= places[None])
        query, key, value = self.mix(x).view(-1, 3, 2, _WIDTH // 2).permute(1, 2, 0, 3)
        out = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        return out.transpose(0, 1).flatten(1)


class VarlenPooled(nn.Module):
    """One vector per sequence of those laid end to end."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, 4)

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        lengths = cu_seqlens.diff()
        last = self.linear(x)[cu_seqlens[1:] - 1]
        sums = torch.cat([x.new_zeros(1, _WIDTH), x.cumsum(0)])
        mean = (sums[cu_seqlens[1:]] - sums[cu_seqlens[:-1]]) / lengths[:, None]
        return last, mean


class PagedAttention(nn.Module):
    """Keys and values in pages that a scheduler hands out; new ones go into slots."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_WORDS, _WIDTH)
        self.mix = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.head = nn.Linear(_WIDTH, _WORDS)

    def forward(
        self,
        ids: Tensor,
        slot_mapping: Tensor,
        block_tables: Tensor,
        context_lens: Tensor,
        pages: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        query, key, value = self.mix(self.embed(ids)).chunk(3, dim=-1)
        rows = ids.shape[0]
        kept = []
        for held, new in zip(pages, (key, value), strict=True):
            flat = held.flatten(0, 1).index_copy(0, slot_mapping, new)
            kept.append(flat.view_as(held))
        keys, values = (page[block_tables].flatten(1, 2) for page in kept)
        allowed = torch.arange(keys.shape[1])[None] < context_lens[:, None]
        scores = (query[:, None] @ keys.mT / _WIDTH**0.5).masked_fill(~allowed[:, None], _EMPTY)
        logits = self.head((scores.softmax(-1) @ values).view(rows, _WIDTH))
        return logits, (kept[0], kept[1])


class BeamStep(nn.Module):
    """One step of beam search: rows are batch × beams; which beam goes on is an index."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_WORDS, _WIDTH)
        self.cell = nn.GRUCell(_WIDTH, _WIDTH)
        self.head = nn.Linear(_WIDTH, _WORDS)

    def forward(self, tokens: Tensor, state: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        batch, beams = scores.shape
        state = self.cell(self.embed(tokens), state)
        total = self.head(state).log_softmax(-1).view(batch, beams, _WORDS) + scores[..., None]
        best, flat = total.flatten(1).topk(beams)
        beam = flat // _WORDS + torch.arange(batch)[:, None] * beams
        return (flat % _WORDS).flatten(), state.index_select(0, beam.flatten()), best


class PrefixLm(nn.Module):
    """Sees all of its prefix, of a length per row, and the past after that."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_WORDS, _WIDTH)
        self.attention = nn.MultiheadAttention(_WIDTH, 2, batch_first=True)

    def forward(self, ids: Tensor, prefix_lengths: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.embed(ids)
        places = torch.arange(length)
        causal = places[:, None] >= places[None]
        allowed = causal[None] | (places[None, None] < prefix_lengths[:, None, None])
        mask = ~allowed.repeat_interleave(2, dim=0)
        return x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


class LastToken(nn.Module):
    """What stands at the end of every row, by the number of tokens in it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_WORDS, _WIDTH, padding_idx=0)
        self.gru = nn.GRU(_WIDTH, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        hidden = self.gru(self.embed(input_ids))[0]
        ends = (input_ids != 0).sum(-1) - 1 if lengths is None else lengths - 1
        return self.head(hidden[torch.arange(input_ids.shape[0]), ends])


class MaskedLm(nn.Module):
    """Predicts at given positions only, some per row (the head of BERT's pretraining)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_WORDS, _WIDTH)
        self.mix = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, ids: Tensor, masked_positions: Tensor) -> Tensor:
        x = self.mix(self.embed(ids).cumsum(1))
        index = masked_positions.unsqueeze(-1).expand(-1, -1, _WIDTH)
        return x.gather(1, index) @ self.embed.weight.T


class Scattered(nn.Module):
    """Puts rows back in another order, and counts into a grid (pillars of a point cloud)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(
        self, pillars: Tensor, coordinates: Tensor, batch_size: int, order: Tensor
    ) -> Tensor:
        features = self.linear(pillars).amax(1)[order]
        row, y, x = coordinates.unbind(1)
        canvas = features.new_zeros(batch_size * 6 * 5, 4)
        canvas = canvas.index_put((row * 30 + y * 5 + x,), features)
        return canvas.view(batch_size, 6, 5, 4).permute(0, 3, 1, 2)


class SparseRows(nn.Module):
    """A sparse matrix by its row pointers, times a table."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, 4)

    def forward(self, rowptr: Tensor, col: Tensor, value: Tensor, x: Tensor) -> Tensor:
        edges = torch.arange(col.shape[0])
        row = torch.searchsorted(rowptr, edges, right=True) - 1
        out = x.new_zeros(rowptr.shape[0] - 1, _WIDTH).index_add(0, row, x[col] * value[:, None])
        return self.linear(out)


class TopExperts(nn.Module):
    """The two best experts of every token, which the loop finds by their indices."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(_WIDTH, experts)
        self.experts = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, _WIDTH)
        weights, chosen = self.gate(flat).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            out.index_add_(0, token, expert(flat[token]) * weights[token, place, None])
        return out.view_as(x)


class Unpadded(nn.Module):
    """Works on the tokens that are no padding, and pads again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_WORDS, _WIDTH)
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, 16), nn.GELU(), nn.Linear(16, _WIDTH))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        kept = attention_mask.flatten().nonzero().squeeze(-1)
        x = self.mlp(self.embed(input_ids.flatten()[kept]))
        out = x.new_zeros(input_ids.numel(), _WIDTH).index_put((kept,), x)
        return out.view(*input_ids.shape, _WIDTH)


class Selected(nn.Module):
    """Boxes above a threshold: as many as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.box, self.score = nn.Linear(_WIDTH, 4), nn.Linear(_WIDTH, 1)

    def forward(self, x: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.score(x).squeeze(-1).sigmoid()
        keep = scores > threshold
        return self.box(x)[keep], scores.masked_select(keep)


class Voxels(nn.Module):
    """The mean of the points of each occupied cell: ``unique`` finds the cells."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        cells = (points + 4).floor().long()
        keys = (cells * torch.tensor([64, 8, 1])).sum(-1)
        found, inverse, count = keys.unique(return_inverse=True, return_counts=True)
        sums = points.new_zeros(found.shape[0], 3).index_add(0, inverse, points)
        return found, self.linear(sums / count[:, None])


class EventTimes(nn.Module):
    """Sorted times of two streams: the latest event of one before each of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * _WIDTH, 4)

    def forward(self, times: Tensor, values: Tensor, asked: Tensor, queries: Tensor) -> Tensor:
        place = (torch.searchsorted(times, asked, right=True) - 1).clamp(min=0)
        latest = values.gather(1, place.unsqueeze(-1).expand(-1, -1, _WIDTH))
        age = asked - times.gather(1, place)
        return self.linear(torch.cat([latest, queries], dim=-1)) * (-age).exp().unsqueeze(-1)


class SegmentIds(nn.Module):
    """Several documents packed into each row; segment ids keep them apart, positions restart."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(_WORDS, _WIDTH), nn.Embedding(32, _WIDTH)
        self.mix = nn.Linear(_WIDTH, 3 * _WIDTH)

    def forward(
        self, input_ids: Tensor, segment_ids: Tensor, position_ids: Tensor | None = None
    ) -> Tensor:
        if position_ids is None:
            places = torch.arange(input_ids.shape[1]).expand_as(input_ids)
            begins = torch.nn.functional.pad(segment_ids.diff(dim=1) != 0, (1, 0), value=True)
            position_ids = places - (places * begins).cummax(1).values
        x = self.embed(input_ids) + self.position(position_ids)
        query, key, value = self.mix(x).chunk(3, dim=-1)
        same = segment_ids[:, :, None] == segment_ids[:, None]
        out = nn.functional.scaled_dot_product_attention(query, key, value, same.tril())
        return out * (segment_ids > 0).unsqueeze(-1)


class CutToLongest(nn.Module):
    """Drops the columns that are padding in every row: the longest length is a Python number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, 4)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        longest = int(lengths.max())
        mask = torch.arange(longest)[None] < lengths[:, None]
        return self.linear(x[:, :longest]) * mask.unsqueeze(-1)


class SkipsFullMask(nn.Module):
    """Masks only if there is something to mask: an ``if`` on values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = self.linear(x)
        if not mask.all():
            scores = scores.masked_fill(~mask.unsqueeze(-1), _EMPTY)
        return scores.softmax(1)


def _cuts(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def _varlen(*lengths: int) -> Arguments:
    ids = torch.randint(0, _WORDS, (sum(lengths),))
    positions = torch.cat([torch.arange(length) for length in lengths])
    named = {"cu_seqlens": _cuts(*lengths), "position_ids": positions, "max_seqlen": max(lengths)}
    return (ids,), named


def _ends(*lengths: int) -> Arguments:
    return (torch.randn(sum(lengths), _WIDTH), _cuts(*lengths)), {}


def _paged_run(module: nn.Module, steps: int, *lengths: int) -> None:
    """Decode steps of several requests, with contexts of different lengths, in shuffled pages."""
    generator = torch.Generator().manual_seed(sum(lengths))
    need = (max(lengths) + steps + _PAGE - 1) // _PAGE
    pages = torch.randn(2, _PAGES, _PAGE, _WIDTH, generator=generator).unbind()
    table = torch.randperm(_PAGES, generator=generator)[: need * len(lengths)].view(-1, need)
    lens = torch.tensor(lengths)
    ids = torch.randint(0, _WORDS, (len(lengths),), generator=generator)
    for _ in range(steps):
        used = int(lens.max()) // _PAGE + 1
        slots = table.gather(1, (lens // _PAGE)[:, None])[:, 0] * _PAGE + lens % _PAGE
        logits, pages = module(ids, slots, table[:, :used].contiguous(), lens + 1, pages)
        ids, lens = logits.argmax(-1), lens + 1


def _paged_drive(module: nn.Module) -> None:
    _paged_run(module, 2, 3, 6)
    _paged_run(module, 2, 8, 5, 2)
    _paged_run(module, 2, 4, 2, 5)


def _paged_unseen(module: nn.Module) -> list[Arguments]:
    return captured(module, lambda m: _paged_run(m, 2, 7, 3, 5, 4), (0, 1))


def _beams(batch: int, beams: int) -> Arguments:
    tokens = torch.randint(0, _WORDS, (batch * beams,))
    return (tokens, torch.randn(batch * beams, _WIDTH), torch.randn(batch, beams)), {}


def _prefix(rows: int, length: int) -> Arguments:
    lengths = torch.randint(1, length + 1, (rows,))
    return (torch.randint(0, _WORDS, (rows, length)), lengths), {}


def _ended(rows: int, length: int, counted: bool) -> Arguments:
    lengths = torch.randint(1, length + 1, (rows,))
    ids = torch.randint(1, _WORDS, (rows, length)) * (torch.arange(length) < lengths[:, None])
    return (), {"input_ids": ids} | ({"lengths": lengths} if counted else {})


def _masked(rows: int, length: int, masked: int) -> Arguments:
    places = torch.rand(rows, length).argsort(1)[:, :masked].sort(1).values
    return (torch.randint(0, _WORDS, (rows, length)), places), {}


def _pillars(pillars: int, points: int, batch: int) -> Arguments:
    row = torch.arange(pillars) * batch // pillars
    cell = torch.randperm(30)[:pillars]
    coordinates = torch.stack([row, cell // 5, cell % 5], dim=1)
    order = torch.randperm(pillars)
    return (torch.randn(pillars, points, 3), coordinates[order], batch, order), {}


def _sparse(rows: int, columns: int, entries: int) -> Arguments:
    inner = torch.randint(0, entries + 1, (rows - 1,)).sort().values
    rowptr = torch.cat([torch.tensor([0]), inner, torch.tensor([entries])])
    col = torch.randint(0, columns, (entries,))
    return (rowptr, col, torch.randn(entries), torch.randn(columns, _WIDTH)), {}


def _longest(rows: int, length: int) -> Arguments:
    lengths = torch.randint(1, length, (rows,))
    lengths[0] = length - 1
    return (torch.randn(rows, length, _WIDTH), lengths), {}


def _perhaps_masked(rows: int, length: int, masked: bool) -> Arguments:
    mask = torch.ones(rows, length, dtype=torch.bool)
    if masked:
        mask[1:, -1] = False
    return (torch.randn(rows, length, _WIDTH), mask), {}


def _hidden(rows: int, length: int) -> Arguments:
    return (torch.randn(rows, length, _WIDTH),), {}


def _padded(rows: int, length: int) -> Arguments:
    mask = (torch.arange(length) < torch.randint(1, length + 1, (rows, 1))).long()
    return (), {"input_ids": torch.randint(0, _WORDS, (rows, length)), "attention_mask": mask}


def _scored(anchors: int) -> Arguments:
    return (torch.randn(anchors, _WIDTH), torch.tensor(0.45)), {}


def _points(count: int) -> Arguments:
    return (torch.randn(count, 3).clamp(-3.5, 3.5),), {}


def _events(rows: int, events: int, asked: int) -> Arguments:
    times, queries = torch.rand(rows, events).sort(1).values, torch.rand(rows, asked)
    return (times, torch.randn(rows, events, _WIDTH), queries, torch.randn(rows, asked, _WIDTH)), {}


def _packed(rows: int, length: int, placed: bool) -> Arguments:
    ids = torch.randint(1, _WORDS, (rows, length))
    segments = (torch.rand(rows, length) < 0.3).long().cumsum(1) + 1
    segments[1:, -1] = 0
    named = {"input_ids": ids, "segment_ids": segments}
    if placed:
        named["position_ids"] = torch.arange(length).expand(rows, length).contiguous()
    return (), named


_PLANE: dict[str, Any] = {"seen": [(2, 5), (3, 9), (4, 7)], "unseen": [(5, 6), (2, 12)]}
_ROWS: dict[str, Any] = {"seen": [(5,), (9,), (7,)], "unseen": [(8,), (14,)]}

CASES: list[Case] = [
    simple(
        "varlen_attention", made(Varlen), _varlen,
        seen=[(3, 5), (4, 2, 6), (7, 3, 5, 2)], unseen=[(6, 4, 3, 5, 2), (9, 8)],
        note="offsets that begin at 0 and end at the number of tokens",
    ),
    simple(
        "varlen_pooled", made(VarlenPooled), _ends,
        seen=[(3, 5), (4, 2, 6), (7, 3, 5, 2)], unseen=[(6, 4, 3, 5, 2), (9, 8)],
    ),
    Case("paged_attention", made(PagedAttention), _paged_drive, _paged_unseen,
         note="page tables and slots; pages of a fixed number"),
    simple("beam_step", made(BeamStep), _beams,
           seen=[(2, 3), (3, 4), (4, 2)], unseen=[(5, 3), (2, 5)], note="rows are batch × beams"),
    simple("beam_step_of_three", made(BeamStep), _beams,
           seen=[(2, 3), (4, 3), (5, 3)], unseen=[(3, 3), (7, 3)], note="always three beams"),
    simple("prefix_lm", made(PrefixLm), _prefix, **_PLANE),
    simple(
        "last_token", made(LastToken), _ended,
        seen=[(2, 5, True), (3, 9, False), (4, 7, True), (2, 6, False)],
        unseen=[(5, 8, True), (3, 12, False)], note="lengths, or what is no padding",
    ),
    simple("masked_positions", made(MaskedLm), _masked,
           seen=[(2, 8, 2), (3, 12, 4), (4, 10, 3)], unseen=[(5, 9, 5), (2, 16, 6)]),
    simple("pillars", made(Scattered), _pillars,
           seen=[(8, 4, 2), (12, 6, 3), (10, 5, 4)], unseen=[(14, 7, 2), (9, 3, 5)]),
    simple("sparse_rows", made(SparseRows), _sparse,
           seen=[(4, 6, 9), (6, 5, 14), (5, 8, 11)], unseen=[(7, 9, 20), (3, 4, 6)],
           note="one more pointer than rows"),
    simple("top_experts", made(TopExperts), _hidden, **_PLANE),
    simple("unpadded", made(Unpadded), _padded, **_PLANE),
    simple("boxes_above_threshold", made(Selected), _scored, **_ROWS,
           note="as many results as the values say"),
    simple("voxels", made(Voxels), _points, **_ROWS),
    simple("event_times", made(EventTimes), _events,
           seen=[(2, 5, 3), (3, 8, 4), (4, 6, 7)], unseen=[(5, 9, 6), (2, 12, 5)]),
    simple(
        "packed_documents", made(SegmentIds), _packed,
        seen=[(2, 8, True), (3, 12, False), (4, 10, True), (2, 9, False)],
        unseen=[(5, 11, True), (3, 16, False)],
    ),
    simple("cut_to_longest", made(CutToLongest), _longest, **_PLANE,
           note="the longest length, as a number"),
    simple(
        "skips_full_mask", made(SkipsFullMask), _perhaps_masked,
        seen=[(2, 5, True), (3, 9, False), (4, 7, True), (2, 6, False)],
        unseen=[(5, 8, True), (3, 12, False)], note="branches on whether all of a mask is true",
    ),
]  # fmt: skip
