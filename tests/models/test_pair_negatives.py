"""Every source of negatives with every kind of model over pairs: what it draws, and that training goes on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from graphs import random_interactions, small_split
from hdccf.config import FitOptions, Settings
from hdccf.data.batches import PairBatch
from hdccf.data.graph import Graph
from hdccf.models import MODELS
from hdccf.models.factorization import BPR, PMF, SSM
from hdccf.models.negatives import Draws, NegativeSource, Request
from hdccf.models.pairs import SOURCES, PairModel
from hdccf.models.settings import PairSettings
from hdccf.recommend.run_folder import RunFolder
from hdccf.training.fit import fit, resume
from training import assert_same_runs, cut_off_after

LEARNING = ("irgan", "sd-gar")
TRAIN = random_interactions(1, n_users=12, n_items=9, full=False)
MASK = torch.from_numpy(TRAIN.matrix.toarray() > 0)


def a_source(name: str, **values: Any) -> NegativeSource:
    return SOURCES[name](PairSettings(**values), Graph.of(TRAIN), torch.Generator().manual_seed(0))


def drawn_by(source: NegativeSource, users: list[int], size: int, scores: Tensor | None = None) -> Draws:
    known = torch.zeros(MASK.shape) if scores is None else scores
    chosen = torch.tensor(users)
    items = MASK[chosen].byte().argmax(1)

    def no_scorer() -> Any:
        raise AssertionError("nothing is solved here")

    request = Request(chosen, items, size, lambda u, i: known[u.unsqueeze(1), i], no_scorer)
    return source.draw(request, torch.Generator().manual_seed(1))


def quick(kind: type[Settings], sampler: str) -> Settings:
    values = {"sampler": sampler, "epochs": 2, "batch_size": 64, "embedding_dim": 4, "negatives": 3}
    return kind(**values, evaluate_every=1, learning_rate=0.02)


@pytest.mark.parametrize("sampler", sorted(SOURCES))
@pytest.mark.parametrize("kind", [BPR, SSM, PMF])
def test_every_model_trains_with_every_source(kind: type[Settings], sampler: str, tmp_path: Path) -> None:
    fitted = fit(small_split(), quick(kind, sampler), out=tmp_path / "run")
    assert fitted.score_block(torch.arange(40)).isfinite().all()
    records = RunFolder.open(tmp_path / "run").metrics()
    assert [record["epoch"] for record in records] == [1, 2]
    assert all(np.isfinite(record["loss"]) for record in records)
    assert isinstance(fitted.model, PairModel)
    assert set(fitted.model.groups) == ({"net", "generator"} if sampler == "irgan" else {"net"})


@pytest.mark.parametrize("sampler", sorted(SOURCES))
def test_no_training_pair_is_ever_a_negative(sampler: str) -> None:
    source = a_source(sampler)
    assert isinstance(source, NegativeSource)
    draws = drawn_by(source, list(range(11)), 300)
    assert draws.items.shape == (11, 300)
    observed = MASK[torch.arange(11)[:, None], draws.items]
    valid = torch.ones_like(observed) if draws.valid is None else draws.valid
    assert not (observed & valid).any()
    assert (valid | observed).all()  # and nothing else is left out
    assert draws.log_chance is None or draws.log_chance.isfinite().all()


@pytest.mark.parametrize("sampler", sorted(SOURCES))
def test_drawing_changes_nothing_and_follows_its_generator(sampler: str) -> None:
    source = a_source(sampler)
    assert isinstance(source, torch.nn.Module)
    before = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    first, second = (drawn_by(source, [2, 5, 7], 20).items for _ in range(2))
    assert first.equal(second)
    assert all(tensor.equal(source.state_dict()[name]) for name, tensor in before.items())


@pytest.mark.parametrize("sampler", LEARNING)
def test_what_learns_is_resumed_bit_for_bit(
    sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off between the model's step and its generator's, in an epoch's middle and at its end."""
    split, settings = small_split(), quick(BPR, sampler)
    fit(split, settings, out=tmp_path / "whole")
    for steps in (1, 2, 5, 7):
        out = tmp_path / str(steps)
        with cut_off_after(steps, monkeypatch):
            fit(split, settings, out=out, options=FitOptions(checkpoint_minutes=0))
        resume(out)
        assert_same_runs(tmp_path / "whole", out)


