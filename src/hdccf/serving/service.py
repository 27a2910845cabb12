"""What endpoints share: the served model and its atomic replacement, and a bounded thread pool that scores.

A request takes `current` once and keeps it to its end, so that every answer comes from one model and no
request waits for a swap. The old model goes when its last request has ended.
"""

import asyncio
import hashlib
import json
import logging
import math
import threading
import time
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import polars as pl
from fastapi import Depends, Request, Response
from pydantic_core import to_json

from hdccf.data.event_log import EventLog, JsonLines
from hdccf.errors import ConfigError, HdccfError, RunError
from hdccf.evaluation.metrics import Groups, item_groups
from hdccf.recommend.frames import Vocabulary
from hdccf.recommend.lens import Lens, estimate
from hdccf.recommend.recommender import Recommender, load_run
from hdccf.recommend.run_folder import answering_weights
from hdccf.serving.middleware import Metrics, Problem, ProblemError, problem
from hdccf.serving.settings import ServeSettings
from hdccf.serving.timeline import Timeline

log = logging.getLogger("hdccf.serving")

T = TypeVar("T")
Signature = tuple[object, ...]
_ATTEMPTS = 5
_NAMED = 10
_LONGEST_NAME = 256


class Catalogue:
    """Search over items by title, or users by id; first those with the most interactions."""

    def __init__(self, **columns: Any) -> None:
        """The id, then the columns of an answer, the number of interactions last."""
        own, *_, count = columns
        texts = pl.coalesce("title", pl.col(own).cast(pl.String)) if "title" in columns else pl.col(own)
        plain = texts.cast(pl.String).str.normalize("NFKD").str.replace_all(r"\p{Mn}", "").str.to_lowercase()
        frame = pl.DataFrame(columns).sort(count, descending=True, maintain_order=True)
        self._frame = frame.with_columns(own=pl.col(own).cast(pl.String), searched=plain)

    def search(self, text: str, limit: int) -> list[dict[str, Any]]:
        """Entries with all words of the text; first the one with this id, then those that begin so.

        Capitals and accents do not matter. An empty text finds the most popular.
        """
        parts = unicodedata.normalize("NFKD", text)
        plain = "".join(part for part in parts if not unicodedata.combining(part)).lower().strip()
        found = self._frame
        for word in plain.split():
            has_word = pl.col("searched").str.contains(word, literal=True)
            found = found.filter(has_word | (pl.col("own") == text))
        if plain:
            order = (pl.col("own") != text, ~pl.col("searched").str.starts_with(plain))
            found = found.sort(*order, maintain_order=True)
        return found.head(limit).drop("own", "searched").to_dicts()


@dataclass(frozen=True)
class Served:
    """A model in use, with what is looked up beside it."""

    recommender: Recommender
    version: str
    """Begins the SHA-256 of the weights: two answers with the same version come from the same model."""
    path: Path
    events: EventLog | None = None
    """Events since the training."""
    loaded_at: float = field(default_factory=time.time)

    def fresh(self, user: Any) -> list[str]:
        """The items that the log has of a user, the latest last; those that the model knows.

        None where the model cannot answer for a history that it was not trained on: its events wait for the
        next training.
        """
        if self.events is None or not self.takes_fresh:
            return []
        known = self.recommender
        return [item for item in self.events.items_of(self.key(user)) if known.items.find(item) is not None]

    @cached_property
    def takes_fresh(self) -> bool:
        """Whether the model can answer for a history that it was not trained on."""
        try:
            self.recommender.recommend_for_items([self.recommender.split.train.item_ids.head(1)], k=1)
        except ConfigError:
            return False
        return True

    def key(self, user: Any) -> str:
        """The user's id as the log has it."""
        users = self.recommender.users
        code = users.find(user)
        return str(user if code is None else users.ids[code])

    @cached_property
    def items(self) -> Catalogue:
        """The items by their titles, or by their ids where they have none."""
        events = self.recommender.events
        titles = events.titles
        if titles is None:
            titles = pl.repeat(None, events.n_items, dtype=pl.String, eager=True)
        return Catalogue(item=events.item_ids, title=titles, users=np.diff(events.by_item.starts))

    @cached_property
    def lens(self) -> Lens:
        """The distributions of scores that the page's lens on negatives needs."""
        return estimate(self.recommender, self.recommender.split)

    @cached_property
    def item_groups(self) -> Groups:
        """The items by their popularity in training: tail, middle and head."""
        return item_groups(np.diff(self.recommender.split.train.by_item.starts))

    @cached_property
    def users(self) -> Catalogue:
        """The users by their ids."""
        events = self.recommender.events
        return Catalogue(user=events.user_ids, events=np.diff(events.by_user.starts))


