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
        p, q, others = self.users.of(users), self.items.of(items), self.items.of(negatives)
        each_p = Vectors(p.embedding.unsqueeze(1), p.factors.unsqueeze(1))
        return PairScores(
            self.similarity.matching(p, q),
            self.similarity.matching(each_p, others),
            (p.embedding, q.embedding, others.embedding),
        )

    def score_rows(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b s"]) -> Float[Tensor, "b s"]:
        return self.similarity.matching(self.users.of(users.unsqueeze(1)), self.items.of(items))

    def scorer(self) -> Scorer:
        return VectorScorer(self.similarity, self.users.all(), self.items.all())
