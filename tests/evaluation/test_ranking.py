"""Both protocols against sorting by hand, with ties and several held-out items, and what they refuse."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int64
from ranking_oracles import Dot, Table, expected_metrics, metrics_of_order, popular, split_of, world
from torch import Tensor

import hdccf
from hdccf.data.split import Split
from hdccf.errors import EvaluationError
from hdccf.evaluation import Ranker, metrics
from hdccf.evaluation.ranking import rank_counts


def literal_full(scorer: Table, split: Split, part: str, k: int) -> dict[int, dict[str, float]]:
    """Each user's candidates as a list, each metric as its expectation over the orders of the ties."""
    found = {}
    for user in range(split.n_users):
        held_out = set(split.part(part).by_user.of(user).tolist())
        gone = set(split.train.by_user.of(user).tolist())
        if part == "test":
            gone |= set(split.validation.by_user.of(user).tolist())
        candidates = [item for item in range(split.n_items) if item not in gone]
        scores = [float(scorer.scores[user, item]) for item in candidates]
        if held_out:
            found[user] = expected_metrics(scores, [item in held_out for item in candidates], k)
    return found


@pytest.mark.parametrize("part", ["validation", "test"])
@pytest.mark.parametrize("held_out", [(1, 1), (0, 3)])
def test_full_ranking_equals_the_literal_version(part: str, held_out: tuple[int, int]) -> None:
    split = world(12, 11, seed=1, held_out=held_out, train=(3, 4))
    # Five levels: ties everywhere, but few enough orders to try all.
    scores = torch.randint(0, 5, (12, 11), generator=torch.Generator().manual_seed(3)).float()
    expected = literal_full(Table(scores), split, part, 3)
    ranker = Ranker(split, part, folder=None)
    ranks = ranker.rank(Table(scores), "full").ranks
    for name in metrics.names_at((3,)):
        values = metrics.per_user(ranks, name)
        for user, value in zip(ranker.queries.users.tolist(), values, strict=True):
            assert value == pytest.approx(expected[user][name], abs=1e-12), (user, name)
    assert len(expected) == len(ranker.queries)


def test_sampled_ranking_equals_sorting_the_frozen_candidates() -> None:
    split = world(30, 60, seed=2, held_out=(1, 4))
    scores = torch.randn(30, 60, generator=torch.Generator().manual_seed(0))
    ranker = Ranker(split, "test", negatives=20, folder=None)
    ranks = ranker.rank(Table(scores), "sampled").ranks
    for name in metrics.names_at((5,)):
        values = metrics.per_user(ranks, name)
        for row, user in enumerate(ranker.queries.users.tolist()):
            held_out = split.test.by_user.of(user).tolist()
            candidates = [*held_out, *ranker.negatives[row].tolist()]
            order = sorted(candidates, key=lambda item: -scores[user, item])
            expected = metrics_of_order([item in held_out for item in order], 5)[name]
            assert values[row] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("protocol", ["sampled", "full"])
def test_a_scorer_that_scores_everything_equally_has_ten_in_a_hundred(protocol: str) -> None:
    # 200 items and 100 of them excluded leave 100 candidates in full ranking as well.
    pairs = [(user, item) for user in range(8) for item in range(99)]
    split = split_of([pairs, [(u, 99) for u in range(8)], [(u, 150) for u in range(8)]], 8, 200)
    found = Ranker(split, "test", folder=None).measure(Table(torch.zeros(8, 200)), ("hr@10",), (protocol,))
    assert found[protocol]["hr@10"] == 0.1


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    split = world(50, 40, seed=5, held_out=(1, 5))
    scorer = popular(split)
    whole = hdccf.evaluate(scorer, split, ks=(5, 10), negatives=15)
    monkeypatch.setattr("hdccf.evaluation.ranking._FULL_BLOCK", 120)
    monkeypatch.setattr("hdccf.evaluation.ranking._FEWEST_ROWS", 1)
    monkeypatch.setattr("hdccf.evaluation.ranking._COMPARED", 80)
    monkeypatch.setattr("hdccf.evaluation.ranking._SAMPLED_BLOCK", 70)
    pieces = hdccf.evaluate(scorer, split, ks=(5, 10), negatives=15)
    assert pieces.values == whole.values
    assert pieces.per_user.equals(whole.per_user)


def test_the_memory_setting_bounds_the_blocks() -> None:
    split = world(40, 30_000, seed=0)
    asked: list[int] = []

    class Watched(Table):
        def score_block(
            self, users: Int64[Tensor, " b"], items: Int64[Tensor, " c"] | None = None
        ) -> Float[Tensor, "b c"]:
            asked.append(len(users))
            return super().score_block(users, items)

    scorer = Watched(torch.zeros(1, 30_000).expand(40, -1))
    Ranker(split, "test", folder=None, memory=8).measure(scorer, protocols=("full",))
    assert max(asked) * 30_000 * 64 <= 8 << 20
    assert sum(asked) == 40


