"""How good a folded-in user is beside a trained one: users are held out of training, fold by fold.

    python benchmarks/fold_in.py --dataset ml-100k --preset time-blind

Every user is in one fold. For each fold a model is trained without its users and solves for them from their
training items; a model that was trained with everybody has the vectors to compare with. Both are asked for
the users' test items.
"""

import argparse
import time

import numpy as np
import torch

import hdccf
from hdccf.data.interactions import Interactions
from hdccf.data.split import Split
from hdccf.evaluation.ranking import Ranker
from hdccf.models import entry_named

PROTOCOLS = ("sampled", "full")


def without(split: Split, users: np.ndarray) -> Split:
    """The split with nothing of some users in it, under the same ids."""

    def rest(part: Interactions) -> Interactions:
        return part.subset(~np.isin(part.users, users))

    return Split(rest(split.train), rest(split.validation), rest(split.test), split.method, split.facts)


def only_tested(split: Split, users: np.ndarray) -> Split:
    return Split(
        split.train,
        split.validation,
        split.test.subset(np.isin(split.test.users, users)),
        split.method,
        split.facts,
    )


def seconds_alone(fitted: hdccf.Recommender, items: np.ndarray) -> float:
    """Of the processor, for one new user's list and its answer, whatever else the machine does."""
    had = fitted.split.train.item_ids.gather(items).to_list()
    started = time.process_time()
    fitted.recommend_for_items([had], k=10)
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--model", default="hdccf")
    parser.add_argument("--preset", default=None)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    split = hdccf.leave_one_out(hdccf.k_core(hdccf.load(given.dataset), users=5, items=5))
    entry = entry_named(given.model)
    settings = entry.settings(**entry.presets[given.preset] if given.preset else {})
    trained = hdccf.fit(split, settings, seed=given.seed)
    order = np.random.default_rng(given.seed).permutation(split.n_users)
    sums: dict[str, dict[str, float]] = {name: dict.fromkeys(PROTOCOLS, 0.0) for name in ("trained", "new")}
    seconds = 0.0
    for users in np.array_split(order, given.folds):
        fitted = hdccf.fit(without(split, users), settings, seed=given.seed)
        theirs = split.train.subset(np.isin(split.train.users, users))
        started = time.perf_counter()
        new = fitted.model.users_from(theirs)
        seconds += time.perf_counter() - started
        ranker = Ranker(only_tested(split, users), "test")
        for name, scorer in (("trained", trained.model.scorer()), ("new", new)):
            found = ranker.measure(scorer, ("ndcg@10",), PROTOCOLS)
            for protocol in PROTOCOLS:
                sums[name][protocol] += found[protocol]["ndcg@10"] * len(users) / split.n_users
    for protocol in PROTOCOLS:
        before, after = sums["trained"][protocol], sums["new"][protocol]
        print(f"{protocol} NDCG@10: trained {before:.4f}, folded in {after:.4f} ({after / before - 1:+.1%})")
    print(f"{1000 * seconds / split.n_users:.2f} ms a user in batches")
    alone = [seconds_alone(fitted, split.train.by_user.of(user)) for user in users[:100]]
    print(f"{1000 * np.median(alone):.1f} ms of processor time for one user alone, with their best items")


if __name__ == "__main__":
    main()
