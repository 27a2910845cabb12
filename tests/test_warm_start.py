"""Starting from a run on data that has grown: known ids keep their vectors, and resuming stays exact."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from graphs import small_split
from hdccf import checkpoint
from hdccf.data.interactions import Interactions
from hdccf.data.split import Split, leave_one_out
from hdccf.errors import ConfigError, RunError
from hdccf.models import MODELS
from hdccf.recommend.recommender import Recommender
from hdccf.training.fit import fit, resume
from training import assert_same_runs, cut_off_after, quick


def grown() -> Split:
    """The same world with its users and items in another order, and three users and two items more."""
    small = small_split()
    n_users, n_items = small.n_users, small.n_items
    rng = np.random.default_rng(5)
    users, items = rng.permutation(n_users + 3), rng.permutation(n_items + 2)
    pairs = [(int(u), int(i)) for u, i in zip(small.train.users, small.train.items, strict=True)]
    pairs += [(n_users + k % 3, (7 * k) % n_items) for k in range(12)]
    pairs += [(k, n_items + k % 2) for k in range(8)]
    user_ids = np.array([f"u{user}" for user in range(n_users)] + ["new a", "new b", "new c"])
    item_ids = np.array([*range(100, 100 + n_items), 900, 901])
    data = Interactions.from_codes(
        users[[u for u, _ in pairs]],
        items[[i for _, i in pairs]],
        user_ids=pl.Series(user_ids[np.argsort(users)]),
        item_ids=pl.Series(item_ids[np.argsort(items)]),
        times=np.arange(len(pairs)) * 3_600_000_000,
    )
    return leave_one_out(data)


def vectors(fitted: Recommender, key: str, ids: pl.Series) -> dict[Any, torch.Tensor]:
    return dict(zip(ids, fitted.model.state_dict()[key], strict=True))


QUICK = {"epochs": 1, "embedding_dim": 4, "batch_size": 64, "learning_rate": 1e-9, "layers": 1}
TABLES = {
    "bpr": ("net.users.embedding", "net.items.embedding"),
    "hdccf": (None, "past.embedding"),
    "svdpp": ("net.user_biases.embedding", "net.histories.vectors.embedding"),
    "neumf": ("net.branches.mlp.users.embedding", "net.branches.gmf.items.embedding"),
    "enmf": ("users", "items"),
}


@pytest.mark.parametrize("name", sorted(TABLES))
def test_known_ids_keep_their_vectors_and_new_ones_start_fresh(name: str, tmp_path: Path) -> None:
    kind = MODELS[name].settings
    settings = kind(**{key: value for key, value in QUICK.items() if key in kind.model_fields})
    first = fit(small_split(), settings.changed(learning_rate=0.05), out=tmp_path / "old")
    split = grown()
    # Steps of nothing: what comes out is what training started from.
    second = fit(split, settings, init_from=tmp_path / "old", out=tmp_path / "new")
    for key, side in zip(TABLES[name], ("user_ids", "item_ids"), strict=True):
        if key is None:
            continue
        before = vectors(first, key, getattr(first.split.train, side))
        after = vectors(second, key, getattr(split.train, side))
        assert set(before) < set(after)
        for own, vector in before.items():
            torch.testing.assert_close(after[own], vector, rtol=1e-4, atol=1e-6)
    facts = json.loads((tmp_path / "new" / "run.json").read_text())["data"]["init_from"]
    assert facts == {"run": str(tmp_path / "old"), "users": 40, "items": 30, "new_users": 3, "new_items": 2}
    fresh = fit(split, settings)
    key = TABLES[name][1]
    assert key is not None
    new, untouched = (vectors(x, key, split.train.item_ids) for x in (second, fresh))
    torch.testing.assert_close(new[901], untouched[901], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(new[100], untouched[100], atol=1e-3)


def test_a_graph_has_users_and_items_in_one_table(tmp_path: Path) -> None:
    settings = MODELS["lightgcn"].settings(epochs=1, embedding_dim=4, layers=1, learning_rate=0.05)
    first = fit(small_split(), settings, out=tmp_path / "old")
    second = fit(grown(), settings.changed(learning_rate=1e-9), init_from=tmp_path / "old")
    old, new = (x.model.state_dict()["net.embedding"] for x in (first, second))
    item = second.split.n_users + int(second.items.codes([117])[0])
    torch.testing.assert_close(new[item], old[first.split.n_users + 17], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("cut", [0, 5])
def test_resuming_needs_the_first_run_no_more_and_ends_the_same(
    cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(small_split(), quick("block", epochs=1), out=tmp_path / "old", seed=3)
    settings = quick("block", epochs=3)
    fit(grown(), settings, out=tmp_path / "whole", init_from=tmp_path / "old")
    with cut_off_after(cut, monkeypatch):
        fit(grown(), settings, out=tmp_path / "cut", init_from=tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "gone")
    resume(tmp_path / "cut")
    assert_same_runs(tmp_path / "whole", tmp_path / "cut")


def test_one_stopped_before_its_first_checkpoint_starts_from_the_run_again(tmp_path: Path) -> None:
    fit(small_split(), quick("block", epochs=1), out=tmp_path / "old", seed=3)
    settings = quick("block", epochs=2)
    fit(grown(), settings, out=tmp_path / "whole", init_from=tmp_path / "old")
    expected = (tmp_path / "whole" / "best.safetensors").read_bytes()
    for name in ("checkpoint.safetensors", "best.safetensors", "result.json"):
        (tmp_path / "whole" / name).unlink()
    resume(tmp_path / "whole")
    assert (tmp_path / "whole" / "best.safetensors").read_bytes() == expected


def test_what_does_not_fit_is_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    fit(small_split(), quick("block", epochs=1), out=old)
    refused = {
        r"its items.embedding is 30×4, here it is 32×8; take the run's settings": quick(
            "block", embedding_dim=8
        ),
        r"trained with other settings: only one of the two has ": quick("history"),
        r"old is a run of hdccf, and cannot start bpr; take a run of bpr$": MODELS["bpr"].settings(),
        r"^ease is not trained step by step, so that it starts from nothing": MODELS["ease"].settings(),
    }
    for match, settings in refused.items():
        with pytest.raises(ConfigError, match=match):
            fit(grown(), settings, init_from=old, out=new)
        assert not new.exists()
    with pytest.raises(RunError, match="holds no run"):
        fit(grown(), quick("block"), init_from=tmp_path)
    (old / "best.safetensors").unlink()
    with pytest.raises(RunError, match=r"has no trained weights yet; finish it: hdccf train --resume "):
        fit(grown(), quick("block"), init_from=old)


def test_the_weights_of_a_similarity_come_along(tmp_path: Path) -> None:
    settings = quick("modulated", epochs=1)
    fit(small_split(), settings, out=tmp_path / "old")
    trained, _ = checkpoint.load(tmp_path / "old" / "best.safetensors")
    second = fit(grown(), settings.changed(learning_rate=1e-9), init_from=tmp_path / "old")
    key = "user_item.product_weight"
    torch.testing.assert_close(second.model.state_dict()[key], trained[key], rtol=1e-4, atol=1e-6)
