"""Every capability of every model: it works, or it refuses in one line that names a remedy."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphs import small_split
from hdccf.config import FitOptions
from hdccf.errors import ConfigError
from hdccf.models import MODELS
from hdccf.models.base import FOLD_IN_ITEMS, FOLD_IN_USERS
from hdccf.recommend.recommender import Recommender
from hdccf.training.fit import SplitValidator, fit
from hdccf.training.loop import Loop
from hdccf.training.state import CheckpointStore

QUICK: dict[str, Any] = {"epochs": 1, "embedding_dim": 8, "negatives": 4, "block_users": 16, "iterations": 2}

CAPABILITIES: dict[str, Callable[[Recommender, Path], Any]] = {
    "recommend": lambda known, path: known.recommend(known.split.train.user_ids.head(2), k=3),
    "recommend_for_items": lambda known, path: known.recommend_for_items([_items(known)], k=3),
    "users_for_new_items": lambda known, path: known.users_for_new_items([_users(known)], k=3),
    "similar_items": lambda known, path: known.similar_items(_items(known), k=3),
    "similar_users": lambda known, path: known.similar_users(_users(known), k=3),
    "score": lambda known, path: known.score(_users(known), _items(known)),
    "explain": lambda known, path: known.explain(_users(known)[0]),
    "explain_for_items": lambda known, path: known.explain_for_items(_items(known)),
    "export": lambda known, path: known.export(path / "vectors"),
    "recommend_all": lambda known, path: known.recommend_all(path / "all.parquet", k=3),
}
REFUSED = {
    "recommend_for_items": {"irgan", "neumf", "random", "sd-gar", "svdpp"},
    "explain_for_items": {"irgan", "neumf", "random", "sd-gar", "svdpp"},
    "users_for_new_items": {"chebycf", "ease", "irgan", "most-popular", "neumf", "random", "sd-gar", "svdpp"},
    "export": {"chebycf", "most-popular", "neumf", "random"},
}


def _users(known: Recommender) -> list[Any]:
    return known.split.train.user_ids.head(3).to_list()


def _items(known: Recommender) -> list[Any]:
    return known.split.train.item_ids.head(3).to_list()


@pytest.fixture(scope="module")
def fitted() -> Callable[[str], Recommender]:
    made: dict[str, Recommender] = {}

    def of(name: str) -> Recommender:
        if name not in made:
            kind = MODELS[name].settings
            made[name] = fit(
                small_split(), kind(**{k: v for k, v in QUICK.items() if k in kind.model_fields})
            )
        return made[name]

    return of


@pytest.mark.parametrize("capability", sorted(CAPABILITIES))
@pytest.mark.parametrize("name", sorted(MODELS))
def test_it_works_or_refuses_in_one_line(
    name: str, capability: str, fitted: Callable[[str], Recommender], tmp_path: Path
) -> None:
    known, ask = fitted(name), CAPABILITIES[capability]
    if name not in REFUSED.get(capability, set()):
        ask(known, tmp_path)
        return
    with pytest.raises(ConfigError) as refused:
        ask(known, tmp_path)
    assert "\n" not in str(refused.value)
    assert ";" in str(refused.value)  # what cannot be done; what to do


@pytest.mark.parametrize(
    ("listed", "capability"), [(FOLD_IN_USERS, "recommend_for_items"), (FOLD_IN_ITEMS, "users_for_new_items")]
)
def test_a_refusal_lists_the_models_that_can(listed: str, capability: str) -> None:
    assert set(listed.replace(" and ", ", ").split(", ")) == set(MODELS) - REFUSED[capability]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_training_capabilities_have_defaults(name: str, fitted: Callable[[str], Recommender]) -> None:
    model = fitted(name).model
    scores, observed = torch.zeros(30), torch.zeros(30, dtype=torch.bool)
    observed[0] = True
    shares = model.negative_shares(scores, observed)
    assert shares is None or float(shares.shares.sum()) == pytest.approx(1.0)
    assert model.modulation(torch.tensor([0]), torch.tensor([1])) is None  # HDCCF's default has none either
    batch = next(iter(model.batches(torch.Generator().manual_seed(0))), None)
    if batch is not None:
        assert model.item_negatives(batch) is None or name in ("hdccf", "sasrec", "ssm")


def test_opening_a_run_of_hdccf_imports_no_competitor(tmp_path: Path) -> None:
    fit(small_split(), MODELS["hdccf"].settings(epochs=1, embedding_dim=4), out=tmp_path / "run")
    program = f"""
import sys
import hdccf
hdccf.load_run({str(tmp_path / "run")!r}).recommend([{small_split().train.user_ids[0]!r}], k=1)
rest = "als chebycf ease enmf irgan sasrec sdgar factorization svdpp neumf lightgcn reference pairs".split()
loaded = [name for name in rest if f"hdccf.models.{{name}}" in sys.modules]
assert not loaded, loaded
assert not any(name.startswith("hdccf.training") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_default_step_passes_few_files_and_returns_to_none() -> None:
    """From the batch to the new weights: at most ten files, and none calls back into one that called it."""
    settings = MODELS["hdccf"].settings(embedding_dim=4)
    model = MODELS["hdccf"].build(settings, small_split().train, torch.Generator().manual_seed(0))
    (batch, *_) = model.batches(torch.Generator().manual_seed(0))
    loop = Loop(
        model,
        settings,
        SplitValidator(small_split(), settings),
        CheckpointStore(),
        seed=0,
        options=FitOptions(),
        device=torch.device("cpu"),
    )
    loop._step(batch, 0)  # what is cached is cached
    calls: set[tuple[str, str]] = set()

    def watch(frame: Any, event: str, _: Any) -> None:
        if event == "call" and _file(frame):
            caller = frame.f_back
            while caller is not None and not _file(caller):  # the type checker's wrappers stand between
                caller = caller.f_back
            calls.add(("" if caller is None else _file(caller), _file(frame)))

    sys.setprofile(watch)
    try:
        loop._step(batch, 1)
    finally:
        sys.setprofile(None)
    between = {(a, b) for a, b in calls if a and b and a != b}
    assert 8 <= len({file for pair in between for file in pair}) <= 10
    assert not [pair for pair in between if (pair[1], pair[0]) in between]


def _file(frame: Any) -> str:
    name = frame.f_code.co_filename
    return name if "/hdccf/" in name and "site-packages" not in name and "tests" not in name else ""
