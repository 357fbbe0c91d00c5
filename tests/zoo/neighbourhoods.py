"""More of torch_geometric: pooling that drops nodes, aggregations, relations, spectra, memories."""

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


class SagPool(nn.Module):
    """Attention scores nodes, and the best of each graph stay."""

    def __init__(self, kind: str = "SAGPooling") -> None:
        super().__init__()
        import torch_geometric.nn as geometric

        self.conv = geometric.GCNConv(_WIDTH, 8)
        self.pool = getattr(geometric, kind)(8, ratio=0.5)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        from torch_geometric.nn import global_mean_pool

        x = self.conv(x, edge_index).relu()
        x, edge_index, _, batch, *_ = self.pool(x, edge_index, None, batch)
        return self.head(global_mean_pool(x, batch))


class Mpnn(nn.Module):
    """The classic of molecules: weights from edges, a recurrent cell, and set2set at the end."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import NNConv, Set2Set

        self.start = nn.Linear(_WIDTH, 6)
        self.conv = NNConv(6, 6, nn.Linear(_EDGE, 36), aggr="mean")
        self.cell = nn.GRU(6, 6)
        self.pool = Set2Set(6, processing_steps=2)
        self.head = nn.Linear(12, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        out = self.start(x).relu()
        hidden = out.unsqueeze(0)
        for _ in range(2):
            message = self.conv(out, edge_index, edge_attr).relu()
            out, hidden = self.cell(message.unsqueeze(0), hidden)
            out = out.squeeze(0)
        return self.head(self.pool(out, batch)).view(-1)


class SortPool(nn.Module):
    """Nodes of each graph, sorted and cut to so many, then a convolution over them (DGCNN)."""

    def __init__(self, k: int = 4) -> None:
        super().__init__()
        from torch_geometric.nn import GCNConv, SortAggregation

        self.conv = GCNConv(_WIDTH, 6)
        self.sort = SortAggregation(k)
        self.head = nn.Conv1d(1, 3, 6, stride=6)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.sort(self.conv(x, edge_index).tanh(), batch)
        return self.head(x.unsqueeze(1)).relu().flatten(1)


class Aggregated(nn.Module):
    """A convolution, and one of the aggregations that see each graph as a set."""

    def __init__(self, kind: str, *args: Any, **options: Any) -> None:
        super().__init__()
        import torch_geometric.nn as geometric

        self.conv = geometric.GraphConv(_WIDTH, 8)
        self.pool = getattr(geometric, kind)(*args, **options)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Any:
        return self.pool(self.conv(x, edge_index).relu(), batch)


class Spectral(nn.Module):
    """Chebyshev polynomials of the Laplacian; loops of a node to itself are left out first."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import ChebConv

        self.first, self.second = ChebConv(_WIDTH, 8, K=3), ChebConv(8, 4, K=2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index, edge_weight).relu(), edge_index, edge_weight)


class Hyper(nn.Module):
    """Edges between any number of nodes."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import HypergraphConv

        self.conv = HypergraphConv(_WIDTH, 6)

    def forward(self, x: Tensor, hyperedge_index: Tensor, hyperedge_weight: Tensor) -> Tensor:
        return self.conv(x, hyperedge_index, hyperedge_weight)


class Typed(nn.Module):
    """A convolution that knows a number per edge."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        import torch_geometric.nn as geometric

        self.conv = getattr(geometric, kind)(_WIDTH, 8, num_relations=3, **options)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.conv(x, edge_index, edge_type)


