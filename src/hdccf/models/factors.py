"""Two tables of vectors and a similarity between them: the net of PMF, BPR and sampled softmax."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from hdccf.encoders import Table
from hdccf.models.base import VectorScorer
from hdccf.models.pairs import PairScores
from hdccf.scoring import Scorer
from hdccf.similarity import SIMILARITIES, Vectors


class Factors(nn.Module):
    """A vector a user and a vector an item; a pair's score is their dot product or cosine."""

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
        p = self.users.of(users)
        scores, q = self._product(p, columns) if self._is_dense(columns) else self._rows(p, columns)
        return PairScores(scores[:, 0], scores[:, 1:], (p.embedding, q))

    def _is_dense(self, columns: Int64[Tensor, "b c"]) -> bool:
        """Whether scores of the whole catalogue are no more numbers than the vectors of the columns."""
        n_items, dim = self.items.embedding.shape
        return not self.items.sparse and n_items <= dim * columns.shape[1]

    def _rows(self, p: Vectors, columns: Int64[Tensor, "b c"]) -> tuple[Tensor, Tensor]:
        each_p = Vectors(p.embedding.unsqueeze(1), p.factors.unsqueeze(1))
        q = self.items.of(columns)
        return self.similarity.matching(each_p, q), q.embedding

    def _product(self, p: Vectors, columns: Int64[Tensor, "b c"]) -> tuple[Tensor, Tensor]:
        """The same from one product with all items, many times faster than a vector for each column.

        In the vectors' place come their lengths: the squares add up to the same.
        """
        every = self.items.all()
        lengths = torch.linalg.vector_norm(every.embedding, dim=1)
        return self.similarity.all_pairs(p, every).gather(1, columns), lengths[columns]

    def score_rows(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b s"]) -> Float[Tensor, "b s"]:
        return self.similarity.matching(self.users.of(users.unsqueeze(1)), self.items.of(items))

    def scorer(self) -> Scorer:
        return VectorScorer(self.similarity, self.users.all(), self.items.all())
