"""ALS: matrix factorisation of all pairs by alternating least squares (Hu et al. 2008), through implicit."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import Field
from scipy import sparse
from torch import Tensor

from hdccf.config import MAX_DIM, SIZES, Choice, Real, Space, recency
from hdccf.console import progress_bar
from hdccf.data.interactions import Interactions
from hdccf.data.weights import weighted_histories
from hdccf.errors import ConfigError, TrainingError
from hdccf.models.base import Model, Scorer, VectorScorer
from hdccf.models.fold_in import least_squares
from hdccf.models.settings import WeightedHistories
from hdccf.similarity import Dot, Vectors


class ALS(WeightedHistories):
    """Weighted matrix factorisation of all pairs, solved side by side (Hu et al., ICDM 2008; implicit).

    `hdccf models als` lists every setting with its default.

    Examples
    --------
    >>> ALS(embedding_dim=32).embedding_dim
    32
    """

    model: ClassVar[str] = "als"
    weighs_positives: ClassVar[bool] = True

    embedding_dim: int = Field(default=64, ge=1, le=MAX_DIM)
    """Length of the vectors; more remembers more, and overfits where users have few items."""
    l2: float = Field(default=0.01, ge=0)
    """λ: the pull of all vectors towards zero; helps where items are rare."""
    alpha: float = Field(default=1.0, gt=0)
    """How much an observed pair counts beside an unobserved one, which counts 1. Larger fits what users had
    more closely; on ML-1M full ranking got worse with it."""
    iterations: int = Field(default=15, ge=1)
    """How often both sides are solved in turn; more come closer to the least loss."""

    space: ClassVar[Space] = Space(
        {
            "embedding_dim": SIZES,
            "l2": Real(1e-3, 100.0, log=True),
            "alpha": Real(0.5, 50.0, log=True),
            "iterations": Choice((10, 15, 30)),
            **recency(),
        }
    )


class ALSModel(Model):
    """Scores are dot products of the factors that the library found; only solving needs the library."""

    settings: ALS
    users: Tensor
    items: Tensor

    def __init__(self, settings: ALS, train: Interactions, generator: torch.Generator) -> None:
        super().__init__(settings)
        self._train = train
        self._histories = weighted_histories(train, settings)
        self.register_buffer("users", torch.zeros(train.n_users, settings.embedding_dim))
        self.register_buffer("items", torch.zeros(train.n_items, settings.embedding_dim))

    @torch.no_grad()
    def solve(self, generator: torch.Generator, progress: bool) -> None:
        s = self.settings
        implicit = _import_implicit()
        seed = int(torch.randint(1 << 31, (), generator=generator))
        # Rows are spread over threads; BLAS threads within them would only get in each other's way.
        with implicit.one_blas_thread(), progress_bar("solving", s.iterations, enabled=progress) as advance:
            fitted = implicit.als(
                factors=s.embedding_dim,
                regularization=s.l2,
                alpha=s.alpha,
                iterations=s.iterations,
                num_threads=torch.get_num_threads(),
                random_state=seed,
            )
            try:
                observed = self._train.matrix
                if self._train.weights is not None:  # each is a confidence
                    observed = weighted_histories(self._train, s.changed(recency_half_life=None))
                fitted.fit(_old_kind(observed), show_progress=False, callback=lambda *_: advance(1))
                users = fitted.user_factors
                if s.recency_half_life is not None:
                    users = fitted.recalculate_user(np.arange(len(users)), _old_kind(self._histories))
            except (ValueError, implicit.failure) as cause:
                raise TrainingError(
                    f"implicit found no solution with l2={s.l2}, alpha={s.alpha} ({cause}); raise l2"
                ) from cause
        self.users.copy_(torch.from_numpy(users))
        self.items.copy_(torch.from_numpy(fitted.item_factors))

    def scorer(self) -> VectorScorer:
        return VectorScorer(Dot(), Vectors(self.users, self.users), Vectors(self.items, self.items))

    has_free_vectors = True

    def solve_vectors(self, events: Interactions, *, of_users: bool, known: Scorer | None = None) -> Vectors:
        settings = self.settings if of_users else self.settings.changed(recency_half_life=None)
        weights = settings.alpha * torch.from_numpy(weighted_histories(events, settings).data)
        scorer = self.vector_scorer(known)
        return least_squares(events, weights, scorer.items if of_users else scorer.users, l2=settings.l2)


class _Implicit(NamedTuple):
    als: Any
    failure: type[Exception]
    one_blas_thread: Callable[[], AbstractContextManager[Any]]


def _import_implicit() -> _Implicit:
    try:
        from implicit.cpu.als import AlternatingLeastSquares
        from implicit.recommender_base import ModelFitError
        from threadpoolctl import threadpool_limits
    except ImportError as cause:
        raise ConfigError("ALS needs implicit; install it with: pip install 'hdccf[als]'") from cause
    return _Implicit(AlternatingLeastSquares, ModelFitError, lambda: threadpool_limits(1, "blas"))


def _old_kind(matrix: sparse.csr_array) -> sparse.csr_matrix:
    """implicit knows SciPy's matrices only, not its arrays."""
    return sparse.csr_matrix(matrix)
