"""Top-10 for one user over 3,000, 50,000 and 1 million items: exact, through an index, and re-scored.

    python benchmarks/bench_top_k.py             all sizes; the vectors of a million take minutes, once
    python benchmarks/bench_top_k.py --quick     an index of 20,000 only, within a minute
    python benchmarks/bench_top_k.py --json      also one JSON object of ratios on the last line

Exact: a user's best ten without the history, at dimension 64, beside `implicit`'s `recommend`
of the same factors and the same seen items, in turns, the shortest of each. These vectors are random, as no
time depends on their values. Through an index: vectors that ALS learnt from a synthetic world with ten
interactions an item, compared by dot product and by cosine, and our own of the same world, from the spectrum
and one epoch, by cosine (both kept in the cache). Twenty calls each in turn, as a service
that asks an index asks nothing else, and finds its codes in the processor's cache. Recall@10 counts what
scores at least as much as the tenth of the exact list, as rare items can have the same vector.
Re-scored: a modulated model trained for some epochs on the second largest such world; the index proposes by
the unmodulated cosine, f decides, and the recall is measured for several numbers of proposals.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does: a waiting thread sleeps
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as implicit asks for

import numpy as np
import torch
from scipy import sparse

import hdccf
from hdccf.config import Settings
from hdccf.data.download import cache_home
from hdccf.data.graph import Neighbours
from hdccf.data.interactions import Interactions
from hdccf.data.split import predefined_split
from hdccf.data.synthetic import synthetic_world
from hdccf.models.als import ALS
from hdccf.models.base import VectorScorer
from hdccf.models.hdccf.settings import HDCCF, PRESETS
from hdccf.recommend.candidates import Best, Index, Wanted, exact_best
from hdccf.similarity import Cosine, Dot, Modulated, Similarity, Vectors

CACHE = cache_home() / "bench"
SIZES = (3_000, 50_000, 1_000_000)
QUICK_INDEX = (20_000,)
POOLS = (10, 20, 50, 100, 200, 500, 1000, 2000)
DIM, K, USERS, SEEN = 64, 10, 100, 50
JUDGES = 300
"""Users of whom the recall is."""


def shortest(runs: dict[str, Callable[[], object]], seconds: float, each: int = 1) -> dict[str, float]:
    """In turns of `each` calls, so that all see the same machine."""
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, run in (named for named in runs.items() for _ in range(each)):
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


# -- exact ---------------------------------------------------------------------------------------------------


def exact(n_items: int, seconds: float) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    users, items = (torch.randn(n, DIM, generator=generator) for n in (USERS, n_items))
    rng = np.random.default_rng(0)
    seen = np.sort(np.stack([rng.choice(n_items, SEEN, replace=False) for _ in range(USERS)]), 1)
    had = Neighbours(torch.arange(USERS + 1) * SEEN, torch.from_numpy(seen).flatten(), n_items)
    wanted, one = Wanted(K, had, None), torch.tensor([7])
    modulated = Modulated(DIM, generator=generator)

    def ours(similarity: Similarity) -> Callable[[], object]:
        scorer = VectorScorer(similarity, Vectors(users, users), Vectors(items, items))
        return lambda: list(exact_best(scorer, one, wanted))

    took = shortest({"dot": ours(Dot()), "implicit": implicit_recommend(users, items, seen)}, seconds)
    slower = {"cosine": ours(Cosine()), "modulated": ours(modulated)}
    took |= shortest(slower, seconds)
    milliseconds = " ".join(f"{1e3 * took[name]:>10.3f}" for name in ("dot", "implicit", *slower))
    print(f"{n_items:>10,} {milliseconds} {took['dot'] / took['implicit']:>8.2f}", flush=True)
    return {f"exact_dot_{n_items}_of_implicit": took["dot"] / took["implicit"]}


def implicit_recommend(users: torch.Tensor, items: torch.Tensor, seen: Any) -> Callable[[], object]:
    from implicit.cpu.als import AlternatingLeastSquares

    model = AlternatingLeastSquares(factors=DIM)
    model.user_factors, model.item_factors = users.numpy(), items.numpy()
    rows = np.repeat(np.arange(len(seen)), seen.shape[1])
    ones = np.ones(seen.size, np.float32)
    had = sparse.csr_matrix((ones, (rows, seen.ravel())), shape=(len(users), len(items)))
    row = had[7]
    return lambda: model.recommend(7, row, N=K, filter_already_liked_items=True)


# -- an index of trained vectors -----------------------------------------------------------------------------


def world_of(n_items: int) -> Interactions:
    return synthetic_world(10 * n_items, n_users=n_items // 5, n_items=n_items).interactions


MODELS: dict[str, Settings] = {
    "als": ALS(embedding_dim=DIM, l2=1.0, alpha=10.0, iterations=4),
    "hdccf": HDCCF(
        **{
            **PRESETS["spectral"],
            "embedding_dim": DIM,
            "learning_rate": 0.03,
            "temperature": 0.2,
            "block_items": 1024,
            "sparse_updates": True,
            "epochs": 1,
            "evaluate_every": 1,
        }
    ),
}


def trained(model: str, n_items: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors of users and items; kept, as those of a million take some minutes."""
    file = CACHE / f"{model}-{n_items}.npz"
    if not file.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        scorer: Any = hdccf.fit(predefined_split(world_of(n_items)), MODELS[model]).model.scorer()
        np.savez(file, users=scorer.users.embedding.detach(), items=scorer.items.embedding.detach())
    kept = np.load(file)
    return torch.from_numpy(kept["users"]), torch.from_numpy(kept["items"])


