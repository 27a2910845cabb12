"""Closed forms against every order of the ties, and against textbook cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranking_oracles import expected_metrics

from hdccf.errors import EvaluationError
from hdccf.evaluation import metrics
from hdccf.evaluation.metrics import Ranks


def ranks_of(scores: list[float], relevant: list[bool]) -> Ranks:
    """One user's ranks, counted one by one."""
    held_out = np.array([score for score, flag in zip(scores, relevant, strict=True) if flag], np.float64)
    everything = np.array(scores, np.float64)
    above = np.array([(everything > score).sum() for score in held_out])
    tied = np.array([(everything == score).sum() for score in held_out])
    negatives = np.array([len(scores) - len(held_out)])
    return Ranks.from_counts(np.array([0, len(held_out)]), held_out, above, tied, negatives)


@st.composite
def ranked_lists(draw: st.DrawFn) -> tuple[list[float], list[bool]]:
    size = draw(st.integers(2, 7))
    scores = draw(st.lists(st.integers(0, 3).map(float), min_size=size, max_size=size))
    flags = draw(
        st.lists(st.booleans(), min_size=size, max_size=size).filter(lambda f: any(f) and not all(f))
    )
    return scores, flags


@settings(max_examples=150, deadline=None)
@given(ranked_lists(), st.integers(1, 7))
def test_expectations_equal_the_mean_over_all_orders(case: tuple[list[float], list[bool]], k: int) -> None:
    scores, relevant = case
    ranks = ranks_of(scores, relevant)
    for name, expected in expected_metrics(scores, relevant, k).items():
        assert metrics.per_user(ranks, name)[0] == pytest.approx(expected, abs=1e-12), name


def test_alone_takes_the_other_held_out_items_out_of_the_candidates() -> None:
    ranks = ranks_of([3.0, 2.0, 2.0, 2.0, 1.0], [True, True, True, False, True]).alone
    assert ranks.above.tolist() == [0, 0, 0, 1]
    assert ranks.tied.tolist() == [1, 2, 2, 1]
    assert ranks.negatives.tolist() == [1, 1, 1, 1]


def test_nothing_to_rank_against_has_no_value() -> None:
    ranks = ranks_of([1.0, 2.0], [True, True])
    assert np.isnan(metrics.per_user(ranks, "ndcg@1")).all()
    with pytest.raises(EvaluationError, match="no user has a candidate"):
        metrics.mean(metrics.per_user(ranks, "ndcg@1"))


@pytest.mark.parametrize("name", ["ndcg", "ndcg@0", "ndcg@x", "speed@10", "auc@10", ""])
def test_unknown_metric_is_refused_with_the_choices(name: str) -> None:
    with pytest.raises(EvaluationError, match=r"choose 'auc' or one of .*'ndcg'.*@K"):
        metrics.parse(name)
