"""Where a training's time goes: seconds by stage, taken only where somebody asked.

A stage is what the processor does between two readings of the clock. On a device that works on while Python
goes ahead, a stage is charged with what it waits for.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

STAGES = ("sampling", "scores and loss", "backward", "optimizer", "evaluation", "checkpoints")
OTHER = "other"

Clock = Callable[[str], AbstractContextManager[None]]
"""Opened around each piece of a stage, by the stage's name."""

T = TypeVar("T")
_NOTHING = nullcontext()


def no_clock(stage: str) -> AbstractContextManager[None]:
    """What stands in where nobody asked: it reads no clock."""
    return _NOTHING


class Stopwatch:
    """A clock that adds up each stage's seconds and counts its pieces."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.pieces = dict.fromkeys(STAGES, 0)
        self._started = time.perf_counter()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - start
            self.pieces[stage] += 1

    def report(self) -> dict[str, Any]:
        """Seconds, share of the whole and number of pieces of each stage; `other` is what is in none."""
        total = time.perf_counter() - self._started
        seconds = {**self.seconds, OTHER: max(total - sum(self.seconds.values()), 0.0)}
        stages = {
            stage: {
                "seconds": round(taken, 4),
                "share": round(taken / total, 4),
                "pieces": self.pieces.get(stage),
            }
            for stage, taken in seconds.items()
        }
        return {"seconds": round(total, 4), "stages": stages}


def timed(clock: Clock, stage: str, values: Iterable[T]) -> Iterator[T]:
    """The same values; the time until each of them is there goes to the stage."""
    iterator, end = iter(values), object()
    while True:
        with clock(stage):
            value: Any = next(iterator, end)
        if value is end:
            return
        yield value


def table(report: dict[str, Any]) -> str:
    """A report for people, the longest stage first."""
    lines = ["where the time went", f"{'':<20} {'seconds':>9} {'share':>7} {'pieces':>8} {'ms each':>9}"]
    stages = sorted(report["stages"].items(), key=lambda stage: -stage[1]["seconds"])
    for name, stage in stages:
        line = f"{name:<20} {stage['seconds']:>9.2f} {stage['share']:>7.1%}"
        if stage["pieces"]:
            line += f" {stage['pieces']:>8,} {1e3 * stage['seconds'] / stage['pieces']:>9.2f}"
        lines.append(line)
    return "\n".join([*lines, f"{'all':<20} {report['seconds']:>9.2f}"])
