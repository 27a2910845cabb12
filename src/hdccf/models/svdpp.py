"""SVD++: a factorisation whose user vector also adds up the items of the history (Koren, 2008)."""

from typing import ClassVar

import torch
from jaxtyping import Float, Float64, Int64
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from hdccf.config import SIZES, Choice, Real, Space, Whole, recency
from hdccf.data.graph import Along, Graph
from hdccf.data.interactions import Interactions
from hdccf.data.weights import positive_weights
from hdccf.kernels.embedding import row_dots
from hdccf.losses.contrastive import squared_loss
from hdccf.models.base import Candidates, Items, Model, Scorer, Scores, Users, VectorScorer
from hdccf.models.layers import Table
from hdccf.models.pairs import PairModel, PairScores, squares_of
from hdccf.models.settings import PairSettings
from hdccf.similarity import Dot, Vectors


class SVDpp(PairSettings):
    """SVD++ (Koren, 2008), with drawn zeros.

    `hdccf models svdpp` lists every setting with its default.

    Examples
    --------
    >>> SVDpp(negatives=8).negatives
    8
    """

    model: ClassVar[str] = "svdpp"

    negatives: int = Field(default=4, ge=1)
    """Zeros drawn against each one: with ones only, every score becomes one."""
    l2: float = Field(default=0.02, ge=0)
    """Pull of a batch's own vectors and biases towards zero, a positive; 0.02 is the published one."""
    history_half_life: float | None = Field(default=None, ge=1)
    """How many interactions later an item of the history counts half in the user's vector; none is the
    published model, in which a history has no order."""

    space: ClassVar[Space] = Space(
        {
            "history_half_life": Real(1.0, 100.0, log=True, time=True),
            "embedding_dim": SIZES,
            "learning_rate": Real(3e-4, 2e-2, log=True),
            "batch_size": Choice((512, 1024, 2048, 4096)),
            "negatives": Whole(1, 8, log=True),
            "l2": Real(1e-4, 1e-1, log=True),
            **recency(),
        }
    )


class Histories(nn.Module):
    """(Σ_j w_uj²)^{−1/2} Σ_j w_uj y_j over the training items j of a user u.

    The published |N|^{−1/2} keeps the spread of a sum of |N| independent vectors at that of one of them.
    With weights this factor does, and where all are one it is the published.
    """

    squares: Tensor

    def __init__(self, graph: Graph, weights: Along | None, vectors: Table) -> None:
        super().__init__()
        self.vectors = vectors
        self._graph, self._weights = graph, weights
        self.register_buffer("squares", graph.squares(weights), persistent=False)

    def _known(self, like: Tensor) -> tuple[Graph, Along | None]:
        """The training pairs and their weights where the batch is."""
        self._graph = self._graph.to(like.device)
        if isinstance(self._weights, Tensor):
            self._weights = self._weights.to(like.device)
        return self._graph, self._weights

    def sums(self, users: Int64[Tensor, " r"]) -> Float[Tensor, "r d"]:
        """Σ_j w_uj y_j over each user's history."""
        graph, known = self._known(users)
        lengths, table = graph.items_of.degrees[users], self.vectors.embedding
        items, weights = graph.histories(users, known)
        return functional.embedding_bag(
            items,
            table,
            lengths.cumsum(0) - lengths,
            mode="sum",
            sparse=self.vectors.sparse,
            per_sample_weights=None if weights is None else weights.to(table.dtype),
        )

    def whole(self, users: Int64[Tensor, " r"], sums: Float[Tensor, "r d"]) -> Float[Tensor, "r d"]:
        """Of the whole history of each user."""
        return sums * _factor(self.squares[users], sums.dtype)

    def without(
        self,
        users: Int64[Tensor, " b"],
        sums: Float[Tensor, "b d"],
        items: Int64[Tensor, " b"],
        of_items: Float[Tensor, "b d"],
    ) -> Float[Tensor, "b d"]:
        """Of the history of each user without one item, whose y is given; zero where it is the only one."""
        squares = self.squares[users]
        graph, known = self._known(users)
        if known is None:
            return (sums - of_items) * _factor(squares - 1, sums.dtype)
        weights = graph.weights_at(users, items, known)
        rest = sums - of_items * weights.to(sums.dtype).unsqueeze(1)
        return rest * _factor(squares - weights.double().square(), sums.dtype)


