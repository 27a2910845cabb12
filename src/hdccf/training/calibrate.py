"""The choice of the popularity dial and of the filter's weight on the validation part, after training."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from hdccf.config import VALIDATION_METRIC, Settings, TrainingSettings
from hdccf.console import note
from hdccf.data.split import Split
from hdccf.errors import ConfigError, EvaluationError
from hdccf.evaluation import metrics
from hdccf.evaluation.metrics import Values
from hdccf.evaluation.ranking import Ranker, check_protocols
from hdccf.models.base import Model, Scorer
from hdccf.models.calibration import Calibration, ItemFilter
from hdccf.recommend.recommender import load_calibration
from hdccf.recommend.run_folder import RunFolder

VALIDATION_USERS = 4000
"""More of them take longer, and hardly change what is chosen."""
_FILTER_WEIGHTS = (0.05, 0.1, 0.2, 0.4, 0.8)
_DIAL = (-1.0, -0.5, 0.5)
_DIAL_STEPS = (0.25, 0.12)
_ROUNDS = 2
_STANDARD_ERRORS = 1.0
"""What the gain must exceed: less is as likely chance."""

Point = tuple[float, float]
"""γ and w."""


def parse_metric(metric: str) -> tuple[str, str]:
    """Protocol and name of a `validation_metric`, before an epoch is spent on it."""
    protocol, colon, name = metric.partition(":")
    if not colon:
        raise ConfigError(f"validation_metric={metric!r} names no protocol; write it like sampled:ndcg@10")
    try:
        check_protocols((protocol,))
        metrics.parse(name)
    except EvaluationError as cause:
        raise ConfigError(f"validation_metric={metric!r} is not possible: {cause}") from cause
    return protocol, name


def calibrate_run(
    model: Model, split: Split, folder: RunFolder | None = None, *, progress: bool = False
) -> Calibration | None:
    """Calibrates a trained model by its settings, and keeps it in the run; None where nothing is chosen."""
    settings = model.settings
    if folder is not None and folder.calibration.exists():
        return load_calibration(folder)
    if settings.calibration == "off" or not len(split.validation):
        return None
    metric = settings.validation_metric if isinstance(settings, TrainingSettings) else VALIDATION_METRIC
    found = calibrate(settings, model.scorer(), split, *parse_metric(metric))
    if progress:
        note(found.describe())
    if folder is not None:
        folder.save_tensors(folder.calibration, *found.to_parts())
    return found


def calibrate(
    settings: Settings,
    scorer: Scorer,
    split: Split,
    protocol: str,
    metric: str,
    *,
    users: int = VALIDATION_USERS,
    item_filter: ItemFilter | None = None,
) -> Calibration:
    """Chooses γ and, where the settings want the filter, w by a metric on (a sample of) the validation part.

    Parameters
    ----------
    settings
        Of the model; its `calibration` says what is chosen.
    scorer
        The model's own scores of the training users.
    split
        Its validation part decides; the test part is not looked at.
    protocol, metric
        Such as "full" and "ndcg@10".
    users
        At most so many validation users are ranked.
    item_filter
        The filter of the training part, where it is at hand.
    """
    neutral = Calibration.neutral(settings, scorer, split.train)
    if settings.calibration == "full":
        neutral = replace(neutral, item_filter=item_filter or ItemFilter.of(split.train))
    ranker = Ranker(_sampled(split, users), "validation", folder=None)
    measured: dict[Point, Values] = {}

    def measure(point: Point) -> float:
        if point not in measured:
            one = replace(neutral, popularity=point[0], filter_weight=point[1])
            ranks = ranker.rank(one.apply(scorer, split.train), protocol).ranks
            measured[point] = metrics.per_user(ranks, metric)
        return metrics.mean(measured[point])

    best = _search(measure, with_filter=neutral.item_filter is not None)
    before = (0.0, 0.0)
    gain = measured[best] - measured[before]
    if np.nanmean(gain) <= _STANDARD_ERRORS * np.nanstd(gain) / np.sqrt(len(gain)):
        best = before
    facts = {"metric": f"{protocol}:{metric}", "before": measure(before), "after": measure(best)}
    chosen = replace(neutral, popularity=best[0], filter_weight=best[1], facts=facts)
    return chosen if chosen.filter_weight else replace(chosen, item_filter=None)


def _search(measure: Callable[[Point], float], *, with_filter: bool) -> Point:
    """Coordinate search: the filter's weight on a grid, the dial from coarse to fine, and both once more."""

    def best_of(points: Iterable[Point], best: Point) -> Point:
        return max([best, *points], key=measure)

    best = (0.0, 0.0)
    for turn in range(_ROUNDS if with_filter else 1):
        gamma, weight = best
        if with_filter:
            weights = _FILTER_WEIGHTS if turn == 0 or not weight else (weight / 1.5, weight * 1.5)
            best = best_of([(gamma, each) for each in weights], best)
        if turn == 0:
            best = best_of([(each, best[1]) for each in _DIAL], best)
        for step in _DIAL_STEPS if turn == 0 else _DIAL_STEPS[1:]:
            best = best_of([(round(best[0] + sign * step, 2), best[1]) for sign in (-1, 1)], best)
    return best


def _sampled(split: Split, users: int) -> Split:
    """The split with some of its validation users."""
    own = np.unique(split.validation.users)
    if len(own) <= users:
        return split
    chosen = np.random.default_rng(0).choice(own, users, replace=False)
    return replace(split, validation=split.validation.subset(np.isin(split.validation.users, chosen)))
