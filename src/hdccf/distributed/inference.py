"""Batch inference with Ray actors: `recommend --all` and `evaluate` over workers, a shard of users at a time.

A worker reads its users' pairs from the store and all vectors from Ray's object store: the results are those
of one process, and no worker holds all pairs.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import ray
import torch
from ray.util import ActorPool

from hdccf.console import progress_bar
from hdccf.distributed.driver import DATA_PARALLEL, connected, resolved_settings, storage_of
from hdccf.distributed.store import Shard, Store, write_store
from hdccf.distributed.worker import shard_state
from hdccf.errors import ConfigError, RunError
from hdccf.evaluation.candidates import Candidates, IndexArray
from hdccf.evaluation.evaluation import Rank
from hdccf.evaluation.metrics import Lists, Ranks
from hdccf.evaluation.ranking import Ranker, Ranking
from hdccf.models import entry_named
from hdccf.models.calibration import Calibration
from hdccf.recommend import export
from hdccf.recommend.recommender import Recommender, load_calibration
from hdccf.recommend.run_folder import Cluster, RunFolder, resume_command

_SHARDS_A_WORKER = 4
"""At least; a worker that is done early takes another shard."""
_USERS_AT_ONCE = 1 << 16
_COUNTS = ("above", "tied", "relevant_above", "relevant_tied")


def recommend_all(
    run: RunFolder, out: Path, cluster: Cluster, wanted: dict[str, Any], *, overwrite: bool, progress: bool
) -> int:
    """Writes the best items of every user to one file, as `Recommender.recommend_all`.

    `wanted` are arguments of `Recommender.recommend`; returns the number of users.
    """
    export.check_ending(out)
    run = run if wanted.get("history") == "train" else run.answering
    with store_of(run) as store, connected(cluster, progress=False):
        some = shards(store, cluster.workers)
        with progress_bar("recommending", store.n_users, enabled=progress) as advance:

            def frames() -> Iterator[pl.DataFrame]:
                lists = map_shards("recommend", [(each,) for each in some], run, store, cluster, wanted)
                for users, frame in zip(some, lists, strict=True):
                    yield frame
                    advance(len(users))

            found = frames()
            first = next(found)
            export.write_frames(out, chain([first], found), first.schema, overwrite=overwrite)
        return store.n_users


def shards(store: Store, workers: int) -> list[Shard]:
    """All users in shards of a size that a worker handles at once, each with training pairs."""
    parts = max(_SHARDS_A_WORKER * workers, -(-store.n_users // _USERS_AT_ONCE))
    found: list[Shard] = []
    for shard in store.shards("user", min(parts, store.n_users)):
        empty = not store.user_degrees[shard.first : shard.last].any()
        if found and (empty or not store.user_degrees[found[-1].first : found[-1].last].any()):
            found[-1] = Shard(found[-1].first, shard.last)
        else:
            found.append(shard)
    return found


class ShardModel:
    """A Ray actor that builds the run's model for a shard of users at a time, and answers for them."""

    def __init__(
        self, store: str, about: dict[str, Any], weights: dict[str, Any], wanted: dict[str, Any]
    ) -> None:
        self.store, self.wanted, self.seed = Store(store), wanted, about["seed"]
        # Copied, as the object store's memory is read-only, which torch does not support.
        self.weights = {name: torch.from_numpy(array.copy()) for name, array in weights.items()}
        self.calibration = None
        if about["calibration"] is not None:
            tensors, facts = about["calibration"]
            copied = {name: torch.from_numpy(array.copy()) for name, array in tensors.items()}
            self.calibration = Calibration.from_parts(copied, facts)
        self.entry = entry_named(about["model"])
        self.settings = self.entry.settings(**about["settings"])

    def recommender(self, users: Shard, *, own_ids: bool) -> Recommender:
        """The run's model with the weights and the split of a shard."""
        split = self.store.split_of(users, own_ids=own_ids)
        model: Any = self.entry.build(self.settings, split.train, torch.Generator())
        model.load_state_dict(shard_state(self.weights, model, users))
        return Recommender(model, self.settings, split, seed=self.seed, calibration=self.calibration)

    def recommend(self, users: Shard) -> pl.DataFrame:
        """Top-k lists; `wanted` are arguments of `Recommender.recommend`."""
        found = self.recommender(users, own_ids=True)
        return found.recommend(found.split.train.user_ids, **self.wanted)

    def rank(self, users: Shard, drawn: Candidates) -> tuple[IndexArray, IndexArray, Lists] | None:
        """For each held-out item the user, the numbers of `_COUNTS`, and the user's top-k list."""
        asked, found = self.wanted, self.recommender(users, own_ids=False)
        if not len(found.split.part(asked["part"])):
            return None
        ranker = Ranker(
            found.split,
            asked["part"],
            seed=asked["seed"],
            memory=asked["memory"],
            drawn=lambda: drawn,
            first_user=users.first,
        )
        ranking = ranker.rank(found, asked["protocol"], top=asked["top"])
        queries = ranker.queries
        lists = ranking.lists if ranking.lists is not None else np.zeros((len(queries), 0), np.int32)
        rows = np.repeat(np.arange(len(queries)), queries.held_out)
        counts = np.stack([getattr(ranking.ranks, name) for name in _COUNTS], axis=1)
        return queries.users[rows] + users.first, counts, lists[rows]


