"""Both protocols against sorting by hand, with ties and several held-out items, and what they refuse."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int64
from ranking_oracles import Dot, Table, expected_metrics, popular, split_of, world
from torch import Tensor

import hdccf
from hdccf.data.split import Split
from hdccf.errors import EvaluationError
from hdccf.evaluation import Ranker, metrics
from hdccf.evaluation.ranking import top_items


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


class Watched(Table):
    """Notes how many users are asked about, and gives scores by a function of the users."""

    def __init__(self, scores: Tensor, give: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__(scores)
        self.asked: list[int] = []
        self.give = give

    def score_block(
        self, users: Int64[Tensor, " b"], items: Int64[Tensor, " c"] | None = None
    ) -> Float[Tensor, "b c"]:
        self.asked.append(len(users))
        return super().score_block(users, items) if self.give is None else self.give(users)


def test_the_memory_setting_bounds_the_blocks() -> None:
    split = world(40, 30_000, seed=0)
    scorer = Watched(torch.zeros(1, 30_000).expand(40, -1))
    Ranker(split, "test", folder=None, memory=8).measure(scorer, protocols=("full",))
    assert max(scorer.asked) * 30_000 * 64 <= 8 << 20
    assert sum(scorer.asked) == 40


def test_the_scorers_own_tensor_is_left_as_it_was() -> None:
    scores = torch.randn(10, 30)
    before = scores.clone()
    own = Watched(scores, lambda users: scores)
    Ranker(world(10, 30, seed=4), "test", folder=None).rank(own, "full", top=5)
    assert torch.equal(scores, before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_of_scores(dtype: torch.dtype) -> None:
    ranker = Ranker(world(20, 30, seed=4), "test", negatives=9, folder=None)
    scores = torch.randn(20, 30).to(dtype)
    given, exact = Table(scores), Table(scores.double())
    protocols = ("sampled", "full")
    assert ranker.measure(given, protocols=protocols) == ranker.measure(exact, protocols=protocols)


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


@pytest.mark.parametrize("protocol", ["sampled", "full"])
@pytest.mark.parametrize(("known", "user", "item"), [
    ([[(0, 0), (0, 1), (1, 0)], []], 0, "i1"),
    ([[(0, 0), (1, 0)], [(1, 2)]], 1, "i2"),
])  # fmt: skip
def test_a_held_out_item_that_was_learnt_from_is_refused(
    protocol: str, known: list[list[tuple[int, int]]], user: int, item: str
) -> None:
    ranker = Ranker(split_of([*known, [(0, 1), (1, 2)]], 2, 40), "test", negatives=5, folder=None)
    with pytest.raises(EvaluationError, match=f"user {user}.*'{item}'.*split the data again"):
        ranker.measure(Table(torch.randn(2, 40)), protocols=(protocol,))


def test_an_empty_part_and_an_unknown_one_are_refused() -> None:
    split = split_of([[(0, 0)], [], []], 1, 4)
    with pytest.raises(EvaluationError, match=r"the test part of this split \(predefined\) is empty"):
        Ranker(split, "test")
    with pytest.raises(EvaluationError, match="take part='validation'"):
        Ranker(split_of([[(0, 0)], [(0, 1)], []], 1, 4), "test")
    with pytest.raises(EvaluationError, match=r"part='train' cannot be evaluated; choose one of"):
        Ranker(split, "train")


def test_wrong_numbers_of_scores_are_refused() -> None:
    short = Watched(torch.zeros(10, 30), lambda users: torch.zeros(len(users), 29))
    with pytest.raises(EvaluationError, match=r"gave \(10, 29\) scores where \(10, 30\) were asked for"):
        Ranker(world(10, 30, seed=0), "test", folder=None).measure(short, protocols=("full",))


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


# -- top-k ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "k"), [(7, 3), (7, 7), (7, 9), (400, 5), (403, 5), (2000, 10)])
def test_without_ties_it_is_the_sorted_list(columns: int, k: int) -> None:
    scores = np.random.default_rng(columns).normal(size=(20, columns))
    chosen = top_items(scores, k, np.arange(20), 0)
    expected = np.argsort(-scores, axis=1)[:, :k]
    np.testing.assert_array_equal(chosen[:, : expected.shape[1]], expected)
    assert (chosen[:, expected.shape[1] :] == -1).all()


@pytest.mark.parametrize(("columns", "k"), [(12, 4), (403, 5), (2000, 10)])
@pytest.mark.parametrize("levels", [2, 6, 300])
def test_with_ties_the_scores_are_those_of_the_sorted_list(columns: int, k: int, levels: int) -> None:
    rng = np.random.default_rng(levels)
    scores = rng.integers(0, levels, (30, columns)).astype(np.float32)
    scores[rng.random(scores.shape) < 0.3] = -np.inf
    chosen = top_items(scores, k, np.arange(30), 0)
    best = -np.sort(-scores, axis=1)[:, :k]
    found = np.where(chosen < 0, -np.inf, np.take_along_axis(scores, np.maximum(chosen, 0), 1))
    np.testing.assert_array_equal(found, best)
    for row in chosen.tolist():
        real = [column for column in row if column >= 0]
        assert len(set(real)) == len(real)


def test_tied_columns_are_equally_often_at_every_place() -> None:
    """Column 0 is best; of the nine others, tied, three more are listed."""
    scores = np.zeros((6000, 10))
    scores[:, 0] = 1
    chosen = top_items(scores, 4, np.arange(6000), 0)
    assert (chosen[:, 0] == 0).all()
    for place in (1, 2, 3):
        shares = np.bincount(chosen[:, place], minlength=10)[1:] / 6000
        np.testing.assert_allclose(shares, 1 / 9, atol=4.5 * np.sqrt(1 / 9 * 8 / 9 / 6000))


def test_the_order_of_ties_depends_on_seed_and_user_only() -> None:
    scores, users = np.zeros((40, 30)), np.arange(40)
    whole = top_items(scores, 5, users, 7)
    pieces = [top_items(scores[a : a + 9], 5, users[a : a + 9], 7) for a in range(0, 40, 9)]
    np.testing.assert_array_equal(whole, np.concatenate(pieces))
    assert not np.array_equal(whole, top_items(scores, 5, users, 8))
    assert len({tuple(row) for row in whole.tolist()}) > 30
    top_items(scores, 5, users, 2**62)  # a large seed does not overflow
