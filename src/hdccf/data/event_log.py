"""The event log: events between two trainings as JSON Lines, on disk before they are acknowledged."""

import os
import threading
from bisect import insort
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import polars as pl
from pydantic import BaseModel, ValidationError, field_validator

from hdccf.data.columns import number_ids
from hdccf.data.interactions import Interactions, align
from hdccf.data.split import Split
from hdccf.errors import DataError, DiskFullError, SourceError, one_line
from hdccf.files import locked

MAX_HISTORY = 1000
"""The latest events of a user that are kept in memory; the file has all."""


class Event(BaseModel):
    """One line of the log. Ids are texts, as an integer and its text are the same id."""

    id: str
    user: str
    item: str
    time: datetime
    """In UTC; a time without a zone is UTC."""

    @field_validator("time")
    @classmethod
    def _in_utc(cls, time: datetime) -> datetime:
        try:
            return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
        except OverflowError:
            raise ValueError("a time is between the years 1 and 9999, in UTC too") from None


class Appended(NamedTuple):
    """What became of some events."""

    accepted: int
    duplicates: int
    """Events whose id the log has already."""


class JsonLines:
    """A file of JSON Lines that one process appends to.

    Parameters
    ----------
    path
        The file; it is made with the first line. What a killed process left of a last line is cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open = ExitStack()
        self._open.enter_context(locked(path, SourceError))
        self.lines = list(complete_lines(path))
        """Those that the file had when it was opened."""
        self._size = sum(map(len, self.lines))
        if path.exists() and path.stat().st_size > self._size:
            os.truncate(path, self._size)

    def append(self, lines: bytes) -> None:
        """Writes whole lines; when it returns they are on the disk."""
        is_new = not self.path.exists()
        try:
            with self.path.open("ab") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
            if is_new:  # or the name of the file may be lost, and the lines with it
                folder = os.open(self.path.parent, os.O_RDONLY)
                os.fsync(folder)
                os.close(folder)
        except OSError as cause:
            if self.path.exists():
                os.truncate(self.path, self._size)
            raise DiskFullError(
                f"{self.path} could not be written ({cause.strerror}); make room, and send it again"
            ) from cause
        self._size += len(lines)

    def close(self) -> None:
        """Lets another process append."""
        self._open.close()


def complete_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file; a last one that was cut short is left out."""
    if path.exists():
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


class LogFullError(DataError):
    """A log that has as many events as it may."""


class EventLog:
    """Events of users, kept in one file. One process at a time appends to it.

    Parameters
    ----------
    path
        The file; it is made with the first event. What a killed process left of a last line is cut off.
    most
        Events that it may hold.

    Examples
    --------
    >>> log = EventLog(Path("events.jsonl"))  # doctest: +SKIP
    >>> log.append([Event(id="1", user="196", item="50", time=datetime.now(UTC))])  # doctest: +SKIP
    >>> log.items_of("196")  # doctest: +SKIP
    ['50']
    """

    def __init__(self, path: Path, *, most: int = 1_000_000) -> None:
        self.path, self.most = path, most
        self._ids: set[str] = set()
        self._histories: dict[str, list[tuple[datetime, int, str]]] = {}
        self._writing = threading.Lock()
        self._file = JsonLines(path)
        try:
            for event in _events_of(path, self._file.lines):
                self._remember(event)
        except SourceError:
            self.close()
            raise
        self._file.lines.clear()

    def __len__(self) -> int:
        return len(self._ids)

    def append(self, events: Iterable[Event]) -> Appended:
        """Writes the events whose ids are new; when it returns they are on the disk."""
        with self._writing:
            given, first = list(events), dict[str, Event]()
            for event in given:
                if event.id not in self._ids:
                    first.setdefault(event.id, event)
            new = list(first.values())
            if len(self) + len(new) > self.most:
                raise LogFullError(
                    f"{self.path} holds {len(self):,} of at most {self.most:,} events; train with --append "
                    f"{self.path}, and serve the new run with a new log"
                )
            if new:
                self._file.append("".join(event.model_dump_json() + "\n" for event in new).encode())
            for event in new:
                self._remember(event)
            return Appended(len(new), len(given) - len(new))

    def items_of(self, user: str) -> list[str]:
        """The items of a user in order of time."""
        return [item for _, item in self.events_of(user)]

    def events_of(self, user: str) -> list[tuple[datetime, str]]:
        """The times and items of a user in order of time."""
        return [(time, item) for time, _, item in self._histories.get(user, ())]

    def close(self) -> None:
        """Lets another process append."""
        self._file.close()

    def _remember(self, event: Event) -> None:
        self._ids.add(event.id)
        # A new list: others may be reading the old one.
        history = list(self._histories.get(event.user, ()))
        insort(history, (event.time, len(self._ids), event.item))
        self._histories[event.user] = history[-MAX_HISTORY:]


def _events_of(path: Path, lines: Iterable[bytes]) -> Iterator[Event]:
    for number, line in enumerate(lines, 1):
        try:
            yield Event.model_validate_json(line)
        except ValidationError as cause:
            raise SourceError(
                f"{path}, line {number} is no event ({one_line(cause)[:200]}); remove the line"
            ) from cause


def append_events(data: Interactions, path: Path) -> Interactions:
    """The interactions and the events of a log together, in order of time.

    Parameters
    ----------
    data
        Such as the events of the run that was served.
    path
        The log.

    Examples
    --------
    >>> data = append_events(hdccf.load_run("runs/last-week").events, Path("events.jsonl"))  # doctest: +SKIP
    """
    if not path.exists():
        raise SourceError(f"{path} does not exist; give the file of hdccf serve --events")
    rows = [(event.user, event.item, event.time) for event in _events_of(path, complete_lines(path))]
    if not rows:
        return data
    frame = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
    frame = frame.with_columns(pl.col("time").dt.epoch("us"))
    ids_of = {"user": data.user_ids, "item": data.item_ids}
    for kind, ids in ids_of.items():
        if ids.dtype.is_integer():
            numbers = frame[kind].cast(ids.dtype, strict=False)
            frame = frame if numbers.null_count() else frame.with_columns(numbers)
    (user_ids, users), (item_ids, items) = (number_ids(frame[kind], source=str(path)) for kind in ids_of)
    times = frame["time"].to_numpy()
    logged = Interactions.from_codes(users, items, user_ids=user_ids, item_ids=item_ids, times=times)
    known, new = align([data, logged])
    return Split(known, new, new.subset(new.users < 0), "predefined", {}).joined()
