"""Batch inference with Ray Data: `recommend --all` and `evaluate` over workers, a shard of users at a time.

A worker reads its users' pairs from the store and all vectors from Ray's object store: the results are those
of one process, and no worker holds all pairs.
"""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import ray.data
import torch

from hdccf import checkpoint
from hdccf.console import progress_bar
from hdccf.distributed.driver import DATA_PARALLEL, connected, resolved_settings, storage_of
from hdccf.distributed.store import Shard, Store, write_store
from hdccf.distributed.worker import shard_state
from hdccf.errors import ConfigError, RunError
from hdccf.evaluation.candidates import Candidates
from hdccf.evaluation.evaluation import Rank
from hdccf.evaluation.metrics import Ranks
from hdccf.evaluation.ranking import Ranker, Ranking
from hdccf.models import entry_named
from hdccf.recommend import export
from hdccf.recommend.recommender import Recommender
from hdccf.recommend.run_folder import Cluster, RunFolder

_SHARDS_A_WORKER = 4
"""At least; a worker that is done early takes another shard."""
_USERS_AT_ONCE = 1 << 16


def recommend_all(
    run: RunFolder, out: Path, cluster: Cluster, wanted: dict[str, Any], *, overwrite: bool, progress: bool
) -> int:
    """Writes the best items of every user to one Parquet file, as `Recommender.recommend_all`.

    `wanted` are arguments of `Recommender.recommend`; returns the number of users.
    """
    if out.suffix != ".parquet":
        raise ConfigError(f"{out} is not a Parquet file; give a name that ends in .parquet")
    with store_of(run) as store, connected(cluster, progress=False):
        some = shards(store, cluster.workers)
        with progress_bar("recommending", store.n_users, enabled=progress) as advance:

            def frames() -> Iterator[pl.DataFrame]:
                rows = [{"first": each.first, "last": each.last} for each in some]
                tables = map_shards(RecommendShard, rows, run, store, cluster, wanted)
                for users, table in zip(some, tables, strict=True):
                    yield pl.DataFrame(table)
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
    """The state of a Ray Data actor: builds the run's model for a shard of users at a time."""

    def __init__(self, store: str, about: dict[str, Any], weights: Any, wanted: dict[str, Any]) -> None:
        self.store, self.wanted, self.seed = Store(store), wanted, about["seed"]
        # In a list, as Ray would otherwise send the arrays with every actor. Copied, as the object store's
        # memory is read-only, which torch does not support.
        arrays = ray.get(weights[0])
        self.weights = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        self.entry = entry_named(about["model"])
        self.settings = self.entry.settings(**about["settings"])

    def recommender(self, users: Shard, *, own_ids: bool) -> Recommender:
        split = self.store.split_of(users, own_ids=own_ids)
        model: Any = self.entry.build(self.settings, split.train, torch.Generator())
        model.load_state_dict(shard_state(self.weights, model, users))
        return Recommender(model, self.settings, split, seed=self.seed)


class RecommendShard(ShardModel):
    """Top-k lists of a shard of users."""

    def __call__(self, batch: pa.Table) -> pa.Table:
        (row,) = batch.to_pylist()
        found = self.recommender(Shard(row["first"], row["last"]), own_ids=True)
        return found.recommend(found.split.train.user_ids, **self.wanted).to_arrow()


def map_shards(
    by: type[ShardModel],
    rows: list[dict[str, Any]],
    run: RunFolder,
    store: Store,
    cluster: Cluster,
    wanted: dict[str, Any],
) -> Iterator[pa.Table]:
    """Maps rows (a shard of users each) with a pool of Ray Data actors, in their order."""
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    about = {"model": run.model, "settings": resolved_settings(run), "seed": run.seed}
    tensors, _ = checkpoint.load(run.best)
    weights = ray.put({name: tensor.numpy() for name, tensor in tensors.items()})
    answers = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        by,
        batch_size=1,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=cluster.workers),
        fn_constructor_args=(store.path, about, [weights], wanted),
    )
    yield from answers.iter_batches(batch_size=None, batch_format="pyarrow")


