"""The choice of the popularity dial and of the filter's weight on the validation part."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hdccf.config import VALIDATION_METRIC, Settings, TrainingSettings
from hdccf.console import note
from hdccf.data.interactions import Interactions
from hdccf.data.split import Split
from hdccf.errors import ConfigError, EvaluationError
from hdccf.evaluation import metrics
from hdccf.evaluation.metrics import Values
from hdccf.evaluation.ranking import Ranker, check_protocols
from hdccf.models.base import Candidates, Columns, Model, Scores, Users
from hdccf.models.calibration import Calibration, FilterScores, ItemFilter
from hdccf.recommend.recommender import load_calibration
from hdccf.recommend.run_folder import RunFolder

VALIDATION_USERS = 4000
"""More of them take longer, and hardly change what is chosen."""
_DENSE_SCORES = 1 << 27
"""Scores that the search keeps: half a gigabyte. With very many items fewer users are ranked."""
_FEWEST_USERS = 200
_ROWS_AT_ONCE = 256
_FILTER_WEIGHTS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
_DIAL = (-1.0, -0.5, 0.5)
_DIAL_STEPS = (0.25, 0.12)
_ROUNDS = 2
_STANDARD_ERRORS = 1.0
"""What the gain must exceed: less is as likely chance."""

Point = tuple[float, float]
"""γ and w."""


class ValidationMetric(NamedTuple):
    """What a `validation_metric` such as popular:ndcg@10 says."""

    protocol: str
    name: str
    weighting: str
    """How the candidates of sampled ranking are drawn."""


def parse_metric(metric: str) -> ValidationMetric:
    """A `validation_metric`, before an epoch is spent on it; `popular` draws candidates by popularity."""
    protocol, colon, name = metric.partition(":")
    if not colon:
        raise ConfigError(f"validation_metric={metric!r} names no protocol; write it like sampled:ndcg@10")
    weighting = "popularity" if protocol == "popular" else "uniform"
    ranked = "sampled" if protocol == "popular" else protocol
    try:
        check_protocols((ranked,))
        metrics.parse(name)
    except EvaluationError as cause:
        raise ConfigError(
            f"validation_metric={metric!r} is not possible: {cause}, or popular (sampled by popularity)"
        ) from cause
    return ValidationMetric(ranked, name, weighting)


def validation_ranker(split: Split, metric: str, **options: Any) -> Ranker:
    """Ranks the validation part among the candidates of a `validation_metric`."""
    return Ranker(split, "validation", weighting=parse_metric(metric).weighting, **options)


def calibrate_run(
    model: Model,
    split: Split,
    folder: RunFolder | None = None,
    *,
    progress: bool = False,
    calibrator: "Calibrator | None" = None,
) -> Calibration | None:
    """Calibrates a trained model by its settings, and keeps it in the run; None where nothing is chosen."""
    settings = model.settings
    if folder is not None and folder.calibration.exists():
        return load_calibration(folder)
    if settings.calibration == "off" or not len(split.validation):
        return None
    found = (calibrator or Calibrator(split, metric_of(settings)))(model)
    if progress:
        note(found.describe())
    if folder is not None:
        folder.save_tensors(folder.calibration, *found.to_parts())
    return found


def metric_of(settings: Settings) -> str:
    """What a model is validated by; that of the paper where its settings do not say."""
    return settings.validation_metric if isinstance(settings, TrainingSettings) else VALIDATION_METRIC


class Calibrator:
    """Chooses γ and, where the settings want the filter, w by a metric on (a sample of) the validation part.

    Made once for a split, it calibrates the scores of any number of models. Leave-one-out tests with an item
    that comes two events after the training history. So half of a user's value is that of a history without
    its last event: models and filters that live on the last event would be preferred too much (decision 19).

    Parameters
    ----------
    split
        Its validation part decides; the test part is not looked at.
    metric
        Such as "full:ndcg@10".
    users
        At most so many validation users are ranked, and fewer where there are very many items.
    """

    def __init__(self, split: Split, metric: str, *, users: int = VALIDATION_USERS) -> None:
        self.train, self.metric = split.train, metric
        self.protocol, self._name, _ = parse_metric(metric)
        most = min(users, max(_FEWEST_USERS, _DENSE_SCORES // split.n_items))
        self.ranker = validation_ranker(_sampled(split, most), metric, folder=None)
        self.users = torch.from_numpy(self.ranker.queries.users)
        self._places = torch.zeros(split.n_users, dtype=torch.long)
        self._places[self.users] = torch.arange(len(self.users))
        # Of the ranked users only: no others are encoded.
        own = split.train.subset(np.isin(split.train.users, self.ranker.queries.users))
        leave_one_out = split.method == "leave-one-out" and split.train.times is not None
        self.histories = [own, _without_last(own)] if leave_one_out else [own]

    @cached_property
    def _filter(self) -> tuple[ItemFilter, list[Tensor]]:
        """The filter, and its scores of the ranked users, which are the same for every model."""
        item_filter = ItemFilter.of(self.train)
        every = [FilterScores(item_filter, events, 1.0) for events in self.histories]
        return item_filter, [
            self._rows(lambda users, one=one: torch.from_numpy(one.dense(users)))  # type: ignore[misc]
            for one in every
        ]

    def _rows(self, score: Callable[[Users], Scores]) -> Tensor:
        with torch.inference_mode():
            return torch.cat([score(some).float() for some in torch.split(self.users, _ROWS_AT_ONCE)])

    def __call__(self, model: Model) -> Calibration:
        """The calibration of a trained model."""
        settings = model.settings
        if model.users_are_histories:
            own = [self._rows(model.users_from(events).score_block) for events in self.histories]
        else:
            own = [self._rows(model.scorer().score_block)] * len(self.histories)
        rows = torch.arange(len(self.users))
        scorer = _Combined(rows, own[0], torch.zeros(self.train.n_items), None, 0.0)
        neutral = Calibration.neutral(settings, scorer, self.train)
        filtered: Sequence[Tensor | None] = [None] * len(own)
        if settings.calibration == "full":
            item_filter, filtered = self._filter
            neutral = replace(neutral, item_filter=item_filter)
        measured: dict[Point, Values] = {}

        def measure(point: Point) -> float:
            if point not in measured:
                weight = point[1] * neutral.deviation
                shift = -point[0] * neutral.popularity_unit * neutral.log_frequency
                values = []
                for scores, added in zip(own, filtered, strict=True):
                    combined = _Combined(self._places, scores, shift, added, weight)
                    ranks = self.ranker.rank(combined, self.protocol).ranks
                    values.append(metrics.per_user(ranks, self._name))
                measured[point] = np.mean(values, axis=0)
            return metrics.mean(measured[point])

        best = _search(measure, with_filter=neutral.item_filter is not None)
        before = (0.0, 0.0)
        gain = measured[best] - measured[before]
        if np.nanmean(gain) <= _STANDARD_ERRORS * np.nanstd(gain) / np.sqrt(len(gain)):
            best = before
        facts = {"metric": self.metric, "before": measure(before), "after": measure(best)}
        chosen = replace(neutral, popularity=best[0], filter_weight=best[1], facts=facts)
        return chosen if chosen.filter_weight else replace(chosen, item_filter=None)


class _Combined:
    """Calibrated scores of the users whose scores are at hand; `places` has their rows."""

    def __init__(
        self, places: Tensor, own: Tensor, shift: Tensor, filtered: Tensor | None, weight: float
    ) -> None:
        self.places, self.own, self.shift = places, own, shift
        self.filtered, self.weight = filtered, weight
        self.n_users, self.n_items = len(places), own.shape[1]

    def score_block(self, users: Users, items: Columns | None = None) -> Scores:
        rows = self.places[users]
        scores = self.own[rows] + self.shift
        if self.filtered is not None and self.weight:
            scores.add_(self.filtered[rows], alpha=self.weight)
        return scores if items is None else scores[:, items]

    def score_rows(self, users: Users, items: Candidates) -> Scores:
        return self.score_block(users).gather(1, items)


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


def _without_last(train: Interactions) -> Interactions:
    """Every user's events but the last; all where there is only one."""
    ends = train.by_user.starts[1:]
    last = ends[train.by_user.degrees > 1] - 1
    kept = np.ones(len(train), bool)
    kept[last] = False
    return train.subset(kept)


def _sampled(split: Split, users: int) -> Split:
    """The split with some of its validation users."""
    own = np.unique(split.validation.users)
    if len(own) <= users:
        return split
    chosen = np.random.default_rng(0).choice(own, users, replace=False)
    return replace(split, validation=split.validation.subset(np.isin(split.validation.users, chosen)))
