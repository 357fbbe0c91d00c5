"""Graph networks of torch_geometric, as their users call them: edges, graphs in one, many types."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.arguments import any_edges
from tests.zoo.case import Arguments, Case, simple
from tests.zoo.containers import made

__all__ = ["CASES"]

_WIDTH = 8
_EDGE = 3
_TYPES = [("user", "buys", "item"), ("item", "bought_by", "user"), ("user", "knows", "user")]


def _basic(name: str, **options: Any) -> nn.Module:
    """One of torch_geometric's models of several layers."""
    import torch_geometric.nn as geometric

    return getattr(geometric, name)(_WIDTH, 16, num_layers=2, out_channels=4, **options)


class GraphClassifier(nn.Module):
    """Pools nodes per graph. The number of graphs is that of the caller, or the last id plus 1."""

    def __init__(self, pool: str = "global_add_pool") -> None:
        super().__init__()
        import torch_geometric.nn as geometric

        self.body = _basic("GIN", norm="batch_norm")
        self.pool = getattr(geometric, pool)
        self.head = nn.Linear(4, 2)

    def forward(
        self, x: Tensor, edge_index: Tensor, batch: Tensor, batch_size: int | None = None
    ) -> Tensor:
        hidden = self.body(x, edge_index)
        return self.head(self.pool(hidden, batch, batch_size)).log_softmax(-1)


class Gps(nn.Module):
    """Convolution beside attention over all nodes of a graph, which are padded for it."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import GINEConv, GPSConv

        self.edge = nn.Linear(_EDGE, _WIDTH)
        layers = [nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU()) for _ in range(2)]
        self.layers = nn.ModuleList(GPSConv(_WIDTH, GINEConv(layer), heads=2) for layer in layers)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        edges = self.edge(edge_attr)
        for layer in self.layers:
            x = layer(x, edge_index, batch, edge_attr=edges)
        return x


class Pna(nn.Module):
    """Many aggregations, scaled by degree."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import PNAConv

        self.conv = PNAConv(
            _WIDTH, 8, ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"],
            deg=torch.tensor([0, 2, 5, 3, 1]), edge_dim=_EDGE, towers=2,
        )  # fmt: skip

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.conv(x, edge_index, edge_attr).relu()


class Transformer(nn.Module):
    """Attention along edges; hands out its weights if asked to."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import TransformerConv

        self.first = TransformerConv(_WIDTH, 4, heads=2, edge_dim=_EDGE, beta=True)
        self.second = TransformerConv(8, 4, heads=2, concat=False)

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, with_weights: bool = False
    ) -> Any:
        if not with_weights:
            return self.second(self.first(x, edge_index, edge_attr).relu(), edge_index)
        x, (_, weights) = self.first(x, edge_index, edge_attr, return_attention_weights=True)
        return self.second(x.relu(), edge_index), weights


class Heterogeneous(nn.Module):
    """Nodes and edges of several types: dicts by name, and by triples of names."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import HeteroConv, SAGEConv

        self.conv = HeteroConv({kind: SAGEConv((-1, -1), 8) for kind in _TYPES}, aggr="sum")
        self.head = nn.Linear(8, 3)
        x, edges = _typed(3, 4, 5)[0]
        self(x, edges)  # sizes of the weights

    def forward(self, x: dict[str, Tensor], edges: dict[tuple[str, str, str], Tensor]) -> Tensor:
        return self.head(self.conv(x, edges)["user"].relu())


class Hgt(nn.Module):
    """Attention over typed edges."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import HGTConv

        self.conv = HGTConv(_WIDTH, 8, (["user", "item"], _TYPES), heads=2)

    def forward(
        self, x_dict: dict[str, Tensor], edge_index_dict: dict[tuple[str, str, str], Tensor]
    ) -> dict[str, Tensor]:
        return self.conv(x_dict, edge_index_dict)


class Rgcn(nn.Module):
    """Relations as a number per edge, in a loop over relations."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import RGCNConv

        self.embed = nn.Embedding(30, _WIDTH)
        self.conv = RGCNConv(_WIDTH, 8, num_relations=3, num_bases=2)

    def forward(self, ids: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.conv(self.embed(ids), edge_index, edge_type)


class TopK(nn.Module):
    """Keeps the best half of the nodes of each graph, and the edges among them."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import GraphConv, TopKPooling

        self.conv = GraphConv(_WIDTH, 8)
        self.pool = TopKPooling(8, ratio=0.5)
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        from torch_geometric.nn import global_max_pool, global_mean_pool

        x = self.conv(x, edge_index).relu()
        x, edge_index, _, batch, _, _ = self.pool(x, edge_index, None, batch)
        both = [global_max_pool(x, batch), global_mean_pool(x, batch)]
        return self.head(torch.cat(both, dim=1))


class LinkPredictor(nn.Module):
    """Scores pairs of nodes."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import GCNConv

        self.conv = GCNConv(_WIDTH, 8)

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:
        z = self.conv(x, edge_index)
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(-1)


class DenseDiffPool(nn.Module):
    """Padded graphs with dense adjacency, pooled to a fixed number of clusters."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import DenseSAGEConv

        self.embed = DenseSAGEConv(_WIDTH, 8)
        self.assign = DenseSAGEConv(_WIDTH, 4)

    def forward(self, x: Tensor, adj: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        from torch_geometric.nn import dense_diff_pool

        assigned = self.assign(x, adj, mask)
        x, adj, link, _ = dense_diff_pool(self.embed(x, adj, mask), adj, assigned, mask)
        return x.mean(1), link


class SchNet(nn.Module):
    """A potential: atoms, positions, and pairs of the same molecule within a radius."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import SchNet as Original

        self.model = Original(
            hidden_channels=16, num_filters=16, num_interactions=2, num_gaussians=8, cutoff=4.0,
            interaction_graph=_within,
        )  # fmt: skip

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor | None = None) -> Tensor:
        return self.model(z, pos, batch)


