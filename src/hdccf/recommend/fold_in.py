"""Users and items that training never saw: their vectors from a list, everything else as it was trained.

Models that make a user of what they had take a new list as they take a known one. Where each user has a free
vector of their own it is solved for with the trained loss, the items frozen (`solving`); ALS and ENMF have
a closed form. A new item is solved for in the same way with the two sides exchanged.
"""

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hdccf.config import Settings
from hdccf.data.graph import Neighbours
from hdccf.data.interactions import Interactions
from hdccf.data.weights import weights_of
from hdccf.errors import ConfigError
from hdccf.models.als import ALS, ALSModel
from hdccf.models.base import Model, VectorScorer
from hdccf.models.ease import EASE, EASEModel
from hdccf.models.enmf import ENMF, ENMFModel
from hdccf.models.factors import Factors
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.models.histories import weighted_histories
from hdccf.models.lightgcn import SmoothedFactors
from hdccf.models.pair_settings import PairSettings
from hdccf.models.pairs import PairModel
from hdccf.models.reference import MostPopular, MostPopularModel
from hdccf.models.scoring import Scorer
from hdccf.models.solving import ContrastiveRows, Frozen, PairRows, RowLoss, solve
from hdccf.similarity import Vectors

_ITEMS = "hdccf, bpr, ssm, pmf, lightgcn, enmf and als"
_USERS = f"ease, most-popular, {_ITEMS}"


def new_users(model: Model, settings: Settings, events: Interactions) -> Scorer:
    """Scores for the users of `events`, who need not be those that the model was trained on.

    Their items are the model's, each history in order of time, the last the latest.
    """
    made = by_history(model, settings, events)
    if made is not None:
        return made
    known = model.scorer()
    if not isinstance(known, VectorScorer):
        raise _cannot(settings, "a new user's list of items", _USERS)
    vectors = _solved(model, settings, events, known, of_users=True)
    return VectorScorer(known.similarity, vectors, known.items)


def new_items(model: Model, settings: Settings, takers: Interactions, known: Scorer) -> Scorer:
    """Scores of new items (its rows) with users (its columns), given the users who took each in `takers`.

    `known` scores the known users. The loss is the trained one with users and items exchanged: the takers
    above the users who did not take the item.
    """
    if not isinstance(known, VectorScorer):
        raise _cannot(settings, "a new item's list of users", _ITEMS)
    vectors = _solved(model, settings, takers, known, of_users=False)
    return _Turned(VectorScorer(known.similarity, known.users, vectors))


