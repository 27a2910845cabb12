"""What endpoints share: the model, a bounded thread pool that scores, and Prometheus metrics."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from pydantic_core import to_json

from hdccf.recommend.frames import Vocabulary
from hdccf.serving.problems import ProblemError, problem
from hdccf.serving.served import Holder, Outcome, Served
from hdccf.serving.settings import ServeSettings

T = TypeVar("T")
_NAMED = 10
_LONGEST_NAME = 256
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """A registry of its own, so that two apps in one process do not count each other's requests."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "hdccf_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "hdccf_request_seconds",
            "From the arrival of a request to the end of its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.scoring = Histogram(
            "hdccf_scoring_seconds", "What of it the model took.", buckets=_SECONDS, registry=self.registry
        )
        self.under_way = Gauge("hdccf_requests_under_way", "Requests being answered.", registry=self.registry)
        self.reloads = Counter(
            "hdccf_reloads", "Attempts to take a new model.", ["outcome"], registry=self.registry
        )
        self.model = Gauge(
            "hdccf_model", "1 for the model that answers.", ["version"], registry=self.registry
        )
        ProcessCollector(registry=self.registry)

    def now_answers(self, version: str) -> None:
        self.model.clear()
        self.model.labels(version).set(1)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Pool:
    """Runs jobs in `threads` threads; at most `waiting` more wait for one."""

    def __init__(self, threads: int, waiting: int, seconds: float) -> None:
        self._threads = threads
        self._executor: ThreadPoolExecutor | None = None
        self._places = threads + waiting
        self._seconds = seconds
        self._taken = 0
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """Jobs that run or wait."""
        return self._taken

    @property
    def is_full(self) -> bool:
        return self._taken >= self._places

    async def run(self, job: Callable[[], T]) -> T:
        """What the job returns, or a problem: 503 where there is no place, 504 where it takes too long."""
        if self.is_full:
            raise ProblemError(
                problem(503, f"{self._taken} requests are being answered already; come back soon", "busy"),
                {"Retry-After": "1"},
            )
        if self._executor is None:
            # Threads live as long as the app is up, and an app may be started again.
            self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="hdccf-scoring")
        with self._lock:
            self._taken += 1
        future = self._executor.submit(job)
        # The place is free when the thread is, not when the client has been answered: jobs that outlive their
        # time-out cannot be stopped, and must not pile up.
        future.add_done_callback(self._leave)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._seconds)
        except TimeoutError:
            raise ProblemError(
                problem(504, f"no answer within {self._seconds:g} s; ask for less at once", "timed-out")
            ) from None

    def close(self) -> None:
        """Waits for what runs and drops what waits."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=True)

    def _leave(self, future: "Future[T]") -> None:
        with self._lock:
            self._taken -= 1


@dataclass(frozen=True)
class AppService:
    """What the endpoints of one app share."""

    holder: Holder
    pool: Pool
    metrics: Metrics
    settings: ServeSettings

    async def answer(self, job: Callable[[Served], T]) -> T:
        """What the job makes of the model that answers now; the model stays the same to its end."""
        served = self.holder.current

        def timed() -> T:
            started = time.perf_counter()
            try:
                return job(served)
            finally:
                self.metrics.scoring.observe(time.perf_counter() - started)

        return await self.pool.run(timed)

    async def respond(self, job: Callable[[Served], dict[str, Any]]) -> Response:
        """The same as JSON, made in the thread too: the event loop only passes it on."""
        content = await self.answer(lambda served: to_json(job(served)))
        return Response(content, media_type="application/json")

    def reload(self) -> Outcome:
        """Takes the run's model anew, in the calling thread."""
        outcome = self.holder.reload()
        self.metrics.reloads.labels("accepted" if outcome.accepted else "rejected").inc()
        self.metrics.now_answers(outcome.version)
        return outcome


def service_of(request: Request) -> AppService:
    service: AppService = request.app.state.service
    return service


Service = Annotated[AppService, Depends(service_of)]


def require_known(vocabulary: Vocabulary, ids: list[Any]) -> None:
    """A 404 that names the unknown ids."""
    unknown = [str(own) for own in ids if vocabulary.find(own) is None]
    if not unknown:
        return
    first = unknown[0][:_LONGEST_NAME]
    more = f" (like {len(unknown) - 1} more)" if len(unknown) > 1 else ""
    detail = (
        f"{vocabulary.kind} {first!r}{more} is not in {vocabulary.where}; "
        f"known are for example {vocabulary.ids.head(3).to_list()}"
    )
    named = [own[:_LONGEST_NAME] for own in unknown[:_NAMED]]
    raise ProblemError(problem(404, detail, "unknown-id", kind=vocabulary.kind, ids=named))
