"""A trained model answering, under the user's own ids."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from hdccf import checkpoint
from hdccf.config import Settings
from hdccf.data.graph import Neighbours
from hdccf.data.split import PARTS, Split
from hdccf.errors import ConfigError, DataError, RunError
from hdccf.models import entry_named, name_of
from hdccf.models.base import Model
from hdccf.runs import RunFolder
from hdccf.scoring import Scorer

Users = Sequence[Any] | pl.Series | NDArray[Any]
"""Users by their own ids."""

_ROWS_AT_ONCE = 1 << 22
"""Scores held at once when recommending: 16 MB."""


class Recommender:
    """A trained model with the data that it knows. It scores, so that evaluation takes it as it is."""

    def __init__(
        self,
        model: Model,
        settings: Settings,
        split: Split,
        *,
        seed: int,
        seconds: float = 0.0,
        path: Path | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.settings = settings
        self.split = split
        self.seed = seed
        self.seconds = seconds
        self._path = path
        self.config = config or {}
        self.name = name_of(settings)
        self._scorer: Scorer = model.scorer()
        # All that a user has had: what is held out is hidden from training, not from the user.
        had = sum((split.part(part).matrix for part in PARTS[1:]), split.train.matrix).tocsr()
        self._seen = Neighbours(
            torch.from_numpy(had.indptr.astype(np.int64)),
            torch.from_numpy(had.indices.astype(np.int64)),
            split.n_items,
        )

    @property
    def path(self) -> Path:
        """The folder of the run."""
        if self._path is None:
            raise RunError('this model was not kept in a folder; fit it with out="runs/name"')
        return self._path

    @property
    def n_users(self) -> int:
        return self._scorer.n_users

    @property
    def n_items(self) -> int:
        return self._scorer.n_items

    def score_block(
        self, users: Int64[Tensor, " b"], items: Int64[Tensor, " c"] | None = None
    ) -> Float[Tensor, "b c"]:
        return self._scorer.score_block(users, items)

    def score_rows(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b c"]) -> Float[Tensor, "b c"]:
        return self._scorer.score_rows(users, items)

    def recommend(self, users: Users, k: int = 10, *, include_seen: bool = False) -> pl.DataFrame:
        """The k best items of each user, best first, as rows of user, rank, item, score (and title).

        What the user has had is left out unless asked for; a user with fewer than k others gets fewer.
        """
        if k < 1:
            raise ConfigError(f"k={k} recommends nothing; ask for 1 or more")
        codes = torch.from_numpy(self.user_codes(users))
        parts = []
        for block in torch.split(codes, max(1, _ROWS_AT_ONCE // self.n_items)):
            scores = self.score_block(block).clone()
            if not include_seen:
                rows, columns, _ = self._seen.within(block, None)
                scores[rows, columns] = -torch.inf
            best, items = scores.topk(min(k, self.n_items), dim=1)
            parts.append(self._rows(block, items, best))
        return pl.concat(parts) if parts else self._rows(codes, codes.new_zeros(0, 0), torch.zeros(0, 0))

    def user_codes(self, users: Users) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The contiguous ids of users given by their own; integers and their texts both serve."""
        if isinstance(users, str | int):
            raise ConfigError(f"users={users!r} is one id; give a list of them, as in [{users!r}]")
        index = self.split.train.user_index
        kind = int if self.split.train.user_ids.dtype.is_integer() else str
        codes = np.empty(len(users), np.int64)
        for place, own in enumerate(users):
            try:
                codes[place] = index[kind(own)]
            except (KeyError, ValueError, TypeError):
                examples = self.split.train.user_ids.head(3).to_list()
                raise DataError(
                    f"user {own!r} is not in the training data; known are for example {examples}"
                ) from None
        return codes

    def _rows(
        self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b k"], scores: Float[Tensor, "b k"]
    ) -> pl.DataFrame:
        train = self.split.train
        width = items.shape[1]
        kept = ~scores.isneginf().flatten().numpy()
        flat_items = items.flatten().numpy()[kept]
        frame = pl.DataFrame(
            {
                "user": train.user_ids.gather(np.repeat(users.numpy(), width)[kept]),
                "rank": np.tile(np.arange(1, width + 1), len(users))[kept],
                "item": train.item_ids.gather(flat_items),
                "score": scores.flatten().numpy()[kept],
            }
        )
        return frame if train.titles is None else frame.with_columns(title=train.titles.gather(flat_items))

    def __repr__(self) -> str:
        return f"Recommender({self.name}, seed {self.seed}, {self.split!r})"


def load_run(path: str | Path) -> Recommender:
    """Opens the folder of a run with its best weights."""
    run = RunFolder.open(path)
    if not run.best.exists():
        raise RunError(
            f"{run.path} has no trained weights yet; finish it with: hdccf train --resume {run.path}"
        )
    split = run.split()
    entry = entry_named(run.model)
    model = entry.build(run.settings, split.train, torch.Generator().manual_seed(run.seed))
    tensors, _ = checkpoint.load(run.best)
    checkpoint.fill(model, tensors, run.best)
    return Recommender(model, run.settings, split, seed=run.seed, path=run.path, config=run.config)
