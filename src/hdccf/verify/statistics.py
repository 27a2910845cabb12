"""Intervals and the one global test, all at one level, at which a right implementation hardly ever fails."""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2
from scipy.stats import t as student

LEVEL = 0.999
"""A right implementation fails a statistical claim once in a thousand seeds."""

Floats = NDArray[np.float64]


def mean_interval(values: Floats, around: Floats | None = None) -> tuple[float, tuple[float, float]]:
    """The mean of independent values and Student's interval of it.

    `around` are expectations, one for each value, where these differ: the spread is that of the differences.
    """
    deviations = values if around is None else values - around
    error = deviations.std(ddof=1) / np.sqrt(len(values))
    spread = float(student.ppf((1 + LEVEL) / 2, len(values) - 1) * error)
    mean = float(values.mean())
    return mean, (mean - spread, mean + spread)


def global_test(deviations: Floats) -> tuple[float, tuple[float, float]]:
    """One test of all cells at once: do the means over independent repetitions vanish in every column?

    `deviations` is repetitions × cells, measured less predicted. If the prediction is right, the squared
    length of the columns' sums is a weighted sum of squares of normal numbers, however the cells are
    correlated. Its mean Σ_r ‖x_r‖² and variance 2·Σ_{r≠s} (x_r·x_s)² are in the products of repetitions, and
    a multiple of a chi-square with this mean and variance stands for it (Box 1954). Gives the squared length
    over its mean, 1 in expectation, and where it must lie.
    """
    products = deviations @ deviations.T
    mean = float(np.trace(products))
    if mean == 0:
        return 1.0, (1.0, 1.0)
    variance = 2 * float((products**2).sum() - (np.diag(products) ** 2).sum())
    freedom = 2 * mean**2 / variance
    low, high = (float(chi2.ppf(tail, freedom)) / freedom for tail in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(products.sum()) / mean, (low, high)
