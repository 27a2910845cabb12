"""Quality against seconds of training, without the seconds of evaluation: what benchmarks compare."""

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

# Loaded at their first use, for up to seconds; loading libraries is counted for nobody.
import torch._dynamo  # noqa: F401

import hdccf
import hdccf.kernels.embedding_numba
import hdccf.kernels.pairwise_numba
from hdccf.config import FitOptions, TrainingSettings
from hdccf.data.split import predefined_split
from hdccf.models.base import Scorer
from hdccf.training.calibrate import parse_metric, validation_ranker
from hdccf.training.fit import StopTraining, fit

METRIC = "sampled:ndcg@10"
PATIENCE = 8


class Point(NamedTuple):
    """How good a model is on validation after so many epochs and seconds of training."""

    epoch: int
    seconds: float
    value: float
    processor: float = float("nan")
    """Seconds of all its threads, which other work on the machine lengthens less."""


class Validator:
    """Measures a scorer on the validation part. The same object serves all systems of a comparison."""

    def __init__(self, split: hdccf.Split, metric: str = METRIC) -> None:
        self.protocol, self.name, _ = parse_metric(metric)
        self.ranker = validation_ranker(split, metric)

    def __call__(self, scorer: Scorer) -> float:
        return self.ranker.measure(scorer, (self.name,), (self.protocol,))[self.protocol][self.name]


class Curve:
    """Collects points and says when there is no more to learn from going on."""

    def __init__(
        self, judge: Validator, seconds: float, enough: float = float("inf"), *, by_processor: bool = False
    ) -> None:
        self.judge, self.budget, self.enough, self.by_processor = judge, seconds, enough, by_processor
        self.points: list[Point] = []
        self.trained, self.worked = 0.0, 0.0
        self.begin()

    def look(self, epoch: int, scorer: Callable[[], Scorer]) -> None:
        """Called after each training; what happens in here is not counted."""
        wall, processor = self._since
        self.add(epoch, time.perf_counter() - wall, time.process_time() - processor, scorer)
        self.begin()

    def begin(self) -> None:
        """What is counted at the next look starts here."""
        self._since = time.perf_counter(), time.process_time()

    def add(self, epoch: int, taken: float, processor: float, scorer: Callable[[], Scorer]) -> None:
        """The same, where somebody else has measured what the training took."""
        self.trained += taken
        self.worked += processor
        value = round(self.judge(scorer()), 5)
        self.points.append(Point(epoch, round(self.trained, 4), value, round(self.worked, 4)))

    @property
    def ended(self) -> bool:
        best = max(range(len(self.points)), key=lambda place: self.points[place].value, default=0)
        # Some are no better than chance for a while, so that nobody is given up at once.
        spent = self.worked if self.by_processor else self.trained
        stuck = len(self.points) - 1 - best >= PATIENCE and spent > self.budget / 4
        reached = bool(self.points) and self.points[-1].value >= self.enough
        return spent > self.budget or stuck or reached


def our_curve(
    split: hdccf.Split,
    settings: TrainingSettings,
    judge: Validator,
    *,
    seconds: float,
    enough: float = float("inf"),
    every: int = 1,
    threads: int = 2,
    seed: int = 0,
    by_processor: bool = False,
) -> list[Point]:
    """Our trainer as ever, but that nothing is held out for it: who looks is the judge."""
    everything = predefined_split(split.train)
    curve = Curve(judge, seconds, enough, by_processor=by_processor)

    def look(model: Any, batch: Any) -> dict[str, float]:
        done = curve.points[-1].epoch if curve.points else 0
        curve.look(done + every, model.scorer)
        return {}

    def stop(record: dict[str, Any]) -> None:
        if curve.ended:
            raise StopTraining

    wanted = settings.changed(epochs=10_000, patience=10_000, evaluate_every=every)
    fit(
        everything,
        wanted,
        seed=seed,
        options=FitOptions(threads=threads),
        diagnosis=look,
        on_evaluation=stop,
    )
    return curve.points


def seconds_to(curve: Iterable[Point | list[float]], target: float) -> float | None:
    """Seconds until the target is first reached at an evaluation; None where it never is."""
    return next((point[1] for point in curve if point[2] >= target), None)


def processor_to(curve: Iterable[Point | list[float]], target: float) -> float | None:
    """The same in seconds of the processor; None also where they were not taken."""
    return next((point[3] for point in curve if len(point) > 3 and point[2] >= target), None)
