"""Optuna studies on disk, shared by several processes: trials, their workers, and the budget that is spent.

Any worker may die. Each holds a file lock that its death releases, so that an abandoned trial is found and
tried again. Trials are asked for under one lock, which keeps the budget.
"""

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self
from uuid import uuid4

from filelock import FileLock, Timeout

from hdccf.config import Choice, Dimension, Settings, Space, Variant, Whole, build_settings
from hdccf.console import note
from hdccf.errors import ConfigError
from hdccf.models import entry_named

if TYPE_CHECKING:
    import optuna

SQLITE = "sqlite:///"


@dataclass(frozen=True)
class Question:
    """What a study is about. Trials that answer another question do not belong into it."""

    model: str
    dataset: str
    split: str
    """The fingerprint."""
    metric: str
    time_aware: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    space_name: str = ""
    """Which of the model's search spaces; empty for its usual one."""

    @property
    def space(self) -> Space:
        """The search space."""
        return self.settings.space_named(self.space_name)

    @property
    def settings(self) -> type[Settings]:
        """The settings class of the model."""
        return entry_named(self.model).settings

    def draw(self, suggest: Callable[[str, Dimension], Any]) -> dict[str, Any]:
        """Settings over the defaults, with a value from `suggest` for each dimension that applies."""
        return self.space.draw(suggest, time_aware=self.time_aware, fixed=self.fixed)

    def known(self) -> dict[str, Any]:
        """As it is kept in the study, with the space of today."""
        dimensions = self.space.part(self.time_aware)
        known = asdict(self)
        if not self.space_name:
            del known["space_name"]  # as studies have it that are older than the choice
        return {**known, "space": {name: repr(each) for name, each in dimensions.items()}}


@dataclass(frozen=True)
class Budget:
    """At most so many trials and so many minutes, whichever ends first."""

    trials: int
    minutes: float
    """Of trials, in processor time a thread: those of all processes, and of all calls that worked on the
    study, add up."""

    def __post_init__(self) -> None:
        if self.trials < 1 or not self.minutes > 0:
            raise ConfigError(
                f"{self.trials} trials in {self.minutes} minutes tune nothing; give 1 or more trials "
                "and some minutes"
            )


class StudyFile:
    """An Optuna study in a journal (a text file, a line a change) or, by a sqlite:/// address, a database.

    A new study tries the settings in `start` first, then the defaults. Use it as a context manager.
    """

    def __init__(self, place: str, question: Question, start: Mapping[str, Any] | None = None) -> None:
        if "://" in place and not place.startswith(SQLITE):
            raise ConfigError(
                f"study={place!r} is not possible; give the path of a journal file, or {SQLITE}file.db"
            )
        self.place, self.question = place, question
        self.path = Path(place.removeprefix(SQLITE))
        self._locks = self.path.parent / f".{self.path.name}.locks"
        self._locks.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self._locks / "study")
        self._name = f"worker-{os.getpid()}-{uuid4().hex[:8]}"
        self._worker = FileLock(self._locks / self._name)
        with self._lock:
            self._storage = self._open()
            self.study: optuna.Study = import_optuna().create_study(
                storage=self._storage, study_name="hdccf", direction="maximize", load_if_exists=True
            )
            self._check(start)
        self._worker.acquire()

    def _open(self) -> Any:
        optuna = import_optuna()
        if self.place.startswith(SQLITE):
            # Processes wait for each other's writes rather than give up after five seconds.
            return optuna.storages.RDBStorage(self.place, engine_kwargs={"connect_args": {"timeout": 60}})
        with self.path.open("ab+") as file:
            cut_half_a_line(file)
        lock = FileLock(self._locks / "journal")
        backend = optuna.storages.journal.JournalFileBackend(str(self.path), lock_obj=lock)
        return optuna.storages.JournalStorage(backend)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.release()
        (self._locks / self._name).unlink(missing_ok=True)
        self._storage.remove_session()
        if hasattr(self._storage, "engine"):
            self._storage.engine.dispose()

    def _check(self, start: Mapping[str, Any] | None) -> None:
        """Gives a new study its question and first trials; refuses an old one with another question."""
        known, found = self.question.known(), self.study.user_attrs.get("question")
        if found is None:
            self.study.set_user_attr("question", known)
            space, time_aware = self.question.space, self.question.time_aware
            own = {**space.aware, **space.aware_start} if time_aware else {**space.blind, **space.blind_start}
            first = [_carried(self.question, start)] if start else []
            # The published settings, as far as they lie in the space, or where it says to start: where they
            # are best nothing worse than them is found.
            for point in (*first, _point(self.question, own, lambda variant: variant.first)):
                if point:
                    self.study.enqueue_trial(point, skip_if_exists=True)
            return
        for name, value in known.items():
            if found.get(name) != value:
                raise ConfigError(
                    f"{self.place} is a study of {name}={found.get(name)!r}, not of {value!r}; "
                    "give another --study"
                )

    def ask(self, budget: Budget) -> "optuna.Trial | None":
        """The next trial, or none where the budget is spent."""
        optuna = import_optuna()
        with self._lock:
            self.study.set_user_attr("budget", asdict(budget))
            self._retry_abandoned()
            trials, minutes = self.spent()
            if trials >= budget.trials or minutes >= budget.minutes:
                return None
            # From the seed and the trials so far, so that being killed in between changes no draw.
            seed = self.question.seed * 100_003 + len(self.trials)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                self.study.sampler = optuna.samplers.TPESampler(
                    seed=seed, multivariate=True, group=True, constant_liar=True
                )
            trial = self.study.ask()
            trial.set_user_attr("worker", self._name)
            return trial

    def spent(self) -> tuple[int, float]:
        """Trials and minutes so far, with those under way up to their last evaluation."""
        counted = [trial for trial in self.trials if trial.state.name in ("COMPLETE", "PRUNED", "RUNNING")]
        return len(counted), sum(trial.user_attrs.get("seconds", 0.0) for trial in counted) / 60

    def give_back(self, number: int) -> None:
        """Fails a trial that was not ended, and puts its settings in line again, once."""
        trial = self.trials[number]
        self.study.tell(number, state=import_optuna().trial.TrialState.FAIL)
        if trial.params and "again" not in trial.user_attrs:
            # A second death is more likely the settings' fault, such as their memory, than bad luck.
            self.study.enqueue_trial(trial.params, user_attrs={"again": number})

    def _retry_abandoned(self) -> None:
        for trial in self.trials:
            worker = trial.user_attrs.get("worker", "")
            if trial.state.name == "RUNNING" and not (worker and _is_held(self._locks / worker)):
                self.give_back(trial.number)
                if worker:
                    (self._locks / worker).unlink(missing_ok=True)

    def suggest(self, trial: "optuna.Trial") -> dict[str, Any]:
        """What a trial decides: settings over the defaults."""

        def ask(name: str, dimension: Dimension) -> Any:
            if isinstance(dimension, Choice | Variant):
                return trial.suggest_categorical(name, list(dimension.options))
            suggest = trial.suggest_int if isinstance(dimension, Whole) else trial.suggest_float
            return suggest(name, dimension.low, dimension.high, log=dimension.log)  # type: ignore[arg-type]

        return self.question.draw(ask)

    @property
    def trials(self) -> "list[optuna.trial.FrozenTrial]":
        """All of them, in order; not copied, so not to be changed."""
        return self.study.get_trials(deepcopy=False)

    @property
    def completed(self) -> "list[optuna.trial.FrozenTrial]":
        """Trials that ran to their end, the best first."""
        done = [t for t in self.trials if t.state.name == "COMPLETE"]
        return sorted(done, key=lambda trial: (-(trial.value or 0.0), trial.number))


