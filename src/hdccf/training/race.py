"""The automatic choice of a configuration: successive halving on the validation metric.

Every candidate is trained to its second evaluation. The better half goes on to twice as many, until one is
left (Jamieson and Talwalkar, 2016), which is then trained to the end. A candidate that learns slowly and long
is not ahead in the first rounds: learning curves are nearly straight lines over the logarithm of the epochs,
so candidates are compared by their value with the gain of the last doubling added once more. Budgets are
counted in evaluations and not in seconds, so the choice repeats with the seed, unless a limit of minutes ends
it.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from hdccf.checkpoint import explained
from hdccf.console import RaceDisplay
from hdccf.data.split import PARTS, Split
from hdccf.files import atomic_file
from hdccf.training.state import TrainingState

RACE_PAIRS = 2_000_000
"""With more training pairs the candidates are compared on a sample of the users with about so many."""


class Contender(Protocol):
    """A training that can be interrupted after an epoch."""

    state: TrainingState

    def advance(self, until: int) -> None:
        """Trains to the end of an epoch."""
        ...


C = TypeVar("C", bound=Contender)


@dataclass(frozen=True)
class Evaluated:
    """A line of race.jsonl: a candidate at the end of a round."""

    round: int
    candidate: str
    epoch: int
    value: float
    """Its best validation value so far."""
    gain: float
    """Over its best after half as many evaluations."""
    seconds: float
    """Of its training so far."""

    @property
    def projected(self) -> float:
        """What the value will be after twice as many evaluations, if the gain stays the same."""
        return self.value + self.gain


def read_race(file: Path) -> list[Evaluated]:
    """The lines of race.jsonl; one that a kill cut short is left out."""
    if not file.exists():
        return []
    found = []
    with explained(file):
        lines = file.read_bytes().splitlines()
    for line in lines:
        try:
            found.append(Evaluated(**json.loads(line)))
        except (TypeError, ValueError):
            break
    return found


def append_to(file: Path, lines: list[Evaluated]) -> Callable[[Evaluated], None]:
    """Adds lines to race.jsonl and to the list."""

    def append(line: Evaluated) -> None:
        lines.append(line)
        # They are few: written anew, so that no half line of a killed process stays before them.
        with explained(file), atomic_file(file) as temporary:
            temporary.write_text("".join(json.dumps(asdict(one)) + "\n" for one in lines), encoding="utf-8")

    return append


def race(
    candidates: Mapping[str, int],
    start: Callable[[str], C],
    *,
    done: Iterable[Evaluated] = (),
    log: Callable[[Evaluated], None] = lambda line: None,
    minutes: float | None = None,
    progress: bool = False,
) -> tuple[str, C | None]:
    """The name of the best candidate, and its training where any of it was done here.

    Parameters
    ----------
    candidates
        Epochs between two evaluations, by name; the preferred candidate first: it wins a tie.
    start
        Makes the training of a candidate, which goes on from its checkpoint where it has one.
    done
        What an interrupted race has recorded; it is not done again.
    log
        Called with every new line.
    minutes
        When so many are over, the best so far wins.
    progress
        Whether to show a live table.
    """
    known = {(line.round, line.candidate): line for line in done}
    contenders: dict[str, C] = {}
    latest: dict[str, Evaluated] = {}
    names, evaluations, number = list(candidates), 2, 1
    with RaceDisplay(names, enabled=progress) as display:
        while len(names) > 1 and not _over(latest, minutes):
            for name in names:
                line = known.get((number, name))
                if line is None:
                    if name not in contenders:
                        contenders[name] = start(name)
                    display.training(name)
                    before = latest[name].value if name in latest else None
                    line = _advanced(contenders[name], number, name, evaluations, candidates[name], before)
                    log(line)
                latest[name] = line
                display.evaluated(name, line.epoch, line.value, line.seconds)
                if _over(latest, minutes):
                    break
            # A stable order: of equal candidates the one that is preferred stays.
            best = sorted(
                (name for name in names if name in latest), key=lambda name: -latest[name].projected
            )
            names = best[: (len(names) + 1) // 2]
            for name in [name for name in contenders if name not in names]:
                del contenders[name]
                display.dropped(name)
            evaluations, number = 2 * evaluations, number + 1
    return names[0], contenders.get(names[0])


def _advanced(
    contender: Contender, number: int, name: str, evaluations: int, every: int, half: float | None
) -> Evaluated:
    """A candidate after so many evaluations; `half` is its value in the round before, if there was one."""
    if half is None:
        contender.advance(evaluations // 2 * every)
        half = contender.state.best_value
    contender.advance(evaluations * every)
    state = contender.state
    return Evaluated(
        number, name, state.epoch - 1, state.best_value, state.best_value - half, round(state.seconds, 3)
    )


def _over(latest: Mapping[str, Evaluated], minutes: float | None) -> bool:
    return minutes is not None and sum(line.seconds for line in latest.values()) > 60 * minutes


def explain_choice(chosen: str, lines: Iterable[Evaluated], metric: str) -> str:
    """One line: what was chosen, and what it was compared with."""
    latest = {line.candidate: line for line in lines}
    own = latest.pop(chosen)
    others = sorted(latest.values(), key=lambda line: -line.projected)
    expected = ", ".join(f"{line.candidate} {line.projected:.4f}" for line in others)
    return (
        f"chose {chosen}: {metric} {own.value:.4f} on validation after {own.epoch} epochs, "
        f"{own.projected:.4f} expected after twice as many" + (f" ({expected})" if others else "")
    )


def sample_for_race(split: Split, pairs: int | None = None) -> Split:
    """The split itself, or one with a sample of its users where it has more training pairs."""
    pairs = RACE_PAIRS if pairs is None else pairs
    if len(split.train) <= pairs:
        return split
    share = pairs / len(split.train)
    chosen = np.random.default_rng(0).random(split.n_users) < share
    train, validation, test = (part.subset(chosen[part.users]) for part in map(split.part, PARTS))
    return replace(split, train=train, validation=validation, test=test)
