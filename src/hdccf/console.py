"""What the user sees while something runs: one-line notes, and a bar that becomes plain lines in a log.

Everything goes to standard error, so that standard output carries results only.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

_SECONDS_BETWEEN_LINES = 10.0


def note(message: str) -> None:
    """Tells the user something that was decided for them."""
    sys.stderr.write(f"note: {message}\n")
    sys.stderr.flush()


@contextmanager
def progress_bar(
    description: str, total: int | None, *, enabled: bool = True, unit: str = ""
) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told how many steps were taken since the last call.

    `unit="bytes"` shows sizes and speed. Where standard error is not a terminal a line is written every ten
    seconds instead of a bar.
    """
    if not enabled:
        yield lambda steps: None
        return
    if not sys.stderr.isatty():
        yield _plain_lines(description, total)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    amounts: list[ProgressColumn] = (
        [DownloadColumn(), TransferSpeedColumn()] if unit == "bytes" else [MofNCompleteColumn()]
    )
    columns = [TextColumn("{task.description}"), BarColumn(), *amounts, TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
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
