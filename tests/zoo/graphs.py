"""Graphs: nodes, edges and the sums over them, and tables of features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.case import Arguments, Case, simple
from tests.zoo.containers import WIDTH, made

__all__ = ["CASES"]


class Convolution(nn.Module):
    """Messages along edges, their mean at each node, by hand-written scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(2 * WIDTH, WIDTH)
        self.edge = nn.Linear(3, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        source, target = edge_index
        message = self.message(torch.cat([x[source], x[target]], dim=-1))
        if edge_attr is not None:
            message = message + self.edge(edge_attr)
        index = target[:, None].expand_as(message)
        total = torch.zeros_like(x).scatter_add(0, index, message.relu())
        degree = torch.zeros_like(x[:, :1]).index_add(0, target, torch.ones_like(message[:, :1]))
        return x + total / degree.clamp(min=1)


class Pooled(nn.Module):
    """Several graphs in one: a number per node says which it is of."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = Convolution()
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        hidden = self.convolution(x, edge_index)
        sums = hidden.new_zeros(num_graphs, WIDTH).index_add(0, batch, hidden)
        return self.head(sums)


class Recommender(nn.Module):
    """Dense features, and bags of ids of any length with their offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleDict({name: nn.EmbeddingBag(40, 8) for name in ("item", "user")})
        self.dense = nn.Linear(4, 8)
        self.head = nn.Linear(24, 1)

    def forward(self, dense: Tensor, sparse: dict[str, tuple[Tensor, Tensor]]) -> Tensor:
        columns = [self.dense(dense)]
        columns += [bag(*sparse[name]) for name, bag in self.bags.items()]
        return self.head(torch.cat(columns, dim=-1)).squeeze(-1).sigmoid()


class PointNet(nn.Module):
    """Gathers the nearest neighbours of every point."""

    def __init__(self, neighbours: int = 3) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.mlp = nn.Linear(6, 8)

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        near = torch.cdist(points, points).topk(self.neighbours, largest=False).indices
        rows = torch.arange(points.shape[0])[:, None, None]
        offsets = points[rows, near] - points[:, :, None]
        features = torch.cat([offsets, points[rows, near]], dim=-1)
        return self.mlp(features).amax(2), near


def _graph(nodes: int, edges: int, attributes: bool) -> Arguments:
    args = torch.randn(nodes, WIDTH), torch.randint(0, nodes, (2, edges))
    return args, {"edge_attr": torch.randn(edges, 3)} if attributes else {}


def _graphs(nodes: int, edges: int, graphs: int) -> Arguments:
    batch = torch.arange(nodes) * graphs // nodes
    (x, edge_index), _ = _graph(nodes, edges, False)
    return (x, edge_index, batch), {"num_graphs": graphs}


def _table(rows: int, items: int, users: int) -> Arguments:
    def bag(count: int) -> tuple[Tensor, Tensor]:
        return torch.randint(0, 40, (count,)), torch.arange(rows) * count // rows

    return (torch.randn(rows, 4), {"item": bag(items), "user": bag(users)}), {}


def _cloud(rows: int, points: int) -> Arguments:
    return (torch.randn(rows, points, 3),), {}


_EDGES: dict[str, Any] = {
    "seen": [(6, 14, False), (9, 20, False), (7, 11, False)],
    "unseen": [(8, 17, False), (12, 30, False)],
}

CASES: list[Case] = [
    simple("graph", made(Convolution), _graph, **_EDGES),
    simple(
        "graph_edge_attributes", made(Convolution), _graph,
        seen=[(6, 14, True), (9, 20, False), (7, 11, True), (8, 12, False)],
        unseen=[(10, 17, True), (12, 30, False)], note="attributes of the edges sometimes",
    ),
    simple(
        "graph_pooled", made(Pooled), _graphs,
        seen=[(6, 14, 2), (9, 20, 3), (12, 18, 4)], unseen=[(10, 17, 5), (16, 30, 6)],
        note="the number of graphs is an int",
    ),
    simple(
        "recommender", made(Recommender), _table,
        seen=[(3, 9, 7), (5, 11, 13), (4, 12, 8)], unseen=[(6, 15, 10), (2, 7, 16)],
    ),
    simple("point_cloud", made(PointNet), _cloud,
           seen=[(2, 7), (3, 9), (4, 6)], unseen=[(5, 8), (2, 12)]),
]  # fmt: skip
