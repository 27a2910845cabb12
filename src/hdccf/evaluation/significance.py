"""Paired significance tests over users, bootstrap intervals and Holm's correction."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hdccf.errors import EvaluationError

Values = NDArray[np.float64]


@dataclass(frozen=True)
class PairedTest:
    """A against B on the same users; positive numbers favour A."""

    users: int
    difference: float
    """Mean of A − B."""
    interval: tuple[float, float]
    """95 % bootstrap interval of the mean difference, resampling users."""
    t: float
    """Student's paired t; infinite where every user differs by the same amount."""
    p_t: float
    """Two-sided, of the t-test."""
    p_wilcoxon: float
    """Two-sided, of Wilcoxon's signed-rank test; users without a difference are left out, as Wilcoxon did."""
    cohen_d: float
    """Mean over standard deviation of the differences: .2 is called small, .5 medium, .8 large."""
    rank_biserial: float
    """From −1 (B ranks above A wherever they differ) to 1."""


def paired_tests(
    differences: Sequence[Values], *, resamples: int = 2000, generator: np.random.Generator
) -> list[PairedTest]:
    """A test for each array of differences; arrays of the same users share their bootstrap samples."""
    for values in differences:
        if len(values) < 2:
            raise EvaluationError(f"{len(values)} users cannot be tested; compare on two users or more")
    intervals = bootstrap_intervals(differences, resamples=resamples, generator=generator)
    tests = []
    for values, interval in zip(differences, intervals, strict=True):
        t, p_t, cohen_d = _student(values)
        p_wilcoxon, rank_biserial = _wilcoxon(values)
        mean = float(values.mean())
        tests.append(PairedTest(len(values), mean, interval, t, p_t, p_wilcoxon, cohen_d, rank_biserial))
    return tests


def _student(values: Values) -> tuple[float, float, float]:
    from scipy.stats import t as student

    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    # The same difference everywhere leaves only rounding in the deviation.
    if deviation <= 1e-12 * abs(mean) or deviation == 0:
        infinite = float(np.copysign(np.inf, mean))
        return (0.0, 1.0, 0.0) if mean == 0 else (infinite, 0.0, infinite)
    cohen_d = mean / deviation
    statistic = cohen_d * np.sqrt(len(values))
    return float(statistic), float(2 * student.sf(abs(statistic), len(values) - 1)), cohen_d


def _wilcoxon(values: Values) -> tuple[float, float]:
    from scipy.stats import rankdata, wilcoxon

    differing = values[values != 0]
    if not len(differing):
        return 1.0, 0.0
    ranks = rankdata(np.abs(differing))
    in_favour = ranks[differing > 0].sum()
    rank_biserial = float(2 * in_favour / ranks.sum() - 1)
    # With ties the exact distribution is out of reach; with many users the normal one is as good.
    exact = len(differing) <= 50 and len(np.unique(np.abs(differing))) == len(differing)
    found = wilcoxon(differing, method="exact") if exact else wilcoxon(differing, method="approx")
    return float(found.pvalue), rank_biserial


def bootstrap_intervals(
    samples: Sequence[Values], *, resamples: int = 2000, level: float = 0.95, generator: np.random.Generator
) -> list[tuple[float, float]]:
    """Percentile intervals of the means. Samples of equal length are resampled together, user by user."""
    found: dict[int, tuple[float, float]] = {}
    for rows in sorted({len(values) for values in samples}):
        chosen = [number for number, values in enumerate(samples) if len(values) == rows]
        table = np.stack([samples[number] for number in chosen], axis=1)
        means = []
        at_once = max(1, 4_000_000 // rows)
        for begin in range(0, resamples, at_once):
            size = min(at_once, resamples - begin)
            drawn = generator.integers(0, rows, (size, rows)) + np.arange(size)[:, None] * rows
            # How often each row was drawn, times the rows: one matrix product for all columns.
            times = np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows)
            means.append(times @ table / rows)
        low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2], axis=0)
        found |= {number: (float(low[k]), float(high[k])) for k, number in enumerate(chosen)}
    return [found[number] for number in range(len(samples))]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the k-th smallest of n times n − k + 1, and never below a smaller one's."""
    values = np.asarray(p_values, np.float64)
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(np.maximum.accumulate(values[order] * factors), 1.0)
    return [float(value) for value in corrected]