def _within(pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs nearer than a radius, as the dense fallback of a radius graph finds them."""
    distance = torch.cdist(pos, pos)
    near = (distance < 2.0) & (batch[:, None] == batch[None])
    near = near & ~torch.eye(pos.shape[0], dtype=torch.bool)
    edges = near.nonzero().t()
    return edges, (pos[edges[0]] - pos[edges[1]]).norm(dim=-1)


class AttentiveFp(nn.Module):
    """Fingerprints of molecules: recurrent cells over nodes and over graphs."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import AttentiveFP

        self.model = AttentiveFP(_WIDTH, 8, 2, edge_dim=_EDGE, num_layers=2, num_timesteps=2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        return self.model(x, edge_index, edge_attr, batch)


class PointTransformer(nn.Module):
    """Vector attention among neighbours, which the caller found."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import PointTransformerConv

        self.conv = PointTransformerConv(_WIDTH, 8, pos_nn=nn.Linear(3, 8))

    def forward(self, x: Tensor, pos: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, pos, edge_index)


def _light_gcn() -> nn.Module:
    from torch_geometric.nn import LightGCN

    torch.manual_seed(0)
    return LightGCN(num_nodes=20, embedding_dim=8, num_layers=2).eval()


def _batch(nodes: int, graphs: int) -> Tensor:
    return torch.arange(nodes) * graphs // nodes


def _graph(nodes: int, edges: int, weighted: bool = False) -> Arguments:
    args = torch.randn(nodes, _WIDTH), any_edges(nodes, edges)
    return args, {"edge_weight": torch.rand(edges)} if weighted else {}


def _attributed(nodes: int, edges: int, asked: bool = False) -> Arguments:
    args = torch.randn(nodes, _WIDTH), any_edges(nodes, edges), torch.randn(edges, _EDGE)
    return args, {"with_weights": True} if asked else {}


def _named(nodes: int, edges: int) -> Arguments:
    (x, edge_index, edge_attr), _ = _attributed(nodes, edges)
    return (x, edge_index), {"edge_attr": edge_attr}


def _batched(nodes: int, edges: int, graphs: int, counted: bool = False) -> Arguments:
    (x, edge_index), _ = _graph(nodes, edges)
    args = x, edge_index, _batch(nodes, graphs)
    return args, {"batch_size": graphs} if counted else {}


def _molecules(nodes: int, edges: int, graphs: int) -> Arguments:
    args, _ = _attributed(nodes, edges)
    return (*args, _batch(nodes, graphs)), {}


def _sampled(seeds: int, first: int, second: int) -> Arguments:
    """A sampled neighbourhood: seeds, then their neighbours hop by hop."""
    nodes = seeds + first + second
    one = torch.stack([seeds + torch.arange(first), torch.randint(0, seeds, (first,))])
    two = torch.stack(
        [seeds + first + torch.arange(second), seeds + torch.randint(0, first, (second,))]
    )
    args = torch.randn(nodes, _WIDTH), torch.cat([one, two], dim=1)
    counts = {
        "num_sampled_nodes_per_hop": [seeds, first, second],
        "num_sampled_edges_per_hop": [first, second],
    }
    return args, counts


def _typed(users: int, items: int, edges: int) -> Arguments:
    x = {"user": torch.randn(users, _WIDTH), "item": torch.randn(items, _WIDTH)}
    count = {"user": users, "item": items}
    found = {}
    for number, kind in enumerate(_TYPES):
        size = edges + number
        source = torch.randint(0, count[kind[0]], (size,))
        found[kind] = torch.stack([source, torch.randint(0, count[kind[2]], (size,))])
    return (x, found), {}


def _related(nodes: int, edges: int) -> Arguments:
    ids = torch.randint(0, 30, (nodes,))
    return (ids, any_edges(nodes, edges), torch.randint(0, 3, (edges,))), {}


def _pairs(nodes: int, edges: int, pairs: int) -> Arguments:
    args, _ = _graph(nodes, edges)
    return (*args, any_edges(nodes, pairs)), {}


def _users(edges: int, pairs: int) -> Arguments:
    return (any_edges(20, edges), any_edges(20, pairs)), {}


def _dense(graphs: int, nodes: int) -> Arguments:
    adj = (torch.rand(graphs, nodes, nodes) < 0.4).float()
    mask = torch.arange(nodes) < torch.randint(2, nodes + 1, (graphs, 1))
    mask[0] = True
    return (torch.randn(graphs, nodes, _WIDTH), (adj + adj.mT).clamp(max=1), mask), {}


def _atoms(nodes: int, graphs: int) -> Arguments:
    return (torch.randint(1, 10, (nodes,)), torch.randn(nodes, 3), _batch(nodes, graphs)), {}


def _cloud(points: int, neighbours: int) -> Arguments:
    pos = torch.randn(points, 3)
    near = torch.cdist(pos, pos).topk(neighbours, largest=False).indices
    edges = torch.stack([near.flatten(), torch.arange(points).repeat_interleave(neighbours)])
    return (torch.randn(points, _WIDTH), pos, edges), {}


_EDGES: dict[str, Any] = {
    "seen": [(6, 14), (9, 20), (7, 11)], "unseen": [(8, 17), (12, 30)],
}  # fmt: skip
_GRAPHS: dict[str, Any] = {
    "seen": [(6, 14, 2), (9, 20, 3), (12, 18, 4)], "unseen": [(10, 17, 5), (16, 30, 6)],
}  # fmt: skip
_WEIGHTED: dict[str, Any] = {
    "seen": [(6, 14, False), (9, 20, True), (7, 11, False), (8, 16, True)],
    "unseen": [(10, 17, False), (12, 30, True)],
}

CASES: list[Case] = [
    simple(
        "geometric_gcn", made(_basic, "GCN"), _graph, **_WEIGHTED,
        note="adds loops where there are none: as many edges as the values say",
    ),
    simple("geometric_gat", made(partial(_basic, "GAT", edge_dim=_EDGE)), _named, **_EDGES),
    simple("geometric_sage", made(_basic, "GraphSAGE"), _graph, **_EDGES),
    simple(
        "geometric_sage_sampled", made(_basic, "GraphSAGE"), _sampled,
        seen=[(2, 4, 6), (3, 7, 9), (4, 6, 11)], unseen=[(3, 5, 8), (5, 9, 12)],
        note="lists of counts: every layer drops the outermost hop",
    ),
    simple("geometric_gin_batch", made(GraphClassifier), _batched, **_GRAPHS,
           note="the number of graphs is the largest id plus one"),
    simple(
        "geometric_gin_counted", made(GraphClassifier, "global_max_pool"), _batched,
        seen=[(6, 14, 2, True), (9, 20, 3, True), (12, 18, 4, True)],
        unseen=[(10, 17, 5, True), (16, 30, 6, True)],
    ),
    simple("geometric_gps", made(Gps), _molecules, **_GRAPHS,
           note="pads every graph to the largest one"),
    simple("geometric_pna", made(Pna), _attributed, **_EDGES),
    simple("geometric_transformer", made(Transformer), _attributed, **_WEIGHTED),
    simple(
        "geometric_hetero", made(Heterogeneous), _typed,
        seen=[(4, 6, 9), (5, 8, 12), (7, 5, 14)], unseen=[(6, 9, 10), (8, 7, 20)],
        note="dicts with tuples as keys",
    ),
    simple(
        "geometric_hgt", made(Hgt), _typed,
        seen=[(4, 6, 9), (5, 8, 12), (7, 5, 14)], unseen=[(6, 9, 10), (8, 7, 20)],
    ),
    simple("geometric_rgcn", made(Rgcn), _related, **_EDGES,
           note="the edges of each relation, as many as there are"),
    simple("geometric_topk", made(TopK), _batched, **_GRAPHS),
    simple(
        "geometric_links", made(LinkPredictor), _pairs,
        seen=[(6, 14, 4), (9, 20, 7), (7, 11, 5)], unseen=[(8, 17, 9), (12, 30, 3)],
    ),
    simple("geometric_light_gcn", _light_gcn, _users,
           seen=[(14, 4), (20, 7), (11, 5)], unseen=[(17, 9), (30, 3)]),
    simple("geometric_diff_pool", made(DenseDiffPool), _dense,
           seen=[(2, 5), (3, 9), (4, 7)], unseen=[(5, 6), (2, 12)]),
    simple("geometric_schnet", made(SchNet), _atoms,
           seen=[(6, 2), (9, 3), (12, 4)], unseen=[(10, 5), (16, 6)],
           note="pairs within a radius: as many as the positions say"),
    simple("geometric_attentive_fp", made(AttentiveFp), _molecules, **_GRAPHS),
    simple("geometric_point_transformer", made(PointTransformer), _cloud,
           seen=[(6, 3), (9, 3), (7, 3)], unseen=[(8, 3), (12, 3)]),
]  # fmt: skip
