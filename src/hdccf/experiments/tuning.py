"""Hyperparameter search: trials of a model's settings on the validation part, until the budget is spent."""

import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hdccf.config import FitOptions, TrainingSettings, build_settings
from hdccf.data.split import Split
from hdccf.errors import ConfigError, HdccfError, TrainingError
from hdccf.experiments.studies import Budget, Question, StudyFile, import_optuna
from hdccf.files import atomic_file
from hdccf.training.calibrate import parse_metric, validation_ranker
from hdccf.training.fit import StopTraining, fit

if TYPE_CHECKING:
    from rich.table import Table

_STARTUP = 5
"""Trials that have to be finished before others are pruned by comparison with them."""


@dataclass(frozen=True)
class Tuned:
    """The best trial of a study, and what the study has spent."""

    settings: dict[str, Any]
    """What differs from the model's defaults."""
    value: float
    trial: int
    trials: int
    minutes: float


def tune(
    split: Split,
    question: Question,
    budget: Budget,
    *,
    study: str,
    out: Path,
    start: Mapping[str, Any] | None = None,
    jobs: int = 1,
    threads: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> Tuned:
    """Works on a study until its budget is spent, and writes the best settings to `out`.

    A new study tries `start` first, then the defaults. An existing one is continued: after an interruption
    only the trials under way are lost, and those are tried again.
    """
    if not question.space:
        raise ConfigError(f"{question.model} has no search space, so there is nothing to tune")
    if not len(split.validation):
        raise ConfigError("this split has no validation part, which tuning goes by; give one that has")
    parse_metric(question.metric)
    if out.exists() and not overwrite and read_origin(out).get("study") != study:
        raise ConfigError(
            f"{out} exists and was not written by the study {study}; give another --out, or --overwrite"
        )
    with StudyFile(study, question, start) as opened, displayed(opened, budget, progress) as update:
        if jobs == 1:
            _work(opened, split, budget, threads, update)
        else:
            _work_together(opened, split, budget, jobs, threads, update)
        update()
        return _conclude(opened, budget, out)


# -- the work ------------------------------------------------------------------------------------------------


def _work(
    study: StudyFile, split: Split, budget: Budget, threads: int | None, update: Callable[[], None]
) -> None:
    """Trial after trial in this process."""
    # No trial is pruned in a third of the epochs, and in at least two evaluations (decision 19).
    warmup, fields = 0, study.question.settings.model_fields
    if issubclass(study.question.settings, TrainingSettings):
        warmup = max(fields["epochs"].default // 3, 2 * fields["evaluate_every"].default)
    study.study.pruner = import_optuna().pruners.MedianPruner(
        n_startup_trials=_STARTUP, n_warmup_steps=warmup, n_min_trials=_STARTUP
    )
    while (trial := study.ask(budget)) is not None:
        update()
        try:
            _try(study, trial, split, budget, threads)
        except BaseException:
            # Whatever it was, the settings have not had their trial.
            study.give_back(trial.number)
            raise
        update()


def _try(study: StudyFile, trial: Any, split: Split, budget: Budget, threads: int | None) -> None:
    """Trains with a trial's settings and tells the study the result."""
    optuna = import_optuna()
    watch = _Watch(study, trial, budget)
    state, value = None, None
    try:
        value = _measure(study.question, study.suggest(trial), split, threads, watch)
    except (optuna.TrialPruned, TrainingError) as error:
        # A diverged training counts as pruned: the sampler learns to avoid such settings.
        state = optuna.trial.TrialState.PRUNED
        if isinstance(error, TrainingError):
            trial.set_user_attr("error", str(error))
    trial.set_user_attr("seconds", watch.seconds)
    study.study.tell(trial, value, state=state)


def _measure(
    question: Question, values: dict[str, Any], split: Split, threads: int | None, watch: "_Watch"
) -> float:
    """The validation metric of settings; of a trained model at its best epoch."""
    trained = issubclass(question.settings, TrainingSettings)
    own = {"validation_metric": question.metric} if trained else {}
    settings = build_settings(question.settings, values, own)
    options = FitOptions(threads=threads, calibrate=False)
    fitted = fit(split, settings, seed=question.seed, options=options, on_evaluation=watch)
    if trained:
        return watch.best
    protocol, name, _ = parse_metric(question.metric)
    ranker = validation_ranker(split, question.metric)
    return ranker.measure(fitted, (name,), (protocol,))[protocol][name]


class _Watch:
    """Called at each evaluation: reports it, prunes the trial, or ends it where the budget is spent."""

    def __init__(self, study: StudyFile, trial: Any, budget: Budget) -> None:
        self.study, self.trial, self.budget = study, trial, budget
        self.best, self._started = float("-inf"), time.process_time()

    @property
    def seconds(self) -> float:
        """Processor seconds a thread, so that other load on the machine costs nothing (decision 19)."""
        return round((time.process_time() - self._started) / torch.get_num_threads(), 3)

    def __call__(self, record: dict[str, Any]) -> None:
        value = record["validation"][self.study.question.metric]
        if value > self.best:
            self.best = value
            self.trial.set_user_attr("epoch", record["epoch"])
        # The best so far: a dip is no reason to give up.
        self.trial.report(self.best, record["epoch"])
        self.trial.set_user_attr("seconds", self.seconds)
        if self.trial.should_prune():
            raise import_optuna().TrialPruned
        if self.study.spent()[1] >= self.budget.minutes:
            # What it has reached counts; it only had less time than others.
            self.trial.set_user_attr("cut", True)
            raise StopTraining


def _work_together(
    study: StudyFile,
    split: Split,
    budget: Budget,
    jobs: int,
    threads: int | None,
    update: Callable[[], None],
) -> None:
    """The same in `jobs` processes, each with its share of the processor's threads."""
    threads = threads or max(1, torch.get_num_threads() // jobs)
    context = multiprocessing.get_context("spawn")
    failures = context.SimpleQueue()
    arguments = (split, study.place, study.question, budget, threads, failures)
    workers = [context.Process(target=_worker, args=arguments, daemon=True) for _ in range(jobs)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        for worker in workers:
            worker.join(timeout=1.0 / jobs)
        update()
    if not failures.empty():
        raise HdccfError(failures.get())
    if any(worker.exitcode for worker in workers):
        raise HdccfError("a tuning process was ended from outside; call again to go on with the study")


def _worker(
    split: Split, study: str, question: Question, budget: Budget, threads: int, failures: Any
) -> None:
    """What a process of `_work_together` runs."""
    try:
        with StudyFile(study, question) as opened:
            _work(opened, split, budget, threads, lambda: None)
    except HdccfError as error:
        failures.put(str(error))
    except KeyboardInterrupt:
        pass  # the caller has it too, and says so


# -- the best settings ---------------------------------------------------------------------------------------


def _conclude(study: StudyFile, budget: Budget, out: Path) -> Tuned:
    """Writes the settings of the best trial."""
    trials, minutes = study.spent()
    if not study.completed:
        raise ConfigError(
            f"no trial came to its end in {trials} trials and {minutes:.1f} minutes; give more of either"
        )
    best, question = study.completed[0], study.question
    settings = question.draw(lambda name, _: best.params[name])
    found = Tuned(settings, float(best.value or 0.0), best.number, trials, minutes)
    origin = {"study": study.place, **asdict(question), **asdict(found), "minutes": round(minutes, 2)}
    del origin["settings"]
    write_best(out, settings, {**origin, "budget": asdict(budget)})
    return found


MARK = "# hdccf tune "


def write_best(path: Path, settings: dict[str, Any], origin: dict[str, Any]) -> None:
    """Writes settings as TOML, atomically, with the study, its budget and value as `origin` in a comment."""
    lines = [MARK + json.dumps(origin, ensure_ascii=False)]
    for name, value in settings.items():
        if value is not None:
            # JSON's numbers, strings, truth values and lists are TOML's.
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False, allow_nan=False)}")
    with atomic_file(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_origin(path: Path) -> dict[str, Any]:
    """The `origin` given to `write_best`; empty where the file was not written by `hdccf tune`."""
    try:
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        found = json.loads(first.removeprefix(MARK)) if first.startswith(MARK) else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# -- the display ---------------------------------------------------------------------------------------------

_SHOWN = 12
"""Trials in the live table."""
_WORDS = {"COMPLETE": "done", "PRUNED": "pruned", "RUNNING": "running", "FAIL": "lost", "WAITING": "waiting"}


@contextmanager
def displayed(study: StudyFile, budget: Budget, enabled: bool) -> Iterator[Callable[[], None]]:
    """Shows a study while processes work on it; yields what to call when a trial may have ended.

    In a terminal it is a live table, otherwise a line a trial. Both read the study, so that they show what
    other processes do as well.
    """
    if not enabled:
        yield lambda: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live

        shown, console = partial(trials_table, study, budget), Console(stderr=True)
        with Live(get_renderable=shown, console=console, refresh_per_second=1):
            yield lambda: None
    else:
        told = {trial.number for trial in study.trials if trial.state.is_finished()}
        print(_progress(study, budget), file=sys.stderr, flush=True)
        yield partial(_write_ended, study, budget, told)


def _write_ended(study: StudyFile, budget: Budget, told: set[int]) -> None:
    """A line for each trial that has ended since."""
    for trial in study.trials:
        if trial.state.is_finished() and trial.number not in told:
            told.add(trial.number)
            number, state, value, epoch, seconds, settings = _cells(trial)
            after = f" at epoch {epoch}" if epoch else ""
            print(f"trial {number} {state} {value}{after}, {seconds} s: {settings}", file=sys.stderr)
            print(_progress(study, budget), file=sys.stderr, flush=True)


def _progress(study: StudyFile, budget: Budget) -> str:
    question, (trials, minutes) = study.question, study.spent()
    best = study.completed[:1]
    reached = f", best {question.metric} {best[0].value:.4f} (trial {best[0].number})" if best else ""
    part = "time-aware" if question.time_aware else "time-blind"
    return (
        f"{question.model} on {question.dataset}, {part}: {trials} of {budget.trials} trials, "
        f"{minutes:.1f} of {budget.minutes:g} minutes{reached}"
    )


def trials_table(study: StudyFile, budget: Budget) -> "Table":
    """The trials under way, then the best."""
    from rich import box
    from rich.table import Table

    table = Table(title=_progress(study, budget), title_justify="left", box=box.SIMPLE, expand=True)
    for head in ("trial", "", "value", "epoch", "seconds"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("settings", overflow="fold")
    running = [trial for trial in study.trials if trial.state.name == "RUNNING"]
    best = study.completed
    for trial in (running + best)[:_SHOWN]:
        table.add_row(*_cells(trial), style="bold" if best and trial is best[0] else None)
    return table


def _cells(trial: Any) -> list[str]:
    """Number, state, value, epoch, seconds and settings of a trial."""
    reached = trial.intermediate_values
    value = trial.value if trial.state.name == "COMPLETE" else max(reached.values(), default=None)
    epoch = trial.user_attrs.get("epoch", max(reached, default=""))
    seconds = trial.user_attrs.get("seconds")
    state = "diverged" if "error" in trial.user_attrs else _WORDS[trial.state.name]
    settings = [
        f"{name}={chosen:.3g}" if isinstance(chosen, float) else f"{name}={chosen}"
        for name, chosen in trial.params.items()
    ]
    texts = ("" if value is None else f"{value:.4f}", str(epoch), "" if seconds is None else f"{seconds:.0f}")
    return [str(trial.number), state, *texts, ", ".join(settings)]
