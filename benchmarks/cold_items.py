"""Items without interactions: recall by their features on MovieLens 100K, and what it costs the others.

A tenth of the items loses all events. The rest is trained on, and the items file (genres, year, words of the
title) gives the cold items vectors. Each user with cold items in their events is asked for the best of the
cold items, and of all items. Most popular knows nothing of cold items: it is chance among them, and finds
none among all. With --joint, beside it a network that is trained with the model (DropoutNet: the id vector is
dropped at random), in this file only; compare it by the model's own scores, without dial and filter.

    python benchmarks/cold_items.py [--seeds 3] [--presets spectral hdccf] [--joint]
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

import hdccf
import hdccf.models as registry
from hdccf.config import build_settings
from hdccf.data.download import cache_home
from hdccf.data.interactions import Interactions
from hdccf.data.split import Split
from hdccf.models.base import VectorScorer
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.models.hdccf.settings import HDCCF
from hdccf.recommend.recommender import Recommender
from hdccf.similarity import Vectors, unit

K = 10
Numbers = NDArray[np.float64]


def items_file() -> pl.DataFrame:
    """What recbole's wheel has beside the events, each genre for itself."""
    hdccf.load("ml-100k")
    path = cache_home() / "ml-100k" / "ml-100k.item"
    frame = pl.read_csv(path, separator="\t", quote_char=None, infer_schema=False)
    frame.columns = ["id", "title", "year", "genres"]
    return frame.with_columns(
        pl.col("id").cast(pl.Int64),
        pl.col("genres").str.split(" "),
        decade=pl.col("year").str.slice(0, 3),
        released=pl.col("year").cast(pl.Float64, strict=False),
    )