def test_the_scorers_own_tensor_is_left_as_it_was() -> None:
    split = world(10, 30, seed=4)

    class Own(Table):
        def score_block(
            self, users: Int64[Tensor, " b"], items: Int64[Tensor, " c"] | None = None
        ) -> Float[Tensor, "b c"]:
            return self.scores

    scores = torch.randn(10, 30)
    before = scores.clone()
    Ranker(split, "test", folder=None).rank(Own(scores), "full", top=5)
    assert torch.equal(scores, before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_of_scores(dtype: torch.dtype) -> None:
    split = world(20, 30, seed=4)
    scores = torch.randn(20, 30).to(dtype)
    found = Ranker(split, "test", negatives=9, folder=None).measure(
        Table(scores), protocols=("sampled", "full")
    )
    exact = Ranker(split, "test", negatives=9, folder=None).measure(
        Table(scores.double()), protocols=("sampled", "full")
    )
    assert found == exact


def test_validation_leaves_test_items_in_and_test_takes_validation_items_out() -> None:
    split = split_of([[(0, 0)], [(0, 1)], [(0, 2)]], 1, 4)
    best_first = Table(torch.tensor([[9.0, 3.0, 5.0, 1.0]]))
    validation = Ranker(split, "validation", folder=None).rank(best_first, "full").ranks
    test = Ranker(split, "test", folder=None).rank(best_first, "full").ranks
    assert (validation.above.tolist(), validation.negatives.tolist()) == ([1], [2])
    assert (test.above.tolist(), test.negatives.tolist()) == ([0], [1])


def test_place_counts_strictly_more_and_the_same() -> None:
    scores = np.array([[1.0, 2.0, 2.0, 3.0], [0.0, 0.0, -np.inf, 0.0]])
    found = rank_counts(scores, np.array([1, 3, 0]), np.array([0, 2, 3]))
    assert found.above.tolist() == [1, 0, 0]
    assert found.tied.tolist() == [2, 1, 3]


@pytest.mark.parametrize("protocol", ["sampled", "full"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_scores_that_are_no_numbers_are_an_error(protocol: str, bad: float) -> None:
    split = world(10, 30, seed=0)
    scores = torch.randn(10, 30)
    scores[3, split.test.by_user.of(3)[0]] = bad
    with pytest.raises(EvaluationError, match=r"1 of .* scores of Table are NaN or infinite"):
        Ranker(split, "test", negatives=5, folder=None).measure(Table(scores), protocols=(protocol,))


def test_large_finite_scores_are_no_error() -> None:
    split = world(10, 30, seed=0)
    Ranker(split, "test", negatives=5, folder=None).measure(
        Table(torch.full((10, 30), 3e38)), protocols=("full",)
    )


def _in_training() -> Split:
    return split_of([[(0, 0), (0, 1), (1, 0)], [], [(0, 1), (1, 2)]], 2, 40)


def _in_validation() -> Split:
    return split_of([[(0, 0), (1, 0)], [(1, 2)], [(0, 1), (1, 2)]], 2, 40)


@pytest.mark.parametrize("protocol", ["sampled", "full"])
@pytest.mark.parametrize(("make", "user", "item"), [(_in_training, 0, "i1"), (_in_validation, 1, "i2")])
def test_a_held_out_item_that_was_learnt_from_is_refused(
    protocol: str, make: Callable[[], Split], user: int, item: str
) -> None:
    ranker = Ranker(make(), "test", negatives=5, folder=None)
    with pytest.raises(EvaluationError, match=f"user {user}.*'{item}'.*split the data again"):
        ranker.measure(Table(torch.randn(2, 40)), protocols=(protocol,))


def test_an_empty_part_and_an_unknown_one_are_refused() -> None:
    split = split_of([[(0, 0)], [], []], 1, 4)
    with pytest.raises(EvaluationError, match="the test part of this predefined split is empty"):
        Ranker(split, "test")
    with pytest.raises(EvaluationError, match=r"part='train' cannot be evaluated; choose one of"):
        Ranker(split, "train")


def test_wrong_numbers_of_scores_are_refused() -> None:
    split = world(10, 30, seed=0)

    class Short(Table):
        def score_block(
            self, users: Int64[Tensor, " b"], items: Int64[Tensor, " c"] | None = None
        ) -> Float[Tensor, "b c"]:
            return super().score_block(users, items)[:, :-1]

    with pytest.raises(EvaluationError, match=r"gave \(10, 29\) scores where \(10, 30\) were asked for"):
        Ranker(split, "test", folder=None).measure(Short(torch.zeros(10, 30)), protocols=("full",))


def test_a_split_of_other_data_than_the_models_is_refused() -> None:
    own, other = world(10, 30, seed=0), world(10, 30, seed=1)
    scorer = Table(torch.zeros(10, 30))
    scorer.split = own  # type: ignore[attr-defined]
    with pytest.raises(EvaluationError, match=f"{own.fingerprint}, but is asked about {other.fingerprint}"):
        hdccf.evaluate(scorer, other, ks=(5,))
    with pytest.raises(EvaluationError, match="knows 10 users and 31 items, the split only 10 and 30"):
        hdccf.evaluate(Table(torch.zeros(10, 31)), own, ks=(5,))


def test_unknown_users_are_expected_to_guess_and_unknown_items_come_last() -> None:
    split = split_of([[(0, 0), (1, 0), (2, 0)], [], [(0, 1), (1, 4), (2, 1)]], 3, 5)
    scorer = Dot(torch.ones(2, 1), torch.tensor([[0.0], [1.0], [2.0]]))
    evaluation = hdccf.evaluate(scorer, split, ks=(1, 3), negatives=10)
    assert evaluation.facts["users_unknown_to_model"] == 1
    assert evaluation.facts["held_out_unknown_to_model"] == 1
    for protocol in ("sampled", "full"):
        found = evaluation.per_user[f"{protocol}/hr@3"].to_list()
        # User 0: item 2 is above item 1. User 1: 1 and 2, then 3 and 4 in either order. User 2: a guess.
        assert found == [1.0, 0.5, 0.75]
