"""Tiles shared among threads that each work alone.

torch shares every operation among its threads and lets all wait for the last before the next one begins.
For operations of a tenth of a millisecond that is a good part of the time, and beside another busy process
most of it. Here each core takes tiles of its own from the product to the sum, and they meet once, at the end.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise
from threading import Barrier
from typing import TypeVar

import torch

Part = TypeVar("Part")
Result = TypeVar("Result")


def share(work: Callable[[Sequence[Part]], Result], parts: Sequence[Part], threads: int) -> list[Result]:
    """work(some of the parts) in each of so many threads, in the order of the parts.

    Which thread gets which parts depends on their numbers alone, so that sums over the results repeat bit
    for bit.
    """
    threads = min(threads, len(parts))
    if threads <= 1:
        return [work(parts)]
    inference = torch.is_inference_mode_enabled()

    def run(some: Sequence[Part]) -> Result:
        # Whether gradients are recorded is a thread's own setting.
        with torch.inference_mode(inference), torch.no_grad():
            return work(some)

    bounds = [len(parts) * thread // threads for thread in range(threads + 1)]
    pool = _pool(threads)
    futures = [pool.submit(run, parts[a:b]) for a, b in pairwise(bounds)]
    wait(futures)  # all of them, also where one fails: they write to the caller's tensors
    return [future.result() for future in futures]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that wait for work, each with one thread of torch."""
    pool = ThreadPoolExecutor(threads, "hdccf-tiles")
    started = Barrier(threads)

    def start() -> None:
        torch.get_num_threads()  # a thread's first look at its number sets it to that of the process
        torch.set_num_threads(1)
        started.wait()

    wait([pool.submit(start) for _ in range(threads)])
    # A thread's number is its own but also becomes that of threads yet to start: set it back.
    torch.set_num_threads(torch.get_num_threads())
    return pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked process has the pool but not its threads
