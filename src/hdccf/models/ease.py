"""EASE: a linear map from what a user had to every item, in closed form (Steck, WWW 2019)."""

from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from pydantic import Field
from scipy.linalg import lapack
from torch import Tensor

from hdccf.config import Real, Space, recency
from hdccf.console import note
from hdccf.data.interactions import Interactions
from hdccf.data.weights import weighted_histories
from hdccf.errors import ConfigError, TrainingError
from hdccf.models.base import Candidates, Columns, Model, Scorer, Scores, Users
from hdccf.models.settings import WeightedHistories

_SCORES_AT_ONCE = 1 << 22
"""A user's scores come for the whole catalogue; so many are held while some of them are picked: 16 MB."""

_ROWS_AT_ONCE = 512
"""Rows of the weights that are filled, or copied from one triangle to the other, at once."""


class EASE(WeightedHistories):
    """Items regressed on items with none explaining itself (Steck, WWW 2019): closed form, no epochs.

    `hdccf models ease` lists every setting with its default.

    Examples
    --------
    >>> EASE(l2=300.0).l2
    300.0
    """

    model: ClassVar[str] = "ease"

    l2: float = Field(default=500.0, gt=0)
    """λ: the pull of all weights towards zero. Larger trusts only items that many
    users had together; the best differs from data to data, so tune it."""
    max_items: int = Field(default=20_000, ge=1)
    """Catalogues above this are refused before memory runs out: the weights are items × items, 4 bytes each,
    1.6 GB at 20,000 items, and three times that while they are saved."""

    space: ClassVar[Space] = Space({"l2": Real(10.0, 10_000.0, log=True), **recency()})


class EASEModel(Model):
    """Scores are X B, with B = I − P·diag(1 / diag P) and P = (XᵀX + λI)⁻¹; it is its own scorer."""

    settings: EASE
    weights: Tensor

    def __init__(self, settings: EASE, train: Interactions, generator: torch.Generator) -> None:
        super().__init__(settings)
        if train.n_items > settings.max_items:
            gigabytes = 4 * train.n_items**2 / 1e9
            raise ConfigError(
                f"{train.n_items} items are more than max_items={settings.max_items}: EASE would need "
                f"{gigabytes:.1f} GB for its weights alone; leave out rare items, or raise max_items"
            )
        self.n_users, self.n_items = train.n_users, train.n_items
        self._train = train
        self._histories = weighted_histories(train, settings)
        self.register_buffer("weights", torch.zeros(train.n_items, train.n_items))

    @torch.no_grad()
    def solve(self, generator: torch.Generator, progress: bool) -> None:
        if progress:
            note(f"solving for {self.n_items} × {self.n_items} weights")
        observed = self._train.matrix
        by_item = observed.T.tocsr()
        # In the memory of the weights themselves: of a large catalogue there is no room for a second.
        gram = self.weights.numpy(force=True)
        for rows in _portions(self.n_items):
            (by_item[rows] @ observed).toarray(out=gram[rows])
        gram[np.diag_indices(self.n_items)] += np.float32(self.settings.l2)
        if not _regress_without_itself(gram):
            raise TrainingError(
                f"l2={self.settings.l2} is too small for this data: the equations have no stable solution; "
                "raise it"
            )
        self.weights.copy_(torch.from_numpy(gram))

    def scorer(self) -> Scorer:
        return self

    users_are_histories = True

    def users_from(self, events: Interactions) -> Scorer:
        # Building one only allocates, so that the same weights serve other histories.
        other = EASEModel(self.settings, events, torch.Generator())
        other.weights = self.weights
        return other

    @property
    def item_weights(self) -> Float[Tensor, "items items"]:  # type: ignore[override]
        return self.weights

    def history_weights(self, events: Interactions, row: int) -> tuple[Tensor, Tensor]:
        start, end = events.by_user.starts[row : row + 2]
        weights = weighted_histories(events, self.settings).data[start:end]
        return torch.from_numpy(events.items[start:end].astype(np.int64)), torch.from_numpy(weights.copy())

    def export_tables(self, scorer: Scorer) -> dict[str, dict[str, Tensor]]:
        return {"items": {"weights": self.weights}}

    def score_block(self, users: Users, items: Columns | None = None) -> Scores:
        if items is None:
            return self._scores(users)
        return torch.cat([self._scores(some)[:, items] for some in self._split(users)])

    def score_rows(self, users: Users, items: Candidates) -> Scores:
        wanted = zip(self._split(users), self._split(items), strict=True)
        return torch.cat([self._scores(some).gather(1, theirs) for some, theirs in wanted])

    def _scores(self, users: Users) -> Float[Tensor, "b items"]:
        """SciPy's product reads only a history's rows of B; torch's sparse ones took twice as long."""
        return torch.from_numpy(self._histories[users.numpy()] @ self.weights.numpy(force=True))

    def _split(self, rows: Int64[Tensor, "b *c"]) -> tuple[Int64[Tensor, "_ *c"], ...]:
        return torch.split(rows, max(1, _SCORES_AT_ONCE // self.n_items))


def _regress_without_itself(gram: NDArray[np.float32]) -> bool:
    """Makes −P[i, j] / P[j, j] of XᵀX + λI, P being its inverse, and 0 on the diagonal; all in its memory.

    False where single precision does not find it positive definite. LAPACK works on the transpose,
    which is the same matrix in the order that it wants, and leaves one triangle of the inverse.
    """
    _, failed = lapack.spotrf(gram.T, lower=0, overwrite_a=1, clean=0)
    if failed:
        return False
    lapack.spotri(gram.T, lower=0, overwrite_c=1)
    for rows in _portions(len(gram)):
        corner = gram[rows, rows]
        corner[...] = np.tril(corner) + np.tril(corner, -1).T
        gram[: rows.start, rows] = gram[rows, : rows.start].T
    gram /= -gram.diagonal()
    np.fill_diagonal(gram, 0)
    return True


def _portions(n_rows: int) -> list[slice]:
    return [slice(start, min(start + _ROWS_AT_ONCE, n_rows)) for start in range(0, n_rows, _ROWS_AT_ONCE)]
