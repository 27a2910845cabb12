"""LightGCN (He et al., 2020): vectors smoothed over the graph of who had what, trained like BPR.

A node's vector is the mean of its own and of what 1 … L steps along the training pairs bring to it.
"""

from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hdccf.config import SIZES, Choice, Real, Space, Whole, recency
from hdccf.data.graph import Graph
from hdccf.data.interactions import Interactions
from hdccf.losses.contrastive import pairwise_loss
from hdccf.models.base import Candidates, Items, Model, Scorer, Scores, Users, VectorScorer
from hdccf.models.pairs import PairModel, PairScores
from hdccf.models.settings import PairSettings
from hdccf.similarity import Dot, Vectors


class LightGCN(PairSettings):
    """LightGCN (He et al., 2020): BPR on vectors that are averaged over the neighbours in the graph.

    `hdccf models lightgcn` lists every setting with its default.

    Examples
    --------
    >>> LightGCN(l2=1e-4).l2
    0.0001
    """

    model: ClassVar[str] = "lightgcn"

    init_std: float = Field(default=0.1, gt=0)
    """Spread of the vectors before they are averaged, which makes them far smaller."""
    l2: float = Field(default=5e-5, ge=0)
    """Pull of a batch's vectors, before they are averaged, towards zero: λ times their squared length, a
    positive. The published 1e-4 is of half the squared length."""
    layers: int = Field(default=3, ge=0)
    """L, how many steps along the graph reach a vector; more are smoother, and 0 is plain BPR."""

    space: ClassVar[Space] = Space(
        {
            "embedding_dim": SIZES,
            "learning_rate": Real(3e-4, 1e-2, log=True),
            "batch_size": Choice((1024, 2048, 4096)),
            "l2": Real(1e-7, 1e-2, log=True),
            "layers": Whole(1, 4),
            **recency(),
        }
    )


class Smoothing(nn.Module):
    """E ↦ mean over k = 0 … L of (D^−½ A D^−½)^k E, where A has an edge both ways for every training pair.

    Nodes are the users and then the items. One without edges has nothing but its own vector, at k = 0.
    """

    starts: Int64[Tensor, " nodes_plus_one"]
    neighbours: Int64[Tensor, " edges"]
    weights: Float[Tensor, " edges"]

    def __init__(self, graph: Graph, layers: int) -> None:
        super().__init__()
        self.layers = layers
        users, items = graph.pair_users, graph.items_of.flat + graph.n_users
        n_nodes = graph.n_users + graph.n_items
        # In order within a node too: neighbouring vectors are then read along the memory.
        keys = torch.cat([users * n_nodes + items, items * n_nodes + users]).sort().values
        nodes, neighbours = keys // n_nodes, keys % n_nodes
        degrees = torch.bincount(nodes, minlength=n_nodes)
        roots = degrees.clamp_min(1).to(torch.get_default_dtype()).rsqrt()
        starts = functional.pad(degrees.cumsum(0), (1, 0))
        # Made anew from the training pairs wherever the model is built, so no checkpoint needs them.
        self.register_buffer("starts", starts, persistent=False)
        self.register_buffer("neighbours", neighbours, persistent=False)
        self.register_buffer("weights", roots[nodes] * roots[neighbours], persistent=False)

    def forward(self, vectors: Float[Tensor, "nodes d"]) -> Float[Tensor, "nodes d"]:
        smoothed: Tensor = _Smoothed.apply(vectors, self)  # type: ignore[no-untyped-call]
        return smoothed

    @torch.no_grad()
    def apply_to(self, vectors: Float[Tensor, "nodes d"]) -> Float[Tensor, "nodes d"]:
        """Horner's rule: E + S(E + S(E + …)), one product a layer and no sum kept beside it."""
        total = vectors
        for _ in range(self.layers):
            # A bag a node: torch's sparse products are slower, above all with several threads.
            total = functional.embedding_bag(
                self.neighbours,
                total,
                self.starts,
                mode="sum",
                per_sample_weights=self.weights,
                include_last_offset=True,
            ).add_(vectors)
        return total / (self.layers + 1)


class _Smoothed(torch.autograd.Function):
    """The matrix is symmetric, and so are its powers: a gradient is smoothed as the vectors were."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, smoothing: Smoothing) -> Tensor:
        ctx.smoothing = smoothing
        return smoothing.apply_to(vectors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.smoothing.apply_to(grad.contiguous()), None


class SmoothedFactors(nn.Module):
    """A vector a user and a vector an item, smoothed; a pair's score is their dot product."""

    has_free_vectors = True
    item_tables: tuple[str, ...] = ()

    def __init__(
        self, graph: Graph, dim: int, *, layers: int, std: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.n_users = graph.n_users
        self.embedding = nn.Parameter(
            std * torch.randn(self.n_users + graph.n_items, dim, generator=generator)
        )
        self.smoothing = Smoothing(graph, layers)
        self.similarity = Dot()

    def compare(self, users: Users, items: Items, negatives: Candidates) -> PairScores:
        # One look-up for all, as each makes a gradient of the whole table.
        nodes = torch.cat([users, items + self.n_users, negatives.flatten() + self.n_users])
        sizes = [len(users), len(items), negatives.numel()]
        looked_up = functional.embedding(nodes, self.smoothing(self.embedding))
        p, q, others = torch.split(looked_up, sizes)
        others = others.view(*negatives.shape, others.shape[1])
        return PairScores(
            (p * q).sum(1),
            (p.unsqueeze(1) * others).sum(2),
            # The penalty is of what is learned, not of what the graph makes of it.
            lambda: functional.embedding(nodes, self.embedding).square().sum(),
        )

    def score_rows(self, users: Users, items: Candidates) -> Scores:
        smoothed = self.smoothing(self.embedding)
        return torch.einsum("bd,bsd->bs", smoothed[users], smoothed[items + self.n_users])

    def scorer(self) -> Scorer:
        """The vectors are smoothed here, once, and not for every block that is asked for."""
        smoothed = self.smoothing.apply_to(self.embedding)
        users, items = smoothed[: self.n_users], smoothed[self.n_users :]
        return VectorScorer(self.similarity, Vectors(users, users), Vectors(items, items))


def build_lightgcn(settings: LightGCN, train: Interactions, generator: torch.Generator) -> Model:
    graph = Graph.of(train)
    net = SmoothedFactors(
        graph, settings.embedding_dim, layers=settings.layers, std=settings.init_std, generator=generator
    )
    # Every step smooths the whole graph.
    return PairModel(net, settings, graph, train, pairwise_loss, generator, products_per_pair=None)
