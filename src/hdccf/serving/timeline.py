"""The service's counters over the last hour: a bounded series of samples in memory, for the page."""

import itertools
import math
import time
from collections import deque
from typing import Any, NamedTuple

from hdccf.serving.middleware import Metrics

SAMPLE_SECONDS = 10
MAX_SAMPLES = 360
"""An hour."""


class Totals(NamedTuple):
    """Counters since the start of the process, at a time."""

    time: float
    latency: dict[float, float]
    """Answered requests by the seconds that they took at most, as a Prometheus histogram has them."""
    events: float
    users: float
    """Lists of recommendations, one for each user of a request."""
    cold: float
    """Those of them for users without a history in training."""
    shown: float
    """Items in the lists."""
    tail: float
    """Those of them in the long tail."""


class Timeline:
    """Samples of the counters, the oldest of which go when there are `MAX_SAMPLES`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._start = read_totals(metrics)
        self._samples = deque([self._start], maxlen=MAX_SAMPLES + 1)

    def sample(self) -> None:
        """Takes a sample; called every `SAMPLE_SECONDS`."""
        self._samples.append(read_totals(self._metrics))

    def series(self) -> dict[str, Any]:
        """What happened between the samples and since the last one, and all since the start."""
        now = read_totals(self._metrics)
        steps = itertools.pairwise([*self._samples, now])
        return {
            "seconds": SAMPLE_SECONDS,
            "now": now.time,
            "total": _between(self._start, now),
            "steps": [_between(before, after) for before, after in steps],
        }


def read_totals(metrics: Metrics) -> Totals:
    """The counters as they are; of requests those of the public endpoints, not the page's own."""
    latency: dict[float, float] = {}
    for one in metrics.seconds.collect():
        for sample in one.samples:
            route = sample.labels["route"]
            is_public = route.startswith("/v1/") and not route.startswith("/v1/page/")
            if is_public and sample.name.endswith("_bucket"):
                most = float(sample.labels["le"])
                latency[most] = latency.get(most, 0) + sample.value
    users, shown = _by_label(metrics.lists), _by_label(metrics.shown)
    return Totals(
        time=time.time(),
        latency=latency,
        events=sum(_by_label(metrics.events).values()),
        users=sum(users.values()),
        cold=users.get("cold", 0),
        shown=sum(shown.values()),
        tail=shown.get("tail", 0),
    )


def _by_label(counter: Any) -> dict[str, float]:
    """Values of a counter by its one label, or by the empty text where it has none."""
    return {
        "".join(sample.labels.values()): sample.value
        for one in counter.collect()
        for sample in one.samples
        if sample.name.endswith("_total")
    }


def _between(before: Totals, after: Totals) -> dict[str, float | None]:
    latency = {most: value - before.latency.get(most, 0) for most, value in after.latency.items()}
    shown = after.shown - before.shown
    return {
        "time": after.time,
        "requests": latency.get(math.inf, 0),
        "median": quantile(latency, 0.5),
        "p95": quantile(latency, 0.95),
        "events": after.events - before.events,
        "users": after.users - before.users,
        "cold": after.cold - before.cold,
        "tail": (after.tail - before.tail) / shown if shown else None,
    }


def quantile(cumulated: dict[float, float], share: float) -> float | None:
    """Of a histogram, linear within a bucket; the largest finite limit beyond it, None of nothing.

    Examples
    --------
    >>> quantile({0.1: 1, 0.2: 3, math.inf: 4}, 0.5)
    0.15000000000000002
    """
    wanted = share * cumulated.get(math.inf, 0)
    low, below = 0.0, 0.0
    for high, count in sorted(cumulated.items()):
        if count >= wanted > 0:
            return low if math.isinf(high) else low + (high - low) * (wanted - below) / (count - below)
        low, below = high, count
    return None