def _factor(squares: Float64[Tensor, " n"], dtype: torch.dtype) -> Float[Tensor, "n 1"]:
    return torch.where(squares > 0, squares.rsqrt(), 0.0).to(dtype).unsqueeze(1)


class SVDppNet(nn.Module):
    """μ + b_u + b_i + q_i·(p_u + the user's history).

    An item that is being learnt as a positive is left out of the history that is to predict it: with it
    there, y_i·q_i would tell which are the ones, and of an unseen item nothing.
    """

    has_free_vectors = False
    item_tables: tuple[str, ...] = ()

    def __init__(
        self,
        graph: Graph,
        dim: int,
        *,
        mean: float,
        history_weights: Along | None = None,
        std: float = 0.01,
        sparse: bool = False,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.mean = mean

        def table(n_nodes: int, dim: int, std: float) -> Table:
            return Table(n_nodes, dim, std=std, sparse=sparse, generator=generator)

        self.users, self.items = table(graph.n_users, dim, std), table(graph.n_items, dim, std)
        self.user_biases, self.item_biases = table(graph.n_users, 1, 0.0), table(graph.n_items, 1, 0.0)
        self.histories = Histories(graph, history_weights, table(graph.n_items, dim, std))

    def compare(self, users: Users, items: Items, negatives: Candidates) -> PairScores:
        # Batches come user by user: each history is added up once, and a positive takes its own y out.
        distinct, rows = torch.unique_consecutive(users, return_inverse=True)
        p, b_u = self.users.of(users).embedding, self.user_biases.of(users).embedding
        q, b_i = self.items.of(items).embedding, self.item_biases.of(items).embedding
        others, b_j = self.items.of(negatives).embedding, self.item_biases.of(negatives).embedding
        y = self.histories.vectors.of(items).embedding
        sums = self.histories.sums(distinct)
        seen = p + self.histories.without(users, sums.index_select(0, rows), items, y)
        unseen = p + self.histories.whole(distinct, sums).index_select(0, rows)
        return PairScores(
            self.mean + (b_u + b_i).squeeze(1) + (seen * q).sum(1),
            self.mean + b_u + b_j.squeeze(2) + row_dots(unseen, others),
            squares_of(p, q, others, y, b_u, b_i, b_j),
        )

    def score_rows(self, users: Users, items: Candidates) -> Scores:
        distinct, rows = torch.unique_consecutive(users, return_inverse=True)
        biases = self.user_biases.of(users).embedding + self.item_biases.of(items).embedding.squeeze(2)
        return self.mean + biases + row_dots(self.of(distinct)[rows], self.items.of(items).embedding)

    def of(self, users: Int64[Tensor, " r"]) -> Float[Tensor, "r d"]:
        """p_u and all of the user's history."""
        return self.users.of(users).embedding + self.histories.whole(users, self.histories.sums(users))

    @torch.no_grad()
    def scorer(self) -> Scorer:
        """Every user's vector is made once. The biases are two more coordinates, multiplied by ones."""
        b_u, b_i = self.user_biases.embedding, self.item_biases.embedding
        every_user = self.of(torch.arange(len(b_u), device=b_u.device))
        users = torch.cat([every_user, self.mean + b_u, torch.ones_like(b_u)], dim=1)
        items = torch.cat([self.items.embedding, torch.ones_like(b_i), b_i], dim=1)
        return VectorScorer(Dot(), Vectors(users, users), Vectors(items, items))


def build_svdpp(settings: SVDpp, train: Interactions, generator: torch.Generator) -> Model:
    graph = Graph.of(train)
    half_life = settings.history_half_life
    weights = None if half_life is None else graph.along(positive_weights(train, half_life=half_life))
    net = SVDppNet(
        graph,
        settings.embedding_dim,
        # Each one comes with its zeros and shares its weight with them: the mean label is known.
        mean=1 / (1 + settings.negatives),
        history_weights=weights,
        std=settings.init_std,
        sparse=settings.sparse_updates,
        generator=generator,
    )
    return PairModel(net, settings, graph, train, squared_loss, generator, by_user=True)
