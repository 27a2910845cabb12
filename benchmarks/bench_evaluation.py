"""Full ranking with metrics at 10 and 50: hdccf against implicit's evaluation and ranx, at two sizes.

    python benchmarks/bench_evaluation.py            ML-1M's size, and 20,000 users × 50,000 items
    python benchmarks/bench_evaluation.py --quick    small, to see that it runs
    python benchmarks/bench_evaluation.py --json

Everybody ranks the same held-out items under the same vectors (d = 64) with the same training items left out,
and must find the same NDCG. The candidates take turns, and each one's best time counts.

- hdccf: every accuracy metric at both K, from the vectors on, ties included.
- hdccf evaluate: the same per user and per group, with top-50 lists and their coverage, Gini, popularity and
  novelty; and once more with the similarity of items in lists, which needs products of the training data.
- hdccf from lists: the same metrics, given the top-50 lists as arrays.
- implicit: `ranking_metrics_at_k` (precision, MAP, NDCG, AUC), from the vectors on; it takes one K a call.
- ranx: the same six metrics at both K, given the top-50 lists as arrays; and, given these as its own objects.
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as implicit asks: it brings its own threads

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from hdccf.data.interactions import Interactions
from hdccf.data.split import Split, leave_one_out
from hdccf.evaluation import Ranker, evaluate, metrics, ranking
from hdccf.evaluation.candidates import Queries

KS = (10, 50)
DIM = 64
SIZES = {"ML-1M": (6_040, 3_416, 165), "large": (20_000, 50_000, 50)}
QUICK_SIZES = {"quick": (1_000, 2_000, 40)}
RANX_METRICS = [
    f"{name}@{k}" for k in KS for name in ("hit_rate", "ndcg", "recall", "precision", "mrr", "map")
]


class Dot:
    """The model that everybody evaluates: a product of vectors."""

    def __init__(self, users: Tensor, items: Tensor) -> None:
        self.users, self.items = users, items
        self.n_users, self.n_items = len(users), len(items)

    def score_block(
        self, users: Int64[Tensor, " b"], items: Int64[Tensor, " c"] | None = None
    ) -> Float[Tensor, "b c"]:
        return self.users[users] @ (self.items if items is None else self.items[items]).T

    def score_rows(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b c"]) -> Float[Tensor, "b c"]:
        return torch.einsum("bd,bcd->bc", self.users[users], self.items[items])


def make(n_users: int, n_items: int, per_user: int) -> tuple[Split, Dot]:
    """Histories with a popularity that falls off slowly, and vectors that mean nothing."""
    rng = np.random.default_rng(0)
    shares = 1 / np.arange(10, n_items + 10) ** 0.7
    draws = n_users * (per_user + per_user // 3)
    data = Interactions.from_codes(
        rng.integers(0, n_users, draws),
        rng.choice(n_items, draws, p=shares / shares.sum()),
        user_ids=pl.Series(np.arange(n_users)),
        item_ids=pl.Series(np.arange(n_items)),
    )
    generator = torch.Generator().manual_seed(0)
    vectors = (torch.randn(size, DIM, generator=generator) for size in (n_users, n_items))
    return leave_one_out(data), Dot(*vectors)


def implicit_candidate(split: Split, model: Dot, k: int, threads: int) -> Callable[[], dict[str, float]]:
    from implicit.cpu.matrix_factorization_base import MatrixFactorizationBase
    from implicit.evaluation import ranking_metrics_at_k

    class Fixed(MatrixFactorizationBase):  # type: ignore[misc]
        def fit(self, user_items: object) -> None: ...

        def save(self, file: object) -> None: ...

    fixed = Fixed()
    fixed.user_factors, fixed.item_factors = model.users.numpy(), model.items.numpy()
    taken = _for_implicit(sparse.csr_array(split.train.matrix + split.validation.matrix))
    wanted = _for_implicit(split.test.matrix)

    def run() -> dict[str, float]:
        found: dict[str, float] = ranking_metrics_at_k(
            fixed, taken, wanted, K=k, show_progress=False, num_threads=threads
        )
        return found

    return run


def _for_implicit(array: sparse.csr_array) -> sparse.csr_matrix:
    parts = (array.data, array.indices.astype(np.int32), array.indptr.astype(np.int32))
    return sparse.csr_matrix(parts, shape=array.shape)


def ranx_candidate(
    split: Split, lists: NDArray[np.int32], users: NDArray[np.int64]
) -> tuple[Callable[[], dict[str, float]], Callable[[], dict[str, float]]]:
    """From lists as arrays, and from what ranx has made of them."""
    from ranx import Qrels, Run
    from ranx import evaluate as ranx_evaluate

    held_out = split.test.by_user
    scores = [float(score) for score in range(KS[-1], 0, -1)]

    def prepare() -> tuple[Any, Any]:
        wanted = {str(user): {str(item): 1 for item in held_out.of(user)} for user in users}
        given = {
            str(user): dict(zip(map(str, row), scores, strict=True))
            for user, row in zip(users, lists.tolist(), strict=True)
        }
        return Qrels(wanted), Run(given)

    def evaluate_prepared(qrels: Any, run: Any) -> dict[str, float]:
        found: dict[str, float] = ranx_evaluate(qrels, run, RANX_METRICS)
        return found

    prepared = prepare()
    return (lambda: evaluate_prepared(*prepare())), (lambda: evaluate_prepared(*prepared))


def best_times(candidates: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Seconds of each, taking turns after a warm-up."""
    best = dict.fromkeys(candidates, float("inf"))
    for turn in range(repeats + 1):
        for name, run in candidates.items():
            begin = time.perf_counter()
            run()
            if turn:
                best[name] = min(best[name], time.perf_counter() - begin)
    return best


