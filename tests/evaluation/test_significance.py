"""Tests against SciPy and literal versions, and against worlds where the answer is known."""

import numpy as np
import pytest
from scipy import stats

from hdccf.errors import EvaluationError
from hdccf.evaluation.significance import PairedTest, bootstrap_intervals, holm, paired_tests


def run(*differences: np.ndarray, seed: int = 0) -> list[PairedTest]:
    return paired_tests(differences, generator=np.random.default_rng(seed))


@pytest.mark.parametrize("size", [12, 300])
def test_t_and_wilcoxon_are_those_of_scipy(size: int) -> None:
    rng = np.random.default_rng(size)
    a, b = rng.normal(0.3, 1, size), rng.normal(0, 1, size)
    (found,) = run(a - b)
    expected = stats.ttest_rel(a, b)
    assert found.t == pytest.approx(expected.statistic)
    assert found.p_t == pytest.approx(expected.pvalue)
    assert found.p_wilcoxon == pytest.approx(stats.wilcoxon(a, b).pvalue)
    assert found.cohen_d == pytest.approx((a - b).mean() / (a - b).std(ddof=1))


def test_rank_biserial_against_its_definition() -> None:
    values = np.array([3.0, -1.0, 2.0, 0.0, 2.0, -4.0])
    ranks = stats.rankdata([3, 1, 2, 2, 4])
    in_favour, against = ranks[0] + ranks[2] + ranks[3], ranks[1] + ranks[4]
    (found,) = run(values)
    assert found.rank_biserial == pytest.approx((in_favour - against) / (in_favour + against))


def test_no_difference_at_all_and_the_same_one_everywhere() -> None:
    none, same = run(np.zeros(30), np.full(30, 0.1))
    assert (none.p_t, none.p_wilcoxon, none.cohen_d, none.rank_biserial) == (1, 1, 0, 0)
    assert none.interval == (0, 0)
    assert same.p_t == 0
    assert same.t == np.inf
    assert same.rank_biserial == 1
    assert same.p_wilcoxon < 1e-6


def test_intervals_equal_resampling_one_by_one_in_law() -> None:
    values = np.random.default_rng(1).normal(size=60)
    (found,) = bootstrap_intervals([values], resamples=20_000, generator=np.random.default_rng(2))
    rng = np.random.default_rng(3)
    means = [rng.choice(values, 60).mean() for _ in range(20_000)]
    np.testing.assert_allclose(found, np.quantile(means, [0.025, 0.975]), atol=0.012)


def test_samples_of_different_lengths_keep_their_places() -> None:
    samples = [np.full(5, 1.0), np.full(9, 2.0), np.full(5, 3.0)]
    found = bootstrap_intervals(samples, resamples=10, generator=np.random.default_rng(0))
    np.testing.assert_allclose(found, [(1, 1), (2, 2), (3, 3)])


def test_holm_against_the_textbook() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_one_user_is_too_few() -> None:
    with pytest.raises(EvaluationError, match="1 users cannot be tested"):
        run(np.array([1.0]))
