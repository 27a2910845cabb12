"""The part of a batch that one process of a group computes: some of its rows, against all of its columns."""

from typing import TypeVar, cast

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from hdccf.data.cuts import History, Windows
from hdccf.data.pools import Pool
from hdccf.data.sampling import Block, Drawn, InBatch, Negatives

Batch = TypeVar("Batch", bound=InBatch | Drawn | Block | Pool)


def part_of(batch: Batch, rows: slice) -> Batch:
    """The rows of a batch from `rows.start` to `rows.stop`, numbered from 0; columns stay as they are."""
    if rows == slice(0, len(batch.users)):
        return batch
    part: InBatch | Drawn | Block | Pool
    if isinstance(batch, InBatch):
        sides = (_of_negatives(side, rows) for side in (batch.item_negatives, batch.user_negatives))
        part = InBatch(batch.users[rows], batch.items[rows], batch.weights[rows], *sides)
    elif isinstance(batch, Drawn):
        part = Drawn(*(tensor[rows] for tensor in batch))
    elif isinstance(batch, Pool):
        part = _of_pool(batch, rows)
    else:
        part = _of_block(batch, rows)
    return cast("Batch", part)


def _of_negatives(side: Negatives, rows: slice) -> Negatives:
    kept = _inside(side.observed_rows, rows)
    return Negatives(
        side.columns,
        side.counts,
        side.own[rows],
        side.observed_rows[kept] - rows.start,
        side.observed_columns[kept],
    )


def _of_block(block: Block, rows: slice) -> Block:
    observed, positive = _inside(block.observed_rows, rows), _inside(block.rows, rows)
    return Block(
        block.users[rows],
        block.columns,
        block.inclusion,
        block.observed_rows[observed] - rows.start,
        block.observed_columns[observed],
        block.rows[positive] - rows.start,
        block.positive_columns[positive],
        block.weights[positive],
        _of_history(block.history, rows),
    )


def _of_pool(pool: Pool, rows: slice) -> Pool:
    observed, positive = _inside(pool.observed_rows, rows), _inside(pool.rows, rows)
    return Pool(
        pool.users[rows],
        pool.columns,
        pool.inclusion,
        pool.observed_rows[observed] - rows.start,
        pool.observed_columns[observed],
        pool.rows[positive] - rows.start,
        pool.items[positive],
        pool.weights[positive],
    )


def _of_history(history: History | Windows | None, rows: slice) -> History | Windows | None:
    if isinstance(history, Windows):
        return _of_windows(history, rows)
    if history is None:
        return None
    inside = _inside(history.rows, rows)
    return History(history.rows[inside] - rows.start, history.items[inside], history.weights[inside])


def _of_windows(windows: Windows, rows: slice) -> Windows:
    """The windows that the rows stand in; one that two members share both of them have."""
    n_windows, length = windows.items.shape
    places = windows.places[rows]
    # Whoever has no row at all has a window nevertheless, so that nothing is of no length.
    first, last = (int(places[0]), int(places[-1])) if len(places) else (0, 0)
    first, last = first // length, last // length + 1
    return Windows(windows.items[first:last], places - first * length, first, n_windows)


def _inside(numbers: Int64[Tensor, " n"], rows: slice) -> Bool[Tensor, " n"]:
    return torch.logical_and(numbers >= rows.start, numbers < rows.stop)