@contextmanager
def stopwatch(model: Dot) -> Iterator[dict[str, float]]:
    """Adds up the time inside the score product, and inside the parts of the selection.

    These are leaving out what a user has, counting what is above the held-out items, and picking lists.
    """
    spent = dict.fromkeys(("product", "leaving out", "ranking", "lists"), 0.0)

    def timed(function: Callable[..., Any], key: str) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                spent[key] += time.perf_counter() - begin

        return run

    @contextmanager
    def timed_masked(*arguments: Any) -> Iterator[None]:
        block = masked(*arguments)
        timed(block.__enter__, "leaving out")()
        try:
            yield
        finally:
            timed(block.__exit__, "leaving out")(None, None, None)

    masked = ranking._masked
    replaced: dict[tuple[Any, str], Any] = {
        (ranking, "_masked"): timed_masked,
        (ranking, "rank_counts"): timed(ranking.rank_counts, "ranking"),
        (ranking, "top_items"): timed(vars(ranking)["top_items"], "lists"),
        (Queries, "excluded_cells"): timed(Queries.excluded_cells, "leaving out"),
        (Dot, "score_block"): timed(Dot.score_block, "product"),
    }
    originals = {(owner, name): vars(owner)[name] for owner, name in replaced}
    for (owner, name), function in replaced.items():
        setattr(owner, name, function)
    try:
        yield spent
    finally:
        for (owner, name), function in originals.items():
            setattr(owner, name, function)


def shares(run: Callable[[], Any], model: Dot, repeats: int) -> dict[str, float]:
    """Of the fastest of several runs: which shares of its time the parts took."""
    fastest, found = float("inf"), {}
    for _ in range(repeats):
        with stopwatch(model) as spent:
            begin = time.perf_counter()
            run()
            seconds = time.perf_counter() - begin
        if seconds < fastest:
            fastest, found = seconds, {key: value / seconds for key, value in spent.items()}
    return found | {"together": sum(found.values())}


def bench(size: tuple[int, int, int], repeats: int, threads: int) -> dict[str, Any]:
    split, model = make(*size)
    ranker = Ranker(split, "test", folder=None)
    lists = ranker.rank(model, "full", top=KS[-1]).lists
    assert lists is not None
    ranx_whole, ranx_prepared = ranx_candidate(split, lists, ranker.queries.users)
    names = metrics.names_at(KS)

    def accuracy() -> dict[str, float]:
        return Ranker(split, "test", folder=None).measure(model, names, ("full",))["full"]

    def everything(similarity_users: int = 0) -> dict[str, float]:
        found = evaluate(model, split, protocols=("full",), ks=KS, similarity_users=similarity_users)
        return found.values["full"]

    def from_lists() -> dict[str, float]:
        ranks = ranker.ranks_of_lists(lists)
        return {name: metrics.mean(metrics.per_user(ranks, name)) for name in names if name != "auc"}

    implicits = {k: implicit_candidate(split, model, k, threads) for k in KS}
    for k in KS:
        expected = accuracy()[f"ndcg@{k}"]
        others = (implicits[k]()["ndcg"], ranx_prepared()[f"ndcg@{k}"], from_lists()[f"ndcg@{k}"])
        if any(abs(other - expected) > 1e-5 for other in others):
            raise SystemExit(f"ndcg@{k} is {expected} here, and {others} with implicit, ranx and from lists")
    seconds = best_times(
        {
            "hdccf": accuracy,
            "hdccf evaluate": everything,
            "hdccf evaluate, similarity": lambda: everything(500),
            "implicit @10": implicits[10],
            "implicit @50": implicits[50],
            "hdccf from lists": from_lists,
            "ranx": ranx_whole,
            "ranx, its objects given": ranx_prepared,
        },
        repeats,
    )
    return {
        "users": split.n_users,
        "items": split.n_items,
        "training_pairs": len(split.train),
        "seconds": seconds,
        "ratios": {
            "implicit @50 / hdccf": seconds["implicit @50"] / seconds["hdccf"],
            "implicit @50 / hdccf evaluate": seconds["implicit @50"] / seconds["hdccf evaluate"],
            "ranx / hdccf from lists": seconds["ranx"] / seconds["hdccf from lists"],
            "ranx, its objects given / hdccf from lists": seconds["ranx, its objects given"]
            / seconds["hdccf from lists"],
            "ranx / hdccf": seconds["ranx"] / seconds["hdccf"],
        },
        "shares": {
            "hdccf": shares(accuracy, model, repeats),
            "hdccf evaluate": shares(everything, model, repeats),
        },
    }


def show(name: str, found: dict[str, Any]) -> None:
    print(
        f"\n{name}: {found['users']:,} users × {found['items']:,} items, "
        f"{found['training_pairs']:,} training pairs"
    )
    for candidate, seconds in found["seconds"].items():
        print(f"  {candidate:46}{1000 * seconds:10.1f} ms")
    for pair, ratio in found["ratios"].items():
        print(f"  {pair:46}{ratio:10.1f} ×")
    for candidate, parts in found["shares"].items():
        told = ", ".join(f"{key} {100 * share:.0f} %" for key, share in parts.items() if share)
        print(f"  {candidate} spends: {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a small size, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    parser.add_argument("--repeats", type=int, default=5, help="how often each is timed; the best counts")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads for everybody")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")  # of the rivals, about themselves
    sizes = QUICK_SIZES if arguments.quick else SIZES
    results = {}
    for name, size in sizes.items():
        results[name] = bench(size, arguments.repeats, arguments.threads)
        show(name, results[name])
    if arguments.json:
        print(json.dumps({"threads": arguments.threads, "sizes": results}))


if __name__ == "__main__":
    main()
