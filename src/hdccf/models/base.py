"""The model protocol: what the trainer, evaluation and recommendation ask of every model.

Training, fold-in, similar items, explanations and exports are methods of the model. Each optional one has a
default that refuses in one line, or that says that the model has nothing of its own to offer.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from hdccf.config import Settings
from hdccf.data.interactions import Interactions
from hdccf.errors import ConfigError
from hdccf.losses.diagnostics import NegativeShares
from hdccf.losses.negatives import NegativeSet
from hdccf.parallel import SINGLE_PROCESS, ProcessGroup
from hdccf.similarity import Cosine, Similarity, Vectors, unit

Kind = Literal["items", "users"]
ALL = "all"
"""The parameter group of a model with one objective."""

Users = Int64[Tensor, " b"]
Items = Int64[Tensor, " b"]
"""An item of each user."""
Columns = Int64[Tensor, " c"]
Candidates = Int64[Tensor, "b c"]
"""Items that each user is compared with."""
Scores = Float[Tensor, "b c"]

FOLD_IN_ITEMS = "hdccf, sasrec, bpr, ssm, pmf, lightgcn, enmf and als"
FEATURED = "hdccf, bpr, ssm and pmf"
FOLD_IN_USERS = f"chebycf, ease, most-popular, {FOLD_IN_ITEMS}"


@runtime_checkable
class Scorer(Protocol):
    """Scores of users and items by contiguous ids: a model, a rule, a peer's vectors. Higher is better."""

    @property
    def n_users(self) -> int: ...

    @property
    def n_items(self) -> int: ...

    def score_block(self, users: Users, items: Columns | None = None) -> Scores:
        """Every given user with every given item; all items where none are given."""
        ...

    def score_rows(self, users: Users, items: Candidates) -> Scores:
        """Each user with candidates of their own."""
        ...


class Objective(NamedTuple):
    """One loss to be minimised, and the parameter group it drives.

    In a process group the loss and its terms are this process's part: the parts add up to the batch's.

    Examples
    --------
    >>> Objective(loss, "all", {})  # doctest: +SKIP
    """

    loss: Float[Tensor, ""]
    group: str
    terms: dict[str, Float[Tensor, ""]]
    """Logged beside the loss, detached: its parts, clip rates."""


