"""Sets of points and atoms: neighbours, farthest points, distances, angles between edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.case import Arguments, Case, simple
from tests.zoo.containers import made

__all__ = ["CASES"]

_WIDTH = 8


class DynamicGraph(nn.Module):
    """Neighbours by features, found anew in every layer, with flat indices (DGCNN)."""

    def __init__(self, neighbours: int = 4) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.convs = nn.ModuleList(
            nn.Sequential(nn.Conv2d(2 * width, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
            for width in (3, 8)
        )
        self.head = nn.Linear(32, 4)

    def edges(self, x: Tensor) -> Tensor:
        rows, width, points = x.size()
        inner = -2 * x.mT @ x
        square = (x**2).sum(1, keepdim=True)
        near = (-square - inner - square.mT).topk(self.neighbours, dim=-1)[1]
        flat = (near + torch.arange(rows).view(-1, 1, 1) * points).view(-1)
        own = x.mT.contiguous()
        found = own.view(rows * points, -1)[flat].view(rows, points, self.neighbours, width)
        own = own.view(rows, points, 1, width).repeat(1, 1, self.neighbours, 1)
        return torch.cat([found - own, own], dim=3).permute(0, 3, 1, 2).contiguous()

    def forward(self, points: Tensor) -> Tensor:
        x, kept = points, []
        for conv in self.convs:
            x = conv(self.edges(x)).max(dim=-1)[0]
            kept.append(x)
        x = torch.cat(kept, dim=1)
        pooled = nn.functional.adaptive_max_pool1d(x, 1), nn.functional.adaptive_avg_pool1d(x, 1)
        return self.head(torch.cat(pooled, dim=1).squeeze(-1))


class SetAbstraction(nn.Module):
    """Farthest points in a loop, then all points in a ball around each (PointNet++)."""

    def __init__(self, centers: int = 4, radius: float = 1.0, most: int = 5) -> None:
        super().__init__()
        self.centers, self.radius, self.most = centers, radius, most
        self.mlp = nn.Sequential(nn.Conv2d(3 + 2, 8, 1), nn.BatchNorm2d(8), nn.ReLU())

    def farthest(self, xyz: Tensor) -> Tensor:
        rows, points, _ = xyz.shape
        chosen = torch.zeros(rows, self.centers, dtype=torch.long)
        distance = torch.ones(rows, points) * 1e10
        farthest = torch.zeros(rows, dtype=torch.long)
        every = torch.arange(rows)
        for number in range(self.centers):
            chosen[:, number] = farthest
            center = xyz[every, farthest].view(rows, 1, 3)
            from_here = ((xyz - center) ** 2).sum(-1)
            closer = from_here < distance
            distance[closer] = from_here[closer]
            farthest = distance.max(-1)[1]
        return chosen

    def forward(self, xyz: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        rows, points, _ = xyz.shape
        every = torch.arange(rows)
        centers = xyz[every[:, None], self.farthest(xyz)]
        group = torch.arange(points).view(1, 1, points).repeat(rows, self.centers, 1)
        group[torch.cdist(centers, xyz) > self.radius] = points
        group = group.sort(dim=-1)[0][:, :, : self.most]
        first = group[:, :, :1].repeat(1, 1, group.shape[-1])
        group[group == points] = first[group == points]
        local = xyz[every[:, None, None], group] - centers[:, :, None]
        grouped = torch.cat([local, features[every[:, None, None], group]], dim=-1)
        return centers, self.mlp(grouped.permute(0, 3, 2, 1)).max(2)[0].mT


class Equivariant(nn.Module):
    """Messages by distance move the points as well (EGNN); edges are two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * _WIDTH + 1, 8), nn.SiLU())
        self.coordinate, self.node = nn.Linear(8, 1, bias=False), nn.Linear(_WIDTH + 8, _WIDTH)

    def forward(
        self, h: Tensor, x: Tensor, edges: list[Tensor], edge_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        row, col = edges
        apart = x[row] - x[col]
        square = (apart**2).sum(1, keepdim=True)
        message = self.edge(torch.cat([h[row], h[col], square], dim=1))
        if edge_mask is not None:
            message = message * edge_mask
        step = apart / (square.sqrt() + 1) * self.coordinate(message)
        moved = x.new_zeros(x.shape).index_add(0, row, step)
        count = x.new_zeros(x.shape[0], 1).index_add(0, row, torch.ones_like(square))
        gathered = h.new_zeros(h.shape[0], 8).index_add(0, row, message)
        h = h + self.node(torch.cat([h, gathered], dim=1))
        return h, x + moved / count.clamp(min=1)


class Directional(nn.Module):
    """Angles between pairs of edges that share an atom, which it finds itself (DimeNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.atom = nn.Embedding(10, _WIDTH)
        self.edge = nn.Linear(2 * _WIDTH + 1, 8)
        self.angle = nn.Linear(1, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, z: Tensor, pos: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        apart = pos[target] - pos[source]
        length = apart.norm(dim=-1, keepdim=True)
        message = self.edge(torch.cat([self.atom(z[source]), self.atom(z[target]), length], -1))
        shares = target[:, None] == source[None]
        follows = shares & (source[:, None] != target[None])
        before, after = follows.nonzero(as_tuple=True)
        cosine = nn.functional.cosine_similarity(apart[before], apart[after], dim=-1)
        basis = message[before] * self.angle(cosine.unsqueeze(-1))
        message = message + torch.zeros_like(message).index_add(0, after, basis)
        return self.head(z.new_zeros(z.shape[0], 8).to(message).index_add(0, target, message)).sum()


class SetTransformer(nn.Module):
    """Points attend through a few learnt ones, and are pooled by seeds; some are padding."""

    def __init__(self, inner: int = 3, seeds: int = 2) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn(1, inner, _WIDTH))
        self.seeds = nn.Parameter(torch.randn(1, seeds, _WIDTH))
        self.down, self.up, self.pool = (
            nn.MultiheadAttention(_WIDTH, 2, batch_first=True) for _ in range(3)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        padding = None if mask is None else ~mask
        points = self.points.expand(x.shape[0], -1, -1)
        inner = self.down(points, x, x, key_padding_mask=padding, need_weights=False)[0]
        x = x + self.up(x, inner, inner, need_weights=False)[0]
        seeds = self.seeds.expand(x.shape[0], -1, -1)
        return self.pool(seeds, x, x, key_padding_mask=padding, need_weights=False)[0].flatten(1)


class NearestAttention(nn.Module):
    """Vector attention among the nearest points, their number given (Point Transformer)."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.place = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, _WIDTH))
        self.weigh = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, xyz: Tensor, x: Tensor, k: int = 4) -> Tensor:
        near = torch.cdist(xyz, xyz).argsort(dim=-1)[:, :, :k]
        rows = torch.arange(xyz.shape[0])[:, None, None]
        query, key, value = self.mix(x).chunk(3, dim=-1)
        place = self.place(xyz[:, :, None] - xyz[rows, near])
        weights = self.weigh(query[:, :, None] - key[rows, near] + place).softmax(-2)
        return torch.einsum("bnkf,bnkf->bnf", weights, value[rows, near] + place)


