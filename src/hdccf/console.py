"""Console output: notes, progress bars, the live line of a training, and Ctrl-C between two steps.

Everything goes to standard error, so that standard output carries results only. Where standard error is
neither a terminal nor a notebook with ipywidgets, bars become plain lines.
"""

import html
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

_SECONDS_BETWEEN_LINES = 10.0


def note(message: str) -> None:
    """Tells the user something that was decided for them."""
    sys.stderr.write(f"note: {message}\n")
    sys.stderr.flush()


def html_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for notebooks, the first column on the left and the others on the right; cells are HTML."""

    def line(tag: str, cells: Sequence[str]) -> str:
        first, *others = cells
        right = "".join(f'<{tag} style="text-align: right">{cell}</{tag}>' for cell in others)
        return f'<tr><{tag} style="text-align: left">{first}</{tag}>{right}</tr>'

    body = "".join(line("td", row) for row in rows)
    caption = f"<caption>{html.escape(title)}</caption>"
    return f"<table>{caption}<thead>{line('th', head)}</thead><tbody>{body}</tbody></table>"


def _live_console() -> "Console | None":
    """Where bars can move: a terminal, or a notebook that has ipywidgets; None elsewhere."""
    if not sys.stderr.isatty() and not ("ipykernel" in sys.modules and find_spec("ipywidgets")):
        return None
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal or console.is_jupyter else None


@contextmanager
def progress_bar(
    description: str, total: int | None, *, enabled: bool = True, unit: str = ""
) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told how many steps were taken since the last call.

    `unit="bytes"` shows sizes and speed. Where no bar can move a line is written every ten seconds instead.
    """
    if not enabled:
        yield lambda steps: None
        return
    console = _live_console()
    if console is None:
        yield _plain_lines(description, total)
        return
    import rich.progress as bars

    amounts: list[bars.ProgressColumn] = [bars.MofNCompleteColumn()]
    if unit == "bytes":
        amounts = [bars.DownloadColumn(), bars.TransferSpeedColumn()]
    columns = [bars.TextColumn("{task.description}"), bars.BarColumn(), *amounts, bars.TimeRemainingColumn()]
    with bars.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda steps: bar.advance(task, steps)


def track(
    steps: Iterable[T], description: str, total: int | None = None, *, enabled: bool = True
) -> Iterator[T]:
    """Yields `steps` and shows how far they are."""
    if total is None and isinstance(steps, Sized):
        total = len(steps)
    with progress_bar(description, total, enabled=enabled) as advance:
        for step in steps:
            yield step
            advance(1)


def _plain_lines(description: str, total: int | None) -> Callable[[int], None]:
    done = 0
    last = time.monotonic()

    def advance(steps: int) -> None:
        nonlocal done, last
        done += steps
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            of_total = f" of {total:,} ({100 * done / total:.0f} %)" if total else ""
            sys.stderr.write(f"{description}: {done:,}{of_total}\n")
            sys.stderr.flush()

    return advance


_SECONDS_BETWEEN_EPOCHS = 2.0


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
        if self.enabled and (console := _live_console()):
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("epoch {task.fields[epoch]}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[status]}"),
                TimeElapsedColumn(),
                TextColumn("at most"),
                TimeRemainingColumn(),
                console=console,
            )
            self._task = self._bar.add_task("", total=self.epochs * self.batches, epoch=0, status="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
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
        if now - self._last_line >= _SECONDS_BETWEEN_EPOCHS:
            self._last_line, self._pending = now, None
            self._write(line)
        else:
            self._pending = line  # the last one is always shown

    @staticmethod
    def _write(line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


class RaceDisplay:
    """Told of every candidate's training in the choice of settings; shows them as a live table."""

    def __init__(self, names: list[str], *, enabled: bool) -> None:
        self.enabled = enabled
        self._rows = {name: ["", "", "", "waiting"] for name in names}
        self._live: Any = None

    def __enter__(self) -> Self:
        if self.enabled and (console := _live_console()):
            from rich.live import Live

            self._live = Live(self._table(), console=console)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def training(self, name: str) -> None:
        self._show(name, [*self._rows[name][:3], "training"])

    def evaluated(self, name: str, epoch: int, value: float, seconds: float) -> None:
        self._show(name, [str(epoch), f"{value:.4f}", f"{seconds:.0f}", ""])
        if self.enabled and self._live is None:
            sys.stderr.write(f"candidate {name}: {value:.4f} after {epoch} epochs, {seconds:.0f} s\n")
            sys.stderr.flush()

    def dropped(self, name: str) -> None:
        self._show(name, [*self._rows[name][:3], "dropped"])

    def _show(self, name: str, row: list[str]) -> None:
        self._rows[name] = row
        if self._live is not None:
            self._live.update(self._table())

    def _table(self) -> Any:
        from rich import box
        from rich.table import Table

        table = Table("candidate", "epochs", "validation", "seconds", "", box=box.SIMPLE, padding=0)
        for name, row in self._rows.items():
            table.add_row(name, *row, style="dim" if row[-1] == "dropped" else None)
        return table


class Interruptible:
    """True once Ctrl-C, SIGTERM or SIGHUP came; a second one stops at once.

    Clusters send SIGTERM before they take a machine away. Outside the main thread nothing is caught.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._received = False
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self._received

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received:
            raise KeyboardInterrupt
        self._received = True