class World:
    """The events with and without cold items, and who had which of these."""

    def __init__(self, seed: int) -> None:
        data = hdccf.load("ml-100k")
        cold = np.random.default_rng(seed).permutation(data.n_items)[: data.n_items // 10]
        is_cold = np.isin(np.arange(data.n_items), cold)
        self.cold_ids = data.item_ids.filter(pl.Series(is_cold))
        self.split: Split = hdccf.leave_one_out(data.subset(~is_cold[data.items]).compact())
        held: Interactions = data.subset(is_cold[data.items])
        self.users = [int(user) for user in np.flatnonzero(held.by_user.degrees)]
        self.liked = {
            held.user_ids[user]: set(held.item_ids.gather(held.by_user.of(user))) for user in self.users
        }


def recall(found: pl.DataFrame, liked: dict[Any, set[Any]]) -> float:
    lists = {user: set(rows["item"]) for (user,), rows in found.group_by("user")}
    return float(np.mean([len(own & lists.get(user, set())) / len(own) for user, own in liked.items()]))


def measure(name: str, model: Recommender, world: World, extra: dict[str, float]) -> dict[str, Any]:
    """Recall of cold items among themselves and among all, and the accuracy of the others beside them."""
    users = list(world.liked)
    calibration = replace(model.calibration, popularity=0.0, filter_weight=0.0)
    own = Recommender(model.model, model.settings, model.split, seed=0, calibration=calibration)
    among_cold = model.recommend(users, k=K, allow=world.cold_ids)
    among_all = model.recommend(users, k=50)
    shown = among_all.filter(pl.col("rank") <= K)["item"].is_in(world.cold_ids.implode()).mean()
    with_cold = hdccf.evaluate(model, model.split, protocols=("full",), ks=(K,), beyond_accuracy=False)
    row = {
        "model": name,
        "cold recall@10 among cold": recall(among_cold, world.liked),
        "by own scores": recall(own.recommend(users, k=K, allow=world.cold_ids), world.liked),
        "cold recall@50 among all": recall(among_all, world.liked),
        "cold share of top 10": shown,
        **extra,
        "warm NDCG@10 beside cold": with_cold.values["full"][f"ndcg@{K}"],
    }
    print(json.dumps({key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()}), flush=True)
    return row


def warm(model: Recommender) -> float:
    found = hdccf.evaluate(model, model.split, protocols=("full",), ks=(K,), beyond_accuracy=False)
    return found.values["full"][f"ndcg@{K}"]


# -- trained with the model ----------------------------------------------------------------------------------


class Joint(HDCCFModel):
    """HDCCF whose item vectors are id vectors, dropped at random, plus a network's of the features."""

    features: Tensor
    by_id: dict[Any, Tensor]
    hidden, dropped = 64, 0.5

    def __init__(self, settings: HDCCF, train: Interactions, generator: torch.Generator) -> None:
        super().__init__(settings, train, generator)
        known = [self.by_id[own] for own in train.item_ids]
        self.register_buffer("features", torch.stack(known), persistent=False)
        width = self.features.shape[1]
        self.first = nn.Parameter(torch.randn(width, self.hidden, generator=generator) * 3 / width**0.5)
        self.second = nn.Parameter(torch.zeros(self.hidden, settings.embedding_dim))

    def mapped(self, x: Tensor) -> Tensor:
        return functional.gelu(x @ self.first) @ self.second

    def item_vectors(self, nodes: Tensor | None, kept: Tensor | float) -> Vectors:
        own = self.items.of(nodes).embedding * kept
        found = own + self.mapped(self.features if nodes is None else self.features[nodes])
        return Vectors(found, found)

    def block_vectors(self, block: Any, generator: torch.Generator | None = None) -> tuple[Vectors, Vectors]:
        users, _ = super().block_vectors(block, generator)
        n = len(self.features) if block.columns is None else len(block.columns)
        kept = (torch.rand(n, 1, generator=generator) >= self.dropped).float() if generator else 1.0
        return users, self.item_vectors(block.columns, kept)

    def scorer(self) -> VectorScorer:
        return VectorScorer(self.user_item, self.all_users(), self.item_vectors(None, 1.0))


@contextmanager
def trained_jointly(features: dict[Any, Tensor]) -> Iterator[None]:
    real = registry.MODELS["hdccf"]
    Joint.by_id = features
    registry.MODELS["hdccf"] = registry.Entry(lambda: (HDCCF, Joint), real.summary)
    try:
        yield
    finally:
        registry.MODELS["hdccf"] = real


@torch.no_grad()
def measure_joint(name: str, settings: HDCCF, world: World, table: pl.DataFrame, seed: int) -> None:
    """Its scores against the same lists, by hand: it is no part of the package."""
    from hdccf.recommend.features import Column, _encoded

    columns = [Column.learn(table[each]) for each in table.columns[1:]]
    encoded = torch.from_numpy(_encoded(columns, table).toarray()).float()
    with trained_jointly(dict(zip(table["id"], encoded, strict=True))), torch.enable_grad():
        model = hdccf.fit(world.split, settings, seed=seed)
    trained = model.model
    assert isinstance(trained, Joint)
    cold = unit(trained.mapped(torch.stack([Joint.by_id[own] for own in world.cold_ids])))
    users = unit(model._trained.users.embedding)  # type: ignore[attr-defined]
    rows = torch.from_numpy(model.users.codes(list(world.liked)))
    best = (users[rows] @ cold.T).topk(K).indices.numpy()
    hits = [
        len(own & set(world.cold_ids.gather(found))) / len(own)
        for own, found in zip(world.liked.values(), best, strict=True)
    ]
    print(
        json.dumps(
            {
                "model": name,
                "by own scores": round(float(np.mean(hits)), 4),
                "warm NDCG@10": round(warm(model), 4),
            }
        ),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--presets", nargs="+", default=["spectral", "hdccf"])
    parser.add_argument("--joint", action="store_true", help="also a network trained with the model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = items_file()
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        world = World(seed)
        chance = K / len(world.cold_ids)
        print(f"seed {seed}: {len(world.cold_ids)} cold items, {len(world.liked)} users; chance {chance:.4f}")
        for preset in options.presets:
            settings = build_settings(HDCCF, registry.preset_named("hdccf", preset))
            model = hdccf.fit(world.split, settings, seed=seed)
            extra = {"warm NDCG@10": warm(model)}
            rows.append(measure(preset, model.with_features(table), world, extra))
            if options.joint:
                measure_joint(f"{preset}, trained with the model", settings, world, table, seed)  # type: ignore[arg-type]
    frame = pl.DataFrame(rows).group_by("model", maintain_order=True).mean()
    with pl.Config(tbl_cols=-1, tbl_width_chars=160, float_precision=4):
        print(frame)


if __name__ == "__main__":
    main()
