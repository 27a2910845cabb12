"""The popularity dial and the item–item filter: literal formulas, the choice on validation, interfaces."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import hdccf
from command_line import call
from graphs import interactions, random_interactions, small_split
from hdccf.config import EvaluationOptions, FitOptions, Settings
from hdccf.data.interactions import Interactions
from hdccf.errors import ConfigError, RunError
from hdccf.evaluation.ranking import Ranker
from hdccf.models import MODELS
from hdccf.models import calibration as calibrations
from hdccf.models.base import VectorScorer
from hdccf.models.calibration import CalibratedScorer, Calibration, ItemFilter
from hdccf.models.factorization import SSM
from hdccf.recommend.candidates import Index, Wanted, exact_best
from hdccf.recommend.dial import popularity_curve
from hdccf.recommend.explain import surrogate_for
from hdccf.recommend.recommender import Recommender, load_run
from hdccf.recommend.run_folder import RunFolder
from hdccf.similarity import Dot, Vectors
from hdccf.training.calibrate import Calibrator
from hdccf.training.fit import fit, resume
from training import quick

Matrix = NDArray[np.float64]


def literal_weights(train: Interactions) -> Matrix:
    """The filter's weights, pair by pair in float64."""
    n, timed = train.n_items, train.times is not None
    counts = np.zeros((n, n))
    for user in range(train.n_users):
        history = train.by_user.of(user)
        for a, first in enumerate(history):
            for b, second in enumerate(history):
                if a == b or (timed and abs(a - b) > 5):
                    continue
                near = 0.5 ** ((abs(a - b) - 1) / 2) if timed else 1.0
                counts[first, second] += near / (len(history) ** 0.5 if timed else len(history))
    degrees = np.maximum(train.by_item.degrees, 1).astype(float)
    return degrees[:, None] ** -0.8 * counts * degrees**-0.2


def literal_scores(train: Interactions, f: Matrix, calibration: Calibration) -> Matrix:
    """f + w·s·g − γ·t·log freq, user by user in float64."""
    weights, timed = literal_weights(train), train.times is not None
    found = f.copy()
    for user in range(train.n_users):
        history = train.by_user.of(user)
        g = np.zeros(train.n_items)
        for place, item in enumerate(history):
            g += (0.5 ** ((len(history) - 1 - place) / 3) if timed else 1.0) * weights[item]
        if g.any():
            g /= np.sqrt((g**2).mean())
        found[user] += calibration.filter_weight * calibration.deviation * g
    frequency = np.log(np.maximum(train.by_item.degrees, 1))
    return found - calibration.popularity * calibration.popularity_unit * frequency


def raw(settings: Settings, seed: int = 0) -> Recommender:
    return fit(small_split(), settings, seed=seed, options=FitOptions(calibrate=False))


@pytest.mark.parametrize("timed", [True, False])
def test_scores_are_the_formula(timed: bool) -> None:
    train = random_interactions(3, n_users=12, n_items=15, timed=timed)
    f = torch.randn(12, 15, generator=torch.Generator().manual_seed(1))
    inner = VectorScorer(Dot(), *(Vectors(x, x) for x in (f, torch.eye(15))))
    neutral = Calibration.neutral(hdccf.HDCCF(), inner, train)
    assert neutral.popularity_unit == hdccf.HDCCF().temperature
    assert neutral.deviation == pytest.approx(f.double().std(1, correction=0).mean().item(), rel=1e-6)
    item_filter = ItemFilter.of(train)
    np.testing.assert_allclose(item_filter.weights.toarray(), literal_weights(train), rtol=1e-5)
    one = replace(neutral, popularity=-0.7, filter_weight=0.4, item_filter=item_filter)
    scorer = one.apply(inner, train)
    expected = literal_scores(train, f.double().numpy(), one)
    users, items = torch.arange(12), torch.tensor([4, 0, 11])
    np.testing.assert_allclose(scorer.score_block(users), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scorer.score_block(users, items), expected[:, items], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        scorer.score_rows(users, items.expand(12, -1)), expected[:, items], rtol=1e-4, atol=1e-5
    )
    assert neutral.apply(inner, train) is inner


def test_a_user_whose_items_occur_with_no_others_has_the_models_own_scores() -> None:
    pairs = [(user, item) for user in range(30) for item in ((user * 7) % 40, (user * 3 + 1) % 40)]
    train = interactions([*pairs, (30, 40)])  # item 40 is all that user 30 has
    f = torch.randn(31, 41, generator=torch.Generator().manual_seed(1))
    inner = VectorScorer(Dot(), *(Vectors(x, x) for x in (f, torch.eye(41))))
    one = replace(Calibration.neutral(hdccf.HDCCF(), inner, train), filter_weight=5.0)
    scores = replace(one, item_filter=ItemFilter.of(train)).apply(inner, train).score_block(torch.arange(31))
    assert scores.isfinite().all()
    torch.testing.assert_close(scores[30], f[30])
    assert not torch.allclose(scores[0], f[0])


