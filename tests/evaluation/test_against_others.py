"""The same numbers as ranx has, where they mean the same."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from ranking_oracles import Table, world

from hdccf.evaluation import Ranker, metrics

# What ranx calls what: HR, recall, precision, MRR, MAP and NDCG at K mean the same there.
RANX = {"hr": "hit_rate", **{name: name for name in ("recall", "precision", "mrr", "map", "ndcg")}}
KS = (1, 5, 10, 50)


@pytest.mark.parametrize("held_out", [(1, 1), (1, 12)])
@pytest.mark.parametrize("protocol", ["sampled", "full"])
def test_every_metric_equals_that_of_ranx(protocol: str, held_out: tuple[int, int]) -> None:
    split = world(80, 150, seed=7, held_out=held_out)
    # Different numbers everywhere, so that there is one order only.
    order = np.random.default_rng(0).permutation(80 * 150).reshape(80, 150)
    scores = torch.from_numpy(order).double()
    ranker = Ranker(split, "test", folder=None)
    ranks = ranker.rank(Table(scores), protocol).ranks
    wanted, given = {}, {}
    for row, user in enumerate(ranker.queries.users.tolist()):
        held_out_items = split.test.by_user.of(user).tolist()
        taken = {*split.train.by_user.of(user).tolist(), *split.validation.by_user.of(user).tolist()}
        candidates = [item for item in range(150) if item not in taken]
        if protocol == "sampled":
            candidates = [*held_out_items, *(item for item in ranker.negatives[row].tolist() if item >= 0)]
        wanted[f"u{user}"] = {f"i{item}": 1 for item in held_out_items}
        given[f"u{user}"] = {f"i{item}": float(scores[user, item]) for item in candidates}
    names = [f"{metric}@{k}" for metric in RANX for k in KS]
    theirs = _ranx(wanted, given, [f"{theirs}@{k}" for theirs in RANX.values() for k in KS])
    for name, their in zip(names, theirs, strict=True):
        assert metrics.mean(metrics.per_user(ranks, name)) == pytest.approx(their, abs=1e-6), name


def _ranx(wanted: object, given: object, names: list[str]) -> list[float]:
    """In a process of its own, read as Python: compiling ranx takes a minute, running it on this does not.

    Numba takes that choice when it is first imported, which in this process others may have done.
    """
    script = (
        "import json, sys; from ranx import Qrels, Run, evaluate; w, g, n = json.load(sys.stdin); "
        "print(json.dumps([float(x) for x in evaluate(Qrels(w), Run(g), n).values()]))"
    )
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        input=json.dumps([wanted, given, names]),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )
    values: list[float] = json.loads(answer.stdout.splitlines()[-1])
    return values
