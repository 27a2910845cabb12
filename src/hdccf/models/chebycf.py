"""ChebyCF: a Chebyshev filter over the graph of items, in closed form (Kim et al., SIGIR 2025)."""

from typing import ClassVar

import numpy as np
import torch
from numpy.polynomial import chebyshev
from numpy.typing import NDArray
from pydantic import Field
from scipy import sparse
from scipy.sparse.linalg import svds
from torch import Tensor

from hdccf.config import Choice, Real, Space, recency
from hdccf.console import note
from hdccf.data.interactions import Interactions
from hdccf.data.weights import weighted_histories
from hdccf.models.base import Candidates, Columns, Model, Scorer, Scores, Users
from hdccf.models.settings import WeightedHistories

_SCORES_AT_ONCE = 1 << 23
"""Scores of all items that are held for some users at once, four times: 128 MB."""


class ChebyCF(WeightedHistories):
    """A history smoothed over the item graph by a Chebyshev and an ideal low-pass filter (SIGIR 2025).

    The defaults are the published ones for Gowalla.

    `hdccf models chebycf` lists every setting with its default.

    Examples
    --------
    >>> ChebyCF(order=4).order
    4
    """

    model: ClassVar[str] = "chebycf"

    order: int = Field(default=8, ge=1, le=64)
    """K, the order of the polynomial: how many steps over the graph a score looks, and what it costs."""
    flatness: float = Field(default=1.5, gt=0)
    """φ: how flat the filter is between low and high frequencies; 1 is a straight line."""
    rank: int = Field(default=512, ge=1)
    """η: singular vectors that the ideal low-pass filter keeps."""
    ideal_weight: float = Field(default=0.2, ge=0)
    """α, the weight of the ideal low-pass filter; 0 leaves it out."""
    degree_power: float = Field(default=0.4, ge=0)
    """β: a history is divided by its items' degrees to this power, and the scores multiplied by them."""

    space: ClassVar[Space] = Space(
        {
            "order": Choice((4, 6, 8, 12, 16)),
            "flatness": Real(0.25, 4.0, log=True),
            "rank": Choice((32, 64, 128, 256, 512)),
            "ideal_weight": Real(0.0, 0.5),
            "degree_power": Real(0.0, 0.6),
            **recency(),
        }
    )


class ChebyCFModel(Model):
    """Scores are D^β (h(L) + α V Vᵀ) D^−β x, L = I − R̃ᵀR̃, R̃ = D_u^−½ X D_i^−½; it is its own scorer."""

    settings: ChebyCF
    low_pass: Tensor

    def __init__(self, settings: ChebyCF, train: Interactions, generator: torch.Generator) -> None:
        super().__init__(settings)
        self.n_users, self.n_items = train.n_users, train.n_items
        users = np.maximum(train.by_user.degrees, 1).astype(np.float32)
        items = np.maximum(train.by_item.degrees, 1).astype(np.float32)
        # R̃ of the training users, also where others are scored.
        self._graph = sparse.csr_array(
            sparse.diags_array(users**-0.5) @ train.matrix @ sparse.diags_array(items**-0.5), dtype=np.float32
        )
        self._powers = items**settings.degree_power
        self._coefficients = plateau(settings.order, settings.flatness)
        self._histories = weighted_histories(train, settings)
        rank = min(settings.rank, min(self._graph.shape) - 1) if settings.ideal_weight else 0
        self.register_buffer("low_pass", torch.zeros(train.n_items, max(rank, 0)))

    @torch.no_grad()
    def solve(self, generator: torch.Generator, progress: bool) -> None:
        rank = self.low_pass.shape[1]
        if not rank or not self._graph.nnz:
            return
        if progress:
            note(f"finding {rank} singular vectors of {self.n_items} items")
        first = torch.randn(min(self._graph.shape), generator=generator).numpy()
        *_, vectors = svds(self._graph, rank, v0=first)
        self.low_pass.copy_(torch.from_numpy(vectors.T.copy()))

    def scorer(self) -> Scorer:
        return self

    users_are_histories = True

    def users_from(self, events: Interactions) -> Scorer:
        # Building one only allocates; the graph stays that of training.
        other = ChebyCFModel(self.settings, events, torch.Generator())
        other.low_pass, other._graph, other._powers = self.low_pass, self._graph, self._powers
        return other

    def score_block(self, users: Users, items: Columns | None = None) -> Scores:
        parts = [self._scores(some) for some in self._split(users)]
        return torch.cat([part if items is None else part[:, items] for part in parts])

    def score_rows(self, users: Users, items: Candidates) -> Scores:
        wanted = zip(self._split(users), self._split(items), strict=True)
        return torch.cat([self._scores(some).gather(1, theirs) for some, theirs in wanted])

    def _scores(self, users: Users) -> Scores:
        """Signals are items × users, so that a sparse product adds up whole rows."""
        signal = (self._histories[users.numpy()] / self._powers).T.toarray(order="C").astype(np.float32)
        filtered = self._smoothed(signal)
        if self.low_pass.shape[1]:
            low_pass = self.low_pass.numpy(force=True)
            filtered += np.float32(self.settings.ideal_weight) * (low_pass @ (low_pass.T @ signal))
        return torch.from_numpy((filtered * self._powers[:, None]).T)

    def _smoothed(self, signal: NDArray[np.float32]) -> NDArray[np.float32]:
        """Σ_k c_k T_k(2L − I) of a signal, by T_k = 2 (2L − I) T_{k−1} − T_{k−2}."""
        before, now = signal, self._shifted(signal)
        first, second, *others = self._coefficients
        found: NDArray[np.float32] = first * before + second * now
        for coefficient in others:
            before, now = now, 2 * self._shifted(now) - before
            found += coefficient * now
        return found

    def _shifted(self, signal: NDArray[np.float32]) -> NDArray[np.float32]:
        """(2L − I) of a signal: L's eigenvalues, which lie between 0 and 1, moved to −1 to 1."""
        moved: NDArray[np.float32] = signal - 2 * (self._graph.T @ (self._graph @ signal))
        return moved

    def _split(self, rows: Tensor) -> tuple[Tensor, ...]:
        return torch.split(rows, max(1, _SCORES_AT_ONCE // self.n_items))


def plateau(order: int, flatness: float) -> NDArray[np.float32]:
    """Coefficients c_0 … c_K of the filter ½ − ½ sign(x) |x|^φ at x = 2λ − 1, which keeps low frequencies λ.

    As in the authors' code the values are those at the extrema of T_K, and are interpolated at the roots of
    T_{K+1}; with both at the roots the filter would be a little steeper at its ends.
    """
    extrema = np.cos(np.pi * np.arange(order, -1, -1) / order)
    roots = np.cos(np.pi * (np.arange(order, -1, -1) + 0.5) / (order + 1))
    values = 0.5 - 0.5 * np.sign(extrema) * np.abs(extrema) ** flatness
    found = values @ chebyshev.chebvander(roots, order) * (2 / (order + 1))
    found[0] /= 2
    return found.astype(np.float32)
