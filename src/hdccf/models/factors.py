"""Two tables of vectors and a similarity between them: the net of PMF, BPR and sampled softmax."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from hdccf.models.base import Scorer, VectorScorer
from hdccf.models.layers import Table
from hdccf.models.pairs import PairScores, Squares, squares_of
from hdccf.models.row_dots import can_look_up, looked_up_dots
from hdccf.similarity import SIMILARITIES, Dot


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
        self.users = Table(n_users, dim, separate=False, std=std, sparse=sparse, generator=generator)
        self.items = Table(n_items, dim, separate=False, std=std, sparse=sparse, generator=generator)
        self.similarity = SIMILARITIES[similarity]()

    def compare(
        self, users: Int64[Tensor, " b"], items: Int64[Tensor, " b"], negatives: Int64[Tensor, "b s"]
    ) -> PairScores:
        # One look-up for the positive and its negatives, as each costs a gradient as large as the table.
        columns = torch.cat([items.unsqueeze(1), negatives], dim=1)
        if self._is_dense(columns):
            scores, squares = self._product(users, columns)
        elif self._is_compiled(columns):
            scores, total = looked_up_dots(self.users.embedding, self.items.embedding, users, columns)
            squares = lambda: total  # noqa: E731
        else:
            scores, squares = self._rows(users, columns)
        return PairScores(scores[:, 0], scores[:, 1:], squares)

    def _is_dense(self, columns: Int64[Tensor, "b c"]) -> bool:
        """Whether scores of the whole catalogue are no more numbers than the vectors of the columns."""
        n_items, dim = self.items.embedding.shape
        return not self.items.sparse and n_items <= dim * columns.shape[1]

    def _is_compiled(self, columns: Int64[Tensor, "b c"]) -> bool:
        table = self.items.embedding
        return not self.items.sparse and isinstance(self.similarity, Dot) and can_look_up(table, columns)

    def _rows(
        self, users: Int64[Tensor, " b"], columns: Int64[Tensor, "b c"]
    ) -> tuple[Float[Tensor, "b c"], Squares]:
        p, q = self.users.of(users.unsqueeze(1)), self.items.of(columns)
        return self.similarity.matching(p, q), squares_of(p.embedding, q.embedding)

    def _product(
        self, users: Int64[Tensor, " b"], columns: Int64[Tensor, "b c"]
    ) -> tuple[Float[Tensor, "b c"], Squares]:
        """The same from one product with all items, many times faster than a vector for each column."""
        p, every = self.users.of(users), self.items.all()

        def squares() -> Tensor:
            lengths = every.embedding.square().sum(1)
            return p.embedding.square().sum() + lengths[columns].sum()

        return self.similarity.all_pairs(p, every).gather(1, columns), squares

    def score_rows(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b s"]) -> Float[Tensor, "b s"]:
        return self.similarity.matching(self.users.of(users.unsqueeze(1)), self.items.of(items))

    def scorer(self) -> Scorer:
        return VectorScorer(self.similarity, self.users.all(), self.items.all())