def test_blocks_of_rows_give_the_same_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    train = random_interactions(3, n_users=12, n_items=15, timed=False)
    whole = ItemFilter.of(train).weights.toarray()
    monkeypatch.setattr(calibrations, "_ENTRIES_AT_ONCE", 60)
    np.testing.assert_allclose(ItemFilter.of(train).weights.toarray(), whole, rtol=1e-6)


def test_a_row_keeps_its_largest_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    train = random_interactions(3, n_users=12, n_items=15)
    whole = ItemFilter.of(train).weights.toarray()
    monkeypatch.setattr(calibrations, "NEIGHBOURS", 2)
    kept = ItemFilter.of(train).weights.toarray()
    for full, few in zip(whole, kept, strict=True):
        np.testing.assert_allclose(np.sort(few)[-2:], np.sort(full)[-2:], rtol=1e-6)
        assert np.count_nonzero(few) <= 2


def test_validation_chooses_and_test_is_not_looked_at() -> None:
    fitted = raw(quick("history", epochs=2, calibrate="full"))
    split = fitted.split
    found = Calibrator(split, "full:ndcg@10")(fitted.model)
    hidden = replace(split, test=split.test.subset(np.zeros(len(split.test), bool)))
    blind = Calibrator(hidden, "full:ndcg@10")(fitted.model)
    assert (found.popularity, found.filter_weight) == (blind.popularity, blind.filter_weight)
    # The test is two events after a training history, so half of the value is without the last of them.
    train, degrees = split.train, split.train.by_user.degrees
    places = [np.flatnonzero(train.users == user)[-1] for user in np.flatnonzero(degrees > 1)]
    earlier = train.subset(~np.isin(np.arange(len(train)), places))
    assert len(earlier) < len(train)
    values = []
    for events in (train, earlier):
        scorer = found.apply(fitted.model.users_from(events), events)
        values.append(Ranker(split, "validation").measure(scorer, ("ndcg@10",), ("full",))["full"]["ndcg@10"])
    assert values[0] != values[1]
    assert np.mean(values) == pytest.approx(found.facts["after"])
    assert found.facts["after"] >= found.facts["before"]


def test_popularity_alone_is_found_where_it_is_all_there_is() -> None:
    """Scores of chance, in a world where everybody's last item is one that most have: γ must be negative."""
    rng = np.random.default_rng(0)
    pairs = [(user, int(item)) for user in range(60) for item in rng.permutation(8)[:5]]
    pairs += [(user, 8 + (user * 7 + j) % 22) for user in range(60) for j in range(2)]
    left = [[item for item in range(8) if (user, item) not in pairs] for user in range(60)]
    pairs += [(user, int(rng.permutation(items)[0])) for user, items in enumerate(left)]
    pairs += [(user, 29 - user % 20) for user in range(60) if (user, 29 - user % 20) not in pairs]
    split = hdccf.leave_one_out(interactions(pairs, times=np.arange(len(pairs))))
    found = Calibrator(split, "full:ndcg@10")(fit(split, MODELS["random"].settings()).model)
    assert found.popularity < 0
    assert found.item_filter is None
    assert found.popularity_unit == found.deviation