def load(path: Path, *, index_above: int | None = None, events: EventLog | None = None) -> Served:
    """Opens a run and tries it: what it returns has answered once, with numbers."""
    # Resolved once: a link that is set to another run meanwhile must not give half of each.
    folder = path.resolve()
    for _ in range(_ATTEMPTS):
        before = signature(folder)
        recommender = load_run(folder, index_above=index_above)
        with answering_weights(folder).open("rb") as opened:
            version = hashlib.file_digest(opened, "sha256").hexdigest()[:16]
        if signature(folder) == before:
            break
    else:  # a training replaces them again and again
        raise RunError(f"the weights of {folder} change faster than they can be read; wait for its training")
    served = Served(recommender, version, folder, events)
    # Also what the first request would otherwise wait for.
    user = recommender.split.train.user_ids.head(1)
    scores = recommender.recommend(user, k=10, include_seen=True)["score"].to_list()
    if not scores or not all(math.isfinite(score) for score in scores):
        raise RunError(f"the model of {folder} scores {scores[:3]}, which are no numbers; train again")
    recommender.similar_items(recommender.split.train.item_ids.head(1), k=1)
    with suppress(HdccfError):  # this user may have no history to explain by
        recommender.explain(user[0], k=1)
    served.items.search("", 1)
    served.users.search("", 1)
    return served


def signature(path: Path) -> Signature:
    """Changes when the run behind `path` gets other weights, or `path` becomes a link to another run."""
    folder = path.resolve()
    try:
        stat = answering_weights(folder).stat()
    except OSError:
        return (folder,)
    items = folder / "items.parquet"
    features = items.stat().st_mtime_ns if items.exists() else None
    return (folder, stat.st_ino, stat.st_mtime_ns, stat.st_size, features)


class Outcome(NamedTuple):
    """What came of an attempt to take a new model."""

    accepted: bool
    version: str
    """Of the model that answers now."""
    detail: str


