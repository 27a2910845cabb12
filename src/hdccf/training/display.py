"""What `hdccf train` shows: a live line in a terminal, plain lines in a log."""

import sys
import time
from types import TracebackType
from typing import Any, Self

_SECONDS_BETWEEN_LINES = 2.0


class TrainingDisplay:
    """Told of every step and evaluation; shows epoch, loss terms, validation metric, clip rate, time left."""

    def __init__(self, epochs: int, batches: int, *, enabled: bool) -> None:
        self.epochs = epochs
        self.batches = batches
        self.enabled = enabled
        self._bar: Any = None
        self._task: Any = None
        self._last_line = 0.0
        self._pending: str | None = None

    def __enter__(self) -> Self:
        if self.enabled and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("epoch {task.fields[epoch]}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[status]}"),
                TimeElapsedColumn(),
                TextColumn("at most"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task("", total=self.epochs * self.batches, epoch=0, status="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._pending is not None:
            self._write(self._pending)

    def stepped(self, epoch: int, step: int) -> None:
        if self._bar is not None:
            done = (epoch - 1) * self.batches + step
            self._bar.update(self._task, completed=done, epoch=f"{epoch}/{self.epochs}")

    def evaluated(self, record: dict[str, Any], best: bool) -> None:
        """One record of metrics.jsonl."""
        if not self.enabled:
            return
        shown = [f"loss {record['loss']:.4f}"]
        shown += [f"{name} {value:.4f}" for name, value in record["terms"].items() if "clipped" not in name]
        clips = [value for name, value in record["terms"].items() if "clipped" in name]
        if clips and max(clips) > 0:
            shown.append(f"clipped {100 * max(clips):.0f} %")
        shown += [f"{name} {value:.4f}" for name, value in record["validation"].items()]
        text = "  ".join(shown) + ("  *" if best else "")
        if self._bar is not None:
            self._bar.update(self._task, status=text)
            return
        line = f"epoch {record['epoch']}/{self.epochs}  {text}  {record['seconds']:.0f} s"
        now = time.monotonic()
        if now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line, self._pending = now, None
            self._write(line)
        else:
            self._pending = line  # the last one is always shown

    @staticmethod
    def _write(line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