@contextmanager
def store_of(run: RunFolder) -> Iterator[Store]:
    """The run's store; a temporary one where it was trained in one process."""
    if run.model not in DATA_PARALLEL:
        raise ConfigError(
            f"{run.model} answers in one process; leave out --workers, or take a run of one of "
            f"{list(DATA_PARALLEL)}"
        )
    if not run.best.exists():
        raise RunError(
            f"{run.path} has no trained weights yet; finish it with: hdccf train --resume {run.path}"
        )
    if run.options.cluster is not None:
        yield Store(f"{storage_of(run, run.options.cluster)}/store")
        return
    with tempfile.TemporaryDirectory(prefix="hdccf-store-") as folder:
        write_store(run.split(), folder, candidates=False)
        yield Store(folder)


_COUNTS = ("above", "tied", "relevant_above", "relevant_tied")


class RankShard(ShardModel):
    """The ranks of a shard's held-out items, and the users' top-k lists if requested."""

    def __call__(self, batch: pa.Table) -> pa.Table:
        (row,) = batch.to_pylist()
        users, asked = Shard(row["first"], row["last"]), self.wanted
        found = self.recommender(users, own_ids=False)
        if not len(found.split.part(asked["part"])):
            return _table(np.zeros(0, np.int64), {}, np.zeros((0, asked["top"]), np.int32))
        ranker = Ranker(
            found.split,
            asked["part"],
            seed=asked["seed"],
            memory=asked["memory"],
            drawn=lambda: _candidates(row, asked["negatives"]),
            first_user=users.first,
        )
        ranking = ranker.rank(found, asked["protocol"], top=asked["top"])
        queries, ranks = ranker.queries, ranking.ranks
        counts = {name: getattr(ranks, name) for name in _COUNTS}
        who = np.repeat(queries.users + users.first, queries.held_out)
        lists = ranking.lists if ranking.lists is not None else np.zeros((len(queries), 0), np.int32)
        return _table(who, counts, lists[np.repeat(np.arange(len(queries)), queries.held_out)])


def _table(users: Any, counts: dict[str, Any], lists: Any) -> pa.Table:
    columns = {name: counts.get(name, np.zeros(0, np.int64)) for name in _COUNTS}
    rows = pa.array([row.tobytes() for row in np.ascontiguousarray(lists, np.int32)], pa.binary())
    return pa.table({"user": users, **columns, "list": rows})


def _candidates(row: dict[str, Any], negatives: int) -> Candidates:
    users = np.frombuffer(row["users"], np.int64)
    return Candidates(users, np.frombuffer(row["negatives"], np.int32).reshape(len(users), negatives))


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
                "negatives": ranker.frozen.negatives.shape[1] if protocol == "sampled" else 0,
            }
            rows = [_row(each, ranker.frozen if protocol == "sampled" else None) for each in some]
            tables = list(map_shards(RankShard, rows, run, store, cluster, wanted))
            return _together(pa.concat_tables(tables), ranker, protocol, top)

        yield rank


def _row(users: Shard, frozen: Candidates | None) -> dict[str, Any]:
    row: dict[str, Any] = {"first": users.first, "last": users.last, "users": b"", "negatives": b""}
    if frozen is not None:
        low, high = np.searchsorted(frozen.users, [users.first, users.last])
        row["users"] = (frozen.users[low:high] - users.first).tobytes()
        row["negatives"] = np.ascontiguousarray(frozen.negatives[low:high]).tobytes()
    return row


def _together(table: pa.Table, ranker: Ranker, protocol: str, top: int) -> Ranking:
    """All workers' counts in the order of the queries."""
    queries = ranker.queries
    users = table["user"].to_numpy()
    where = np.zeros(ranker.split.n_users, np.int64)
    where[queries.users] = np.arange(len(queries))
    order = np.argsort(where[users], kind="stable")
    counts = {name: table[name].to_numpy()[order] for name in _COUNTS}
    negatives = ranker.candidates(protocol) - queries.held_out
    ranks = Ranks(queries.starts, **counts, negatives=negatives)
    if not top:
        return Ranking(ranks, None)
    first = table["list"].take(pa.array(order[queries.starts[:-1]]))
    return Ranking(ranks, np.frombuffer(b"".join(first.to_pylist()), np.int32).reshape(-1, top))
