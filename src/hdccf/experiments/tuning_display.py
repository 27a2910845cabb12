"""What `hdccf tune` shows: a live table in a terminal, a line a trial in a log."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from hdccf.experiments.studies import Budget, StudyFile

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = 12
"""Trials in the live table: those under way, then the best."""


class TuningDisplay:
    """Reads the study whenever it is to be shown, so that it shows what other processes do as well."""

    def __init__(self, study: StudyFile, budget: Budget, *, enabled: bool) -> None:
        self.study, self.budget, self.enabled = study, budget, enabled
        self._live: Any = None
        self._said: set[int] = set()

    def __enter__(self) -> Self:
        if not self.enabled:
            return self
        self._said = {trial.number for trial in self._trials() if trial.state.is_finished()}
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(get_renderable=self.table, console=Console(stderr=True), refresh_per_second=1)
            self._live.start()
        else:
            self._write(self.title())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self) -> None:
        """A line for each trial that has ended since."""
        if not self.enabled or self._live is not None:
            return
        for trial in self._trials():
            if trial.state.is_finished() and trial.number not in self._said:
                self._said.add(trial.number)
                number, state, value, epoch, seconds, settings = _cells(trial)
                after = f" at epoch {epoch}" if epoch else ""
                self._write(f"trial {number} {state} {value}{after}, {seconds} s: {settings}")
                self._write(self.title())

    def title(self) -> str:
        question = self.study.question
        trials, minutes = self.study.spent()
        best = self.study.completed[:1]
        reached = f", best {question.metric} {best[0].value:.4f} (trial {best[0].number})" if best else ""
        part = "time-aware" if question.time_aware else "time-blind"
        return (
            f"{question.model} on {question.dataset}, {part}: {trials} of {self.budget.trials} trials, "
            f"{minutes:.1f} of {self.budget.minutes:g} minutes{reached}"
        )

    def table(self) -> "Table":
        from rich import box
        from rich.table import Table

        table = Table(title=self.title(), title_justify="left", box=box.SIMPLE, expand=True)
        for head in ("trial", "", "value", "epoch", "seconds"):
            table.add_column(head, justify="right", no_wrap=True)
        table.add_column("settings", overflow="fold")
        running = [trial for trial in self._trials() if trial.state.name == "RUNNING"]
        best = self.study.completed
        for trial in (running + best)[:_SHOWN]:
            table.add_row(*_cells(trial), style="bold" if best and trial is best[0] else None)
        return table

    def _trials(self) -> list[Any]:
        return list(self.study.study.get_trials(deepcopy=False))

    @staticmethod
    def _write(line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


_WORDS = {"COMPLETE": "done", "PRUNED": "pruned", "RUNNING": "running", "FAIL": "lost", "WAITING": "waiting"}


def _cells(trial: Any) -> list[str]:
    reached = trial.intermediate_values
    value = trial.value if trial.state.name == "COMPLETE" else max(reached.values(), default=None)
    epoch = trial.user_attrs.get("epoch", max(reached, default=""))
    seconds = trial.user_attrs.get("seconds")
    state = "diverged" if "error" in trial.user_attrs else _WORDS[trial.state.name]
    settings = ", ".join(f"{name}={_short(chosen)}" for name, chosen in trial.params.items())
    return [
        str(trial.number),
        state,
        "" if value is None else f"{value:.4f}",
        str(epoch),
        "" if seconds is None else f"{seconds:.0f}",
        settings,
    ]


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