class _Turned:
    """A scorer with its sides exchanged: rows are items, columns users."""

    def __init__(self, inner: Scorer) -> None:
        self.inner = inner
        self.n_users, self.n_items = inner.n_items, inner.n_users

    def score_block(
        self, users: Int64[Tensor, " b"], items: Int64[Tensor, " c"] | None = None
    ) -> Float[Tensor, "b c"]:
        columns = torch.arange(self.n_items) if items is None else items
        return self.inner.score_block(columns, users).T

    def score_rows(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b c"]) -> Float[Tensor, "b c"]:
        own = users.repeat_interleave(items.shape[1]).unsqueeze(1)
        return self.inner.score_rows(items.flatten(), own).view(items.shape)


def known_users(model: Model, settings: Settings, train: Interactions, events: Interactions) -> Scorer:
    """Scores for the users that the model knows, by all of their events instead of the training part alone.

    A free vector stays as it was trained; only who had no training pair, so that theirs is nothing but its
    first random value, is folded in.
    """
    made = by_history(model, settings, events)
    if made is not None:
        return made
    known = model.scorer()
    cold = np.flatnonzero((train.by_user.degrees == 0) & (events.by_user.degrees > 0))
    if not len(cold) or not isinstance(known, VectorScorer) or not _is_free(model):
        return known
    theirs = events.subset(np.isin(events.users, cold))
    vectors = _solved(model, settings, theirs, known, of_users=True)
    rows = torch.from_numpy(cold)

    def filled(trained: Float[Tensor, "n d"], solved: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return trained.index_copy(0, rows, solved[rows])

    embedding = filled(known.users.embedding, vectors.embedding)
    shared = known.users.factors is known.users.embedding
    factors = embedding if shared else filled(known.users.factors, vectors.factors)
    return VectorScorer(known.similarity, Vectors(embedding, factors), known.items)


def uses_history(model: Model) -> bool:
    """Whether a user is what they had, so that more events change the answer without training."""
    return isinstance(model, EASEModel) or (isinstance(model, HDCCFModel) and model.uses_history)


@torch.no_grad()
def by_history(model: Model, settings: Settings, events: Interactions) -> Scorer | None:
    """A scorer for the users of `events` where the model needs nothing but their histories; else None."""
    generator = torch.Generator()
    if isinstance(model, HDCCFModel) and model.uses_history:
        users = model.history_vectors(Neighbours.of(events.by_user, events.n_items))
        return VectorScorer(model.user_item, users, model.items.all())
    # Both only allocate when they are built, so that the same weights answer for other histories.
    if isinstance(model, EASEModel) and isinstance(settings, EASE):
        ease = EASEModel(settings, events, generator)
        ease.weights = model.weights
        return ease
    if isinstance(model, MostPopularModel) and isinstance(settings, MostPopular):
        popular = MostPopularModel(settings, events, generator)
        popular.degrees = model.degrees
        return popular
    return None


def _is_free(model: Model) -> bool:
    if isinstance(model, HDCCFModel):
        return not model.uses_history
    if isinstance(model, PairModel):
        return isinstance(model.net, Factors | SmoothedFactors)
    return isinstance(model, ALSModel | ENMFModel)


def _solved(
    model: Model, settings: Settings, events: Interactions, known: VectorScorer, *, of_users: bool
) -> Vectors:
    """Free vectors of the rows of `events`, whose columns are the other side's nodes."""
    opposite = known.items if of_users else known.users
    closed = _least_squares(model, settings, events, opposite, of_users)
    if closed is not None:
        return closed
    frozen = Frozen(
        known.similarity,
        opposite=opposite,
        own=known.users if of_users else known.items,
        opposite_is_right=of_users,
    )
    weights = torch.ones(len(events))
    loss: RowLoss
    if isinstance(model, HDCCFModel):
        if of_users:
            weights = weights_of(model.settings, events)
        loss = ContrastiveRows.of(model, of_users) if model.settings.loss == "contrastive" else _pairs(model)
    elif isinstance(model, PairModel) and isinstance(settings, PairSettings) and _is_free(model):
        if of_users:
            weights = weights_of(settings, events)
        loss = PairRows.of(model, settings, of_users)
    else:
        what, able = ("a new user's list of items", _USERS) if of_users else ("a new item's users", _ITEMS)
        raise _cannot(settings, what, able)
    return solve(frozen, loss, events, weights)


def _pairs(model: HDCCFModel) -> PairRows:
    """HDCCF with the losses of its ablations: one negative a positive."""
    return PairRows.named(model.settings.loss)


def _least_squares(
    model: Model, settings: Settings, events: Interactions, opposite: Vectors, of_users: bool
) -> Vectors | None:
    """What ALS and ENMF have a closed form for; None for other models.

    An observed pair is to be 1 with weight c, any other 0 with weight 1. ENMF has c and w < 1 instead, which
    is the same with c / w; and its dropout, on average, a ridge along the diagonal.
    """
    if isinstance(model, ALSModel) and isinstance(settings, ALS):
        timeless = settings if of_users else settings.changed(recency_half_life=None)
        weights = settings.alpha * torch.from_numpy(weighted_histories(events, timeless).data)
        return _solved_squares(events, weights, opposite, l2=settings.l2)
    if isinstance(model, ENMFModel) and isinstance(settings, ENMF):
        weights = weights_of(settings, events) if of_users else torch.ones(len(events))
        ridge = (1 - settings.keep_probability) / settings.keep_probability
        return _solved_squares(events, weights / settings.negative_weight, opposite, ridge=ridge)
    return None


@torch.no_grad()
def _solved_squares(
    events: Interactions,
    weights: Float[Tensor, " pairs"],
    opposite: Vectors,
    *,
    l2: float = 0.0,
    ridge: float = 0.0,
) -> Vectors:
    """Each row's x of (YᵀY + λI + Σ (c − 1) y yᵀ) x = Σ c y (Hu et al. 2008), sums over its own pairs."""
    y = opposite.embedding.double()
    gram = y.T @ y + l2 * torch.eye(y.shape[1], dtype=y.dtype)
    solved = y.new_zeros(events.n_users, y.shape[1])
    for row in np.flatnonzero(events.by_user.degrees):
        own = slice(*events.by_user.starts[row : row + 2])
        theirs, confidence = y[torch.from_numpy(events.items[own].astype(np.int64))], weights[own].double()
        normal = gram + theirs.T @ (theirs * (confidence - 1).unsqueeze(1))
        normal.diagonal().mul_(1 + ridge)
        solved[row] = torch.linalg.lstsq(normal, (confidence @ theirs).unsqueeze(1)).solution[:, 0]
    vectors = solved.to(opposite.embedding.dtype)
    return Vectors(vectors, vectors)


def _cannot(settings: Settings, what: str, able: str) -> ConfigError:
    return ConfigError(f"{type(settings).__name__} cannot take {what}; those that can are {able}")
