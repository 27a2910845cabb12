"""Batches drawn while the one before is computed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Batch = TypeVar("Batch")


def prefetch(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches in the same order, each drawn by a thread while its predecessor is at work.

    For steps that leave a core free, and batches that do not depend on what a step has learnt.
    """
    nothing = object()
    with ThreadPoolExecutor(1, "hdccf-ahead") as thread:
        coming = thread.submit(next, batches, nothing)
        while (batch := coming.result()) is not nothing:
            coming = thread.submit(next, batches, nothing)
            yield batch  # type: ignore[misc]