def map_shards(
    method: str,
    arguments: list[tuple[Any, ...]],
    run: RunFolder,
    store: Store,
    cluster: Cluster,
    wanted: dict[str, Any],
) -> Iterator[Any]:
    """What a method of `ShardModel` returns for each tuple of arguments, in their order."""
    about = {"model": run.model, "settings": resolved_settings(run), "seed": run.seed, "calibration": None}
    calibration = load_calibration(run)
    if calibration is not None:
        parts, facts = calibration.to_parts()
        about["calibration"] = ({name: tensor.numpy() for name, tensor in parts.items()}, facts)
    tensors, _ = run.load_tensors(run.best)
    weights = ray.put({name: tensor.numpy() for name, tensor in tensors.items()})
    actor = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(ShardModel)
    actors = [actor.remote(store.path, about, weights, wanted) for _ in range(cluster.workers)]
    yield from ActorPool(actors).map(lambda each, given: getattr(each, method).remote(*given), arguments)


@contextmanager
def store_of(run: RunFolder) -> Iterator[Store]:
    """The run's store; a temporary one where it was trained in one process."""
    if run.model not in DATA_PARALLEL:
        raise ConfigError(
            f"{run.model} answers in one process; leave out --workers, or take a run of one of "
            f"{list(DATA_PARALLEL)}"
        )
    if not run.best.exists():
        raise RunError(f"{run.path} has no trained weights yet; finish it with: {resume_command(run.path)}")
    if run.options.cluster is not None:
        yield Store(f"{storage_of(run, run.options.cluster)}/store")
        return
    with tempfile.TemporaryDirectory(prefix="hdccf-store-") as folder:
        write_store(run.split(), folder, weighting=None)
        yield Store(folder)


@contextmanager
def ranked_together(run: RunFolder, cluster: Cluster, memory: int) -> Iterator[Rank]:
    """The `rank` argument of `evaluate` for ranking with workers."""
    with store_of(run) as store, connected(cluster, progress=False):

        def rank(ranker: Ranker, protocol: str, top: int) -> Ranking:
            some = shards(store, cluster.workers)
            wanted = {
                "part": ranker.queries.part,
                "protocol": protocol,
                "top": top,
                "seed": ranker.seed,
                "memory": memory,
            }
            drawn = [_of_shard(ranker, each, protocol) for each in some]
            arguments = list(zip(some, drawn, strict=True))
            found = map_shards("rank", arguments, run, store, cluster, wanted)
            return _together([each for each in found if each is not None], ranker, protocol)

        yield rank


def _of_shard(ranker: Ranker, users: Shard, protocol: str) -> Candidates | None:
    """The frozen negatives of some users, numbered from 0; none for full ranking."""
    if protocol == "full":
        return None
    frozen = ranker.frozen
    low, high = np.searchsorted(frozen.users, [users.first, users.last])
    return Candidates(frozen.users[low:high] - users.first, frozen.negatives[low:high])


def _together(parts: list[tuple[IndexArray, IndexArray, Lists]], ranker: Ranker, protocol: str) -> Ranking:
    """All shards' counts and lists in the order of the queries."""
    queries = ranker.queries
    users, counts, lists = (np.concatenate(part) for part in zip(*parts, strict=True))
    where = np.zeros(ranker.split.n_users, np.int64)
    where[queries.users] = np.arange(len(queries))
    order = np.argsort(where[users], kind="stable")
    columns = dict(zip(_COUNTS, counts[order].T, strict=True))
    ranks = Ranks(queries.starts, **columns, negatives=ranker.candidates(protocol) - queries.held_out)
    return Ranking(ranks, lists[order[queries.starts[:-1]]] if lists.shape[1] else None)