def _is_held(path: Path) -> bool:
    """Whether a living process holds the lock of that file; the kernel frees those of dead ones."""
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True


def cut_half_a_line(file: BinaryIO) -> None:
    """Removes half a last line, which a killed writer may have left, and goes to the end of the file."""
    file.seek(0)
    content = file.read()
    file.truncate(content.rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)


def import_optuna() -> Any:
    """Optuna, without its log lines; refuses with a remedy where it is not installed."""
    try:
        import optuna
        import optuna.storages.journal
    except ImportError as cause:
        raise ConfigError("tuning needs Optuna; install it with: pip install 'hdccf[tune]'") from cause
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


# -- first trials --------------------------------------------------------------------------------------------


def _carried(question: Question, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings from elsewhere as a point of the space."""
    # What is fixed makes them possible, but does not tell which variant they were.
    built = build_settings(question.settings, settings, question.fixed).model_dump()
    known = {**built, **settings}

    def option(variant: Variant) -> str:
        fitting = [
            name for name, values in variant.options.items() if all(known[n] == v for n, v in values.items())
        ]
        # Of options that contradict none of the settings, the one that determines most of them.
        return max(fitting, key=lambda name: len(variant.options[name]), default=variant.first)

    point = _point(question, settings, option)
    fields = question.settings.model_fields
    tried = question.draw(lambda name, _: point.get(name))
    lost = [
        f"--set {name}={value}"
        for name, value in settings.items()
        if tried.get(name, fields[name].default) != built[name]
    ]
    if lost:
        note(f"the first trial cannot have all that it should start with; to keep the rest: {' '.join(lost)}")
    return point


def _point(
    question: Question, settings: Mapping[str, Any], option: Callable[[Variant], str]
) -> dict[str, Any]:
    """Settings over the defaults as a trial would have drawn them; what lies outside is moved to the edge."""
    point: dict[str, Any] = {}

    def look_up(name: str, dimension: Dimension) -> Any:
        if isinstance(dimension, Variant):
            point[name] = option(dimension)
            return point[name]
        value = settings.get(name, question.settings.model_fields[name].default)
        if isinstance(dimension, Choice):
            if value in dimension.options:
                point[name] = value
        elif value is not None:
            point[name] = min(max(value, dimension.low), dimension.high)
        return value

    question.draw(look_up)
    return point
