"""Shapes and types of torch rooms are checked at every call in tests, and each worker keeps to one thread."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import install_import_hook

TORCH_ROOMS = [
    "hdccf.losses",
    "hdccf.models",
    "hdccf.recommend.candidates",
    "hdccf.recommend.explain",
    "hdccf.recommend.lens",
    "hdccf.recommend.recommender",
    "hdccf.recommend.similar",
    "hdccf.similarity",
    "hdccf.kernels.embedding",
    "hdccf.kernels.pairwise",
    "hdccf.data.batches",
    "hdccf.data.graph",
    "hdccf.data.samplers",
    "hdccf.data.weights",
    "hdccf.evaluation.ranking",
    "hdccf.training.warm_start",
]

# Before any test imports them: what is already loaded stays unchecked.
install_import_hook(TORCH_ROOMS, "checking.typechecker")

import torch  # noqa: E402

torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", type=Path, help="Folder for pictures of the page (make screenshots).")
    parser.addoption("--screenshots-run", type=Path, help="Run to show in them, of MovieLens 100K.")


@pytest.fixture(scope="session", autouse=True)
def _session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The same for fixtures of modules, which are made before a test has its own folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDCCF_CACHE", str(tmp_path_factory.mktemp("hdccf-cache")))
        yield


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test draws or fetches lands in its own folder, never in the user's cache."""
    monkeypatch.setenv("HDCCF_CACHE", str(tmp_path / "hdccf-cache"))


@pytest.fixture
def own_registries() -> Iterator[None]:
    """Models, losses and metrics that a test registers are gone after it."""
    from hdccf.evaluation import metrics
    from hdccf.losses.contrastive import PAIR_LOSSES
    from hdccf.models import MODELS

    registries: list[dict[str, Any]] = [MODELS, PAIR_LOSSES, metrics._FORMULAS]
    before = [dict(registry) for registry in registries]
    yield
    for registry, contents in zip(registries, before, strict=True):
        registry.clear()
        registry.update(contents)