def _cloud(rows: int, points: int) -> Arguments:
    return (torch.randn(rows, 3, points),), {}


def _featured(rows: int, points: int) -> Arguments:
    return (torch.randn(rows, points, 3), torch.randn(rows, points, 2)), {}


def _moving(nodes: int, edges: int, masked: bool) -> Arguments:
    pairs = [torch.randint(0, nodes, (edges,)) for _ in range(2)]
    args = torch.randn(nodes, _WIDTH), torch.randn(nodes, 3), pairs
    return args, {"edge_mask": (torch.rand(edges, 1) < 0.7).float()} if masked else {}


def _molecule(atoms: int, edges: int) -> Arguments:
    source = torch.randint(0, atoms, (edges,))
    target = (source + torch.randint(1, atoms, (edges,))) % atoms
    edge_index = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
    return (torch.randint(0, 10, (atoms,)), torch.randn(atoms, 3), edge_index), {}


def _set(rows: int, points: int, masked: bool) -> Arguments:
    mask = torch.arange(points) < torch.randint(1, points + 1, (rows, 1))
    return (torch.randn(rows, points, _WIDTH),), {"mask": mask} if masked else {}


def _near(rows: int, points: int, k: int | None) -> Arguments:
    args = torch.randn(rows, points, 3), torch.randn(rows, points, _WIDTH)
    return args, {} if k is None else {"k": k}


_PLANE: dict[str, Any] = {"seen": [(2, 7), (3, 12), (4, 9)], "unseen": [(5, 10), (2, 16)]}
_SOMETIMES: dict[str, Any] = {
    "seen": [(2, 9, True), (3, 12, False), (4, 8, True), (5, 10, False)],
    "unseen": [(6, 14, True), (7, 11, False)],
}

CASES: list[Case] = [
    simple("dynamic_graph", made(DynamicGraph), _cloud, **_PLANE),
    simple("set_abstraction", made(SetAbstraction), _featured, **_PLANE,
           note="writes through masks of any number of elements"),
    simple("equivariant", made(Equivariant), _moving, **_SOMETIMES),
    simple("directional", made(Directional), _molecule,
           seen=[(5, 6), (7, 10), (6, 8)], unseen=[(8, 9), (9, 14)],
           note="as many angles as the edges say"),
    simple("set_transformer", made(SetTransformer), _set, **_SOMETIMES),
    simple(
        "nearest_attention", made(NearestAttention), _near,
        seen=[(2, 7, 3), (3, 12, 5), (4, 9, 6)], unseen=[(5, 10, 4), (2, 16, 8)],
        note="the number of neighbours is an int",
    ),
]  # fmt: skip
