"""A model that starts from a run's weights on data that has grown: known ids keep what they have learned."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Int64
from torch import Tensor

from hdccf.data.interactions import Interactions
from hdccf.errors import ConfigError, RunError
from hdccf.models.base import Model
from hdccf.recommend.run_folder import RunFolder, resume_command

Rows = tuple[Int64[Tensor, " m"], Int64[Tensor, " m"]]
"""Rows of the new table, and the rows of the old one that go there."""

# Not a row a user or an item, even where the numbers happen to be alike.
_LAYERS = ("weight", "head", "first_bias", "second_bias")


def start_from(
    model: Model, name: str, train: Interactions, source: str | Path, *, refit: bool
) -> dict[str, Any]:
    """Gives `model`, freshly built for `train`, the weights of a run; says how many users and items it knew.

    Rows are matched by the users' and items' own ids. What is new keeps its first random values, and what is
    no longer there is left behind. `refit` takes the weights after a run's refit, where there was one: these
    have seen what the run held out, so that a model that is validated must not start from them.
    """
    run = RunFolder.open(source)
    if not model.groups:
        raise ConfigError(
            f"{name} is not trained step by step, so that it starts from nothing; leave out init_from"
        )
    if run.model != name:
        raise ConfigError(
            f"{run.path} is a run of {run.model}, and cannot start {name}; take a run of {name}"
        )
    if not run.best.exists():
        raise RunError(f"{run.path} has no trained weights yet; finish it: {resume_command(run.path)}")
    chosen = run.answering if refit else run
    old = chosen.split().train
    trained, _ = chosen.load_tensors(chosen.best)
    fresh = model.state_dict()
    differing = sorted(fresh.keys() ^ trained.keys())
    if differing:
        raise ConfigError(
            f"{run.path} was trained with other settings: only one of the two has {differing[0]}; "
            "take the run's settings (run.json)"
        )
    tables = _Tables(old, train)
    model.load_state_dict({key: tables.moved(key, trained[key], fresh[key].cpu(), run.path) for key in fresh})
    return {
        "run": str(run.path),
        "users": len(tables.users[0]),
        "items": len(tables.items[0]),
        "new_users": train.n_users - len(tables.users[0]),
        "new_items": train.n_items - len(tables.items[0]),
    }


class _Tables:
    """Which rows go where, for tables of users, of items, and of both."""

    def __init__(self, old: Interactions, new: Interactions) -> None:
        self.users = _matched(old.user_ids, new.user_ids)
        self.items = _matched(old.item_ids, new.item_ids)
        nodes = tuple(
            torch.cat([users, items + n])
            for users, items, n in zip(self.users, self.items, (new.n_users, old.n_users), strict=True)
        )
        self.kinds: dict[str, tuple[int, int, Rows]] = {
            "user": (old.n_users, new.n_users, self.users),
            "item": (old.n_items, new.n_items, self.items),
            "node": (old.n_users + old.n_items, new.n_users + new.n_items, (nodes[0], nodes[1])),
        }

    def moved(self, key: str, trained: Tensor, fresh: Tensor, path: Path) -> Tensor:
        rows = self._rows(key, trained, fresh)
        if rows is not None:
            result = fresh.clone()
            result[rows[0]] = trained[rows[1]]
            return result
        if trained.shape != fresh.shape:
            raise ConfigError(
                f"{path} was trained with other settings: its {key} is {'×'.join(map(str, trained.shape))}, "
                f"here it is {'×'.join(map(str, fresh.shape))}; take the run's settings (run.json)"
            )
        return trained

    def _rows(self, key: str, trained: Tensor, fresh: Tensor) -> Rows | None:
        """None where the rows are not users or items."""
        if not trained.ndim or trained.shape[1:] != fresh.shape[1:] or key.endswith(_LAYERS):
            return None
        sizes = (len(trained), len(fresh))
        fitting = [kind for kind, (old, new, _) in self.kinds.items() if sizes == (old, new)]
        # As many users as items: then the name says which. Only items have a past or a history.
        named = [kind for kind in fitting if kind in key] or [kind for kind in fitting if kind == "item"]
        chosen = fitting if len(fitting) == 1 else named
        return self.kinds[chosen[0]][2] if chosen else None


def _matched(old: pl.Series, new: pl.Series) -> Rows:
    """Pairs of (new, old) places of the same id; an integer and its text are the same."""
    places = {own: place for place, own in enumerate(old.cast(pl.String))}
    found = [(place, places[own]) for place, own in enumerate(new.cast(pl.String)) if own in places]
    both = torch.from_numpy(np.array(found, np.int64).reshape(-1, 2))
    return both[:, 0], both[:, 1]
