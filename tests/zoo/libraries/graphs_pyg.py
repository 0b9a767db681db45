"""Graph networks of PyTorch Geometric: every point is a small graph with the same edges."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

from tests.zoo.entry import Energy, Entry, Model, Through, density, energy

NODES, FEATURES = 4, 3
EDGES = torch.tensor([[0, 1, 2, 3, 0, 2, 1, 3], [1, 2, 3, 0, 2, 0, 3, 1]])


class Static(nn.Module):
    """Convolutions over ``(N, nodes, features)``, with an activation between them."""

    def __init__(self, layers: list[nn.Module], act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers, self.act = nn.ModuleList(layers), act

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.act(layer(x, EDGES))
        return x


class Batched(Static):
    """The same over the union of all graphs, ``(N * nodes, features)``, as data loaders make it."""

    def forward(self, x: Tensor) -> Tensor:
        num = len(x)
        edges = torch.cat([EDGES + NODES * i for i in range(num)], 1)
        h = x.flatten(0, 1)
        for layer in self.layers:
            h = self.act(layer(h, edges))
        return h.reshape(num, -1)


class Pooled(Batched):
    """The union of all graphs, with a readout of each."""

    def __init__(self, layers: list[nn.Module], act: Callable[[Tensor], Tensor], pool: Any) -> None:
        super().__init__(layers, act)
        self.pool = pool()

    def forward(self, x: Tensor) -> Tensor:
        graph = torch.arange(len(x)).repeat_interleave(NODES)
        h = super().forward(x).reshape(len(x) * NODES, -1)
        return self.pool(h, graph)


def of(
    make: Callable[[], nn.Module], wrap: Any = Batched, act: Any = torch.tanh, **options: Any
) -> Callable[[], Model]:
    return lambda: density(
        Energy(wrap([make()], act, **options)),
        NODES,
        FEATURES,
        num=4,
    )


def dense(kind: Any) -> Callable[[], Model]:
    def build() -> Model:
        adjacency = torch.zeros(NODES, NODES)
        adjacency[EDGES[0], EDGES[1]] = 1.0
        net = Through(kind(FEATURES, 4), lambda layer, x: torch.tanh(layer(x, adjacency)))
        return energy(net, NODES, FEATURES, num=4)

    return build


class Molecule(nn.Module):
    """SchNet on molecules of four atoms: the density of their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.net = pyg.SchNet(8, 8, 1, 6, interaction_graph=self.neighbours)

    def neighbours(self, place: Tensor, graph: Tensor) -> tuple[Tensor, Tensor]:
        edges = torch.cat([EDGES + NODES * i for i in range(len(place) // NODES)], 1)
        return edges, (place[edges[0]] - place[edges[1]]).norm(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        atoms = torch.tensor([1, 6, 8, 1]).repeat(len(x))
        graph = torch.arange(len(x)).repeat_interleave(NODES)
        return self.net(atoms, x.flatten(0, 1), graph)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.SiLU(), nn.Linear(4, 4))


def edge_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(2 * FEATURES, 4), nn.SiLU(), nn.Linear(4, 4))


def entry(name: str, build: Callable[[], Model], *rest: Any) -> Entry:
    return Entry("torch_geometric", name, build, *rest)


ENTRIES = [
    entry("GCNConv, static graph", of(lambda: pyg.GCNConv(FEATURES, 4), Static)),
    entry("GCNConv, batch of graphs", of(lambda: pyg.GCNConv(FEATURES, 4))),
    entry("SAGEConv, static graph", of(lambda: pyg.SAGEConv(FEATURES, 4), Static)),
    entry(
        "SAGEConv, max",
        of(lambda: pyg.SAGEConv(FEATURES, 4, aggr="max"), Static),
        "kinked",
        "a maximum",
    ),
    entry("GINConv, batch of graphs", of(lambda: pyg.GINConv(mlp()))),
    entry("TransformerConv", of(lambda: pyg.TransformerConv(FEATURES, 4))),
    entry("GATConv", of(lambda: pyg.GATConv(FEATURES, 4)), "kinked", "LeakyReLU in the attention"),
    entry("ChebConv", of(lambda: pyg.ChebConv(FEATURES, 4, 2))),
    entry("ResGatedGraphConv", of(lambda: pyg.ResGatedGraphConv(FEATURES, 4))),
    entry("CGConv", of(lambda: pyg.CGConv(FEATURES))),
    entry("EdgeConv, mean", of(lambda: pyg.EdgeConv(edge_mlp(), aggr="mean"))),
    entry("GCNConv, ReLU", of(lambda: pyg.GCNConv(FEATURES, 4), act=torch.relu), "kinked", "ReLU"),
    entry(
        "GCNConv and mean pooling",
        of(lambda: pyg.GCNConv(FEATURES, 4), Pooled, pool=pyg.MeanAggregation),
    ),
    entry(
        "GINConv and softmax pooling",
        of(lambda: pyg.GINConv(mlp()), Pooled, pool=partial(pyg.SoftmaxAggregation, learn=True)),
    ),
    entry("DenseGCNConv", dense(pyg.DenseGCNConv)),
    entry("DenseSAGEConv", dense(pyg.DenseSAGEConv)),
    entry("SchNet", lambda: density(Energy(Molecule()), NODES, 3, num=4)),
]