COMPARED: tuple[tuple[str, str, Similarity], ...] = (
    ("als", "dot", Dot()),
    ("als", "cosine", Cosine()),
    ("hdccf", "ours", Cosine()),
)


def through_index(n_items: int, seconds: float) -> dict[str, float]:
    wanted = Wanted(K, None, None)
    found: dict[str, float] = {}
    for model, name, similarity in COMPARED:
        users, items = trained(model, n_items)
        alive = (users.abs().sum(1) > 0).nonzero().squeeze(1)
        rows = alive[torch.randperm(len(alive), generator=torch.Generator().manual_seed(1))[:JUDGES]]
        scorer = VectorScorer(similarity, Vectors(users, users), Vectors(items, items))
        index = Index(scorer)

        def exactly(some: torch.Tensor, scorer: VectorScorer = scorer) -> list[Best]:
            return list(exact_best(scorer, some, wanted))

        def quickly(some: torch.Tensor, scorer: VectorScorer = scorer, index: Index = index) -> list[Best]:
            return list(index.best(scorer, some, wanted))

        took = shortest({"exact": in_turn(exactly, rows), "index": in_turn(quickly, rows)}, seconds, each=20)
        recall, faster = _recall(exactly(rows), quickly(rows)), took["exact"] / took["index"]
        found |= {f"index_{name}_{n_items}_faster": faster, f"index_{name}_{n_items}_recall": recall}
        times = f"{1e3 * took['exact']:>10.3f} {1e3 * took['index']:>10.3f} {faster:>8.1f}"
        print(
            f"{n_items:>10,} {name:>8} {times} {recall:>8.3f} {index.proposals:>9} {index.seconds:>9.1f}",
            flush=True,
        )
    return found


def in_turn(answer: Callable[[torch.Tensor], object], rows: torch.Tensor) -> Callable[[], object]:
    """Another user at each call, as what was looked up for the last one is still in the caches."""
    turns = cycle(rows[i : i + 1] for i in range(len(rows)))
    return lambda: answer(next(turns))


def _recall(exactly: list[Best], quickly: list[Best]) -> float:
    """The share of the quick lists that belongs into the exact ones; rounding is no difference."""
    tenth = torch.cat([best.scores for best in exactly])[:, -1:]
    scores = torch.cat([best.scores for best in quickly])
    return float((scores >= tenth - 1e-5 * tenth.abs()).float().mean())


# -- the modulated score, re-scored --------------------------------------------------------------------------


def rescored(n_items: int, epochs: int, seconds: float) -> list[tuple[int, float, float]]:
    """Proposals, recall@10, and how many times faster than exact."""
    settings = HDCCF(
        user_vector="free",
        embedding_dim=32,
        similarity="modulated",
        temperature=0.15,
        user_side=0.0,
        block_items=1024,
        block_users=64,
        start="spectral",
        init_std=0.25,
        epochs=epochs,
        evaluate_every=epochs,
    )
    fitted = hdccf.fit(predefined_split(world_of(n_items)), settings)
    scorer: Any = fitted.model.scorer()
    index, wanted = Index(scorer), Wanted(K, None, None)
    rows = torch.randperm(scorer.n_users, generator=torch.Generator().manual_seed(0))[:USERS]
    exactly = list(exact_best(scorer, rows, wanted))
    curve = []
    for pool in POOLS:

        def propose(some: torch.Tensor, pool: int = pool) -> list[Best]:
            proposed = index.propose(scorer, some, pool).clamp_min(0)
            scores, places = scorer.score_rows(some, proposed).topk(K, dim=1)
            return [Best(some, proposed.gather(1, places), scores)]

        took = shortest(
            {
                "exact": lambda: list(exact_best(scorer, rows[:1], wanted)),
                "index": partial(propose, rows[:1]),
            },
            seconds,
        )
        curve.append((pool, _recall(exactly, propose(rows)), took["exact"] / took["index"]))
        print(f"{n_items:>10,} {pool:>9} {curve[-1][1]:>9.3f} {curve[-1][2]:>8.1f}", flush=True)
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="no index of a million")
    parser.add_argument("--json", action="store_true", help="one JSON object of ratios on the last line")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parts", nargs="+", choices=("exact", "index", "rescored"), default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    parts = options.parts or ("exact", "index", "rescored")
    seconds = 1.0 if options.quick else 3.0
    ratios: dict[str, float] = {}
    print(f"{options.threads} threads, load {os.getloadavg()[0]:.1f}; milliseconds")
    if "exact" in parts:
        print(f"{'items':>10} {'dot':>10} {'implicit':>10} {'cosine':>10} {'modulated':>10} {'ratio':>8}")
        for n_items in SIZES:
            ratios |= exact(n_items, seconds)
    if "index" in parts:
        columns = f"{'exact':>10} {'index':>10} {'faster':>8} {'recall':>8} {'proposals':>9} {'built in':>9}"
        print(f"{'items':>10} {'':>8} {columns}")
        for n_items in QUICK_INDEX if options.quick else SIZES:
            ratios |= through_index(n_items, seconds)
    if "rescored" in parts:
        print(f"{'items':>10} {'proposals':>9} {'recall@10':>9} {'faster':>8}")
        n_items, epochs = (SIZES[0], 20) if options.quick else (SIZES[1], 4)
        curve = rescored(n_items, epochs, seconds / 4)
        ratios |= {f"rescored_{pool}_recall": recall for pool, recall, _ in curve}
    if options.json:
        print(json.dumps({name: round(ratio, 3) for name, ratio in ratios.items()}))


if __name__ == "__main__":
    main()
