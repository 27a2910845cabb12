"""Scoring off the event loop: a few threads, a bounded queue before them, and a time limit.

torch gives up Python's lock while it multiplies, so that threads do score at the same time.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from hdccf.serving.problems import ProblemError, problem

T = TypeVar("T")


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