class AppService:
    """The model of a run's folder, and the threads that score with it.

    `settings.threads` jobs run at a time, and at most `settings.waiting` more wait. `reload` replaces the
    model if the new one loads, and only then.
    """

    def __init__(self, path: Path, settings: ServeSettings) -> None:
        self.path, self.settings, self.metrics = path, settings, Metrics()
        self.timeline = Timeline(self.metrics)
        self.taken = 0
        """Jobs that run or wait."""
        self.last_rejection: str | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._counting, self._reloading = threading.Lock(), threading.Lock()
        self._seen = signature(path)
        self.events = None if settings.events is None else EventLog(settings.events, most=settings.max_events)
        self.items = None if settings.items is None else JsonLines(settings.items)
        """Events and items since the training are kept when the model is replaced."""
        self._added = [] if self.items is None else [json.loads(line) for line in self.items.lines]
        self.current = self._load()
        self.metrics.now_answers(self.current.version)

    @property
    def has_changed(self) -> bool:
        """Whether the weights are others than at the last attempt. What was rejected is not tried again."""
        return signature(self.path) != self._seen

    def reload(self) -> Outcome:
        """Loads beside the old model, in the calling thread; one at a time."""
        with self._reloading:
            self._seen = signature(self.path)
            try:
                new = self._load()
            except Exception as error:
                # Whatever is wrong with a new model, foreseen or not, the old one goes on.
                detail = " ".join(str(error).split()) or type(error).__name__
                self.last_rejection = detail
                self.metrics.reloads.labels("rejected").inc()
                log.warning("the new model was rejected, the old one goes on: %s", detail)
                return Outcome(False, self.current.version, detail)
            old, self.current = self.current, new
            self.last_rejection = None
            self.metrics.reloads.labels("accepted").inc()
            self.metrics.now_answers(new.version)
            same = " (the same weights)" if old.version == new.version else ""
            return Outcome(True, new.version, f"{new.path} answers now{same}")

    def _load(self) -> Served:
        served = load(self.path, index_above=self.settings.index_above, events=self.events)
        if not self._added:
            return served
        try:
            return replace(served, recommender=served.recommender.with_items(self._added))
        except HdccfError as error:
            log.warning("the items of %s are left out: %s", self.settings.items, error)
            return served

    def add_items(self, rows: list[dict[str, Any]]) -> int:
        """Takes items into the catalogue, in the calling thread; says how many of them were not known."""
        assert self.items is not None  # noqa: S101 - the endpoint has looked
        with self._reloading:
            served = self.current
            # What does not fit is refused before it is kept.
            grown = served.recommender.with_items(rows)
            self.items.append(b"".join(to_json(row) + b"\n" for row in rows))
            self._added += rows
            self.current = replace(served, recommender=grown)
            return grown.n_items - served.recommender.n_items

    @property
    def is_full(self) -> bool:
        """Whether as many jobs run and wait as may."""
        return self.taken >= self.settings.threads + self.settings.waiting

    async def answer(self, job: Callable[[Served], T]) -> T:
        """What the job makes of the model that answers now; the model stays the same to its end.

        Or a problem: 503 where there is no place, 504 where it takes too long.
        """
        if self.is_full:
            detail = f"{self.taken} requests are being answered already; come back soon"
            raise ProblemError(problem(503, detail, "busy"), {"Retry-After": "1"})
        if self._executor is None:
            # Threads live as long as the app is up, and an app may be started again.
            self._executor = ThreadPoolExecutor(self.settings.threads, thread_name_prefix="hdccf-scoring")
        with self._counting:
            self.taken += 1
        future = self._executor.submit(self._timed, job, self.current)
        # The place is free when the thread is, not when the client has been answered: jobs that outlive their
        # time-out cannot be stopped, and must not pile up.
        future.add_done_callback(self._leave)
        seconds = self.settings.timeout_seconds
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
        except TimeoutError:
            detail = f"no answer within {seconds:g} s; ask for less at once"
            raise ProblemError(problem(504, detail, "timed-out")) from None

    async def respond(self, job: Callable[[Served], dict[str, Any]]) -> Response:
        """The same as JSON, made in the thread too: the event loop only passes it on."""
        content = await self.answer(lambda served: to_json(job(served)))
        return Response(content, media_type="application/json")

    def close(self) -> None:
        """Waits for what runs and drops what waits."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=True)

    def _timed(self, job: Callable[[Served], T], served: Served) -> T:
        with self.metrics.scoring.time():
            return job(served)

    def _leave(self, _: object) -> None:
        with self._counting:
            self.taken -= 1


def _service_of(request: Request) -> Any:
    return request.app.state.service


Service = Annotated[AppService, Depends(_service_of)]


def require_known(vocabulary: Vocabulary, ids: list[Any]) -> None:
    """A 404 that names the unknown ids."""
    unknown = [str(own) for own in ids if vocabulary.find(own) is None]
    if unknown:
        raise ProblemError(unknown_ids(vocabulary, unknown))


def unknown_ids(vocabulary: Vocabulary, unknown: list[str]) -> Problem:
    """A problem that names unknown ids."""
    first = unknown[0][:_LONGEST_NAME]
    more = f" (like {len(unknown) - 1} more)" if len(unknown) > 1 else ""
    detail = (
        f"{vocabulary.kind} {first!r}{more} is not in {vocabulary.where}; "
        f"known are for example {vocabulary.ids.head(3).to_list()}"
    )
    named = [own[:_LONGEST_NAME] for own in unknown[:_NAMED]]
    return problem(404, detail, "unknown-id", kind=vocabulary.kind, ids=named)