def test_a_gain_within_the_standard_error_changes_nothing() -> None:
    split = small_split()
    found = Calibrator(split, "full:ndcg@10")(fit(split, MODELS["most-popular"].settings()).model)
    assert found.popularity == 0  # the order of the most popular is the same at any γ below its unit


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose calibration is not neutral, whatever validation of so few users says."""
    out = tmp_path_factory.mktemp("calibrated") / "run"
    fitted = fit(small_split(), quick("history", epochs=1, calibrate="full"), out=out)
    neutral = Calibration.neutral(fitted.settings, fitted.model.scorer(), fitted.split.train)
    made = replace(neutral, popularity=-0.5, filter_weight=0.3, item_filter=ItemFilter.of(fitted.split.train))
    folder = RunFolder.open(out)
    folder.save_tensors(folder.calibration, *made.to_parts())
    return out


def test_a_run_keeps_its_calibration(trained: Path) -> None:
    loaded = load_run(trained)
    assert (loaded.calibration.popularity, loaded.calibration.filter_weight) == (-0.5, 0.3)
    f = loaded.model.scorer().score_block(torch.arange(40)).double().numpy()
    expected = literal_scores(loaded.split.train, f, loaded.calibration)
    np.testing.assert_allclose(loaded.score_block(torch.arange(40)), expected, rtol=1e-4, atol=1e-5)
    again = resume(trained)
    assert again.calibration.popularity == -0.5


def test_damaged_calibration_is_refused(trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(trained, copy)
    file = copy / "calibration.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(RunError, match="damaged"):
        load_run(copy)


def test_what_is_off_stays_off(tmp_path: Path) -> None:
    off = fit(small_split(), quick(epochs=1), out=tmp_path / "off")
    assert not (tmp_path / "off" / "calibration.safetensors").exists()
    assert off.calibration.popularity == 0
    asked = fit(small_split(), SSM(epochs=1), out=tmp_path / "no", options=FitOptions(calibrate=False))
    assert not (tmp_path / "no" / "calibration.safetensors").exists()
    assert asked.calibration.popularity_unit == SSM().temperature
    assert MODELS["hdccf"].presets["paper"]["calibrate"] == "off"


def test_the_dial_moves_lists_towards_the_popular(trained: Path) -> None:
    loaded = load_run(trained)
    degrees = dict(zip(loaded.split.train.item_ids, loaded.split.train.by_item.degrees, strict=True))
    users = loaded.split.train.user_ids

    def mean_degree(dial: float) -> float:
        return float(
            np.mean([degrees[item] for item in loaded.recommend(users, k=5, popularity=dial)["item"]])
        )

    assert mean_degree(-3) > mean_degree(0) > mean_degree(3)
    chosen, same = loaded.recommend(users, k=5), loaded.recommend(users, k=5, popularity=-0.5)
    assert chosen.equals(same)
    new = loaded.recommend_for_items([[100, 101]], k=3, popularity=-3)
    assert not new.equals(loaded.recommend_for_items([[100, 101]], k=3, popularity=3))


def test_explanations_contain_the_filter_exactly(trained: Path) -> None:
    loaded = load_run(trained)
    scorer = loaded.scorer()
    surrogate = surrogate_for(loaded.model, scorer, loaded.events, 3, loaded.events)
    assert surrogate.shift is not None
    total = surrogate.parts(torch.arange(30)).sum(0) + surrogate.shift
    np.testing.assert_allclose(total, scorer.score_block(torch.tensor([3]))[0], rtol=1e-4, atol=1e-5)
    assert loaded.explain("u3").agreement == pytest.approx(1, abs=1e-3)
    assert "filter" in loaded.explain("u3").surrogate


def test_the_index_follows_the_dial_and_the_filter(trained: Path) -> None:
    pytest.importorskip("faiss")
    loaded = load_run(trained)
    for dial in (-1.0, 1.0):
        scorer = loaded.scorer(popularity=dial)
        assert isinstance(scorer, CalibratedScorer)
        index = Index(scorer, loaded.calibration.log_frequency)
        rows, wanted = torch.arange(40), Wanted(5, None, None)
        exact = torch.cat([best.items for best in exact_best(scorer, rows, wanted)])
        found = torch.cat([best.items for best in index.best(scorer, rows, wanted)])
        assert exact.equal(found)
        assert all(len(set(row)) == 5 for row in found.tolist())


def test_the_command_line_has_the_dial(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lists = {}
    for dial in ("-3", "3"):
        assert call("recommend", str(trained), "u1", "--popularity", dial, "--json") == 0
        lists[dial] = capsys.readouterr().out
    assert lists["-3"] != lists["3"]
    options = ("--k", "5", "--negatives", "6", "--json")
    assert call("evaluate", str(trained), "--popularity", "0.5", *options) == 0
    dialled = json.loads(capsys.readouterr().out)
    assert call("evaluate", str(trained), "--dial", *options) == 0
    curve = json.loads(capsys.readouterr().out)
    row = next(row for row in curve["rows"] if row["popularity"] == 0.5)
    assert row["full"] == pytest.approx(dialled["full"]["ndcg@5"])
    assert curve["chosen"] == -0.5
    assert (trained / "dial.png").stat().st_size > 1000
    assert call("evaluate", str(trained), "--dial", "--popularity", "0") == 2
    assert "exclude each other" in capsys.readouterr().err
    assert call("recommend", str(trained), "u1", "--popularity", "7") == 2


def test_the_curve_prints(trained: Path) -> None:
    curve = popularity_curve(load_run(trained), EvaluationOptions(ks=(5,), negatives=6))
    assert "−" not in curve.to_json()
    assert "-0.50 *" in str(curve)
    popularity = [row["mean_popularity"] for row in curve.rows]
    assert popularity[0] > popularity[-1]


def test_an_unknown_calibration_is_refused() -> None:
    with pytest.raises(ConfigError, match="calibrate"):
        hdccf.HDCCF(calibrate="some")  # type: ignore[arg-type]


def test_validation_by_popular_candidates_ranks_among_them() -> None:
    split = small_split()
    metric = "popular:ndcg@3"
    calibrator = Calibrator(split, metric)
    drawn = Ranker(split, "validation", weighting="popularity", folder=None)
    np.testing.assert_array_equal(calibrator.ranker.negatives, drawn.negatives)
    values = []
    settings = hdccf.HDCCF(epochs=1, evaluate_every=1, validation_metric=metric, calibrate="off")
    model = fit(split, settings, on_evaluation=lambda record: values.append(record["validation"][metric]))
    expected = hdccf.evaluate(
        model.model.scorer(),
        split,
        part="validation",
        protocols=("sampled",),
        ks=(3,),
        weighting="popularity",
    )
    assert values == [pytest.approx(expected.values["sampled"]["ndcg@3"])]
    with pytest.raises(ConfigError, match="popular"):
        Calibrator(split, "frequent:ndcg@3")
