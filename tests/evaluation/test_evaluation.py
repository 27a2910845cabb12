"""`evaluate` as a whole: what it reports, for whom, how it is kept, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from ranking_oracles import Dot, Table, popular, split_of, world
from rich.console import Console

import hdccf
from hdccf.data.split import Split
from hdccf.errors import EvaluationError
from hdccf.evaluation import Ranker, metrics
from hdccf.evaluation.evaluation import Evaluation


def scorer_of(split: Split, seed: int = 0) -> Dot:
    generator = torch.Generator().manual_seed(seed)
    return Dot(
        torch.randn(split.n_users, 4, generator=generator), torch.randn(split.n_items, 4, generator=generator)
    )


@pytest.fixture(scope="module")
def split() -> Split:
    return world(90, 120, seed=0, held_out=(0, 3), train=(3, 40))


@pytest.fixture
def evaluation(split: Split) -> Evaluation:
    return hdccf.evaluate(scorer_of(split), split, ks=(5, 20), negatives=30)


def test_values_are_means_of_the_per_user_frame(split: Split, evaluation: Evaluation) -> None:
    accuracy = metrics.names_at((5, 20))
    others = ("coverage", "gini", "popularity", "novelty", "similarity")
    beyond = [f"{name}@{k}" for k in (5, 20) for name in others]
    assert set(evaluation.values["sampled"]) == set(accuracy)
    assert set(evaluation.values["full"]) == {*accuracy, *beyond}
    for protocol, values in evaluation.values.items():
        for name, value in values.items():
            if not name.startswith(("coverage", "gini")):
                assert value == pytest.approx(evaluation.per_user[f"{protocol}/{name}"].mean()), name
    asked = sorted(set(split.test.users.tolist()))
    assert evaluation.per_user["user"].to_list() == asked
    assert evaluation.facts["users"] == len(asked)
    assert evaluation.facts["users_without_held_out"] == 90 - len(asked)


def test_user_groups_are_means_over_their_members(evaluation: Evaluation) -> None:
    assert [*evaluation.groups["users"]] == ["light", "medium", "heavy"]
    for group in evaluation.groups["users"].values():
        least, most = group["training_interactions"]
        members = evaluation.per_user.filter(pl.col("activity").is_between(least, most))
        assert len(members) == group["size"]
        for protocol, values in group["values"].items():
            for name in ("hr@5", "map@20", "auc"):
                assert values[name] == pytest.approx(members[f"{protocol}/{name}"].mean())
        assert values["popularity@5"] == pytest.approx(members["full/popularity@5"].mean())
        assert 0 < values["coverage@5"] <= 1


def test_item_groups_ask_about_their_own_items_one_by_one(split: Split, evaluation: Evaluation) -> None:
    """By hand: each held-out item alone against the items that are neither taken nor held out."""
    scores = scorer_of(split).score_block(torch.arange(90)).numpy()
    counts = np.bincount(split.train.items, minlength=120)
    for group in evaluation.groups["items"].values():
        least, most = group["training_interactions"]
        found = []
        for user, item in zip(split.test.users.tolist(), split.test.items.tolist(), strict=True):
            if not least <= counts[item] <= most:
                continue
            out = np.ones(120, bool)
            for part in (split.train, split.validation, split.test):
                out[part.by_user.of(user)] = False
            found.append(float((scores[user, out] > scores[user, item]).sum() < 20))
        assert group["values"]["full"]["hr@20"] == pytest.approx(np.mean(found))
    shares = [group["values"]["full"]["exposure@20"] for group in evaluation.groups["items"].values()]
    assert sum(shares) == pytest.approx(1)


def test_given_lists_are_ranked_as_their_scores(split: Split) -> None:
    ranker = Ranker(split, "test", folder=None)
    found = ranker.rank(scorer_of(split), "full", top=20)
    assert found.lists is not None
    ranked = ranker.ranks_of_lists(found.lists)
    for name in metrics.names_at((1, 5, 20)):
        if name != "auc":
            np.testing.assert_allclose(metrics.per_user(ranked, name), metrics.per_user(found.ranks, name))


def test_what_is_measured_quickly_is_what_is_measured_fully(split: Split, evaluation: Evaluation) -> None:
    names = ("ndcg@5", "auc")
    quick = Ranker(split, "test", negatives=30).measure(scorer_of(split), names, ("sampled", "full"))
    for protocol, values in quick.items():
        assert values == {name: evaluation.values[protocol][name] for name in names}


def test_similarity_of_a_sample_of_users(split: Split) -> None:
    whole = hdccf.evaluate(scorer_of(split), split, ks=(5,), similarity_users=None)
    some = hdccf.evaluate(scorer_of(split), split, ks=(5,), similarity_users=10)
    none = hdccf.evaluate(scorer_of(split), split, ks=(5,), similarity_users=0)
    column = some.per_user["full/similarity@5"]
    assert len(column.drop_nulls()) == 10
    np.testing.assert_allclose(
        column.drop_nulls().to_numpy(),
        whole.per_user["full/similarity@5"].filter(column.is_not_null()).to_numpy(),
    )
    assert "similarity@5" not in none.values["full"]


def test_written_and_read_again(evaluation: Evaluation, tmp_path: Path) -> None:
    evaluation.save(tmp_path / "kept")
    again = Evaluation.load(tmp_path / "kept")
    for name in ("values", "groups", "facts", "settings"):
        assert getattr(again, name) == getattr(evaluation, name)
    assert again.per_user.equals(evaluation.per_user)
    assert pl.read_parquet(tmp_path / "kept" / "per_user.parquet").equals(evaluation.per_user)
    with pytest.raises(EvaluationError, match="holds no evaluation"):
        Evaluation.load(tmp_path)
    for text, message in (("{}", "of another format"), ("{", "is damaged")):
        (tmp_path / "kept" / "evaluation.json").write_text(text)
        with pytest.raises(EvaluationError, match=message):
            Evaluation.load(tmp_path / "kept")


def test_it_reads_well(evaluation: Evaluation) -> None:
    assert json.loads(evaluation.to_json()) == evaluation.values
    console = Console(width=120)
    with console.capture() as capture:
        console.print(evaluation)
    shown = capture.get()
    value = f"{evaluation.values['full']['ndcg@5']:.4f}"
    for text in (shown, str(evaluation)):
        assert value in text
        assert "heavy" in text
        assert "users have no held-out item and are not asked about" in text
    assert "full hr@5" in evaluation.to_markdown()
    assert repr(evaluation).startswith("Evaluation(")


def test_groups_show_the_metrics_that_were_asked_for(split: Split) -> None:
    found = hdccf.evaluate(scorer_of(split), split, metrics=["recall@5"])
    assert found.group_table("users")[0][3:] == ["sampled recall@5", "full recall@5"]
    found = hdccf.evaluate(scorer_of(split), split, metrics=["recall@5", "hr@5"], protocols=("full",))
    assert found.group_table("items")[0][3:] == ["full hr@5"]


def test_fewer_untouched_items_than_negatives_are_counted() -> None:
    everything = [(0, item) for item in range(10)]
    split = split_of([[*everything[:6], (1, 0), (2, 0)], [], [(0, 6), (1, 3), (2, 4)]], 3, 12)
    facts = hdccf.evaluate(popular(split), split, ks=(2, 8), negatives=8).facts
    assert facts["sampled_users_with_fewer_negatives"] == 1
    assert facts["sampled_users_with_fewer_candidates_than_k"] == 1
    assert facts["full_users_with_fewer_candidates_than_k"] == 1


def test_a_user_without_any_negative_is_left_out_and_counted() -> None:
    split = split_of([[(0, 0), (0, 1), (1, 0)], [], [(0, 2), (1, 1)]], 2, 3)
    found = hdccf.evaluate(Table(torch.tensor([[0.0, 0, 1], [0, 1, 2]])), split, ks=(1,), negatives=5)
    for protocol in ("sampled", "full"):
        assert found.facts[f"{protocol}_users_without_negatives"] == 1
        assert found.per_user[f"{protocol}/hr@1"].to_list() == [None, 0.0]
        assert found.values[protocol]["hr@1"] == 0


def test_where_no_user_has_a_negative_no_shorter_list_is_advised() -> None:
    split = split_of([[(0, 0), (0, 1), (1, 0)], [], [(0, 2), (1, 1), (1, 2)]], 2, 3)
    with pytest.raises(EvaluationError, match="no user has a candidate beside the held-out items"):
        hdccf.evaluate(Table(torch.zeros(2, 3)), split)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ks": (10, 40), "negatives": 30}, r"K=40 .* sampled ranking, .* at most 33"),
        ({"ks": (121,), "protocols": ("full",)}, r"K=121 is larger than the candidates of full ranking"),
        ({"ks": ()}, "give one or more list lengths"),
        ({"ks": (0,)}, "give one or more list lengths"),
        ({"protocols": ("half",)}, r"protocol='half' is unknown; choose from \['sampled', 'full'\]"),
        ({"protocols": ()}, "choose from"),
        ({"part": "train"}, "choose one of"),
        ({"memory": 0}, "memory=0"),
    ],
)
def test_bad_use_is_refused(split: Split, wrong: dict[str, object], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        hdccf.evaluate(scorer_of(split), split, **wrong)  # type: ignore[arg-type]


def test_default_lengths_that_no_user_has_candidates_for_are_left_out(
    split: Split, capsys: pytest.CaptureFixture[str]
) -> None:
    found = hdccf.evaluate(scorer_of(split), split, negatives=30)  # 10 and 50 are the defaults
    assert list(found.settings["ks"]) == [10]
    assert {name.partition("@")[2] for name in found.values["sampled"]} <= {"10", ""}
    assert "no user has more than 33 candidates, so K=50 is left out" in capsys.readouterr().err


def test_progress_goes_to_standard_error(split: Split, capsys: pytest.CaptureFixture[str]) -> None:
    hdccf.evaluate(scorer_of(split), split, ks=(5,), progress=True)
    assert capsys.readouterr().out == ""
