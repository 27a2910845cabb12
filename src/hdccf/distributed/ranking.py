"""`evaluate` spread over workers, through Ray Data: each ranks some users' held-out items among its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from hdccf.distributed.answering import Some, mapped, stored, stretches
from hdccf.distributed.driver import connected
from hdccf.distributed.store import Stretch
from hdccf.evaluation.candidates import Candidates
from hdccf.evaluation.evaluating import Rank
from hdccf.evaluation.metrics import Places
from hdccf.evaluation.ranking import Ranker, Ranking
from hdccf.recommend.run_folder import Cluster, RunFolder

_COUNTS = ("above", "tied", "relevant_above", "relevant_tied")


class RankingSome(Some):
    """The places of some users' held-out items, and their best items where lists are asked for."""

    def __call__(self, batch: pa.Table) -> pa.Table:
        (row,) = batch.to_pylist()
        users, asked = Stretch(row["first"], row["last"]), self.wanted
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
        questions, places = ranker.questions, ranking.places
        counts = {name: getattr(places, name) for name in _COUNTS}
        who = np.repeat(questions.users + users.first, questions.held_out)
        lists = ranking.lists if ranking.lists is not None else np.zeros((len(questions), 0), np.int32)
        return _table(who, counts, lists[np.repeat(np.arange(len(questions)), questions.held_out)])


def _table(users: Any, counts: dict[str, Any], lists: Any) -> pa.Table:
    columns = {name: counts.get(name, np.zeros(0, np.int64)) for name in _COUNTS}
    rows = pa.array([row.tobytes() for row in np.ascontiguousarray(lists, np.int32)], pa.binary())
    return pa.table({"user": users, **columns, "list": rows})


def _candidates(row: dict[str, Any], negatives: int) -> Candidates:
    users = np.frombuffer(row["users"], np.int64)
    return Candidates(users, np.frombuffer(row["negatives"], np.int32).reshape(len(users), negatives))


@contextmanager
def ranked_together(run: RunFolder, cluster: Cluster, memory: int) -> Iterator[Rank]:
    """What `evaluate` takes to rank with workers."""
    with stored(run) as store, connected(cluster, progress=False):

        def rank(ranker: Ranker, protocol: str, top: int) -> Ranking:
            some = stretches(store, cluster.workers)
            wanted = {
                "part": ranker.questions.part,
                "protocol": protocol,
                "top": top,
                "seed": ranker.seed,
                "memory": memory,
                "negatives": ranker.frozen.negatives.shape[1] if protocol == "sampled" else 0,
            }
            rows = [_row(each, ranker.frozen if protocol == "sampled" else None) for each in some]
            tables = list(mapped(RankingSome, rows, run, store, cluster, wanted))
            return _together(pa.concat_tables(tables), ranker, protocol, top)

        yield rank


def _row(users: Stretch, frozen: Candidates | None) -> dict[str, Any]:
    row: dict[str, Any] = {"first": users.first, "last": users.last, "users": b"", "negatives": b""}
    if frozen is not None:
        low, high = np.searchsorted(frozen.users, [users.first, users.last])
        row["users"] = (frozen.users[low:high] - users.first).tobytes()
        row["negatives"] = np.ascontiguousarray(frozen.negatives[low:high]).tobytes()
    return row


def _together(table: pa.Table, ranker: Ranker, protocol: str, top: int) -> Ranking:
    """Every worker's counts in the order of the questions: the users with the most held-out items first."""
    questions = ranker.questions
    users = table["user"].to_numpy()
    where = np.zeros(ranker.split.n_users, np.int64)
    where[questions.users] = np.arange(len(questions))
    order = np.argsort(where[users], kind="stable")
    counts = {name: table[name].to_numpy()[order] for name in _COUNTS}
    negatives = ranker.candidates(protocol) - questions.held_out
    places = Places(questions.starts, **counts, negatives=negatives)
    if not top:
        return Ranking(places, None)
    first = table["list"].take(pa.array(order[questions.starts[:-1]]))
    return Ranking(places, np.frombuffer(b"".join(first.to_pylist()), np.int32).reshape(-1, top))
