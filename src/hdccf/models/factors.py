"""Two embedding tables and a similarity between them, with or without item biases."""

import torch
from torch import Tensor, nn

from hdccf.data.graph import Graph
from hdccf.kernels.embedding import can_look_up, looked_up_dots, row_dots
from hdccf.models.base import Candidates, Items, Scorer, Scores, Users, VectorScorer
from hdccf.models.layers import Table
from hdccf.models.pairs import PairScores, Squares, squares_of
from hdccf.models.settings import PairSettings
from hdccf.similarity import SIMILARITIES, Dot, Vectors


class Factors(nn.Module):
    """A vector a user and a vector an item; a pair's score is their dot product or cosine."""

    has_free_vectors = True

    def __init__(
        self,
        n_users: int,
        n_items: int,
        dim: int,
        *,
        similarity: str = "dot",
        std: float = 0.01,
        sparse: bool = False,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.users = Table(n_users, dim, std=std, sparse=sparse, generator=generator)
        self.items = Table(n_items, dim, std=std, sparse=sparse, generator=generator)
        self.similarity = SIMILARITIES[similarity]()

    def compare(self, users: Users, items: Items, negatives: Candidates) -> PairScores:
        # One look-up for the positive and its negatives, as each costs a gradient as large as the table.
        columns = torch.cat([items.unsqueeze(1), negatives], dim=1)
        if self._is_dense(columns):
            scores, squares = self._product(users, columns)
        elif self._is_compiled(columns):
            scores, total = looked_up_dots(self.users.embedding, self.items.embedding, users, columns)
            squares = lambda: total  # noqa: E731
        else:
            p, q = self.users.of(users.unsqueeze(1)), self.items.of(columns)
            scores, squares = self.similarity.matching(p, q), squares_of(p.embedding, q.embedding)
        return PairScores(scores[:, 0], scores[:, 1:], squares)

    def _is_dense(self, columns: Candidates) -> bool:
        """Whether scores of the whole catalogue are no more numbers than the vectors of the columns."""
        n_items, dim = self.items.embedding.shape
        return not self.items.sparse and n_items <= dim * columns.shape[1]

    def _is_compiled(self, columns: Candidates) -> bool:
        plain = not self.items.sparse and isinstance(self.similarity, Dot)
        return plain and can_look_up(self.items.embedding, columns)

    def _product(self, users: Users, columns: Candidates) -> tuple[Scores, Squares]:
        """The same from one product with all items, many times faster than a vector for each column."""
        p, every = self.users.of(users), self.items.all()

        def squares() -> Tensor:
            lengths = every.embedding.square().sum(1)
            return p.embedding.square().sum() + lengths[columns].sum()

        return self.similarity.all_pairs(p, every).gather(1, columns), squares

    def score_rows(self, users: Users, items: Candidates) -> Scores:
        return self.similarity.matching(self.users.of(users.unsqueeze(1)), self.items.of(items))

    def scorer(self) -> Scorer:
        return VectorScorer(self.similarity, self.users.all(), self.items.all())


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

    def compare(self, users: Users, items: Items, negatives: Candidates) -> PairScores:
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

    def score_rows(self, users: Users, items: Candidates) -> Scores:
        return self.factors.score_rows(users, items) + self.bias[items]

    def score_all(self, users: Users) -> Scores:
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