class Model(nn.Module):
    """The base of all models. A model yields its losses, and the trainer takes a step after each.

    A plain model yields one objective a batch, an adversarial one two; both share the training loop. A model
    whose `groups` are empty is not trained by gradients: it is computed by `solve`, or when it is built.

    Parameters
    ----------
    settings
        The model's settings.

    Examples
    --------
    >>> @hdccf.register_model(ItemKNN)  # doctest: +SKIP
    ... class ItemKNNModel(hdccf.Model): ...  # in full in docs/models.md
    """

    process_group: ProcessGroup = SINGLE_PROCESS
    lookups_per_step: int | None = None
    """Numbers that a step looks up; None where they are many. Small steps run on one thread."""
    users_are_histories = False
    """Whether more events change a user's scores without training."""
    has_free_vectors = False
    """Whether users have learnt vectors that `solve_vectors` finds for new ones."""
    item_weights: Float[Tensor, "items items"] | None = None
    """Row i: what item i of a history adds to the score of every item; None where nothing does."""

    sampler: Any = None
    """What makes the batches; None for models that are not trained in steps."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings

    @property
    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by the group that an objective names."""
        parameters = list(self.parameters())
        return {ALL: parameters} if parameters else {}

    @property
    def n_batches(self) -> int:
        return 0 if self.sampler is None else len(self.sampler)

    def batches(self, generator: torch.Generator) -> Iterator[Any]:
        """One pass over the training data, drawn from the generator alone."""
        return iter(()) if self.sampler is None else self.sampler.epoch(generator)

    def objectives(self, batch: Any, generator: torch.Generator) -> Iterator[Objective]:
        return iter(())

    def solve(self, generator: torch.Generator, progress: bool) -> None:
        """Computes the weights of a closed-form model. Building one only allocates them."""

    def diagnose(self, batch: Any) -> dict[str, float]:
        """Statistics of a batch's negatives, logged once an epoch."""
        return {}

    def item_negatives(self, batch: Any) -> NegativeSet | None:
        """The scored item side of a batch; None where the model does not contrast with a set."""
        return None

    def negative_shares(
        self, scores: Float[Tensor, " items"], observed: Bool[Tensor, " items"]
    ) -> NegativeShares | None:
        """A user's gradient by negative item; None for losses that weigh their negatives otherwise."""
        return None

    def modulation(self, users: Users, items: Items) -> Float[Tensor, "b d"] | None:
        """What both vectors of each pair are multiplied by (Eq. 8); None where nothing is."""
        return None

    def scorer(self) -> Scorer:
        """The scores of the training users."""
        raise self.refusal("score")

    def users_from(self, events: Interactions) -> Scorer:
        """Scores for the users of `events`, who need not be those of training (fold-in).

        Their items are the model's, each history in order of time, the last the latest.
        """
        vectors = self.solve_vectors(events, of_users=True)
        known = self.vector_scorer()
        return VectorScorer(known.similarity, vectors, known.items)

    def items_from(self, takers: Interactions, known: Scorer) -> Scorer:
        """Scores of new items (its rows) with users (its columns), from the users of each in `takers`.

        `known` scores the known users. The loss is the trained one with users and items exchanged.
        """
        vectors = self.solve_vectors(takers, of_users=False, known=known)
        scorer = self.vector_scorer(known)
        return Transposed(VectorScorer(scorer.similarity, scorer.users, vectors))

    def known_users(self, train: Interactions, events: Interactions) -> Scorer:
        """Scores for the training users by all of their events instead of the training part alone.

        A free vector stays as it was trained. A user without a training pair, whose vector is still random,
        is folded in.
        """
        if self.users_are_histories:
            return self.users_from(events)
        known = self.scorer()
        cold = np.flatnonzero((train.by_user.degrees == 0) & (events.by_user.degrees > 0))
        if not len(cold) or not self.has_free_vectors:
            return known
        solved = self.solve_vectors(events.subset(np.isin(events.users, cold)), of_users=True)
        return self.vector_scorer(known).with_users(torch.from_numpy(cold), solved)

    def solve_vectors(self, events: Interactions, *, of_users: bool, known: Scorer | None = None) -> Vectors:
        """Free vectors of the rows of `events`, whose columns are the nodes of the other side."""
        if of_users:
            raise self.refusal("take a new user's list of items", FOLD_IN_USERS)
        raise self.refusal("take a new item's list of users", FOLD_IN_ITEMS)

    def vector_scorer(self, known: Scorer | None = None) -> "VectorScorer":
        """The scores of the training users, or the known ones, where they are a similarity of vectors."""
        scorer = self.scorer() if known is None else known
        if not isinstance(scorer, VectorScorer):
            raise self.refusal("compare vectors", FOLD_IN_ITEMS)
        return scorer

    @property
    def item_tables(self) -> tuple[str, ...]:
        """Names of the weights with a row for each item; the first has the vectors that are compared."""
        raise self.refusal("represent an item by its features", FEATURED)

    def relation(self, kind: Kind) -> Similarity | None:
        """The learnt similarity between two items or two users; None where there is none."""
        return None

    def history_weights(self, events: Interactions, row: int) -> tuple[Tensor, Tensor]:
        """The items of a history and how much each counts, where there are `item_weights`."""
        raise self.refusal("weigh a history", "ease")

    def history_parts(self, events: Interactions, row: int) -> tuple[Tensor, Tensor] | None:
        """The items of a history and each one's part of the user's vector; None where it is not their sum."""
        return None

    def export_tables(self, scorer: Scorer) -> dict[str, dict[str, Tensor]]:
        """What `export` writes: for "users" and "items" the tables by name."""
        if not isinstance(scorer, VectorScorer):
            raise ConfigError(
                f"{self.settings.model} has neither vectors nor weights to export; "
                "its vocabularies are in the run's split/train"
            )
        return scorer.tables()

    def refusal(self, what: str, able: str | None = None) -> ConfigError:
        """An error for what this model cannot do, with the models that can."""
        remedy = "" if able is None else f"; those that can are {able}"
        return ConfigError(f"{type(self.settings).__name__} cannot {what}{remedy}")


