"""Scorers around scorers: one that answers for users and items which the model has never heard of."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hdccf.data.split import Split
from hdccf.errors import EvaluationError
from hdccf.models.base import Scorer


class Extended:
    """Gives an unknown user the same score for everything, and an unknown item the lowest score there is.

    So an unknown user counts with what a random order would reach, an unknown item comes after all known
    ones, and every model is judged on the same users.
    """

    def __init__(self, scorer: Scorer, n_users: int, n_items: int) -> None:
        self._known = scorer
        self.n_users = n_users
        self.n_items = n_items

    def score_block(
        self, users: Int64[Tensor, " b"], items: Int64[Tensor, " c"] | None = None
    ) -> Float[Tensor, "b c"]:
        items = torch.arange(self.n_items) if items is None else items
        known_users, known_items = users < self._known.n_users, items < self._known.n_items
        if not known_users.any() or not known_items.any():
            return torch.zeros(len(users), len(items))
        scored = self._known.score_block(users[known_users], items[known_items])
        scores = torch.full((len(users), len(items)), torch.finfo(scored.dtype).min, dtype=scored.dtype)
        scores[known_users.nonzero(), known_items.nonzero().T] = scored
        scores[~known_users] = 0
        return scores

    def score_rows(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b c"]) -> Float[Tensor, "b c"]:
        known_users, known_items = users < self._known.n_users, items < self._known.n_items
        if not known_users.any():
            return torch.zeros(items.shape)
        # An unknown item is looked up as item 0, and its score then replaced.
        asked = torch.where(known_items, items, 0)[known_users]
        scored = self._known.score_rows(users[known_users], asked)
        scores = torch.zeros(items.shape, dtype=scored.dtype)
        scores[known_users] = scored.masked_fill(~known_items[known_users], torch.finfo(scored.dtype).min)
        return scores


def scorer_for(scorer: Scorer, split: Split) -> Scorer:
    """`scorer` as `split` can ask it: refused if made with other data, extended if it knows less."""
    own = getattr(scorer, "split", None)
    if isinstance(own, Split) and own is not split and own.fingerprint != split.fingerprint:
        raise EvaluationError(
            f"the model was trained on the split {own.fingerprint}, but is asked about {split.fingerprint}: "
            "its ids mean something else there; evaluate it on its own split"
        )
    if scorer.n_users > split.n_users or scorer.n_items > split.n_items:
        raise EvaluationError(
            f"the model knows {scorer.n_users} users and {scorer.n_items} items, the split only "
            f"{split.n_users} and "
            f"{split.n_items}, so they were not made from the same data; use the split that the model "
            "was trained on"
        )
    if scorer.n_users == split.n_users and scorer.n_items == split.n_items:
        return scorer
    return Extended(scorer, split.n_users, split.n_items)