class Deep(nn.Module):
    """Layers with residuals, softmax aggregation and edge attributes (DeeperGCN)."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import DeepGCNLayer, GENConv

        self.edge = nn.Linear(_EDGE, _WIDTH)
        self.layers = nn.ModuleList(
            DeepGCNLayer(
                GENConv(_WIDTH, _WIDTH, aggr="softmax", learn_t=True, num_layers=2, norm="layer"),
                nn.LayerNorm(_WIDTH), nn.ReLU(), block="res+",
            )
            for _ in range(2)
        )  # fmt: skip

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        edges = self.edge(edge_attr)
        for layer in self.layers:
            x = layer(x, edge_index, edges)
        return x


class Remembered(nn.Module):
    """Memories of nodes and when they last changed: what a temporal network reads (TGN)."""

    def __init__(self, nodes: int = 20) -> None:
        super().__init__()
        from torch_geometric.nn import TGNMemory, TransformerConv
        from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator

        self.memory = TGNMemory(nodes, 4, 8, 6, IdentityMessage(4, 8, 6), LastAggregator())
        self.memory.memory.normal_()
        self.conv = TransformerConv(8, 4, heads=2, edge_dim=10)
        self.time = self.memory.time_enc

    def forward(
        self, n_id: Tensor, edge_index: Tensor, t: Tensor, msg: Tensor
    ) -> tuple[Tensor, Tensor]:
        z, last = self.memory(n_id)
        age = self.time((last[edge_index[0]] - t).to(z.dtype))
        return self.conv(z, edge_index, torch.cat([age, msg], dim=-1)), last


class Links(nn.Module):
    """An encoder of graphs and a decoder of pairs, as a variational autoencoder has them."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import VGAE, GCNConv

        class Encoder(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body, self.mean = GCNConv(_WIDTH, 8), GCNConv(8, 4)
                self.spread = GCNConv(8, 4)

            def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
                hidden = self.body(x, edge_index).relu()
                return self.mean(hidden, edge_index), self.spread(hidden, edge_index)

        self.model = VGAE(Encoder())

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        z = self.model.encode(x, edge_index)
        return self.model.decoder.forward_all(z), self.model.decode(z, edge_index)


class RecurrentGraph(nn.Module):
    """A gated cell over time, with a convolution in each gate (GConvGRU)."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import ChebConv

        self.gates = ChebConv(_WIDTH + 6, 12, K=2)
        self.candidate = ChebConv(_WIDTH + 6, 6, K=2)

    def forward(self, x: Tensor, edge_index: Tensor, hidden: Tensor | None = None) -> Tensor:
        if hidden is None:
            hidden = x.new_zeros(x.shape[0], 6)
        both = torch.cat([x, hidden], dim=-1)
        keep, reset = self.gates(both, edge_index).sigmoid().chunk(2, dim=-1)
        new = self.candidate(torch.cat([x, hidden * reset], dim=-1), edge_index).tanh()
        return keep * hidden + (1 - keep) * new


def _made(name: str, **options: Any) -> nn.Module:
    import torch_geometric.nn as geometric

    torch.manual_seed(0)
    return getattr(geometric, name)(**options).eval()


_unet = partial(_made, "GraphUNet", in_channels=_WIDTH, hidden_channels=8, out_channels=4, depth=2)
_jumping = partial(
    _made, "GCN", in_channels=_WIDTH, hidden_channels=8, num_layers=3, out_channels=4, jk="lstm"
)
_polynormer = partial(
    _made, "Polynormer", in_channels=_WIDTH, hidden_channels=8, out_channels=4, local_layers=2,
    global_layers=1,
)  # fmt: skip
_signed = partial(_made, "SignedGCN", in_channels=_WIDTH, hidden_channels=8, num_layers=2)
_super = partial(_made, "SuperGATConv", in_channels=_WIDTH, out_channels=4, heads=2)
_appnp = partial(_made, "APPNP", K=3, alpha=0.1)
_linkx = partial(
    _made, "LINKX", num_nodes=20, in_channels=_WIDTH, hidden_channels=8, out_channels=4,
    num_layers=2,
)  # fmt: skip


def _aggregated(kind: str, *args: Any, **options: Any) -> Any:
    return made(partial(Aggregated, kind, *args, **options))


def _graph(nodes: int, edges: int) -> Arguments:
    return (torch.randn(nodes, _WIDTH), any_edges(nodes, edges)), {}


def _weighted(nodes: int, edges: int) -> Arguments:
    args, _ = _graph(nodes, edges)
    return (*args, torch.rand(edges)), {}


def _attributed(nodes: int, edges: int) -> Arguments:
    args, _ = _graph(nodes, edges)
    return (*args, torch.randn(edges, _EDGE)), {}


def _batched(nodes: int, edges: int, graphs: int) -> Arguments:
    args, _ = _graph(nodes, edges)
    return (*args, torch.arange(nodes) * graphs // nodes), {}


def _molecules(nodes: int, edges: int, graphs: int) -> Arguments:
    args, _ = _attributed(nodes, edges)
    return (*args, torch.arange(nodes) * graphs // nodes), {}


def _typed(nodes: int, edges: int) -> Arguments:
    args, _ = _graph(nodes, edges)
    return (*args, torch.randint(0, 3, (edges,))), {}


def _hyper(nodes: int, members: int, edges: int) -> Arguments:
    of = torch.cat([torch.arange(edges), torch.randint(0, edges, (members - edges,))])
    index = torch.stack([torch.randint(0, nodes, (members,)), of])
    return (torch.randn(nodes, _WIDTH), index, torch.rand(edges) + 0.5), {}


def _asked(nodes: int, edges: int) -> Arguments:
    ids = torch.randperm(20)[:nodes]
    return (ids, any_edges(nodes, edges), torch.randint(0, 50, (edges,)), torch.randn(edges, 4)), {}


def _both_signs(nodes: int, good: int, bad: int) -> Arguments:
    return (torch.randn(nodes, _WIDTH), any_edges(nodes, good), any_edges(nodes, bad)), {}


def _all_nodes(edges: int) -> Arguments:
    return (torch.randn(20, _WIDTH), any_edges(20, edges)), {}


def _in_time(nodes: int, edges: int, first: bool) -> Arguments:
    args, _ = _graph(nodes, edges)
    return args if first else (*args, torch.randn(nodes, 6)), {}


_EDGES: dict[str, Any] = {
    "seen": [(6, 14), (9, 20), (7, 11)], "unseen": [(8, 17), (12, 30)],
}  # fmt: skip
_GRAPHS: dict[str, Any] = {
    "seen": [(6, 14, 2), (9, 20, 3), (12, 18, 4)], "unseen": [(10, 17, 5), (16, 30, 6)],
}  # fmt: skip

CASES: list[Case] = [
    simple("geometric_sag_pool", made(SagPool), _batched, **_GRAPHS,
           note="keeps the best nodes, and the edges among them"),
    simple("geometric_asap_pool", made(SagPool, "ASAPooling"), _batched, **_GRAPHS,
           note="clusters of neighbours, by sparse matrices"),
    simple("geometric_graph_unet", _unet, _graph, **_EDGES,
           note="pools twice, and puts nodes back"),
    simple("geometric_mpnn", made(Mpnn), _molecules, **_GRAPHS, note="set2set of each graph"),
    simple("geometric_sort_pool", made(SortPool), _batched, **_GRAPHS,
           note="as many nodes of each graph"),
    simple("geometric_multiset", _aggregated("GraphMultisetTransformer", 8, k=3, heads=2),
           _batched, **_GRAPHS, note="attention within each graph"),
    simple("geometric_memory_pool", _aggregated("MemPooling", 8, 6, heads=2, num_clusters=3),
           _batched, **_GRAPHS),
    simple("geometric_lstm_pool", _aggregated("LSTMAggregation", 8, 6), _batched, **_GRAPHS,
           note="a recurrent layer over the nodes of each graph"),
    simple("geometric_cheb", made(Spectral), _weighted, **_EDGES,
           note="edges to itself are dropped, and added again"),
    simple("geometric_hyper", made(Hyper), _hyper, seen=[(6, 14, 4), (9, 20, 5), (7, 16, 3)],
           unseen=[(8, 18, 6), (12, 30, 7)], note="an index of nodes and one of edges"),
    simple("geometric_rgat", made(partial(Typed, "RGATConv", heads=2)), _typed, **_EDGES),
    simple("geometric_film", made(partial(Typed, "FiLMConv")), _typed, **_EDGES,
           note="the edges of each relation, one after another"),
    simple("geometric_deep", made(Deep), _attributed, **_EDGES),
    simple("geometric_temporal_memory", made(Remembered), _asked,
           seen=[(6, 14), (9, 20), (7, 11)], unseen=[(8, 17), (12, 30)],
           note="looks memories up by the ids of nodes"),
    simple("geometric_autoencoder", made(Links), _graph, **_EDGES, note="all pairs at once"),
    simple("geometric_recurrent", made(RecurrentGraph), _in_time,
           seen=[(6, 14, True), (6, 14, False), (9, 20, True), (9, 20, False)],
           unseen=[(8, 17, True), (12, 30, False)], note="without a state first, then with one"),
    simple("geometric_jumping", _jumping, _graph, **_EDGES, note="a recurrent layer over layers"),
    simple("geometric_polynormer", _polynormer, _batched, **_GRAPHS),
    simple("geometric_signed", _signed, _both_signs, seen=[(6, 9, 5), (9, 12, 8), (7, 8, 11)],
           unseen=[(8, 10, 6), (12, 20, 9)], note="two kinds of edges"),
    simple("geometric_super_gat", _super, _graph, **_EDGES),
    simple("geometric_appnp", _appnp, _graph, **_EDGES, note="propagates, and learns nothing"),
    simple("geometric_linkx", _linkx, _all_nodes, seen=[(14,), (20,), (11,)],
           unseen=[(17,), (30,)], note="weights for each node, added up over edges"),
]  # fmt: skip