Build = Callable[[Any, Interactions, torch.Generator], Model]


class VectorScorer:
    """Scores by a similarity of a user's and an item's vectors."""

    def __init__(self, similarity: Similarity, users: Vectors, items: Vectors) -> None:
        self.similarity, self.users, self.items = similarity, users, items
        self.n_users, self.n_items = len(users.embedding), len(items.embedding)

    @torch.no_grad()
    def score_block(self, users: Users, items: Columns | None = None) -> Scores:
        if isinstance(self.similarity, Cosine):
            unit_items = self._unit_items if items is None else self._unit_items[items]
            return unit(self.users.embedding[users]) @ unit_items.T
        columns = self.items if items is None else _pick(self.items, items)
        return self.similarity.all_pairs(_pick(self.users, users), columns)

    @cached_property
    def _unit_items(self) -> Float[Tensor, "n d"]:
        """Once for all users who ask: for one user this takes many times what the product takes."""
        return unit(self.items.embedding.detach())

    @torch.no_grad()
    def modulation(self, users: Users, items: Items) -> Float[Tensor, "b d"] | None:
        """What both vectors of each pair are multiplied by (Eq. 8); None where nothing is."""
        return self.similarity.modulation(_pick(self.users, users), _pick(self.items, items))

    def with_users(self, rows: Int64[Tensor, " r"], users: Vectors) -> "VectorScorer":
        """The same with other vectors for some users; `users` has one for every user."""
        shared = self.users.factors is self.users.embedding
        embedding = self.users.embedding.index_copy(0, rows, users.embedding[rows])
        factors = embedding if shared else self.users.factors.index_copy(0, rows, users.factors[rows])
        return VectorScorer(self.similarity, Vectors(embedding, factors), self.items)

    def tables(self) -> dict[str, dict[str, Tensor]]:
        """The vectors of both sides by name, and the factors where they are others."""
        found: dict[str, dict[str, Tensor]] = {}
        for kind, vectors in (("users", self.users), ("items", self.items)):
            found[kind] = {"vector": vectors.embedding.detach()}
            if vectors.factors is not vectors.embedding:
                found[kind]["factors"] = vectors.factors.detach()
        return found

    @torch.no_grad()
    def score_rows(self, users: Users, items: Candidates) -> Scores:
        rows = _pick(self.users, users.unsqueeze(1))
        return self.similarity.matching(rows, _pick(self.items, items))


def _pick(vectors: Vectors, which: Int64[Tensor, "*n"]) -> Vectors:
    embedding = vectors.embedding[which]
    # Where both are one tensor, one look-up does.
    return Vectors(embedding, embedding if vectors.factors is vectors.embedding else vectors.factors[which])


class Transposed:
    """A scorer with its sides exchanged: rows are items, columns users."""

    def __init__(self, inner: Scorer) -> None:
        self.inner = inner
        self.n_users, self.n_items = inner.n_items, inner.n_users

    def score_block(self, users: Users, items: Columns | None = None) -> Scores:
        columns = torch.arange(self.n_items) if items is None else items
        return self.inner.score_block(columns, users).T

    def score_rows(self, users: Users, items: Candidates) -> Scores:
        own = users.repeat_interleave(items.shape[1]).unsqueeze(1)
        return self.inner.score_rows(items.flatten(), own).view(items.shape)