@pytest.mark.parametrize("name", LEARNING)
def test_the_models_themselves_are_resumed_across_their_phases(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IRGAN's second epoch is rewarded, SD-GAR is solved again in its second."""
    phase = {"warm_epochs": 1} if name == "irgan" else {"update_every": 1, "components": 4}
    settings = MODELS[name].settings(batch_size=64, embedding_dim=4, epochs=3, evaluate_every=1, **phase)
    fit(small_split(), settings, out=tmp_path / "whole")
    for steps in (3, 9):
        out = tmp_path / str(steps)
        with cut_off_after(steps, monkeypatch):
            fit(small_split(), settings, out=out, options=FitOptions(checkpoint_minutes=0))
        resume(out)
        assert_same_runs(tmp_path / "whole", out)


def chisquare(counts: Tensor, expected: Tensor) -> float:
    scaled = expected.double() * counts.sum() / expected.sum()
    return float(stats.chisquare(counts.double().numpy(), scaled.numpy(), sum_check=False).pvalue)


@pytest.mark.parametrize("power", [0.0, 0.75, 2.0])
def test_popularity_draws_in_proportion_to_a_power_of_the_degree(power: float) -> None:
    draws = drawn_by(a_source("popularity", popularity_power=power), [3, 8], 12_000)
    weights = MASK.sum(0).double() ** power
    for row, user in enumerate((3, 8)):
        free = ~MASK[user]
        counts = torch.bincount(draws.items[row], minlength=9)[free]
        assert chisquare(counts, weights[free]) > 0.001
        assert chisquare(counts, weights[free] ** 0.5 if power else MASK.sum(0)[free]) < 1e-6
    assert draws.log_chance is not None
    torch.testing.assert_close(draws.log_chance.exp(), (weights / weights.mean())[draws.items].float())


def test_uniform_draws_all_alike() -> None:
    draws = drawn_by(a_source("uniform"), [3, 8], 12_000)
    assert draws.log_chance is None
    for row, user in enumerate((3, 8)):
        free = ~MASK[user]
        counts = torch.bincount(draws.items[row], minlength=9)[free]
        assert chisquare(counts, torch.ones(len(counts))) > 0.001
        assert chisquare(counts, MASK.sum(0)[free]) < 1e-6


def test_in_batch_takes_the_others_items_and_masks_what_was_had() -> None:
    source = a_source("in-batch")
    users, items = torch.tensor([1, 4, 6, 7]), torch.tensor([2, 0, 5, 8])
    request = Request(users, items, 400, lambda u, i: torch.zeros(i.shape), lambda: None)  # type: ignore[arg-type,return-value]
    draws = source.draw(request, torch.Generator().manual_seed(0))
    assert draws.valid is not None
    for row, (user, item) in enumerate(zip(users.tolist(), items.tolist(), strict=True)):
        assert set(draws.items[row].tolist()) == set(items.tolist()) - {item}
        assert draws.valid[row].equal(~MASK[user][draws.items[row]])
    assert source.least_batch == 2


def test_dynamic_takes_the_best_scored_candidate() -> None:
    scores = torch.randn(MASK.shape, generator=torch.Generator().manual_seed(0))
    best = scores.masked_fill(MASK, -torch.inf).argmax(1)
    users = list(range(11))
    of_many = drawn_by(a_source("dynamic", candidates=400), users, 3, scores).items
    assert of_many.equal(best[:11, None].expand(-1, 3))
    # One candidate is uniform; a few lie between.
    draws = [drawn_by(a_source("dynamic", candidates=n), users, 500, scores).items for n in (1, 3, 9)]
    means = [float(scores[:11].gather(1, items).mean()) for items in draws]
    assert means[0] < means[1] < means[2]


def test_a_source_that_costs_by_the_user_gets_whole_users() -> None:
    model = MODELS["bpr"].build(quick(BPR, "irgan"), small_split().train, torch.Generator().manual_seed(0))
    seen: list[int] = []
    for batch in model.batches(torch.Generator().manual_seed(0)):
        assert isinstance(batch, PairBatch)
        seen += set(batch.users.tolist())
    assert len(seen) == len(set(seen)) == 40
