"""Factors and a bias of each item: the net of IRGAN's and SD-GAR's players."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from hdccf.data.graph import Graph
from hdccf.models.base import Scorer, VectorScorer
from hdccf.models.factors import Factors
from hdccf.models.pairs import PairScores, squares_of
from hdccf.models.row_dots import row_dots
from hdccf.models.settings import PairSettings
from hdccf.similarity import Vectors


class BiasedFactors(nn.Module):
    """s = p·q + b_i.

    What the penalty sees is ½(‖p‖² + ‖q‖² + b²) of a positive and the mean of ½(‖q‖² + b²) over its
    negatives, as both papers' authors have it: so λ means the same for any number of negatives.
    """

    has_free_vectors = False

    def __init__(
        self,
        n_users: int,
        n_items: int,
        dim: int,
        *,
        std: float,
        sparse: bool = False,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.factors = Factors(n_users, n_items, dim, std=std, sparse=sparse, generator=generator)
        self.bias = nn.Parameter(torch.zeros(n_items))

    def compare(
        self, users: Int64[Tensor, " b"], items: Int64[Tensor, " b"], negatives: Int64[Tensor, "b s"]
    ) -> PairScores:
        columns = torch.cat([items.unsqueeze(1), negatives], 1)
        p, q = self.factors.users.of(users).embedding, self.factors.items.of(columns).embedding
        bias = self.bias[columns]
        scores = row_dots(p, q) + bias
        shares = torch.full(
            (columns.shape[1],), (0.5 / negatives.shape[1]) ** 0.5, dtype=p.dtype, device=p.device
        )
        shares[0] = 0.5**0.5
        squares = squares_of(0.5**0.5 * p, shares.unsqueeze(1) * q, shares * bias)
        return PairScores(scores[:, 0], scores[:, 1:], squares)

    def score_rows(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b s"]) -> Float[Tensor, "b s"]:
        return self.factors.score_rows(users, items) + self.bias[items]

    def score_all(self, users: Int64[Tensor, " b"]) -> Float[Tensor, "b items"]:
        """Every item for each user, with gradients."""
        p, q = self.factors.users.of(users), self.factors.items.all()
        return torch.addmm(self.bias, p.embedding, q.embedding.T)

    @torch.no_grad()
    def scorer(self) -> Scorer:
        p, q = self.factors.users.all().embedding, self.factors.items.all().embedding
        users = torch.cat([p, p.new_ones(len(p), 1)], 1)
        items = torch.cat([q, self.bias.unsqueeze(1)], 1)
        return VectorScorer(self.factors.similarity, Vectors(users, users), Vectors(items, items))


def biased_factors(settings: PairSettings, graph: Graph, generator: torch.Generator) -> BiasedFactors:
    """A player of the size that the settings say."""
    return BiasedFactors(
        graph.n_users,
        graph.n_items,
        settings.embedding_dim,
        std=settings.init_std,
        sparse=settings.sparse_updates,
        generator=generator,
    )
